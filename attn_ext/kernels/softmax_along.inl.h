/* The softmax family along the lanes: the elements of a row are copied to a buffer and padded with
 * -inf, which adds 0 to its partial sum. Element i goes to partial sum i mod PARTIALS. Rows longer
 * than the buffer are read again instead of kept.
 */
#define PARTIALS 16
#define PARTIAL_VECS (PARTIALS / VEC_LANES)
#define ROW_BUFFER 8192 /* reals; a multiple of PARTIALS */

typedef struct row_buffers {
    real *x, *y, *where; /* (ROW_BUFFER,) */
} row_buffers;

/* Elements i .. i + count of a row as reals, then `pad` up to a whole number of PARTIALS. */
static void load_elements(const reduction *r, const fa_axes *a, ptrdiff_t row, int64_t i, int count,
                          real pad, real *to) {
    if (r->n_reduced == 1) {
        const ptrdiff_t step = a->stride[r->n_outer];
        widen_row(to, element_at(a, row + (ptrdiff_t)i * step), a->dtype, count, step);
    } else {
        for (int k = 0; k < count; k++)
            to[k] = element(element_at(a, row + offset_in_row(r, a, i + k)), a->dtype, 0);
    }
    for (int k = count; k % PARTIALS != 0; k++)
        to[k] = pad;
}

typedef struct row_state {
    real max;
    vec partial[PARTIAL_VECS];
    int64_t n_max;   /* elements equal to max */
    real sum, log1p; /* of softmax; of the others */
} row_state;

/* Loads a stretch of x with what is excluded as -inf. */
static void load_row(const reduction *r, int64_t row, int64_t i, int count, row_buffers *b) {
    load_elements(r, &r->x, offset_of(r, &r->x, 0, r->n_outer, row), i, count, -REAL_INFINITY,
                  b->x);
    if (!r->where.data)
        return;
    load_elements(r, &r->where, offset_of(r, &r->where, 0, r->n_outer, row), i, count, 0, b->where);
    for (int k = 0; k < count; k += VEC_LANES)
        v_store(b->x + k, v_select(v_eq(v_load(b->where + k), v_set1(0)), v_set1(-REAL_INFINITY),
                                   v_load(b->x + k)));
}

FA_INLINE int whole_partials(int count) { return (count + PARTIALS - 1) / PARTIALS * PARTIALS; }

static real max_of(const real *x, int64_t count, real max) {
    vec most[PARTIAL_VECS];
    real lanes[VEC_LANES];
    for (int v = 0; v < PARTIAL_VECS; v++)
        most[v] = v_set1(max);
    for (int64_t k = 0; k < count; k += PARTIALS)
        for (int v = 0; v < PARTIAL_VECS; v++)
            most[v] = v_max(v_load(x + k + v * VEC_LANES), most[v]);
    for (int v = 1; v < PARTIAL_VECS; v++)
        most[0] = v_max(most[v], most[0]);
    v_store(lanes, most[0]);
    for (int h = VEC_LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++)
            lanes[i] = r_max(lanes[i + h], lanes[i]);
    return lanes[0];
}

/* exp of the next PARTIALS elements less `from`. */
FA_INLINE void next_exponentials(const real *x, vec from, vec e[PARTIAL_VECS]) {
    for (int v = 0; v < PARTIAL_VECS; v++)
        e[v] = v_sub(v_load(x + v * VEC_LANES), from);
    v_exp_many(PARTIAL_VECS, e, e);
}

/* p = exp(x - base), added to the partial sums; p may be x. */
static void add_exponentials(const real *x, real *p, int64_t count, real base,
                             vec partial[PARTIAL_VECS]) {
    const vec from = v_set1(base);
    vec sum[PARTIAL_VECS];
    for (int v = 0; v < PARTIAL_VECS; v++)
        sum[v] = partial[v];
    for (int64_t k = 0; k < count; k += PARTIALS) {
        vec e[PARTIAL_VECS];
        next_exponentials(x + k, from, e);
        for (int v = 0; v < PARTIAL_VECS; v++) {
            sum[v] = v_add(sum[v], e[v]);
            v_store(p + k + v * VEC_LANES, e[v]);
        }
    }
    for (int v = 0; v < PARTIAL_VECS; v++)
        partial[v] = sum[v];
}

