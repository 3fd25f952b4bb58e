/* What every row ends with: the sink, the division, the rounding to the output type, lse. */

/* The last merge, with a sink of weight 1 and no value; returns what the sums so far shrink by. */
FA_INLINE real merge_sink(const group *g, int64_t head, real *max, real *sum) {
    if (!g->call->sinks)
        return 1;
    const real sink = ((const real *)g->call->sinks)[head];
    if (sink == -REAL_INFINITY)
        return 1;
    real sink2 = sink * LOG2E;
    if (r_is_finite(sink))
        sink2 = sink2 > REAL_HUGE ? REAL_HUGE : sink2 < -REAL_HUGE ? -REAL_HUGE : sink2;
    const real both = r_max(*max, sink2);
    const real base = r_base(both);
    const real alpha = r_exp2(*max - base);
    *sum = r_fma(*sum, alpha, r_exp2(sink2 - base));
    *max = both;
    return alpha;
}

/* How the sums of a row become its output: O * alpha / sum. `live` is 0 for a row that sees no key:
 * its O may be anything, as 0 * NaN is not 0. */
typedef struct row_end {
    real alpha, sum, live;
} row_end;

/* Adds the sink to max and sum, which become the final ones, and writes lse. */
static row_end end_row(const group *g, const row_rule *rule, real *max, real *sum) {
    row_end end;
    const int sees_key = *sum != 0;
    end.alpha = merge_sink(g, rule->head, max, sum);
    end.sum = *sum;
    end.live = sees_key || *sum != *sum;
    char *lse = row_of(&g->lse, rule->query, rule->head);
    if (lse)
        put(lse, REAL_DTYPE, 0,
            *sum > 0    ? (*max + r_log2(*sum)) * LN2
            : *sum == 0 ? -REAL_INFINITY
                        : quiet_nan());
    return end;
}

FA_INLINE vec output_of(vec o, vec alpha, vec sum, vec live) {
    return v_drop(v_eq(live, v_set1(0)), v_div(v_mul(o, alpha), sum));
}

/* The same of n vectors. A division takes as long as ten multiplications on some CPUs. Lanes of
 * *nonfinite become NaN where the sums have a number that is not finite. */
FA_INLINE void outputs_of(int n, vec *x, vec alpha, vec sum, vec inverse_sum, vec live,
                          vec *nonfinite) {
    vec least = v_abs(x[0]), most = least; /* a sum, as a NaN is in that but in no maximum */
    for (int k = 1; HAS_QUOTIENT && k < n; k++) {
        least = v_min(v_abs(x[k]), least);
        most = v_add(v_abs(x[k]), most);
    }
    const int is_plain = m_all(v_eq(alpha, v_set1(1))) && v_is_moderate(sum, sum);
    if (HAS_QUOTIENT && is_plain && v_is_moderate(least, most))
        for (int k = 0; k < n; k++)
            x[k] = v_quotient(x[k], sum, inverse_sum);
    else
        for (int k = 0; k < n; k++) {
            *nonfinite = v_add(*nonfinite, v_sub(x[k], x[k]));
            x[k] = output_of(x[k], alpha, sum, live);
        }
}

/* One NaN, no negative zero. */
FA_INLINE vec v_clean(vec x) {
    return v_select(v_eq(x, x), v_add(x, v_set1(0)), v_set1(quiet_nan()));
}

/* A function of its own with a length that it does not know: GCC makes vectors of these loops, and
 * single numbers of a loop over VEC_LANES that it unrolls. */
FA_NOINLINE void narrow_row(uint16_t *FA_RESTRICT to, fa_dtype dtype, const real *from, int n) {
    if (dtype == FA_FLOAT16)
        for (int i = 0; i < n; i++)
            to[i] = narrow(FA_FLOAT16, from[i]);
    else
        for (int i = 0; i < n; i++)
            to[i] = narrow(FA_BFLOAT16, from[i]);
}

/* n <= VEC_LANES columns from d on of a row, `step` elements apart, rounded once to its type. */
FA_INLINE void store_columns(char *row, fa_dtype dtype, ptrdiff_t step, ptrdiff_t d, int n, vec x) {
    if (dtype == REAL_DTYPE && step == 1) {
        real *to = (real *)row + d;
        if (n == VEC_LANES)
            v_store(to, v_clean(x));
        else
            v_store_part(to, v_clean(x), n);
        return;
    }
    real lanes[VEC_LANES];
    v_store(lanes, x);
    if (step == 1 && (dtype == FA_FLOAT16 || dtype == FA_BFLOAT16))
        narrow_row((uint16_t *)row + d, dtype, lanes, n);
    else
        for (int i = 0; i < n; i++)
            put(row, dtype, (d + i) * step, lanes[i]);
}
