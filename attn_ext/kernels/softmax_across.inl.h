/* The softmax family across the lanes: neighbouring rows in the lanes, for a reduced axis that is
 * not the contiguous one. Each lane has its own PARTIALS partial sums, so the bits are those of
 * softmax_along.inl.h.
 */

/* VEC_LANES neighbouring rows, of which `width` exist: where element 0 of each array is. */
typedef struct column_group {
    const reduction *r;
    int width;
    ptrdiff_t x, y, where, output; /* elements */
    ptrdiff_t output_step;
    real *partial; /* (PARTIALS, VEC_LANES) */
} column_group;

static column_group open_columns(const reduction *r, int64_t first_row, real *scratch) {
    const int64_t n_column = r->shape[r->n_outer - 1];
    const ptrdiff_t column = (ptrdiff_t)(first_row % n_column);
    const int64_t rest = first_row / n_column;
    column_group c = {.r = r, .partial = scratch};
    c.width = (int)min_i64(VEC_LANES, n_column - column);
    const fa_axes *arrays[] = {&r->x, &r->y, &r->where, &r->output};
    ptrdiff_t *offsets[] = {&c.x, &c.y, &c.where, &c.output};
    for (int a = 0; a < 4; a++)
        *offsets[a] = offset_of(r, arrays[a], 0, r->n_outer - 1, rest) +
                      column * arrays[a]->stride[r->n_outer - 1];
    c.output_step = r->output.stride[r->n_outer - 1];
    memset(scratch, 0, sizeof(real) * PARTIALS * VEC_LANES);
    return c;
}

/* Element i of all rows of the group; lanes past the width are 0. */
static vec load_lanes(const column_group *c, const fa_axes *a, ptrdiff_t base, int64_t i) {
    const reduction *r = c->r;
    const ptrdiff_t step = a->stride[r->n_outer - 1];
    const char *row = element_at(a, base + offset_in_row(r, a, i));
    real lanes[VEC_LANES];
    if (step == 1 && c->width == VEC_LANES)
        return v_widen(row, a->dtype);
    widen_row(lanes, row, a->dtype, c->width, step);
    return v_load_part(lanes, c->width);
}

static vec load_x_lanes(const column_group *c, int64_t i) {
    const vec x = load_lanes(c, &c->r->x, c->x, i);
    if (!c->r->where.data)
        return x;
    const vec where = load_lanes(c, &c->r->where, c->where, i);
    return v_select(v_eq(where, v_set1(0)), v_set1(-REAL_INFINITY), x);
}

static void store_lanes(const column_group *c, int64_t i, vec y) {
    const reduction *r = c->r;
    const fa_axes *out = &r->output;
    if (r->where.data) {
        const vec where = load_lanes(c, &r->where, c->where, i);
        const real excluded = r->call->kind == FA_LOG_SOFTMAX ? -REAL_INFINITY : 0;
        y = v_select(v_eq(where, v_set1(0)), v_set1(excluded), y);
    }
    char *row = element_at(out, c->output + offset_in_row(r, out, i));
    store_columns(row, out->dtype, c->output_step, 0, c->width, y);
}

static vec tree_sum_of_lanes(const column_group *c) {
    real *s = c->partial;
    for (int h = PARTIALS / 2; h > 0; h /= 2)
        for (int k = 0; k < h; k++)
            v_store(s + k * VEC_LANES,
                    v_add(v_load(s + k * VEC_LANES), v_load(s + (k + h) * VEC_LANES)));
    return v_load(s);
}

FA_INLINE real *partial_of(const column_group *c, int64_t i) {
    return c->partial + i % PARTIALS * VEC_LANES;
}

static vec max_of_lanes(const column_group *c) {
    vec max = v_set1(-REAL_INFINITY);
    for (int64_t i = 0; i < c->r->n; i++)
        max = v_max(load_x_lanes(c, i), max);
    return max;
}

static void softmax_rows_across(const column_group *c) {
    const vec max = max_of_lanes(c);
    const vec base = v_base(max);
    for (int64_t i = 0; i < c->r->n; i++) {
        real *s = partial_of(c, i);
        v_store(s, v_add(v_load(s), v_exp(v_sub(load_x_lanes(c, i), base))));
    }
    const vec sum = tree_sum_of_lanes(c);
    for (int64_t i = 0; i < c->r->n; i++)
        store_lanes(c, i, finish_softmax(v_exp(v_sub(load_x_lanes(c, i), base)), sum));
}

/* log1p of the rest of each row, and -inf where a row is empty. */
static vec log_of_rest_across(const column_group *c, vec max) {
    const vec base = v_base(max);
    int64_t n_max[VEC_LANES] = {0};
    real maxima[VEC_LANES], others[VEC_LANES], lanes[VEC_LANES], log1p[VEC_LANES];
    v_store(maxima, max);
    for (int64_t i = 0; i < c->r->n; i++) {
        const vec x = load_x_lanes(c, i);
        real *s = partial_of(c, i);
        v_store(s, v_add(v_load(s), v_drop(v_eq(x, base), v_exp(v_sub(x, base)))));
        v_store(lanes, v_keep(v_eq(x, base), v_set1(1)));
        for (int w = 0; w < VEC_LANES; w++)
            n_max[w] += lanes[w] != 0;
    }
    v_store(others, tree_sum_of_lanes(c));
    for (int w = 0; w < VEC_LANES; w++)
        log1p[w] = log_of_rest(maxima[w], others[w], n_max[w]);
    return v_load(log1p);
}

