/* The vector words for AVX2 with FMA and F16C: 8 float32 or 4 float64 lanes.
 *
 * A word is one operation of ARITHMETIC.md per lane. v_max and v_min are `a > b ? a : b` and
 * `a < b ? a : b`, which is what the instructions do. A vmask lane is all ones or all zeros.
 */
#include "simd/bytes_x86.h"

#define FA_FUSED 1

#if FA_REAL_BITS == 32

typedef float real;
typedef __m256 vec;
typedef __m256 vmask;
#define VEC_LANES 8

FA_INLINE vec v_set1(real x) { return _mm256_set1_ps(x); }
FA_INLINE vec v_load(const real *p) { return _mm256_loadu_ps(p); }
FA_INLINE void v_store(real *p, vec a) { _mm256_storeu_ps(p, a); }

FA_INLINE __m256i v_part(int n) { /* ones in the first n lanes */
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
FA_INLINE vec v_load_part(const real *p, int n) { return _mm256_maskload_ps(p, v_part(n)); }
FA_INLINE void v_store_part(real *p, vec a, int n) { _mm256_maskstore_ps(p, v_part(n), a); }

FA_INLINE vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
FA_INLINE vec v_max(vec a, vec b) { return _mm256_max_ps(a, b); }
FA_INLINE vec v_min(vec a, vec b) { return _mm256_min_ps(a, b); }
FA_INLINE vec v_abs(vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    const vec bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, size), _mm256_and_ps(bit, sign));
}

