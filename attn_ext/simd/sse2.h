/* The vector words for SSE2, the baseline of x86-64: 4 float32 or 2 float64 lanes, unfused class.
 *
 * A word is one operation of ARITHMETIC.md per lane. v_max and v_min are `a > b ? a : b` and
 * `a < b ? a : b`, which is what the instructions do. A vmask lane is all ones or all zeros.
 */
#include "simd/bytes_x86.h"

/* 4 float16 to float32 without F16C. A float16 shifted into the place of a float32 is 2^112 too
 * small, subnormals included, so one exact product widens it. Infinity and NaN only need the
 * exponent to be all ones again. */
FA_INLINE __m128 widen_four_f16(__m128i half) {
    const __m128i bits = _mm_unpacklo_epi16(half, _mm_setzero_si128());
    const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fff));
    const __m128i sign = _mm_slli_epi32(_mm_xor_si128(bits, magnitude), 16);
    const __m128i not_finite = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
    const __m128i ones = _mm_and_si128(not_finite, _mm_set1_epi32(0x7f800000));
    const __m128 x =
        _mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(magnitude, 13)), _mm_set1_ps(0x1p112f));
    return _mm_or_ps(x, _mm_castsi128_ps(_mm_or_si128(sign, ones)));
}

FA_INLINE __m128 widen_four_bf16(__m128i half) {
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), half));
}

FA_INLINE __m128i load_four_bytes(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm_cvtsi32_si128(four);
}

#if FA_REAL_BITS == 32

typedef float real;
typedef __m128 vec;
typedef __m128 vmask;
#define VEC_LANES 4

FA_INLINE vec v_set1(real x) { return _mm_set1_ps(x); }
FA_INLINE vec v_load(const real *p) { return _mm_loadu_ps(p); }
FA_INLINE void v_store(real *p, vec a) { _mm_storeu_ps(p, a); }

FA_INLINE __m128 load_two(const real *p) {
    return _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)p));
}
FA_INLINE vec v_load_part(const real *p, int n) { /* 0 past the first n */
    switch (n) {
    case 0: return _mm_setzero_ps();
    case 1: return _mm_load_ss(p);
    case 2: return load_two(p);
    case 3: return _mm_movelh_ps(load_two(p), _mm_load_ss(p + 2));
    default: return _mm_loadu_ps(p);
    }
}
FA_INLINE void v_store_part(real *p, vec a, int n) {
    if (n >= VEC_LANES) {
        _mm_storeu_ps(p, a);
        return;
    }
    if (n & 2) {
        _mm_storel_epi64((__m128i *)p, _mm_castps_si128(a));
        a = _mm_movehl_ps(a, a);
    }
    if (n & 1)
        _mm_store_ss(p + (n & 2), a);
}

FA_INLINE vec v_add(vec a, vec b) { return _mm_add_ps(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return _mm_sub_ps(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return _mm_mul_ps(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return _mm_div_ps(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
FA_INLINE vec v_max(vec a, vec b) { return _mm_max_ps(a, b); }
FA_INLINE vec v_min(vec a, vec b) { return _mm_min_ps(a, b); }
FA_INLINE vec v_abs(vec a) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    const vec bit = _mm_set1_ps(-0.0f);
    return _mm_or_ps(_mm_andnot_ps(bit, size), _mm_and_ps(bit, sign));
}

FA_INLINE vmask v_lt(vec a, vec b) { return _mm_cmplt_ps(a, b); }
FA_INLINE vmask v_le(vec a, vec b) { return _mm_cmple_ps(a, b); }
FA_INLINE vmask v_eq(vec a, vec b) { return _mm_cmpeq_ps(a, b); }
FA_INLINE vmask m_and(vmask a, vmask b) { return _mm_and_ps(a, b); }
FA_INLINE int m_all(vmask m) { return _mm_movemask_ps(m) == 0xf; }
FA_INLINE vec v_keep(vmask m, vec a) { return _mm_and_ps(m, a); }
FA_INLINE vec v_drop(vmask m, vec a) { return _mm_andnot_ps(m, a); }
FA_INLINE vec v_select(vmask m, vec yes, vec no) {
    return _mm_or_ps(_mm_and_ps(m, yes), _mm_andnot_ps(m, no));
}

FA_INLINE vec v_shift_to_exponent(vec a) { /* bit pattern << 23 */
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(a), 23));
}

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    return widen_four_f16(_mm_loadl_epi64((const __m128i *)p));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    return widen_four_bf16(_mm_loadl_epi64((const __m128i *)p));
}
FA_INLINE vec v_widen_i8(const int8_t *p) {
    const __m128i bytes = load_four_bytes(p);
    const __m128i words = _mm_unpacklo_epi8(bytes, bytes);
    return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(words, words), 24));
}
FA_INLINE vec v_widen_f32(const float *p) { return _mm_loadu_ps(p); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    const vec a = _mm_unpacklo_ps(r[0], r[1]), b = _mm_unpackhi_ps(r[0], r[1]);
    const vec c = _mm_unpacklo_ps(r[2], r[3]), d = _mm_unpackhi_ps(r[2], r[3]);
    r[0] = _mm_movelh_ps(a, c);
    r[1] = _mm_movehl_ps(c, a);
    r[2] = _mm_movelh_ps(b, d);
    r[3] = _mm_movehl_ps(d, b);
}