static void log_rows_across(const column_group *c) {
    const vec max = max_of_lanes(c), hidden = v_set1(-REAL_INFINITY);
    const vec log1p = log_of_rest_across(c, max);
    if (c->r->call->kind == FA_LOGSUMEXP) {
        const vec y = v_select(v_eq(log1p, hidden), hidden, v_add(max, log1p));
        char *to = element_at(&c->r->output, c->output);
        store_columns(to, c->r->output.dtype, c->output_step, 0, c->width, y);
        return;
    }
    const vec base = v_base(max);
    const vec a = v_select(v_eq(max, v_set1(REAL_INFINITY)), v_set1(quiet_nan()), log1p);
    for (int64_t i = 0; i < c->r->n; i++)
        store_lanes(c, i, finish_log_softmax(load_x_lanes(c, i), base, a));
}

static void vjp_rows_across(const column_group *c) {
    const reduction *r = c->r;
    for (int64_t i = 0; i < r->n; i++) {
        real *s = partial_of(c, i);
        v_store(s, v_fma(load_lanes(c, &r->x, c->x, i), load_lanes(c, &r->y, c->y, i), v_load(s)));
    }
    const vec sum = tree_sum_of_lanes(c);
    for (int64_t i = 0; i < r->n; i++)
        store_lanes(
            c, i, v_mul(load_lanes(c, &r->y, c->y, i), v_sub(load_lanes(c, &r->x, c->x, i), sum)));
}

/* ---- columns of reals ---- */

/* VEC_LANES neighbouring columns (n, width) of reals in x and y, stepped through without look-ups.
 */
typedef struct dense_columns {
    const real *x;
    real *y;
    ptrdiff_t x_step, y_step;
    int64_t n;
    int width;
    vec max, base;
} dense_columns;

static int is_dense_across(const reduction *r) {
    const int lane = r->n_outer - 1;
    return r->n_reduced == 1 && !r->where.data && r->x.dtype == REAL_DTYPE &&
           r->output.dtype == REAL_DTYPE && r->x.stride[lane] == 1 && r->output.stride[lane] == 1 &&
           r->n < (1 << 24); /* so that a count of elements is exact in T */
}

FA_INLINE vec load_dense(const dense_columns *c, int64_t i) {
    return load_columns(c->x + i * c->x_step, 0, c->width);
}

FA_INLINE void store_dense_lanes(const dense_columns *c, int64_t i, vec y) {
    store_dense(c->y + i * c->y_step, c->width, y);
}

static dense_columns open_dense_columns(const column_group *group) {
    const reduction *r = group->r;
    dense_columns c;
    c.x = (const real *)element_at(&r->x, group->x);
    c.y = (real *)element_at(&r->output, group->output);
    c.x_step = r->x.stride[r->n_outer];
    c.y_step = r->output.stride[r->n_outer];
    c.n = r->n;
    c.width = group->width;
    c.max = v_set1(-REAL_INFINITY);
    for (int64_t i = 0; i < c.n; i++)
        c.max = v_max(load_dense(&c, i), c.max);
    c.base = v_base(c.max);
    return c;
}

/* exp is computed twice: writing it out and reading it back, a row apart each time, costs more. */
static void softmax_columns_dense(const column_group *group) {
    const dense_columns c = open_dense_columns(group);
    for (int64_t i = 0; i < c.n; i++) {
        real *s = partial_of(group, i);
        v_store(s, v_add(v_load(s), v_exp(v_sub(load_dense(&c, i), c.base))));
    }
    const vec sum = tree_sum_of_lanes(group);
    for (int64_t i = 0; i < c.n; i++)
        store_dense_lanes(&c, i, finish_softmax(v_exp(v_sub(load_dense(&c, i), c.base)), sum));
}

static void log_softmax_columns_dense(const column_group *group) {
    const dense_columns c = open_dense_columns(group);
    const vec one = v_set1(1);
    vec count = v_set1(0);
    real maxima[VEC_LANES], others[VEC_LANES], counts[VEC_LANES], log1p[VEC_LANES];
    for (int64_t i = 0; i < c.n; i++) {
        real *s = partial_of(group, i);
        const vec x = load_dense(&c, i);
        const vmask is_max = v_eq(x, c.base);
        v_store(s, v_add(v_load(s), v_drop(is_max, v_exp(v_sub(x, c.base)))));
        count = v_add(count, v_keep(is_max, one));
    }
    v_store(maxima, c.max);
    v_store(others, tree_sum_of_lanes(group));
    v_store(counts, count);
    for (int w = 0; w < VEC_LANES; w++) {
        log1p[w] = log_of_rest(maxima[w], others[w], (int64_t)counts[w]);
        if (maxima[w] == REAL_INFINITY)
            log1p[w] = quiet_nan();
    }
    const vec a = v_load(log1p);
    for (int64_t i = 0; i < c.n; i++)
        store_dense_lanes(&c, i, finish_log_softmax(load_dense(&c, i), c.base, a));
}
