/* The vector words for AVX-512 F, DQ, BW and VL: 16 float32 or 8 float64 lanes.
 *
 * A word is one operation of ARITHMETIC.md per lane. v_max and v_min are `a > b ? a : b` and
 * `a < b ? a : b`, which is what the instructions do. A vmask has one bit per lane.
 */
#include "simd/bytes_x86.h"

/* 12 rows of 2 vectors: 24 sums and 2 lanes of 32 registers; the scalar comes from memory. */
#define KERNEL_ROWS 12
#define PAIR_ROWS 6

#define FA_FUSED 1
#define HAS_MASKED_ADD 1

#if FA_REAL_BITS == 32

typedef float real;
typedef __m512 vec;
typedef __mmask16 vmask;
#define VEC_LANES 16

FA_INLINE vec v_set1(real x) { return _mm512_set1_ps(x); }
FA_INLINE vec v_load(const real *p) { return _mm512_loadu_ps(p); }
FA_INLINE void v_store(real *p, vec a) { _mm512_storeu_ps(p, a); }

FA_INLINE vmask v_part(int n) { return (vmask)((1u << n) - 1); } /* ones for the first n lanes */
FA_INLINE vec v_load_part(const real *p, int n) { return _mm512_maskz_loadu_ps(v_part(n), p); }
FA_INLINE void v_store_part(real *p, vec a, int n) { _mm512_mask_storeu_ps(p, v_part(n), a); }

FA_INLINE vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
FA_INLINE vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
FA_INLINE vec v_min(vec a, vec b) { return _mm512_min_ps(a, b); }
FA_INLINE vec v_abs(vec a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    const vec bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, size), _mm512_and_ps(bit, sign));
}

FA_INLINE vmask v_lt(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
FA_INLINE vmask v_le(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
FA_INLINE vmask v_eq(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
FA_INLINE vmask m_and(vmask a, vmask b) { return (vmask)(a & b); }
FA_INLINE int m_all(vmask m) { return m == 0xffff; }
#define HAS_ZERO_BYTES 1
FA_INLINE vmask m_zero_bytes(const uint8_t *p) {
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    return _mm_testn_epi8_mask(x, x);
}
FA_INLINE vec v_select(vmask m, vec yes, vec no) { return _mm512_mask_blend_ps(m, no, yes); }
FA_INLINE vec v_keep(vmask m, vec a) { return _mm512_maskz_mov_ps(m, a); }
FA_INLINE vec v_drop(vmask m, vec a) { return _mm512_maskz_mov_ps((vmask)~m, a); }
FA_INLINE vec v_add_kept(vmask m, vec a, vec b) { return _mm512_mask_add_ps(a, m, a, b); }
FA_INLINE vec v_add_dropped(vmask m, vec a, vec b) { return v_add_kept((vmask)~m, a, b); }

FA_INLINE vec v_shift_to_exponent(vec a) { /* bit pattern << 23 */
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
}

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
FA_INLINE vec v_widen_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
FA_INLINE vec v_widen_f32(const float *p) { return _mm512_loadu_ps(p); }

/* Four columns of 16 rows, turned, from quarters: q[i] holds rows i, i + 4, i + 8 and i + 12. */
FA_INLINE void turn_quarters(const vec q[4], vec r[4]) {
    const vec ab0 = _mm512_unpacklo_ps(q[0], q[1]), ab1 = _mm512_unpackhi_ps(q[0], q[1]);
    const vec cd0 = _mm512_unpacklo_ps(q[2], q[3]), cd1 = _mm512_unpackhi_ps(q[2], q[3]);
    r[0] = _mm512_shuffle_ps(ab0, cd0, 0x44);
    r[1] = _mm512_shuffle_ps(ab0, cd0, 0xee);
    r[2] = _mm512_shuffle_ps(ab1, cd1, 0x44);
    r[3] = _mm512_shuffle_ps(ab1, cd1, 0xee);
}

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    vec q[4][4]; /* q[c][i]: columns 4c .. 4c + 3 of rows i, i + 4, i + 8, i + 12 */
    for (int i = 0; i < 4; i++) {
        const vec low0 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x44);
        const vec high0 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xee);
        const vec low1 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x44);
        const vec high1 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xee);
        q[0][i] = _mm512_shuffle_f32x4(low0, low1, 0x88);
        q[1][i] = _mm512_shuffle_f32x4(low0, low1, 0xdd);
        q[2][i] = _mm512_shuffle_f32x4(high0, high1, 0x88);
        q[3][i] = _mm512_shuffle_f32x4(high0, high1, 0xdd);
    }
    for (int c = 0; c < 4; c++)
        turn_quarters(q[c], r + 4 * c);
}

