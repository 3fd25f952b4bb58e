/* The vector words for NEON (Advanced SIMD), the baseline of aarch64: 4 float32 or 2 float64 lanes.
 *
 * A word is one operation of ARITHMETIC.md per lane. v_max and v_min are `a > b ? a : b` and
 * `a < b ? a : b`, which the instructions of that name are not: those return a NaN and order zeros.
 * A vmask lane is all ones or all zeros.
 */

/* 6 rows of 4 vectors: 24 sums, 4 lanes and a scalar of 32 registers. */
#define PANEL_VECS 4

#define FA_FUSED 1

#define HAS_BYTES 1
typedef uint8x16_t bytes;
FA_INLINE bytes b_load(const void *p) { return vld1q_u8((const uint8_t *)p); }
FA_INLINE void b_store(void *p, bytes a) { vst1q_u8((uint8_t *)p, a); }
FA_INLINE bytes b_zip_low(bytes a, bytes b) { return vzip1q_u8(a, b); }
FA_INLINE bytes b_zip_high(bytes a, bytes b) { return vzip2q_u8(a, b); }

#if FA_REAL_BITS == 32

typedef float real;
typedef float32x4_t vec;
typedef uint32x4_t vmask;
#define VEC_LANES 4

FA_INLINE uint32x4_t bits_of(vec a) { return vreinterpretq_u32_f32(a); }
FA_INLINE vec vec_of(uint32x4_t bits) { return vreinterpretq_f32_u32(bits); }

FA_INLINE vec v_set1(real x) { return vdupq_n_f32(x); }
FA_INLINE vec v_load(const real *p) { return vld1q_f32(p); }
FA_INLINE void v_store(real *p, vec a) { vst1q_f32(p, a); }