/* The sum of all lanes, halves added to each other until one is left; the greatest lane. */
FA_INLINE real r_tree_sum(vec a) {
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
FA_INLINE real r_greatest(vec a) {
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

#else

typedef double real;
typedef __m128d vec;
typedef __m128d vmask;
#define VEC_LANES 2

FA_INLINE vec v_set1(real x) { return _mm_set1_pd(x); }
FA_INLINE vec v_load(const real *p) { return _mm_loadu_pd(p); }
FA_INLINE void v_store(real *p, vec a) { _mm_storeu_pd(p, a); }

FA_INLINE vec v_load_part(const real *p, int n) { /* 0 past the first n */
    return n >= VEC_LANES ? _mm_loadu_pd(p) : n > 0 ? _mm_load_sd(p) : _mm_setzero_pd();
}
FA_INLINE void v_store_part(real *p, vec a, int n) {
    if (n >= VEC_LANES)
        _mm_storeu_pd(p, a);
    else if (n > 0)
        _mm_store_sd(p, a);
}

FA_INLINE vec v_add(vec a, vec b) { return _mm_add_pd(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return _mm_sub_pd(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return _mm_mul_pd(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return _mm_div_pd(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return _mm_add_pd(_mm_mul_pd(a, b), c); }
FA_INLINE vec v_max(vec a, vec b) { return _mm_max_pd(a, b); }
FA_INLINE vec v_min(vec a, vec b) { return _mm_min_pd(a, b); }
FA_INLINE vec v_abs(vec a) { return _mm_andnot_pd(_mm_set1_pd(-0.0), a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    const vec bit = _mm_set1_pd(-0.0);
    return _mm_or_pd(_mm_andnot_pd(bit, size), _mm_and_pd(bit, sign));
}

FA_INLINE vmask v_lt(vec a, vec b) { return _mm_cmplt_pd(a, b); }
FA_INLINE vmask v_le(vec a, vec b) { return _mm_cmple_pd(a, b); }
FA_INLINE vmask v_eq(vec a, vec b) { return _mm_cmpeq_pd(a, b); }
FA_INLINE vmask m_and(vmask a, vmask b) { return _mm_and_pd(a, b); }
FA_INLINE int m_all(vmask m) { return _mm_movemask_pd(m) == 0x3; }
FA_INLINE vec v_keep(vmask m, vec a) { return _mm_and_pd(m, a); }
FA_INLINE vec v_drop(vmask m, vec a) { return _mm_andnot_pd(m, a); }
FA_INLINE vec v_select(vmask m, vec yes, vec no) {
    return _mm_or_pd(_mm_and_pd(m, yes), _mm_andnot_pd(m, no));
}

FA_INLINE vec v_shift_to_exponent(vec a) { /* bit pattern << 52 */
    return _mm_castsi128_pd(_mm_slli_epi64(_mm_castpd_si128(a), 52));
}

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    return _mm_cvtps_pd(widen_four_f16(load_four_bytes(p)));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    return _mm_cvtps_pd(widen_four_bf16(load_four_bytes(p)));
}
FA_INLINE vec v_widen_i8(const int8_t *p) { return _mm_setr_pd(p[0], p[1]); }
FA_INLINE vec v_widen_f32(const float *p) { return _mm_setr_pd(p[0], p[1]); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    const vec low = _mm_unpacklo_pd(r[0], r[1]);
    r[1] = _mm_unpackhi_pd(r[0], r[1]);
    r[0] = low;
}

FA_INLINE real r_tree_sum(vec a) { return _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a))); }
FA_INLINE real r_greatest(vec a) { return _mm_cvtsd_f64(_mm_max_sd(a, _mm_unpackhi_pd(a, a))); }

#endif

FA_INLINE real r_fma(real a, real b, real c) {
    const real product = a * b; /* rounded: contraction is off for the whole build */
    return product + c;
}