/* The same without the elements equal to max, which are counted; x stays. */
static int64_t add_others(const real *x, int64_t count, real max, vec partial[PARTIAL_VECS]) {
    const vec from = v_set1(max), one = v_set1(1);
    vec n_max = v_set1(0);
    real lanes[VEC_LANES], n = 0;
    for (int64_t k = 0; k < count; k += PARTIALS) {
        vec e[PARTIAL_VECS];
        next_exponentials(x + k, from, e);
        for (int v = 0; v < PARTIAL_VECS; v++) {
            const vmask is_max = v_eq(v_load(x + k + v * VEC_LANES), from);
            partial[v] = v_add(partial[v], v_drop(is_max, e[v]));
            n_max = v_add(n_max, v_keep(is_max, one));
        }
    }
    v_store(lanes, n_max);
    for (int i = 0; i < VEC_LANES; i++)
        n += lanes[i];
    return (int64_t)n;
}

static real tree_sum(const vec partial[PARTIAL_VECS]) {
    vec whole[PARTIAL_VECS];
    real s[VEC_LANES];
    for (int v = 0; v < PARTIAL_VECS; v++)
        whole[v] = partial[v];
    for (int h = PARTIAL_VECS / 2; h > 0; h /= 2)
        for (int v = 0; v < h; v++)
            whole[v] = v_add(whole[v], whole[v + h]);
    v_store(s, whole[0]);
    for (int h = VEC_LANES / 2; h > 0; h /= 2)
        for (int k = 0; k < h; k++)
            s[k] += s[k + h];
    return s[0];
}

/* a = log1p(r) of ARITHMETIC.md from the sum of the others; -inf marks an empty row. */
static real log_of_rest(real max, real others, int64_t n_max) {
    if (max == -REAL_INFINITY)
        return others == others ? -REAL_INFINITY : others;
    return (real)log1p_of(others + (real)(n_max - 1));
}

/* What the row adds up to, over stretches of at most ROW_BUFFER; a short row stays in b->x. */
static row_state sum_row(const reduction *r, int64_t row, row_buffers *b) {
    row_state state;
    state.max = -REAL_INFINITY;
    state.n_max = 0;
    state.log1p = 0;
    const int is_softmax = r->call->kind == FA_SOFTMAX, is_short = r->n <= ROW_BUFFER;
    for (int v = 0; v < PARTIAL_VECS; v++)
        state.partial[v] = v_set1(0);
    for (int64_t i = 0; i < r->n; i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        load_row(r, row, i, count, b);
        state.max = max_of(b->x, whole_partials(count), state.max);
    }
    const real base = r_base(state.max);
    for (int64_t i = 0; i < r->n; i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        if (!is_short)
            load_row(r, row, i, count, b);
        if (is_softmax || state.max == -REAL_INFINITY) /* then 0, or NaN if there is one */
            add_exponentials(b->x, b->x, whole_partials(count), base, state.partial);
        else
            state.n_max += add_others(b->x, whole_partials(count), state.max, state.partial);
    }
    state.sum = tree_sum(state.partial);
    if (!is_softmax)
        state.log1p = log_of_rest(state.max, state.sum, state.n_max);
    return state;
}

/* One element of softmax from p, of log_softmax from x; `hidden` is what an excluded one becomes.
 */
FA_INLINE vec finish_softmax(vec p, vec sum) { return v_drop(v_eq(sum, v_set1(0)), v_div(p, sum)); }

FA_INLINE vec finish_log_softmax(vec x, vec max, vec log1p) {
    const vec hidden = v_set1(-REAL_INFINITY);
    const vec y = v_sub(v_sub(x, max), log1p);
    return v_select(v_eq(log1p, hidden), hidden, y);
}

