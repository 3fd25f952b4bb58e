/* The vector words with 16 float32 or 8 float64 lanes in two AVX2 registers, for tests only.
 *
 * The kernels then run as they do with AVX-512, lane for lane and tile for tile, on a CPU without
 * it. Every word is the AVX2 instruction on both halves; names of these differ between the types
 * by a suffix alone. A vmask lane is all ones or all zeros.
 */
#include "simd/bytes_x86.h"
#define KERNEL_ROWS 12 /* as in avx512.h */
#define PAIR_ROWS 6

#define FA_FUSED 1

#if FA_REAL_BITS == 32

typedef float real;
typedef __m256 half_vec;
#define VEC_LANES 16
#define FA_AVX(operation) _mm256_##operation##_ps

FA_INLINE __m256i half_part(int n) { /* ones in the first n lanes */
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
FA_INLINE half_vec half_shift(half_vec a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}
FA_INLINE half_vec half_widen_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
FA_INLINE half_vec half_widen_bf16(const uint16_t *p) {
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
FA_INLINE half_vec half_widen_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
FA_INLINE half_vec half_widen_f32(const float *p) { return _mm256_loadu_ps(p); }

FA_INLINE real r_fma(real a, real b, real c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

#else

typedef double real;
typedef __m256d half_vec;
#define VEC_LANES 8
#define FA_AVX(operation) _mm256_##operation##_pd

FA_INLINE __m256i half_part(int n) { /* ones in the first n lanes */
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
FA_INLINE half_vec half_shift(half_vec a) {
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a), 52));
}
FA_INLINE half_vec half_widen_f16(const uint16_t *p) {
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p)));
}
FA_INLINE half_vec half_widen_bf16(const uint16_t *p) {
    const __m128i x = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(x, 16)));
}
FA_INLINE half_vec half_widen_i8(const int8_t *p) { return _mm256_setr_pd(p[0], p[1], p[2], p[3]); }
FA_INLINE half_vec half_widen_f32(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }

FA_INLINE real r_fma(real a, real b, real c) {
    return _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c)));
}

#endif

#define HALF_LANES (VEC_LANES / 2)

typedef struct vec {
    half_vec low, high;
} vec;
typedef vec vmask;

FA_INLINE half_vec half_lt(half_vec a, half_vec b) { return FA_AVX(cmp)(a, b, _CMP_LT_OQ); }
FA_INLINE half_vec half_le(half_vec a, half_vec b) { return FA_AVX(cmp)(a, b, _CMP_LE_OQ); }
FA_INLINE half_vec half_eq(half_vec a, half_vec b) { return FA_AVX(cmp)(a, b, _CMP_EQ_OQ); }

/* One word per line: its name, and what it does to either half of its operands. */
#define FA_WORD2(name, operation) \
    FA_INLINE vec name(vec a, vec b) { \
        const vec r = {operation(a.low, b.low), operation(a.high, b.high)}; \
        return r; \
    }
#define FA_WIDEN(name, type, operation) \
    FA_INLINE vec name(const type *p) { \
        const vec r = {operation(p), operation(p + HALF_LANES)}; \
        return r; \
    }

FA_WORD2(v_add, FA_AVX(add))
FA_WORD2(v_sub, FA_AVX(sub))
FA_WORD2(v_mul, FA_AVX(mul))
FA_WORD2(v_div, FA_AVX(div))
FA_WORD2(v_max, FA_AVX(max))
FA_WORD2(v_min, FA_AVX(min))
FA_WORD2(v_lt, half_lt)
FA_WORD2(v_le, half_le)
FA_WORD2(v_eq, half_eq)
FA_WORD2(m_and, FA_AVX(and))
FA_WORD2(v_keep, FA_AVX(and))
FA_WORD2(v_or, FA_AVX(or))
FA_WORD2(v_drop, FA_AVX(andnot))
FA_WIDEN(v_load, real, FA_AVX(loadu))
FA_WIDEN(v_widen_f16, uint16_t, half_widen_f16)
FA_WIDEN(v_widen_bf16, uint16_t, half_widen_bf16)
FA_WIDEN(v_widen_i8, int8_t, half_widen_i8)
FA_WIDEN(v_widen_f32, float, half_widen_f32)

FA_INLINE vec v_set1(real x) {
    const vec r = {FA_AVX(set1)(x), FA_AVX(set1)(x)};
    return r;
}
FA_INLINE vec v_fma(vec a, vec b, vec c) {
    const vec r = {FA_AVX(fmadd)(a.low, b.low, c.low), FA_AVX(fmadd)(a.high, b.high, c.high)};
    return r;
}
FA_INLINE vec v_select(vmask m, vec yes, vec no) {
    const vec r = {FA_AVX(blendv)(no.low, yes.low, m.low),
                   FA_AVX(blendv)(no.high, yes.high, m.high)};
    return r;
}
FA_INLINE vec v_shift_to_exponent(vec a) {
    const vec r = {half_shift(a.low), half_shift(a.high)};
    return r;
}
FA_INLINE vec v_abs(vec a) { return v_drop(v_set1((real)-0.0), a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    return v_or(v_abs(size), v_keep(v_set1((real)-0.0), sign));
}
FA_INLINE int m_all(vmask m) {
    return (FA_AVX(movemask)(m.low) & FA_AVX(movemask)(m.high)) == (1 << HALF_LANES) - 1;
}

FA_INLINE void v_store(real *p, vec a) {
    FA_AVX(storeu)(p, a.low);
    FA_AVX(storeu)(p + HALF_LANES, a.high);
}
FA_INLINE vec v_load_part(const real *p, int n) {
    const vec r = {FA_AVX(maskload)(p, half_part(n)),
                   FA_AVX(maskload)(p + HALF_LANES, half_part(n - HALF_LANES))};
    return r;
}
FA_INLINE void v_store_part(real *p, vec a, int n) {
    FA_AVX(maskstore)(p, half_part(n), a.low);
    FA_AVX(maskstore)(p + HALF_LANES, half_part(n - HALF_LANES), a.high);
}

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    real rows[VEC_LANES][VEC_LANES], columns[VEC_LANES][VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        v_store(rows[i], r[i]);
    for (int i = 0; i < VEC_LANES; i++)
        for (int j = 0; j < VEC_LANES; j++)
            columns[j][i] = rows[i][j];
    for (int i = 0; i < VEC_LANES; i++)
        r[i] = v_load(columns[i]);
}

/* The sum of all lanes, halves added to each other until one is left; the greatest lane. */
FA_INLINE real r_tree_sum(vec a) {
    real s[VEC_LANES];
    v_store(s, a);
    for (int h = VEC_LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++)
            s[i] += s[i + h];
    return s[0];
}
FA_INLINE real r_greatest(vec a) {
    real s[VEC_LANES];
    v_store(s, a);
    for (int i = 1; i < VEC_LANES; i++)
        s[0] = s[i] > s[0] ? s[i] : s[0];
    return s[0];
}
