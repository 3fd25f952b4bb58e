/* exp2, tanh and log2 of ARITHMETIC.md ("Functions"), and the constants of the type. */

#if FA_REAL_BITS == 32
#define REAL_HUGE 0x1.fffffep127f
#define LOG2E 0x1.715476p+0f
#define LN2 0x1.62e430p-1f
#define EXP2_MIN (-126.0f)
#define TANH_CLAMP 32.0f
/* Adding this rounds to an integer n, ties to even as it is even itself, and leaves n + 128 in the
 * low bits: a shift makes 2^(n + 1). Everything it meets is halved, which is exact. */
#define ROUND_TO_INTEGER (0x1.8p23f + 128.0f)
static const real HALF_POWER[] = {0x1.62e430p-2f, 0x1.ebfbe0p-4f,  0x1.c6af6cp-6f,
                                  0x1.3b2a54p-8f, 0x1.5f0890p-11f, 0x1.44138ap-14f};
static const real LOGARITHM[] = {0x1.715476p+1f, 0x1.ec73eap-1f, 0x1.2631bep-1f, 0x1.eb9f16p-2f};
#else
#define REAL_HUGE 0x1.fffffffffffffp1023
#define LOG2E 0x1.71547652b82fep+0
#define LN2 0x1.62e42fefa39efp-1
#define EXP2_MIN (-1022.0)
#define TANH_CLAMP 64.0
#define ROUND_TO_INTEGER (0x1.8p52 + 1024.0)
static const real HALF_POWER[] = {
    0x1.62e42fefa39efp-2,  0x1.ebfbdff82c598p-4,  0x1.c6b08d704a0c2p-6,  0x1.3b2ab6fba1ddap-8,
    0x1.5d87fe78a5276p-11, 0x1.430913096fd9fp-14, 0x1.ffcbfc670dcd4p-18, 0x1.62bfd47773353p-21,
    0x1.b524fae627834p-25, 0x1.e6063f7217bc6p-29, 0x1.e9d3fe3952179p-33};
static const real LOGARITHM[] = {0x1.71547652b82fep+1, 0x1.ec709dc3a08f8p-1, 0x1.2776c50e48e57p-1,
                                 0x1.a61763d01bcb3p-2, 0x1.484a9be37fb46p-2, 0x1.0cb423dc3c4ffp-2,
                                 0x1.c0c841c78fc46p-3, 0x1.d931ff3f8daa7p-3};
#endif
#define POWER_TERMS ((int)(sizeof HALF_POWER / sizeof HALF_POWER[0]))
#define LOGARITHM_TERMS ((int)(sizeof LOGARITHM / sizeof LOGARITHM[0]))
#define REAL_INFINITY ((real)INFINITY)

/* x = n + f with n = rint(x): returns P(f)/2 = (2^f - 1)/2f, sets f and 2^(n + 1). |x| is at most
 * about 1000 for that to mean anything; a NaN in x goes through P(f), never through integers. */
FA_INLINE vec v_power_parts(vec x, vec *f, vec *twice_power_of_n) {
    const vec shifted = v_add(x, v_set1(ROUND_TO_INTEGER));
    *f = v_sub(x, v_sub(shifted, v_set1(ROUND_TO_INTEGER)));
    *twice_power_of_n = v_shift_to_exponent(shifted);
    vec p = v_set1(HALF_POWER[POWER_TERMS - 1]);
    for (int k = POWER_TERMS - 2; k >= 0; k--)
        p = v_fma(p, *f, v_set1(HALF_POWER[k]));
    return p;
}

/* 2^x for x <= 0 or NaN; 0 below EXP2_MIN, never subnormal. */
FA_INLINE vec v_exp2(vec x) {
    vec f, twice_power_of_n;
    const vec half_p = v_power_parts(x, &f, &twice_power_of_n);
    const vec r = v_mul(v_fma(half_p, f, v_set1((real)0.5)), twice_power_of_n);
    return v_drop(v_lt(x, v_set1(EXP2_MIN)), r);
}