/* Columns of 16 rows, `row` bytes apart, turned while they are loaded. Of float32 and 16 bits
 * eight: halves of rows i and i + 4 meet in one register, as do those of rows i + 8 and i + 12, are
 * widened, and three of four shuffles are left. Of int8 sixteen: they are turned as bytes. */
#define TURNED_COLUMNS(dtype) ((dtype) == FA_INT8 ? 16 : 8)
#define TURNS_WHILE_LOADING(dtype) ((void)(dtype), 1)
FA_INLINE vec v_load_halves(fa_dtype dtype, const char *p, const char *q) {
    if (dtype == FA_FLOAT32)
        return _mm512_castpd_ps(
            _mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd((const double *)p)),
                               _mm256_loadu_pd((const double *)q), 1));
    const __m256i x =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)),
                                _mm_loadu_si128((const __m128i *)q), 1);
    if (dtype == FA_FLOAT16)
        return _mm512_cvtph_ps(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
FA_INLINE __m512i load_quarters_of_bytes(const char *p, ptrdiff_t row) {
    __m512i q = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    q = _mm512_inserti32x4(q, _mm_loadu_si128((const __m128i *)(p + 4 * row)), 1);
    q = _mm512_inserti32x4(q, _mm_loadu_si128((const __m128i *)(p + 8 * row)), 2);
    return _mm512_inserti32x4(q, _mm_loadu_si128((const __m128i *)(p + 12 * row)), 3);
}
FA_INLINE void v_load_turned_i8(const char *p, ptrdiff_t row, vec r[16]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i q[4], pair[4], four[4]; /* four[c]: columns 4c .. 4c + 3, four rows in each 32 bits */
    int8_t column[16][16];
    for (int i = 0; i < 4; i++)
        q[i] = load_quarters_of_bytes(p + i * row, row);
    for (int i = 0; i < 2; i++) {
        pair[i] = _mm512_unpacklo_epi8(q[2 * i], q[2 * i + 1]);
        pair[i + 2] = _mm512_unpackhi_epi8(q[2 * i], q[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        four[2 * i] = _mm512_unpacklo_epi16(pair[2 * i], pair[2 * i + 1]);
        four[2 * i + 1] = _mm512_unpackhi_epi16(pair[2 * i], pair[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) /* through memory: a load widens what a shuffle had to extract */
        _mm512_storeu_si512(column[4 * i], _mm512_permutexvar_epi32(order, four[i]));
    for (int k = 0; k < 16; k++)
        r[k] = v_widen_i8(column[k]);
}
FA_INLINE void v_load_turned(fa_dtype dtype, const char *p, ptrdiff_t row, vec *r) {
    vec q[4], half[2][4]; /* half[h][c]: columns c and c + 4 of rows 8 h and on */
    if (dtype == FA_INT8) {
        v_load_turned_i8(p, row, r);
        return;
    }
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 4; i++)
            q[i] = v_load_halves(dtype, p + (8 * h + i) * row, p + (8 * h + i + 4) * row);
        turn_quarters(q, half[h]);
    }
    for (int c = 0; c < 4; c++) {
        r[c] = _mm512_shuffle_f32x4(half[0][c], half[1][c], 0x88);
        r[c + 4] = _mm512_shuffle_f32x4(half[0][c], half[1][c], 0xdd);
    }
}

/* Halves of a and b next to each other, then added or compared: see v_trees in passes.inl.h. */
#define HAS_TREES 1
FA_INLINE vec v_join(int is_sum, vec low, vec high) {
    return is_sum ? v_add(low, high) : v_max(low, high);
}
FA_INLINE vec v_trees(int is_sum, vec r[VEC_LANES]) {
    for (int i = 0; i < 16; i += 4) { /* rows whose results end up 4 lanes apart meet first */
        vec *a = &r[i / 4], pair[2];
        for (int k = 0; k < 2; k++) {
            const vec x = a[8 * k], y = a[8 * k + 4];
            pair[k] =
                v_join(is_sum, _mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
        }
        a[0] = v_join(is_sum, _mm512_shuffle_f32x4(pair[0], pair[1], 0x88),
                      _mm512_shuffle_f32x4(pair[0], pair[1], 0xdd));
    }
    for (int k = 0; k < 4; k += 2)
        r[k] = v_join(is_sum, _mm512_shuffle_ps(r[k], r[k + 1], 0x44),
                      _mm512_shuffle_ps(r[k], r[k + 1], 0xee));
    return v_join(is_sum, _mm512_shuffle_ps(r[0], r[2], 0x88), _mm512_shuffle_ps(r[0], r[2], 0xdd));
}

/* The sum of all lanes, halves added to each other until one is left; the greatest lane. */
FA_INLINE real r_tree_sum(vec a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
FA_INLINE real r_greatest(vec a) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

FA_INLINE real r_fma(real a, real b, real c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

#else

typedef double real;
typedef __m512d vec;
typedef __mmask8 vmask;
#define VEC_LANES 8

FA_INLINE vec v_set1(real x) { return _mm512_set1_pd(x); }
FA_INLINE vec v_load(const real *p) { return _mm512_loadu_pd(p); }
FA_INLINE void v_store(real *p, vec a) { _mm512_storeu_pd(p, a); }

FA_INLINE vmask v_part(int n) { return (vmask)((1u << n) - 1); } /* ones for the first n lanes */
FA_INLINE vec v_load_part(const real *p, int n) { return _mm512_maskz_loadu_pd(v_part(n), p); }
FA_INLINE void v_store_part(real *p, vec a, int n) { _mm512_mask_storeu_pd(p, v_part(n), a); }

FA_INLINE vec v_add(vec a, vec b) { return _mm512_add_pd(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return _mm512_sub_pd(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return _mm512_mul_pd(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return _mm512_div_pd(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_pd(a, b, c); }
FA_INLINE vec v_max(vec a, vec b) { return _mm512_max_pd(a, b); }
FA_INLINE vec v_min(vec a, vec b) { return _mm512_min_pd(a, b); }
FA_INLINE vec v_abs(vec a) { return _mm512_andnot_pd(_mm512_set1_pd(-0.0), a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    const vec bit = _mm512_set1_pd(-0.0);
    return _mm512_or_pd(_mm512_andnot_pd(bit, size), _mm512_and_pd(bit, sign));
}

FA_INLINE vmask v_lt(vec a, vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
FA_INLINE vmask v_le(vec a, vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_LE_OQ); }
FA_INLINE vmask v_eq(vec a, vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
FA_INLINE vmask m_and(vmask a, vmask b) { return (vmask)(a & b); }
FA_INLINE int m_all(vmask m) { return m == 0xff; }
#define HAS_ZERO_BYTES 1
FA_INLINE vmask m_zero_bytes(const uint8_t *p) {
    const __m128i x = _mm_loadl_epi64((const __m128i *)p);
    return (vmask)_mm_testn_epi8_mask(x, x);
}
FA_INLINE vec v_select(vmask m, vec yes, vec no) { return _mm512_mask_blend_pd(m, no, yes); }
FA_INLINE vec v_keep(vmask m, vec a) { return _mm512_maskz_mov_pd(m, a); }
FA_INLINE vec v_drop(vmask m, vec a) { return _mm512_maskz_mov_pd((vmask)~m, a); }
FA_INLINE vec v_add_kept(vmask m, vec a, vec b) { return _mm512_mask_add_pd(a, m, a, b); }
FA_INLINE vec v_add_dropped(vmask m, vec a, vec b) { return v_add_kept((vmask)~m, a, b); }

FA_INLINE vec v_shift_to_exponent(vec a) { /* bit pattern << 52 */
    return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(a), 52));
}

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)));
}
FA_INLINE vec v_widen_i8(const int8_t *p) {
    return _mm512_cvtepi32_pd(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
FA_INLINE vec v_widen_f32(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    vec t[8]; /* even and odd columns of rows 2i and 2i + 1, in pairs */
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm512_unpacklo_pd(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_pd(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        const vec low0 = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88);
        const vec high0 = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
        const vec low1 = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
        const vec high1 = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
        r[i] = _mm512_shuffle_f64x2(low0, low1, 0x88);
        r[i + 4] = _mm512_shuffle_f64x2(low0, low1, 0xdd);
        r[i + 2] = _mm512_shuffle_f64x2(high0, high1, 0x88);
        r[i + 6] = _mm512_shuffle_f64x2(high0, high1, 0xdd);
    }
}

FA_INLINE real r_tree_sum(vec a) {
    const __m256d half = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
FA_INLINE real r_greatest(vec a) {
    const __m256d half = _mm256_max_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    const __m128d s = _mm_max_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(_mm_max_sd(s, _mm_unpackhi_pd(s, s)));
}

FA_INLINE real r_fma(real a, real b, real c) {
    return _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c)));
}

#endif