static void store_row(const reduction *r, int64_t row, int64_t i, int count, const row_buffers *b,
                      const real *y) {
    const fa_axes *out = &r->output;
    const ptrdiff_t base = offset_of(r, out, 0, r->n_outer, row);
    const vec excluded = v_set1(r->call->kind == FA_LOG_SOFTMAX ? -REAL_INFINITY : 0);
    for (int k = 0; k < count; k += VEC_LANES) {
        const int width = count - k < VEC_LANES ? count - k : VEC_LANES;
        vec at = v_load(y + k);
        if (r->where.data)
            at = v_select(v_eq(v_load(b->where + k), v_set1(0)), excluded, at);
        if (r->n_reduced == 1) {
            const ptrdiff_t step = out->stride[r->n_outer];
            char *to = element_at(out, base + (ptrdiff_t)i * step);
            store_columns(to, out->dtype, step, k, width, at);
            continue;
        }
        real lanes[VEC_LANES];
        v_store(lanes, at);
        for (int w = 0; w < width; w++)
            put(element_at(out, base + offset_in_row(r, out, i + k + w)), out->dtype, 0, lanes[w]);
    }
}

/* ---- rows of neighbouring reals ---- */

/* Such a row is read where it is. Its last, incomplete PARTIALS elements go through a padded copy.
 */
typedef struct dense_row {
    const real *x;
    real *y;
    int64_t whole;
    int n_tail;
    real tail[PARTIALS], max;
} dense_row;

static int is_dense(const reduction *r) {
    return r->n_reduced == 1 && !r->where.data && r->x.dtype == REAL_DTYPE &&
           r->output.dtype == REAL_DTYPE && r->x.stride[r->n_outer] == 1 &&
           r->output.stride[r->n_outer] == 1;
}

static void open_dense(const reduction *r, int64_t row, dense_row *d) {
    d->x = (const real *)element_at(&r->x, offset_of(r, &r->x, 0, r->n_outer, row));
    d->y = (real *)element_at(&r->output, offset_of(r, &r->output, 0, r->n_outer, row));
    d->whole = r->n / PARTIALS * PARTIALS;
    d->n_tail = (int)(r->n - d->whole);
    d->max = max_of(d->x, d->whole, -REAL_INFINITY);
    if (d->n_tail == 0)
        return;
    for (int k = 0; k < PARTIALS; k++)
        d->tail[k] = k < d->n_tail ? d->x[d->whole + k] : -REAL_INFINITY;
    d->max = max_of(d->tail, PARTIALS, d->max);
}

FA_INLINE void store_dense(real *y, int n, vec x) {
    store_columns((char *)y, REAL_DTYPE, 1, 0, n, x);
}

/* The result takes the place of the exponentials: one of them per element, whatever the length. */
static void softmax_row_dense(dense_row *d) {
    const real base = r_base(d->max);
    vec partial[PARTIAL_VECS];
    for (int v = 0; v < PARTIAL_VECS; v++)
        partial[v] = v_set1(0);
    add_exponentials(d->x, d->y, d->whole, base, partial);
    add_exponentials(d->tail, d->tail, d->n_tail, base, partial);
    const vec sum = v_set1(tree_sum(partial));
    for (int64_t k = 0; k < d->whole; k += VEC_LANES)
        store_dense(d->y + k, VEC_LANES, finish_softmax(v_load(d->y + k), sum));
    for (int k = 0; k < d->n_tail; k += VEC_LANES)
        store_dense(d->y + d->whole + k, (int)min_i64(VEC_LANES, d->n_tail - k),
                    finish_softmax(v_load(d->tail + k), sum));
}