FA_INLINE vec v_tanh(vec x) {
    const vec y = v_min(v_set1(TANH_CLAMP), v_mul(v_abs(x), v_set1(2 * LOG2E)));
    vec f, twice_k;
    const vec half_p = v_power_parts(y, &f, &twice_k);
    const vec k = v_mul(twice_k, v_set1((real)0.5));
    const vec e = v_mul(f, v_add(half_p, half_p)); /* not half of it: it may be subnormal */
    const vec u = v_fma(k, e, v_sub(k, v_set1(1)));
    return v_copysign(v_div(u, v_add(u, v_set1(2))), x);
}

/* log2 of a finite x >= 1, one value: it is needed once per row. */
FA_INLINE real r_log2(real x) {
#if FA_REAL_BITS == 32
    const uint32_t bits = fa_bits_f32(x);
    const uint32_t exponent = (bits - 0x3f3504f3u) >> 23;
    const real z = fa_f32_from_bits(bits - (exponent << 23));
#else
    const uint64_t bits = fa_bits_f64(x);
    const uint64_t exponent = (bits - UINT64_C(0x3fe6a09e667f3bcd)) >> 52;
    const real z = fa_f64_from_bits(bits - (exponent << 52));
#endif
    const real s = (z - 1) / (z + 1);
    const real u = s * s;
    real g = LOGARITHM[LOGARITHM_TERMS - 1];
    for (int k = LOGARITHM_TERMS - 2; k >= 0; k--)
        g = r_fma(g, u, LOGARITHM[k]);
    return r_fma(s, g, (real)exponent);
}

/* One value at a time, for what is needed once per row. */
FA_INLINE real r_exp2(real x) {
    real r[VEC_LANES];
    v_store(r, v_exp2(v_set1(x)));
    return r[0];
}

/* What exponentials are counted from (`ms` of ARITHMETIC.md): the maximum, or 0 if nothing is
 * visible. */
FA_INLINE vec v_base(vec max) { return v_drop(v_eq(max, v_set1(-REAL_INFINITY)), max); }
FA_INLINE real r_base(real max) { return max == -REAL_INFINITY ? 0 : max; }

FA_INLINE real r_max(real a, real b) { return a > b ? a : b; }
FA_INLINE int r_is_finite(real x) { return x - x == 0; }

/* a + b where the mask is set, or where it is not, else a; a is not -0. */
#ifndef HAS_MASKED_ADD
FA_INLINE vec v_add_kept(vmask m, vec a, vec b) { return v_add(a, v_keep(m, b)); }
FA_INLINE vec v_add_dropped(vmask m, vec a, vec b) { return v_add(a, v_drop(m, b)); }
#endif

/* p / s correctly rounded, z = 1 / s rounded, in three operations instead of a division. Where q is
 * one of the two neighbours of p / s, this is Markstein's theorem (IBM J. Res. Dev. 34, 1990). It
 * may be one further off only if the significand of p is less than that of s, and then fails only
 * next to a midpoint of two floats: tests/c/test_quotient.c goes through all such pairs. It needs
 * q, z and p - q s to be normal, which the caller sees to. */
#if defined(FA_FUSED) && FA_REAL_BITS == 32
#define HAS_QUOTIENT 1
FA_INLINE vec v_quotient(vec p, vec s, vec z) {
    const vec q = v_mul(p, z);
    return v_fma(v_fma(q, v_sub(v_set1(0), s), p), z, q);
}
#else
#define HAS_QUOTIENT 0
FA_INLINE vec v_quotient(vec p, vec s, vec z) {
    (void)z;
    return v_div(p, s);
}
#endif

/* Whether all lanes of x are within 2^-40 and 2^40, from where no quotient leaves what v_quotient
 * can do. */
FA_INLINE int v_is_moderate(vec least, vec most) {
    const vec low = v_set1((real)0x1p-40), high = v_set1((real)0x1p40);
    return m_all(m_and(v_le(low, least), v_le(most, high)));
}