FA_INLINE vmask v_lt(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
FA_INLINE vmask v_le(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
FA_INLINE vmask v_eq(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
FA_INLINE vmask m_and(vmask a, vmask b) { return _mm256_and_ps(a, b); }
FA_INLINE int m_all(vmask m) { return _mm256_movemask_ps(m) == 0xff; }
#define HAS_ZERO_BYTES 1
FA_INLINE vmask m_zero_bytes(const uint8_t *p) {
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(x, _mm256_setzero_si256()));
}
FA_INLINE vec v_select(vmask m, vec yes, vec no) { return _mm256_blendv_ps(no, yes, m); }
FA_INLINE vec v_keep(vmask m, vec a) { return _mm256_and_ps(m, a); }
FA_INLINE vec v_drop(vmask m, vec a) { return _mm256_andnot_ps(m, a); }

FA_INLINE vec v_shift_to_exponent(vec a) { /* bit pattern << 23 */
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
FA_INLINE vec v_widen_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
FA_INLINE vec v_widen_f32(const float *p) { return _mm256_loadu_ps(p); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    vec t[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        const vec a = t[4 * i], b = t[4 * i + 1], c = t[4 * i + 2], d = t[4 * i + 3];
        r[4 * i] = _mm256_shuffle_ps(a, c, 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; i++) {
        const vec low = r[i], high = r[i + 4];
        r[i] = _mm256_permute2f128_ps(low, high, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

/* Four columns of 8 rows of float32, `row` bytes apart, turned while they are loaded: halves of
 * rows i and i + 4 meet in one register, which saves a third of the shuffles. */
#define TURNED_COLUMNS(dtype) ((void)(dtype), 4)
#define TURNS_WHILE_LOADING(dtype) ((dtype) == FA_FLOAT32)
FA_INLINE vec v_load_halves(const char *p, ptrdiff_t row) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const real *)p)),
                                _mm_loadu_ps((const real *)(p + 4 * row)), 1);
}
FA_INLINE void v_load_turned(fa_dtype dtype, const char *p, ptrdiff_t row, vec *r) {
    (void)dtype;
    const vec a = v_load_halves(p, row), b = v_load_halves(p + row, row);
    const vec c = v_load_halves(p + 2 * row, row), d = v_load_halves(p + 3 * row, row);
    const vec ab0 = _mm256_unpacklo_ps(a, b), ab1 = _mm256_unpackhi_ps(a, b);
    const vec cd0 = _mm256_unpacklo_ps(c, d), cd1 = _mm256_unpackhi_ps(c, d);
    r[0] = _mm256_shuffle_ps(ab0, cd0, 0x44);
    r[1] = _mm256_shuffle_ps(ab0, cd0, 0xee);
    r[2] = _mm256_shuffle_ps(ab1, cd1, 0x44);
    r[3] = _mm256_shuffle_ps(ab1, cd1, 0xee);
}

/* Halves of two rows next to each other, then added or compared: see v_trees in passes.inl.h. */
#define HAS_TREES 1
FA_INLINE vec v_join(int is_sum, vec low, vec high) {
    return is_sum ? v_add(low, high) : v_max(low, high);
}
FA_INLINE vec v_trees(int is_sum, vec r[VEC_LANES]) {
    for (int i = 0; i < 4; i++) /* rows whose results end up 4 lanes apart meet first */
        r[i] = v_join(is_sum, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20),
                      _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    for (int i = 0; i < 4; i += 2)
        r[i] = v_join(is_sum, _mm256_shuffle_ps(r[i], r[i + 1], 0x44),
                      _mm256_shuffle_ps(r[i], r[i + 1], 0xee));
    return v_join(is_sum, _mm256_shuffle_ps(r[0], r[2], 0x88), _mm256_shuffle_ps(r[0], r[2], 0xdd));
}

/* The sum of all lanes, halves added to each other until one is left; the greatest lane. */
FA_INLINE real r_tree_sum(vec a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
FA_INLINE real r_greatest(vec a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

FA_INLINE real r_fma(real a, real b, real c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

#else

typedef double real;
typedef __m256d vec;
typedef __m256d vmask;
#define VEC_LANES 4

FA_INLINE vec v_set1(real x) { return _mm256_set1_pd(x); }
FA_INLINE vec v_load(const real *p) { return _mm256_loadu_pd(p); }
FA_INLINE void v_store(real *p, vec a) { _mm256_storeu_pd(p, a); }

FA_INLINE __m256i v_part(int n) { /* ones in the first n lanes */
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
FA_INLINE vec v_load_part(const real *p, int n) { return _mm256_maskload_pd(p, v_part(n)); }
FA_INLINE void v_store_part(real *p, vec a, int n) { _mm256_maskstore_pd(p, v_part(n), a); }

FA_INLINE vec v_add(vec a, vec b) { return _mm256_add_pd(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return _mm256_sub_pd(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return _mm256_mul_pd(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return _mm256_div_pd(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_pd(a, b, c); }
FA_INLINE vec v_max(vec a, vec b) { return _mm256_max_pd(a, b); }
FA_INLINE vec v_min(vec a, vec b) { return _mm256_min_pd(a, b); }
FA_INLINE vec v_abs(vec a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    const vec bit = _mm256_set1_pd(-0.0);
    return _mm256_or_pd(_mm256_andnot_pd(bit, size), _mm256_and_pd(bit, sign));
}

FA_INLINE vmask v_lt(vec a, vec b) { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
FA_INLINE vmask v_le(vec a, vec b) { return _mm256_cmp_pd(a, b, _CMP_LE_OQ); }
FA_INLINE vmask v_eq(vec a, vec b) { return _mm256_cmp_pd(a, b, _CMP_EQ_OQ); }
FA_INLINE vmask m_and(vmask a, vmask b) { return _mm256_and_pd(a, b); }
FA_INLINE int m_all(vmask m) { return _mm256_movemask_pd(m) == 0xf; }
FA_INLINE vec v_select(vmask m, vec yes, vec no) { return _mm256_blendv_pd(no, yes, m); }
FA_INLINE vec v_keep(vmask m, vec a) { return _mm256_and_pd(m, a); }
FA_INLINE vec v_drop(vmask m, vec a) { return _mm256_andnot_pd(m, a); }

FA_INLINE vec v_shift_to_exponent(vec a) { /* bit pattern << 52 */
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a), 52));
}

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p)));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    const __m128i x = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(x, 16)));
}
FA_INLINE vec v_widen_i8(const int8_t *p) { return _mm256_setr_pd(p[0], p[1], p[2], p[3]); }
FA_INLINE vec v_widen_f32(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    const vec a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    const vec c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20);
    r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31);
    r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

FA_INLINE real r_tree_sum(vec a) {
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
FA_INLINE real r_greatest(vec a) {
    const __m128d s = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(s, _mm_unpackhi_pd(s, s)));
}

FA_INLINE real r_fma(real a, real b, real c) {
    return _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c)));
}

#endif
