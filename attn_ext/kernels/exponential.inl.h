/* exp and log1p of the softmax family: ARITHMETIC.md, second half. */

#if FA_REAL_BITS == 32
#define LN2_HI 0x1.62e4p-1f
#define LN2_LO 0x1.7f7d1cp-20f
#define EXP_MIN (-104.0f)
#define EXP_NORMAL (-87.0f) /* from here on e^d is a normal number */
#define ROUND_EVEN 0x1.8p23f
#define ROUND_EXPONENT (0x1.8p23f + 127.0f)
static const real EXPONENTIAL[] = {0x1p+0f,        0x1p-1f,        0x1.5554dcp-3f,
                                   0x1.555518p-5f, 0x1.120bdep-7f, 0x1.6d117ap-10f};
#else
#define LN2_HI 0x1.62e42fefa3p-1
#define LN2_LO 0x1.3de6af278ece6p-42
#define EXP_MIN (-746.0)
#define EXP_NORMAL (-708.0) /* from here on e^d is a normal number */
#define ROUND_EVEN 0x1.8p52
#define ROUND_EXPONENT (0x1.8p52 + 1023.0)
static const real EXPONENTIAL[] = {0x1p+0,
                                   0x1.0000000000001p-1,
                                   0x1.5555555555556p-3,
                                   0x1.5555555553d38p-5,
                                   0x1.11111111109a6p-7,
                                   0x1.6c16c1789caa1p-10,
                                   0x1.a01a01a7ce75dp-13,
                                   0x1.a019b8cbe6585p-16,
                                   0x1.71de0d863c737p-19,
                                   0x1.2891d2ecb3ed9p-22,
                                   0x1.af39091a8441ap-26};
#endif
#define EXPONENTIAL_TERMS ((int)(sizeof EXPONENTIAL / sizeof EXPONENTIAL[0]))

#define PARTIALS 16 /* partial sums of a row: part of the arithmetic */
#define PARTIAL_VECS (PARTIALS / VEC_LANES)
#define EXP_AT_ONCE (PARTIAL_VECS > 4 ? PARTIAL_VECS : 4) /* vectors */

/* e^d for d <= 0 or NaN, with gradual underflow. */
FA_INLINE vec v_exp(vec d) {
    const vec even = v_set1(ROUND_EVEN), exponent = v_set1(ROUND_EXPONENT);
    const vec n = v_sub(v_add(v_mul(d, v_set1(LOG2E)), even), even);
    const vec r = v_fma(n, v_set1(-LN2_LO), v_fma(n, v_set1(-LN2_HI), d));
    vec e = v_set1(EXPONENTIAL[EXPONENTIAL_TERMS - 1]);
    for (int k = EXPONENTIAL_TERMS - 2; k >= 0; k--)
        e = v_fma(e, r, v_set1(EXPONENTIAL[k]));
    e = v_fma(e, r, v_set1(1));
    /* 2^n in two steps, either of which is a normal number; how n is split changes nothing */
    const vec half = v_add(v_mul(n, v_set1((real)0.5)), exponent);
    const vec rest = v_add(v_sub(n, v_sub(half, exponent)), exponent);
    e = v_mul(v_mul(e, v_shift_to_exponent(half)), v_shift_to_exponent(rest));
    return v_drop(v_lt(d, v_set1(EXP_MIN)), e);
}

/* The constants of v_exp_normal in memory, where an instruction takes them from as they are. A
 * compiler that could see their values would make them anew for each row. Coefficients are halved,
 * as in v_exp2: a shift makes 2^(n + 1). */
typedef struct exp_words {
    vec log2e, integer, ln2_hi, ln2_lo, half, term[EXPONENTIAL_TERMS];
} exp_words;

FA_NOINLINE void load_exp_words(exp_words *c) {
    const real half = (real)0.5;
    c->log2e = v_set1(LOG2E);
    c->integer = v_set1(ROUND_TO_INTEGER);
    c->ln2_hi = v_set1(-LN2_HI);
    c->ln2_lo = v_set1(-LN2_LO);
    c->half = v_set1(half);
    for (int k = 0; k < EXPONENTIAL_TERMS; k++)
        c->term[k] = v_set1(half * EXPONENTIAL[k]);
}

