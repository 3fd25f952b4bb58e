/* The vector words for WebAssembly SIMD128: 4 float32 or 2 float64 lanes, the unfused class.
 *
 * A word is one operation of ARITHMETIC.md per lane. pmax(b, a) is `b < a ? a : b`, which is v_max,
 * and pmin(b, a) is v_min; max and min are not, as they return a NaN. One type holds vectors of
 * everything; a vmask lane is all ones or all zeros.
 */
typedef v128_t vec;
typedef v128_t vmask;

#define HAS_BYTES 1
typedef v128_t bytes;
FA_INLINE bytes b_load(const void *p) { return wasm_v128_load(p); }
FA_INLINE void b_store(void *p, bytes a) { wasm_v128_store(p, a); }
FA_INLINE bytes b_zip_low(bytes a, bytes b) {
    return wasm_i8x16_shuffle(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
FA_INLINE bytes b_zip_high(bytes a, bytes b) {
    return wasm_i8x16_shuffle(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

#if FA_REAL_BITS == 32
typedef float real;
#define VEC_LANES 4
#define FA_WASM(operation) wasm_f32x4_##operation
#define FA_WASM_INTEGER(operation) wasm_i32x4_##operation
#define FRACTION_BITS 23
#else
typedef double real;
#define VEC_LANES 2
#define FA_WASM(operation) wasm_f64x2_##operation
#define FA_WASM_INTEGER(operation) wasm_i64x2_##operation
#define FRACTION_BITS 52
#endif

FA_INLINE vec v_set1(real x) { return FA_WASM(splat)(x); }
FA_INLINE vec v_load(const real *p) { return wasm_v128_load(p); }
FA_INLINE void v_store(real *p, vec a) { wasm_v128_store(p, a); }

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

FA_INLINE vec v_add(vec a, vec b) { return FA_WASM(add)(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return FA_WASM(sub)(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return FA_WASM(mul)(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return FA_WASM(div)(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return v_add(v_mul(a, b), c); }
FA_INLINE vec v_max(vec a, vec b) { return FA_WASM(pmax)(b, a); }
FA_INLINE vec v_min(vec a, vec b) { return FA_WASM(pmin)(b, a); }
FA_INLINE vec v_abs(vec a) { return FA_WASM(abs)(a); }

FA_INLINE vmask v_lt(vec a, vec b) { return FA_WASM(lt)(a, b); }
FA_INLINE vmask v_le(vec a, vec b) { return FA_WASM(le)(a, b); }
FA_INLINE vmask v_eq(vec a, vec b) { return FA_WASM(eq)(a, b); }
FA_INLINE vmask m_and(vmask a, vmask b) { return wasm_v128_and(a, b); }
FA_INLINE int m_all(vmask m) { return FA_WASM_INTEGER(all_true)(m); }
FA_INLINE vec v_select(vmask m, vec yes, vec no) { return wasm_v128_bitselect(yes, no, m); }
FA_INLINE vec v_keep(vmask m, vec a) { return wasm_v128_and(a, m); }
FA_INLINE vec v_drop(vmask m, vec a) { return wasm_v128_andnot(a, m); }
FA_INLINE vec v_copysign(vec size, vec sign) {
    return wasm_v128_bitselect(sign, size, v_set1((real)-0.0));
}

FA_INLINE vec v_shift_to_exponent(vec a) { return FA_WASM_INTEGER(shl)(a, FRACTION_BITS); }

/* 4 float16, one per 32 bits, to float32. Shifted into the place of a float32 each is 2^112 too
 * small, subnormals included, so one exact product widens it. Infinity and NaN only need the
 * exponent to be all ones again. */
FA_INLINE v128_t widen_four_f16(v128_t bits) {
    const v128_t magnitude = wasm_v128_and(bits, wasm_i32x4_splat(0x7fff));
    const v128_t sign = wasm_i32x4_shl(wasm_v128_xor(bits, magnitude), 16);
    const v128_t not_finite = wasm_i32x4_gt(magnitude, wasm_i32x4_splat(0x7bff));
    const v128_t ones = wasm_v128_and(not_finite, wasm_i32x4_splat(0x7f800000));
    const v128_t x = wasm_f32x4_mul(wasm_i32x4_shl(magnitude, 13), wasm_f32x4_splat(0x1p112f));
    return wasm_v128_or(x, wasm_v128_or(sign, ones));
}

#if FA_REAL_BITS == 32

FA_INLINE vec v_widen_f16(const uint16_t *p) { return widen_four_f16(wasm_u32x4_load16x4(p)); }
FA_INLINE vec v_widen_bf16(const uint16_t *p) { return wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16); }
FA_INLINE vec v_widen_i8(const int8_t *p) {
    const v128_t words = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p));
    return wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(words));
}
FA_INLINE vec v_widen_f32(const float *p) { return wasm_v128_load(p); }

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    const vec a = wasm_i32x4_shuffle(r[0], r[1], 0, 4, 1, 5);
    const vec b = wasm_i32x4_shuffle(r[0], r[1], 2, 6, 3, 7);
    const vec c = wasm_i32x4_shuffle(r[2], r[3], 0, 4, 1, 5);
    const vec d = wasm_i32x4_shuffle(r[2], r[3], 2, 6, 3, 7);
    r[0] = wasm_i64x2_shuffle(a, c, 0, 2);
    r[1] = wasm_i64x2_shuffle(a, c, 1, 3);
    r[2] = wasm_i64x2_shuffle(b, d, 0, 2);
    r[3] = wasm_i64x2_shuffle(b, d, 1, 3);
}

#else

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    const v128_t bits = wasm_u32x4_extend_low_u16x8(wasm_v128_load32_zero(p));
    return wasm_f64x2_promote_low_f32x4(widen_four_f16(bits));
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    const v128_t bits = wasm_u32x4_extend_low_u16x8(wasm_v128_load32_zero(p));
    return wasm_f64x2_promote_low_f32x4(wasm_i32x4_shl(bits, 16));
}
FA_INLINE vec v_widen_i8(const int8_t *p) { return wasm_f64x2_make(p[0], p[1]); }
FA_INLINE vec v_widen_f32(const float *p) {
    return wasm_f64x2_promote_low_f32x4(wasm_v128_load64_zero(p));
}

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    const vec low = wasm_i64x2_shuffle(r[0], r[1], 0, 2);
    r[1] = wasm_i64x2_shuffle(r[0], r[1], 1, 3);
    r[0] = low;
}

#endif

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

FA_INLINE real r_fma(real a, real b, real c) {
    const real product = a * b; /* rounded: contraction is off for the whole build */
    return product + c;
}
