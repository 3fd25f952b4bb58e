/* The vector words in portable C: 4 lanes in a struct, no intrinsics, the unfused class.
 *
 * The oracle of the other instruction sets, and what a CPU without one of them runs. Compilers turn
 * most loops into the vector instructions of their baseline. A vmask lane is 1 or 0.
 */
#define VEC_LANES 4

/* Vectors live in memory here: unrolling brings nothing but code. */
#undef FA_UNROLL
#define FA_UNROLL

#if FA_REAL_BITS == 32
typedef float real;
#else
typedef double real;
#endif

typedef struct vec {
    real lane[VEC_LANES];
} vec;

typedef struct vmask {
    int lane[VEC_LANES];
} vmask;

#define FA_EACH_LANE for (int i = 0; i < VEC_LANES; i++)

/* One word per line: its name, its operands, what one lane of the result is. */
#define FA_WORD1(name, result, expression) \
    FA_INLINE result name(vec a) { \
        result r; \
        FA_EACH_LANE r.lane[i] = (expression); \
        return r; \
    }
#define FA_WORD2(name, result, expression) \
    FA_INLINE result name(vec a, vec b) { \
        result r; \
        FA_EACH_LANE r.lane[i] = (expression); \
        return r; \
    }

FA_WORD2(v_add, vec, a.lane[i] + b.lane[i])
FA_WORD2(v_sub, vec, a.lane[i] - b.lane[i])
FA_WORD2(v_mul, vec, a.lane[i] * b.lane[i])
FA_WORD2(v_div, vec, a.lane[i] / b.lane[i])
FA_WORD2(v_max, vec, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
FA_WORD2(v_min, vec, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i])
FA_WORD2(v_lt, vmask, a.lane[i] < b.lane[i])
FA_WORD2(v_le, vmask, a.lane[i] <= b.lane[i])
FA_WORD2(v_eq, vmask, a.lane[i] == b.lane[i])

FA_INLINE real r_fma(real a, real b, real c) {
    const real product = a * b; /* rounded: contraction is off for the whole build */
    return product + c;
}

FA_INLINE vec v_fma(vec a, vec b, vec c) {
    FA_EACH_LANE c.lane[i] = r_fma(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}

FA_INLINE vec v_set1(real x) {
    vec r;
    FA_EACH_LANE r.lane[i] = x;
    return r;
}

FA_INLINE vec v_load(const real *p) {
    vec r;
    memcpy(&r, p, sizeof r);
    return r;
}

FA_INLINE void v_store(real *p, vec a) { memcpy(p, &a, sizeof a); }

FA_INLINE vec v_load_part(const real *p, int n) {
    vec r;
    FA_EACH_LANE r.lane[i] = i < n ? p[i] : 0;
    return r;
}

FA_INLINE real r_tree_sum(vec a) {
    for (int h = VEC_LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++)
            a.lane[i] += a.lane[i + h];
    return a.lane[0];
}

FA_INLINE real r_greatest(vec a) {
    real most = a.lane[0];
    for (int i = 1; i < VEC_LANES; i++)
        most = a.lane[i] > most ? a.lane[i] : most;
    return most;
}

FA_INLINE void v_store_part(real *p, vec a, int n) {
    for (int i = 0; i < VEC_LANES && i < n; i++)
        p[i] = a.lane[i];
}

FA_INLINE vmask m_and(vmask a, vmask b) {
    FA_EACH_LANE a.lane[i] &= b.lane[i];
    return a;
}

FA_INLINE int m_all(vmask m) {
    int all = 1;
    FA_EACH_LANE all &= m.lane[i];
    return all;
}

FA_INLINE vec v_select(vmask m, vec yes, vec no) {
    FA_EACH_LANE no.lane[i] = m.lane[i] ? yes.lane[i] : no.lane[i];
    return no;
}
FA_INLINE vec v_keep(vmask m, vec a) { return v_select(m, a, v_set1(0)); }
FA_INLINE vec v_drop(vmask m, vec a) { return v_select(m, v_set1(0), a); }

#if FA_REAL_BITS == 32
FA_WORD1(v_abs, vec, fa_f32_from_bits(fa_bits_f32(a.lane[i]) & 0x7fffffffu))
FA_WORD1(v_shift_to_exponent, vec, fa_f32_from_bits(fa_bits_f32(a.lane[i]) << 23))
FA_WORD2(v_copysign, vec,
         fa_f32_from_bits((fa_bits_f32(a.lane[i]) & 0x7fffffffu) |
                          (fa_bits_f32(b.lane[i]) & 0x80000000u)))
#else
FA_WORD1(v_abs, vec, fa_f64_from_bits(fa_bits_f64(a.lane[i]) & UINT64_C(0x7fffffffffffffff)))
FA_WORD1(v_shift_to_exponent, vec, fa_f64_from_bits(fa_bits_f64(a.lane[i]) << 52))
FA_WORD2(v_copysign, vec,
         fa_f64_from_bits((fa_bits_f64(a.lane[i]) & UINT64_C(0x7fffffffffffffff)) |
                          (fa_bits_f64(b.lane[i]) & UINT64_C(0x8000000000000000))))
#endif

FA_INLINE vec v_widen_f16(const uint16_t *p) {
    vec r;
    FA_EACH_LANE r.lane[i] = fa_f32_from_f16(p[i]);
    return r;
}
FA_INLINE vec v_widen_bf16(const uint16_t *p) {
    vec r;
    FA_EACH_LANE r.lane[i] = fa_f32_from_bf16(p[i]);
    return r;
}
FA_INLINE vec v_widen_i8(const int8_t *p) {
    vec r;
    FA_EACH_LANE r.lane[i] = p[i];
    return r;
}
FA_INLINE vec v_widen_f32(const float *p) {
    vec r;
    FA_EACH_LANE r.lane[i] = p[i];
    return r;
}

FA_INLINE void v_transpose(vec r[VEC_LANES]) {
    for (int i = 0; i < VEC_LANES; i++)
        for (int j = 0; j < i; j++) {
            const real x = r[i].lane[j];
            r[i].lane[j] = r[j].lane[i];
            r[j].lane[i] = x;
        }
}