/* For a row with a maximum above -inf. */
static void log_softmax_row_dense(dense_row *d) {
    vec partial[PARTIAL_VECS];
    for (int v = 0; v < PARTIAL_VECS; v++)
        partial[v] = v_set1(0);
    int64_t n_max = 0;
    for (int64_t k = 0; k < d->whole; k += ROW_BUFFER) /* so that a count is exact in T */
        n_max += add_others(d->x + k, min_i64(ROW_BUFFER, d->whole - k), d->max, partial);
    n_max += add_others(d->tail, d->n_tail, d->max, partial); /* the last elements come last */
    const real a = log_of_rest(d->max, tree_sum(partial), n_max);
    const vec log1p = v_set1(d->max == REAL_INFINITY ? quiet_nan() : a), max = v_set1(d->max);
    for (int64_t k = 0; k < d->whole; k += VEC_LANES)
        store_dense(d->y + k, VEC_LANES, v_sub(v_sub(v_load(d->x + k), max), log1p));
    for (int k = 0; k < d->n_tail; k += VEC_LANES)
        store_dense(d->y + d->whole + k, (int)min_i64(VEC_LANES, d->n_tail - k),
                    v_sub(v_sub(v_load(d->tail + k), max), log1p));
}

/* ---- any row ---- */

static void softmax_row_along(const reduction *r, int64_t row, row_buffers *b) {
    const int kind = r->call->kind;
    if (kind != FA_LOGSUMEXP && is_dense(r)) {
        dense_row d;
        open_dense(r, row, &d);
        if (kind == FA_SOFTMAX) {
            softmax_row_dense(&d);
            return;
        }
        if (d.max > -REAL_INFINITY) {
            log_softmax_row_dense(&d);
            return;
        }
    }
    const row_state state = sum_row(r, row, b);
    if (kind == FA_LOGSUMEXP) {
        char *to = element_at(&r->output, offset_of(r, &r->output, 0, r->n_outer, row));
        const int is_empty = state.log1p == -REAL_INFINITY;
        put(to, r->output.dtype, 0, is_empty ? -REAL_INFINITY : state.max + state.log1p);
        return;
    }
    const real base = r_base(state.max);
    /* +inf in the row: NaN by rule; inf - inf makes it so in softmax */
    const vec log1p = v_set1(state.max == REAL_INFINITY ? quiet_nan() : state.log1p);
    const vec sum = v_set1(state.sum), max = v_set1(base);
    for (int64_t i = 0; i < r->n; i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        if (r->n > ROW_BUFFER)
            load_row(r, row, i, count, b);
        for (int k = 0; k < count; k += VEC_LANES) {
            vec at = v_load(b->x + k);
            if (kind == FA_LOG_SOFTMAX)
                at = finish_log_softmax(at, max, log1p);
            else
                at = finish_softmax(r->n > ROW_BUFFER ? v_exp(v_sub(at, max)) : at, sum);
            v_store(b->x + k, at);
        }
        store_row(r, row, i, count, b, b->x);
    }
}

static void load_gradient(const reduction *r, int64_t row, int64_t i, int count, row_buffers *b) {
    load_elements(r, &r->x, offset_of(r, &r->x, 0, r->n_outer, row), i, count, 0, b->x);
    load_elements(r, &r->y, offset_of(r, &r->y, 0, r->n_outer, row), i, count, 0, b->y);
}

static void vjp_row_along(const reduction *r, int64_t row, row_buffers *b) {
    vec partial[PARTIAL_VECS];
    for (int v = 0; v < PARTIAL_VECS; v++)
        partial[v] = v_set1(0);
    for (int64_t i = 0; i < r->n; i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        load_gradient(r, row, i, count, b);
        for (int k = 0; k < whole_partials(count); k += PARTIALS)
            for (int v = 0; v < PARTIAL_VECS; v++) {
                const int at = k + v * VEC_LANES;
                partial[v] = v_fma(v_load(b->x + at), v_load(b->y + at), partial[v]);
            }
    }
    const vec sum = v_set1(tree_sum(partial));
    for (int64_t i = 0; i < r->n; i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        if (r->n > ROW_BUFFER)
            load_gradient(r, row, i, count, b);
        for (int k = 0; k < count; k += VEC_LANES)
            v_store(b->x + k, v_mul(v_load(b->y + k), v_sub(v_load(b->x + k), sum)));
        store_row(r, row, i, count, b, b->x);
    }
}