/* The bits of v_exp for EXP_NORMAL <= d <= 0, where 2^n is one normal factor, for n vectors: one
 * step for all before the next step, as a core cannot look far enough ahead to overlap whole
 * chains. */
FA_INLINE void v_exp_normal(const exp_words *c, int n, const vec *d, vec *e) {
    vec power[EXP_AT_ONCE], r[EXP_AT_ONCE];
    for (int v = 0; v < n; v++)
        power[v] = v_add(v_mul(d[v], c->log2e), c->integer);
    for (int v = 0; v < n; v++)
        r[v] = v_fma(v_sub(power[v], c->integer), c->ln2_hi, d[v]);
    for (int v = 0; v < n; v++)
        r[v] = v_fma(v_sub(power[v], c->integer), c->ln2_lo, r[v]);
    for (int v = 0; v < n; v++)
        e[v] = c->term[EXPONENTIAL_TERMS - 1];
    for (int k = EXPONENTIAL_TERMS - 2; k >= 0; k--)
        for (int v = 0; v < n; v++)
            e[v] = v_fma(e[v], r[v], c->term[k]);
    for (int v = 0; v < n; v++)
        e[v] = v_fma(e[v], r[v], c->half);
    for (int v = 0; v < n; v++)
        e[v] = v_mul(e[v], v_shift_to_exponent(power[v]));
}

/* n vectors at once; the long way only if one of them needs it. */
FA_INLINE void v_exp_many(const exp_words *c, int n, const vec *d, vec *e) {
    int is_normal = 1;
    for (int v = 0; v < n; v++)
        is_normal &= m_all(v_le(v_set1(EXP_NORMAL), d[v]));
    if (is_normal) {
        v_exp_normal(c, n, d, e);
        return;
    }
    for (int v = 0; v < n; v++)
        e[v] = v_exp(d[v]);
}

/* log(1 + t) for t >= 0 or NaN of LOGS_AT_ONCE values: once per row, always in float64, never
 * fused. Without a branch, so that a compiler makes one vector of them all. */
#define LOGS_AT_ONCE 8

static void log1p_of(const double t[LOGS_AT_ONCE], double log1p[LOGS_AT_ONCE]) {
    static const double r[] = {0x1.5555555555558p-1, 0x1.9999999995276p-2, 0x1.2492492dfd3d3p-2,
                               0x1.c71c62d643033p-3, 0x1.7462b900e4b3ep-3, 0x1.39fdd060a2a56p-3,
                               0x1.2b5f3df0a9a78p-3};
    for (int i = 0; i < LOGS_AT_ONCE; i++) {
        const int is_small = t[i] < 0x1.a8p-2;
        const double u = 1 + t[i];
        const uint64_t bits = fa_bits_f64(u);
        const uint64_t power = (bits - UINT64_C(0x3fe6a09e667f3bcd)) >> 52;
        const double z = fa_f64_from_bits(bits - (power << 52));
        /* as a double: bits of 2^52 + power */
        const double exponent = fa_f64_from_bits(UINT64_C(0x4330000000000000) | power) - 0x1p52;
        const double k = is_small ? 0 : exponent;
        const double c = is_small ? 0 : (t[i] - (u - 1)) / u;
        const double s = (is_small ? t[i] : z - 1) / (is_small ? 2 + t[i] : z + 1);
        const double w = s * s;
        double g = r[6];
        for (int j = 5; j >= 0; j--) {
            const double product = g * w;
            g = product + r[j];
        }
        const double wg = w * g, tail = s * (2 + wg), low = k * 0x1.3de6af278ece6p-42;
        const double log = k * 0x1.62e42fefa3p-1 + (tail + (low + c));
        log1p[i] = u - u == 0 ? log : u; /* NaN, or beyond any sum */
    }
}