FA_INLINE vec v_add(vec a, vec b) { return vaddq_f32(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return vsubq_f32(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return vmulq_f32(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return vdivq_f32(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
FA_INLINE vec v_max(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
FA_INLINE vec v_min(vec a, vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
FA_INLINE vec v_abs(vec a) { return vabsq_f32(a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, size);
}

FA_INLINE vmask v_lt(vec a, vec b) { return vcltq_f32(a, b); }
FA_INLINE vmask v_le(vec a, vec b) { return vcleq_f32(a, b); }
FA_INLINE vmask v_eq(vec a, vec b) { return vceqq_f32(a, b); }
FA_INLINE vmask m_and(vmask a, vmask b) { return vandq_u32(a, b); }
FA_INLINE int m_all(vmask m) { return vminvq_u32(m) != 0; }
FA_INLINE vec v_select(vmask m, vec yes, vec no) { return vbslq_f32(m, yes, no); }
FA_INLINE vec v_keep(vmask m, vec a) { return vec_of(vandq_u32(bits_of(a), m)); }
FA_INLINE vec v_drop(vmask m, vec a) { return vec_of(vbicq_u32(bits_of(a), m)); }

FA_INLINE vec v_shift_to_exponent(vec a) { return vec_of(vshlq_n_u32(bits_of(a), 23)); }

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) { return vec_of(vshll_n_u16(vld1_u16(p), 16)); }
FA_INLINE vec v_widen_i8(const int8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
FA_INLINE vec v_widen_f32(const float *p) { return vld1q_f32(p); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    const float32x4x2_t a = vzipq_f32(r[0], r[2]), b = vzipq_f32(r[1], r[3]);
    const float32x4x2_t low = vzipq_f32(a.val[0], b.val[0]), high = vzipq_f32(a.val[1], b.val[1]);
    r[0] = low.val[0];
    r[1] = low.val[1];
    r[2] = high.val[0];
    r[3] = high.val[1];
}

/* The sum of all lanes, halves added to each other until one is left; the greatest lane. */
FA_INLINE real r_tree_sum(vec a) {
    const float32x2_t s = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
}
FA_INLINE real r_greatest(vec a) { return vmaxnmvq_f32(a); }

FA_INLINE real r_fma(real a, real b, real c) {
    return vget_lane_f32(vfma_f32(vdup_n_f32(c), vdup_n_f32(a), vdup_n_f32(b)), 0);
}

#else

typedef double real;
typedef float64x2_t vec;
typedef uint64x2_t vmask;
#define VEC_LANES 2

FA_INLINE uint64x2_t bits_of(vec a) { return vreinterpretq_u64_f64(a); }
FA_INLINE vec vec_of(uint64x2_t bits) { return vreinterpretq_f64_u64(bits); }

FA_INLINE vec v_set1(real x) { return vdupq_n_f64(x); }
FA_INLINE vec v_load(const real *p) { return vld1q_f64(p); }
FA_INLINE void v_store(real *p, vec a) { vst1q_f64(p, a); }

FA_INLINE vec v_add(vec a, vec b) { return vaddq_f64(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return vsubq_f64(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return vmulq_f64(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return vdivq_f64(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return vfmaq_f64(c, a, b); }
FA_INLINE vec v_max(vec a, vec b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
FA_INLINE vec v_min(vec a, vec b) { return vbslq_f64(vcltq_f64(a, b), a, b); }
FA_INLINE vec v_abs(vec a) { return vabsq_f64(a); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    return vbslq_f64(vdupq_n_u64(UINT64_C(0x8000000000000000)), sign, size);
}

FA_INLINE vmask v_lt(vec a, vec b) { return vcltq_f64(a, b); }
FA_INLINE vmask v_le(vec a, vec b) { return vcleq_f64(a, b); }
FA_INLINE vmask v_eq(vec a, vec b) { return vceqq_f64(a, b); }
FA_INLINE vmask m_and(vmask a, vmask b) { return vandq_u64(a, b); }
FA_INLINE int m_all(vmask m) { return vminvq_u32(vreinterpretq_u32_u64(m)) != 0; }
FA_INLINE vec v_select(vmask m, vec yes, vec no) { return vbslq_f64(m, yes, no); }
FA_INLINE vec v_keep(vmask m, vec a) { return vec_of(vandq_u64(bits_of(a), m)); }
FA_INLINE vec v_drop(vmask m, vec a) { return vec_of(vbicq_u64(bits_of(a), m)); }

FA_INLINE vec v_shift_to_exponent(vec a) { return vec_of(vshlq_n_u64(bits_of(a), 52)); }

FA_INLINE uint16x4_t load_two_words(const uint16_t *p) {
    uint32_t two;
    memcpy(&two, p, sizeof two);
    return vreinterpret_u16_u32(vdup_n_u32(two));
}
FA_INLINE vec v_widen_f16(const uint16_t *p) {
    const float32x4_t x = vcvt_f32_f16(vreinterpret_f16_u16(load_two_words(p)));
    return vcvt_f64_f32(vget_low_f32(x));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    const uint32x4_t bits = vshll_n_u16(load_two_words(p), 16);
    return vcvt_f64_f32(vget_low_f32(vreinterpretq_f32_u32(bits)));
}
FA_INLINE vec v_widen_i8(const int8_t *p) { return vsetq_lane_f64(p[1], vdupq_n_f64(p[0]), 1); }
FA_INLINE vec v_widen_f32(const float *p) { return vcvt_f64_f32(vld1_f32(p)); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    const vec low = vzip1q_f64(r[0], r[1]);
    r[1] = vzip2q_f64(r[0], r[1]);
    r[0] = low;
}

FA_INLINE real r_tree_sum(vec a) { return vgetq_lane_f64(a, 0) + vgetq_lane_f64(a, 1); }
FA_INLINE real r_greatest(vec a) { return vmaxnmvq_f64(a); }

FA_INLINE real r_fma(real a, real b, real c) {
    return vgetq_lane_f64(vfmaq_f64(vdupq_n_f64(c), vdupq_n_f64(a), vdupq_n_f64(b)), 0);
}

#endif

FA_INLINE vec v_load_part(const real *p, int n) { /* 0 past the first n */
    real lanes[VEC_LANES] = {0};
    for (int i = 0; i < VEC_LANES && i < n; i++)
        lanes[i] = p[i];
    return v_load(lanes);
}
FA_INLINE void v_store_part(real *p, vec a, int n) {
    real lanes[VEC_LANES];
    v_store(lanes, a);
    for (int i = 0; i < VEC_LANES && i < n; i++)
        p[i] = lanes[i];
}
