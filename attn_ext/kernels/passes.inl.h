/* The passes over a row of neighbouring reals that the softmax family is made of.
 *
 * Element i goes to partial sum i mod PARTIALS, so a row is read PARTIALS elements at a time; what
 * is missing at its end reads as -inf, whose exponential adds 0.
 */

/* A long row is worked on in stretches, a multiple of PARTIALS, and before the next one its task
 * asks whether to go on. Elements of a stretch are counted in T, which is exact. */
#define STRETCH (INT64_C(1) << 20)

/* In place, what was written is read no more: such a task cannot run again. */
FA_INLINE int stopped_before(int64_t k, int is_in_place) {
    return k > 0 && (is_in_place ? fa_pool_stopping() : fa_pool_leaving());
}

/* In a narrow row every element is so close to the maximum that its exponential p is a normal
 * number, and p - q s in v_quotient is exact. The rest of a wide row is below 2^-92 (2^-865). */
#if FA_REAL_BITS == 32
#define NARROW (-64.0f)
#else
#define NARROW (-600.0)
#endif

/* VEC_LANES reals of which n exist, any n; the others are `rest`. */
FA_INLINE vec load_or(const real *x, int64_t n, real rest) {
    static const real number[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (n >= VEC_LANES)
        return v_load(x);
    const int there = (int)max_i64(n, 0);
    const vmask is_there = v_lt(v_load(number), v_set1((real)there));
    return v_select(is_there, v_load_part(x, there), v_set1(rest));
}

FA_INLINE void store_some(real *y, int64_t n, vec x) {
    if (n >= VEC_LANES)
        v_store(y, x);
    else if (n > 0)
        v_store_part(y, x, (int)n);
}

FA_INLINE void clear_partials(vec partial[PARTIAL_VECS]) {
    for (int v = 0; v < PARTIAL_VECS; v++)
        partial[v] = v_set1(0);
}

/* The first additions of the tree: one vector is left. */
FA_INLINE vec add_partials(const vec partial[PARTIAL_VECS]) {
    vec whole[PARTIAL_VECS];
    for (int v = 0; v < PARTIAL_VECS; v++)
        whole[v] = partial[v];
    for (int h = PARTIAL_VECS / 2; h > 0; h /= 2)
        for (int v = 0; v < h; v++)
            whole[v] = v_add(whole[v], whole[v + h]);
    return whole[0];
}

FA_INLINE real tree_sum(const vec partial[PARTIAL_VECS]) {
    return r_tree_sum(add_partials(partial));
}

/* The tree sum, or the greatest lane, of each of n vectors; they are used up. The trees of
 * VEC_LANES vectors together take a third of the shuffles. n is rounded up to whole vectors. */
#ifndef HAS_TREES
FA_INLINE vec v_trees(int is_sum, vec r[VEC_LANES]) {
    v_transpose(r);
    for (int h = VEC_LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++)
            r[i] = is_sum ? v_add(r[i], r[i + h]) : v_max(r[i], r[i + h]);
    return r[0];
}
#endif

FA_INLINE void trees_of(int is_sum, int n, vec *r, real *to) {
    for (int i = 0; i < n; i += VEC_LANES)
        v_store(to + i, v_trees(is_sum, r + i));
}

/* ---- maximum ---- */

typedef struct extent {
    real max; /* -inf if there is nothing but -inf and NaN */
    int is_narrow;
} extent;

FA_INLINE void widen_extent(vec x, vec *most, vec *least) {
    *most = v_max(x, *most);
    *least = v_min(x, *least);
}

#define EXTENT_VECS 4 /* as many as the latency of a maximum */

/* The greatest and least of what was seen before and of n elements, in lanes. */
FA_INLINE void extent_lanes(const real *x, int64_t n, vec *greatest, vec *smallest) {
    vec most[EXTENT_VECS], least[EXTENT_VECS];
    int64_t k = 0;
    if (n >= EXTENT_VECS * VEC_LANES) {
        for (int v = 0; v < EXTENT_VECS; v++)
            most[v] = *greatest, least[v] = *smallest;
        for (; k + EXTENT_VECS * VEC_LANES <= n; k += EXTENT_VECS * VEC_LANES)
            for (int v = 0; v < EXTENT_VECS; v++)
                widen_extent(v_load(x + k + v * VEC_LANES), &most[v], &least[v]);
        for (int v = 0; v < EXTENT_VECS; v++) {
            *greatest = v_max(most[v], *greatest);
            *smallest = v_min(least[v], *smallest);
        }
    }
    for (; k + VEC_LANES <= n; k += VEC_LANES)
        widen_extent(v_load(x + k), greatest, smallest);
    if (k < n)
        widen_extent(load_or(x + k, n - k, x[0]), greatest, smallest);
}

FA_INLINE vmask is_narrow_lane(vec least, real max) {
    return v_le(v_set1(NARROW), v_sub(least, v_set1(max)));
}

FA_INLINE extent extent_of(const real *x, int64_t n) {
    vec most = v_set1(-REAL_INFINITY), least = v_set1(REAL_INFINITY);
    extent_lanes(x, n, &most, &least);
    extent e;
    e.max = r_greatest(most);
    e.is_narrow = m_all(is_narrow_lane(least, e.max));
    return e;
}

/* ---- exponentials ---- */

/* exp(x - from) of n vectors, n <= EXP_AT_ONCE. In a narrow row what lies further down is what is
 * missing at its end. */
FA_INLINE void exponentials(const exp_words *c, int n, const vec *x, vec from, int is_narrow,
                            int is_end, vec *e) {
    vec d[EXP_AT_ONCE];
    for (int v = 0; v < n; v++)
        d[v] = v_sub(x[v], from);
    if (!is_narrow) {
        v_exp_many(c, n, d, e);
        return;
    }
    v_exp_normal(c, n, d, e);
    for (int v = 0; is_end && v < n; v++)
        e[v] = v_drop(v_lt(d[v], v_set1(NARROW)), e[v]);
}

/* Asks for what is `ahead` bytes behind n vectors, unless that is 0. Exponentials leave the memory
 * idle, and the next rows come from there. */
FA_INLINE void ask_ahead(int n, const real *x, ptrdiff_t ahead) {
    const int line = 64 / sizeof(real) > VEC_LANES ? 64 / sizeof(real) : VEC_LANES;
    for (int k = 0; ahead != 0 && k < n * VEC_LANES; k += line)
        FA_PREFETCH((const char *)((uintptr_t)(x + k) + (uintptr_t)ahead));
}

/* The next n vectors of a row that has `left` reals left: p = exp(x - from), added to the sums. */
FA_INLINE void add_next(const exp_words *c, int n, const real *x, real *p, int64_t left,
                        ptrdiff_t ahead, vec from, int is_narrow, vec sum[PARTIAL_VECS]) {
    const int is_end = left < n * VEC_LANES;
    vec e[EXP_AT_ONCE];
    ask_ahead(n, x, ahead);
    for (int v = 0; v < n; v++)
        e[v] = load_or(x + v * VEC_LANES, left - v * VEC_LANES, -REAL_INFINITY);
    exponentials(c, n, e, from, is_narrow, is_end, e);
    for (int v = 0; v < n; v++) {
        sum[v % PARTIAL_VECS] = v_add(sum[v % PARTIAL_VECS], e[v]);
        store_some(p + v * VEC_LANES, left - v * VEC_LANES, e[v]);
    }
}

/* The sum of the same without the elements equal to the maximum, which are counted. */
FA_INLINE void add_next_others(const exp_words *c, int n, const real *x, int64_t left,
                               ptrdiff_t ahead, vec max, int is_narrow, vec sum[PARTIAL_VECS],
                               vec count[PARTIAL_VECS]) {
    const int is_end = left < n * VEC_LANES;
    vec at[EXP_AT_ONCE], e[EXP_AT_ONCE];
    ask_ahead(n, x, ahead);
    for (int v = 0; v < n; v++)
        at[v] = load_or(x + v * VEC_LANES, left - v * VEC_LANES, -REAL_INFINITY);
    exponentials(c, n, at, max, is_narrow, is_end, e);
    for (int v = 0; v < n; v++) {
        const int to = v % PARTIAL_VECS;
        const vmask is_max = v_eq(at[v], max);
        sum[to] = v_add_dropped(is_max, sum[to], e[v]);
        count[to] = v_add_kept(is_max, count[to], v_set1(1));
    }
}

#define LONG_STEP (EXP_AT_ONCE * VEC_LANES)
/* What is less than that goes in one step more where there are steps between. */
#define HAS_SHORT_STEP (2 * PARTIAL_VECS < EXP_AT_ONCE)
#define SHORT_VECS (HAS_SHORT_STEP ? 2 * PARTIAL_VECS : PARTIAL_VECS)
#define SHORT_STEP (SHORT_VECS * VEC_LANES)

FA_INLINE void add_exponentials_as(const exp_words *c, int is_narrow, const real *x, real *p,
                                   int64_t n, ptrdiff_t ahead, real base,
                                   vec partial[PARTIAL_VECS]) {
    const vec from = v_set1(base);
    vec sum[PARTIAL_VECS];
    int64_t k = 0;
    for (int v = 0; v < PARTIAL_VECS; v++)
        sum[v] = partial[v];
    for (; k + LONG_STEP <= n; k += LONG_STEP)
        add_next(c, EXP_AT_ONCE, x + k, p + k, LONG_STEP, ahead, from, is_narrow, sum);
    if (HAS_SHORT_STEP && k + SHORT_STEP <= n) {
        add_next(c, SHORT_VECS, x + k, p + k, SHORT_STEP, ahead, from, is_narrow, sum);
        k += SHORT_STEP;
    }
    for (; k + PARTIALS <= n; k += PARTIALS)
        add_next(c, PARTIAL_VECS, x + k, p + k, PARTIALS, ahead, from, is_narrow, sum);
    if (n % PARTIALS != 0)
        add_next(c, PARTIAL_VECS, x + k, p + k, n - k, ahead, from, is_narrow, sum);
    for (int v = 0; v < PARTIAL_VECS; v++)
        partial[v] = sum[v];
}

/* p = exp(x - base), added to the partial sums; p may be x. */
FA_INLINE void add_exponentials(const exp_words *c, const real *x, real *p, int64_t n, real base,
                                int is_narrow, vec partial[PARTIAL_VECS]) {
    if (is_narrow)
        add_exponentials_as(c, 1, x, p, n, 0, base, partial);
    else
        add_exponentials_as(c, 0, x, p, n, 0, base, partial);
}

/* Adds exp(x - max) of the elements below the maximum to the partial sums; returns, in lanes, how
 * many are equal to it. */
FA_INLINE vec add_others_as(const exp_words *c, int is_narrow, const real *x, int64_t n,
                            ptrdiff_t ahead, real max, vec partial[PARTIAL_VECS]) {
    const vec from = v_set1(max);
    vec sum[PARTIAL_VECS], count[PARTIAL_VECS];
    int64_t k = 0;
    clear_partials(count);
    for (int v = 0; v < PARTIAL_VECS; v++)
        sum[v] = partial[v];
    for (; k + LONG_STEP <= n; k += LONG_STEP)
        add_next_others(c, EXP_AT_ONCE, x + k, LONG_STEP, ahead, from, is_narrow, sum, count);
    if (HAS_SHORT_STEP && k + SHORT_STEP <= n) {
        add_next_others(c, SHORT_VECS, x + k, SHORT_STEP, ahead, from, is_narrow, sum, count);
        k += SHORT_STEP;
    }
    for (; k + PARTIALS <= n; k += PARTIALS)
        add_next_others(c, PARTIAL_VECS, x + k, PARTIALS, ahead, from, is_narrow, sum, count);
    if (n % PARTIALS != 0)
        add_next_others(c, PARTIAL_VECS, x + k, n - k, ahead, from, is_narrow, sum, count);
    for (int v = 0; v < PARTIAL_VECS; v++)
        partial[v] = sum[v];
    return add_partials(count);
}

FA_INLINE vec add_others(const exp_words *c, const real *x, int64_t n, real max, int is_narrow,
                         vec partial[PARTIAL_VECS]) {
    return is_narrow ? add_others_as(c, 1, x, n, 0, max, partial)
                     : add_others_as(c, 0, x, n, 0, max, partial);
}

/* a = log1p(r) of ARITHMETIC.md from the sums of the others, n rows; -inf marks an empty row. */
static void logs_of_rest(int n, const real *max, const real *others, const int64_t *n_max,
                         real *a) {
    for (int first = 0; first < n; first += LOGS_AT_ONCE) {
        const int count = n - first < LOGS_AT_ONCE ? n - first : LOGS_AT_ONCE;
        double t[LOGS_AT_ONCE] = {0}, log1p[LOGS_AT_ONCE];
        for (int i = 0; i < count; i++)
            t[i] = others[first + i] + (real)(n_max[first + i] - 1);
        log1p_of(t, log1p);
        for (int i = 0; i < count; i++) {
            const real rest = others[first + i], empty = rest == rest ? -REAL_INFINITY : rest;
            a[first + i] = max[first + i] == -REAL_INFINITY ? empty : (real)log1p[i];
        }
    }
}

static real log_of_rest(real max, real others, int64_t n_max) {
    real a;
    logs_of_rest(1, &max, &others, &n_max, &a);
    return a;
}

/* logsumexp from that. */
FA_INLINE real log_sum(real max, real log1p) {
    return log1p == -REAL_INFINITY ? -REAL_INFINITY : max + log1p;
}

/* The partial sums of g y. */
FA_INLINE void add_products(const real *g, const real *y, int64_t n, vec partial[PARTIAL_VECS]) {
    for (int64_t k = 0; k < n; k += PARTIALS)
        for (int v = 0; v < PARTIAL_VECS; v++) {
            const int64_t at = k + v * VEC_LANES;
            partial[v] = v_fma(load_or(g + at, n - at, 0), load_or(y + at, n - at, 0), partial[v]);
        }
}

/* ---- results ---- */

FA_INLINE void fill_row(real *y, int64_t n, real x) {
    for (int64_t k = 0; k < n; k += VEC_LANES)
        store_some(y + k, n - k, v_set1(x));
}

/* One element of softmax from p, in any row that is not NaN. */
FA_INLINE vec finish_softmax(vec p, vec sum) { return v_drop(v_eq(sum, v_set1(0)), v_div(p, sum)); }

/* Softmax of a row from its exponentials p and their sum; in place. */
FA_INLINE void divide_row(real *p, int64_t n, real sum, real inverse_sum, int is_narrow) {
    const vec s = v_set1(sum), z = v_set1(inverse_sum);
    int64_t k = 0;
    if (sum != sum) {
        fill_row(p, n, quiet_nan());
        return;
    }
    if (is_narrow)
        for (; k + VEC_LANES <= n; k += VEC_LANES)
            v_store(p + k, v_quotient(v_load(p + k), s, z));
    for (; k < n; k += VEC_LANES)
        store_some(p + k, n - k, finish_softmax(load_or(p + k, n - k, 0), s));
}

/* (x - max) - a, a as log_of_rest gives it. */
FA_INLINE void subtract_row(const real *x, real *y, int64_t n, real max, real a) {
    if (a != a || max == REAL_INFINITY) {
        fill_row(y, n, quiet_nan());
        return;
    }
    if (a == -REAL_INFINITY) {
        fill_row(y, n, a);
        return;
    }
    const vec m = v_set1(max), log1p = v_set1(a);
    int64_t k = 0;
    for (; k + VEC_LANES <= n; k += VEC_LANES)
        v_store(y + k, v_sub(v_sub(v_load(x + k), m), log1p));
    if (k < n)
        v_store_part(y + k, v_sub(v_sub(load_or(x + k, n - k, max), m), log1p), (int)(n - k));
}
