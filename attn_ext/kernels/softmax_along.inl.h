/* The softmax family along the lanes. Rows of neighbouring reals are read where they are, several
 * at once, so that the wait for one row's maximum or sum is filled by the others; all other rows
 * go through a buffer. Rows longer than the buffer are read again instead of kept.
 */
#define ROW_BUFFER 8192 /* reals; a multiple of PARTIALS */

/* ---- rows of neighbouring reals ---- */

#define ROWS_AT_ONCE (VEC_LANES > 8 ? VEC_LANES : 8)
#define REALS_AT_ONCE 4096 /* so that what one pass leaves is still in the cache for the next */
#define REALS_AHEAD 65536  /* rows up to here are asked for while those before them are computed */

typedef struct dense_rows {
    int n_row, is_in_place;
    int is_narrow; /* all of them */
    int64_t n;
    ptrdiff_t ahead; /* bytes from x to the next rows, 0 if there are none to ask for */
    const real *x[ROWS_AT_ONCE];
    real *y[ROWS_AT_ONCE];
    real max[ROWS_AT_ONCE];
    exp_words constants;
} dense_rows;

static int is_dense(const reduction *r) {
    return r->call->kind != FA_SOFTMAX_VJP && r->n_reduced == 1 && !r->where.data &&
           r->x.dtype == REAL_DTYPE && r->output.dtype == REAL_DTYPE &&
           r->x.stride[r->n_outer] == 1 &&
           (r->call->kind == FA_LOGSUMEXP || r->output.stride[r->n_outer] == 1);
}

/* Rows first .. first + n_row; those after them, up to end, come next. */
static void open_dense_rows(const reduction *r, int64_t first, int n_row, int64_t end,
                            dense_rows *d) {
    d->n_row = n_row;
    d->ahead = 0;
    d->is_in_place = r->is_in_place;
    d->n = r->n;
    for (int i = 0; i < n_row; i++) {
        const ptrdiff_t x = offset_of(r, &r->x, 0, r->n_outer, first + i);
        const ptrdiff_t y = offset_of(r, &r->output, 0, r->n_outer, first + i);
        d->x[i] = (const real *)element_at(&r->x, x);
        d->y[i] = (real *)element_at(&r->output, y);
    }
    if (first + n_row < end && r->n <= REALS_AHEAD)
        d->ahead = (offset_of(r, &r->x, 0, r->n_outer, first + n_row) -
                    offset_of(r, &r->x, 0, r->n_outer, first)) *
                   (ptrdiff_t)sizeof(real);
}

/* For rows that do not exist, so that trees are always those of whole vectors of rows. */
FA_INLINE void fill_rest(int n_row, vec rest, vec r[ROWS_AT_ONCE]) {
    for (int i = 0; i < ROWS_AT_ONCE; i++)
        if (i >= n_row)
            r[i] = rest;
}

FA_INLINE void find_extents(int64_t n, dense_rows *d) {
    vec most[ROWS_AT_ONCE], least[ROWS_AT_ONCE];
    fill_rest(d->n_row, v_set1(0), most);
    fill_rest(d->n_row, v_set1(0), least);
    for (int i = 0; i < d->n_row; i++) {
        most[i] = v_set1(-REAL_INFINITY), least[i] = v_set1(REAL_INFINITY);
        for (int64_t k = 0; k < n && !stopped_before(k, d->is_in_place); k += STRETCH)
            extent_lanes(d->x[i] + k, min_i64(STRETCH, n - k), &most[i], &least[i]);
    }
    trees_of(0, d->n_row, most, d->max);
    vmask is_narrow = is_narrow_lane(least[0], d->max[0]);
    for (int i = 1; i < d->n_row; i++)
        is_narrow = m_and(is_narrow, is_narrow_lane(least[i], d->max[i]));
    d->is_narrow = m_all(is_narrow);
}

/* The result takes the place of the exponentials: one of them per element, whatever the length. */
FA_INLINE void softmax_rows_as(int64_t n, int is_narrow, const dense_rows *d) {
    vec whole[ROWS_AT_ONCE];
    real sum[ROWS_AT_ONCE], inverse[ROWS_AT_ONCE];
    fill_rest(d->n_row, v_set1(1), whole);
    for (int i = 0; i < d->n_row; i++) {
        vec partial[PARTIAL_VECS];
        clear_partials(partial);
        for (int64_t k = 0; k < n && !stopped_before(k, d->is_in_place); k += STRETCH)
            add_exponentials_as(&d->constants, is_narrow, d->x[i] + k, d->y[i] + k,
                                min_i64(STRETCH, n - k), d->ahead, r_base(d->max[i]), partial);
        whole[i] = add_partials(partial);
    }
    trees_of(1, d->n_row, whole, sum);
    for (int i = 0; i < ROWS_AT_ONCE && i < d->n_row; i += VEC_LANES)
        v_store(inverse + i, v_div(v_set1(1), v_load(sum + i)));
    for (int i = 0; i < d->n_row; i++)
        for (int64_t k = 0; k < n && !stopped_before(k, d->is_in_place); k += STRETCH)
            divide_row(d->y[i] + k, min_i64(STRETCH, n - k), sum[i], inverse[i], is_narrow);
}

FA_INLINE void log_rows_as(int64_t n, int is_narrow, fa_reduction_kind kind, const dense_rows *d) {
    vec partial[ROWS_AT_ONCE][PARTIAL_VECS], whole[ROWS_AT_ONCE], count[ROWS_AT_ONCE];
    real others[ROWS_AT_ONCE] = {0}, counted[ROWS_AT_ONCE], log1p[ROWS_AT_ONCE];
    int64_t n_max[ROWS_AT_ONCE] = {0};
    fill_rest(d->n_row, v_set1(0), whole);
    for (int i = 0; i < d->n_row; i++)
        clear_partials(partial[i]);
    for (int64_t k = 0; k < n && !stopped_before(k, d->is_in_place); k += STRETCH) {
        for (int i = 0; i < d->n_row; i++)
            count[i] = add_others_as(&d->constants, is_narrow, d->x[i] + k, min_i64(STRETCH, n - k),
                                     d->ahead, d->max[i], partial[i]);
        fill_rest(d->n_row, v_set1(0), count);
        trees_of(1, d->n_row, count, counted);
        for (int i = 0; i < d->n_row; i++)
            n_max[i] += (int64_t)counted[i];
    }
    for (int i = 0; i < d->n_row; i++)
        whole[i] = add_partials(partial[i]);
    trees_of(1, d->n_row, whole, others);
    logs_of_rest(d->n_row, d->max, others, n_max, log1p);
    for (int i = 0; i < d->n_row; i++) {
        if (kind == FA_LOGSUMEXP) {
            put((char *)d->y[i], REAL_DTYPE, 0, log_sum(d->max[i], log1p[i]));
            continue;
        }
        for (int64_t k = 0; k < n && !stopped_before(k, d->is_in_place); k += STRETCH)
            subtract_row(d->x[i] + k, d->y[i] + k, min_i64(STRETCH, n - k), d->max[i], log1p[i]);
    }
}

FA_NOINLINE void reduce_wide_rows(fa_reduction_kind kind, const dense_rows *d) {
    if (kind == FA_SOFTMAX)
        softmax_rows_as(d->n, 0, d);
    else
        log_rows_as(d->n, 0, kind, d);
}

FA_INLINE void reduce_rows_as(int64_t n, fa_reduction_kind kind, dense_rows *d) {
    find_extents(n, d);
    if (!d->is_narrow)
        reduce_wide_rows(kind, d);
    else if (kind == FA_SOFTMAX)
        softmax_rows_as(n, 1, d);
    else
        log_rows_as(n, 1, kind, d);
}

/* A length that is known to the compiler leaves no loop inside a short row. */
static void reduce_rows_of_32(fa_reduction_kind kind, dense_rows *d) {
    reduce_rows_as(32, kind, d);
}
static void reduce_rows_of_64(fa_reduction_kind kind, dense_rows *d) {
    reduce_rows_as(64, kind, d);
}
static void reduce_rows_of_n(fa_reduction_kind kind, dense_rows *d) {
    reduce_rows_as(d->n, kind, d);
}

static void reduce_dense_rows(const reduction *r, int64_t first, int64_t end) {
    const int at_once = (int)max_i64(1, min_i64(ROWS_AT_ONCE, REALS_AT_ONCE / r->n));
    dense_rows d;
    load_exp_words(&d.constants);
    for (; first < end; first += at_once) {
        open_dense_rows(r, first, (int)min_i64(at_once, end - first), end, &d);
        if (r->n == 32)
            reduce_rows_of_32(r->call->kind, &d);
        else if (r->n == 64)
            reduce_rows_of_64(r->call->kind, &d);
        else
            reduce_rows_of_n(r->call->kind, &d);
    }
}

/* ---- any row ---- */

typedef struct row_buffers {
    real *x, *y, *where; /* (row_buffer(r),) */
    exp_words constants;
} row_buffers;

static size_t row_buffer(const reduction *r) {
    return (size_t)max_i64(PARTIALS, min_i64(ROW_BUFFER, r->n));
}

/* Reals that a worker needs. */
static size_t along_scratch(const reduction *r) { return 3 * row_buffer(r); }

/* Elements i .. i + count of a row as reals. */
static void load_elements(const reduction *r, const fa_axes *a, ptrdiff_t row, int64_t i, int count,
                          real *to) {
    if (r->n_reduced == 1) {
        const ptrdiff_t step = a->stride[r->n_outer];
        widen_row(to, element_at(a, row + (ptrdiff_t)i * step), a->dtype, count, step);
        return;
    }
    for (int k = 0; k < count; k++)
        to[k] = element(element_at(a, row + offset_in_row(r, a, i + k)), a->dtype, 0);
}

/* Loads a stretch of x with what is excluded as -inf. */
static void load_row(const reduction *r, int64_t row, int64_t i, int count, row_buffers *b) {
    load_elements(r, &r->x, offset_of(r, &r->x, 0, r->n_outer, row), i, count, b->x);
    if (!r->where.data)
        return;
    load_elements(r, &r->where, offset_of(r, &r->where, 0, r->n_outer, row), i, count, b->where);
    for (int k = 0; k < count; k++)
        b->x[k] = b->where[k] != 0 ? b->x[k] : -REAL_INFINITY;
}

static void store_row(const reduction *r, int64_t row, int64_t i, int count, const row_buffers *b) {
    const fa_axes *out = &r->output;
    const ptrdiff_t base = offset_of(r, out, 0, r->n_outer, row);
    const real excluded = r->call->kind == FA_LOG_SOFTMAX ? -REAL_INFINITY : 0;
    if (r->where.data)
        for (int k = 0; k < count; k++)
            b->x[k] = b->where[k] != 0 ? b->x[k] : excluded;
    if (r->n_reduced == 1) {
        const ptrdiff_t step = out->stride[r->n_outer];
        char *to = element_at(out, base + (ptrdiff_t)i * step);
        for (int k = 0; k < count; k += VEC_LANES) {
            const int width = count - k < VEC_LANES ? count - k : VEC_LANES;
            store_columns(to, out->dtype, step, k, width, load_or(b->x + k, width, 0));
        }
        return;
    }
    for (int k = 0; k < count; k++)
        put(element_at(out, base + offset_in_row(r, out, i + k)), out->dtype, 0, b->x[k]);
}

/* What the row adds up to, over stretches of at most ROW_BUFFER; a short row stays in b->x, for
 * softmax as its exponentials. */
typedef struct row_state {
    extent extent;
    real sum, log1p; /* of softmax; of the others */
} row_state;

static row_state sum_row(const reduction *r, int64_t row, row_buffers *b) {
    row_state state = {{-REAL_INFINITY, 1}, 0, 0};
    vec partial[PARTIAL_VECS];
    int64_t n_max = 0;
    const int is_softmax = r->call->kind == FA_SOFTMAX, is_short = r->n <= ROW_BUFFER;
    clear_partials(partial);
    for (int64_t i = 0; i < r->n && !stopped_before(i, r->is_in_place); i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        load_row(r, row, i, count, b);
        const extent e = extent_of(b->x, count);
        state.extent.max = r_max(e.max, state.extent.max);
        state.extent.is_narrow = is_short && e.is_narrow;
    }
    const real max = state.extent.max;
    for (int64_t i = 0; i < r->n && !stopped_before(i, r->is_in_place); i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i), is_narrow = state.extent.is_narrow;
        if (!is_short)
            load_row(r, row, i, count, b);
        if (is_softmax)
            add_exponentials(&b->constants, b->x, b->x, count, r_base(max), is_narrow, partial);
        else
            n_max += (int64_t)r_tree_sum(
                add_others(&b->constants, b->x, count, max, is_narrow, partial));
    }
    state.sum = tree_sum(partial);
    if (!is_softmax)
        state.log1p = log_of_rest(max, state.sum, n_max);
    return state;
}

static void finish_stretch(const reduction *r, const row_state *state, int count, row_buffers *b) {
    const extent e = state->extent;
    if (r->call->kind == FA_LOG_SOFTMAX) {
        subtract_row(b->x, b->x, count, e.max, state->log1p);
        return;
    }
    if (r->n > ROW_BUFFER) { /* loaded once more: the sums are thrown away */
        vec partial[PARTIAL_VECS];
        clear_partials(partial);
        add_exponentials(&b->constants, b->x, b->x, count, r_base(e.max), e.is_narrow, partial);
    }
    divide_row(b->x, count, state->sum, 1 / state->sum, e.is_narrow);
}

static void reduce_row(const reduction *r, int64_t row, row_buffers *b) {
    const row_state state = sum_row(r, row, b);
    if (r->call->kind == FA_LOGSUMEXP) {
        char *to = element_at(&r->output, offset_of(r, &r->output, 0, r->n_outer, row));
        put(to, r->output.dtype, 0, log_sum(state.extent.max, state.log1p));
        return;
    }
    for (int64_t i = 0; i < r->n && !stopped_before(i, r->is_in_place); i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        if (r->n > ROW_BUFFER)
            load_row(r, row, i, count, b);
        finish_stretch(r, &state, count, b);
        store_row(r, row, i, count, b);
    }
}

static void load_gradient(const reduction *r, int64_t row, int64_t i, int count, row_buffers *b) {
    load_elements(r, &r->x, offset_of(r, &r->x, 0, r->n_outer, row), i, count, b->x);
    load_elements(r, &r->y, offset_of(r, &r->y, 0, r->n_outer, row), i, count, b->y);
}

static void vjp_row(const reduction *r, int64_t row, row_buffers *b) {
    vec partial[PARTIAL_VECS];
    clear_partials(partial);
    for (int64_t i = 0; i < r->n && !stopped_before(i, r->is_in_place); i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        load_gradient(r, row, i, count, b);
        add_products(b->x, b->y, count, partial);
    }
    const vec sum = v_set1(tree_sum(partial));
    for (int64_t i = 0; i < r->n && !stopped_before(i, r->is_in_place); i += ROW_BUFFER) {
        const int count = (int)min_i64(ROW_BUFFER, r->n - i);
        if (r->n > ROW_BUFFER)
            load_gradient(r, row, i, count, b);
        for (int k = 0; k < count; k += VEC_LANES) {
            const vec g = load_or(b->x + k, count - k, 0), y = load_or(b->y + k, count - k, 0);
            store_some(b->x + k, count - k, v_mul(y, v_sub(g, sum)));
        }
        store_row(r, row, i, count, b);
    }
}

/* Rows first .. end, each of them along the lanes. */
static void reduce_along(const reduction *r, int64_t first, int64_t end, real *scratch) {
    row_buffers b;
    if (is_dense(r) && r->n > 0) {
        reduce_dense_rows(r, first, end);
        return;
    }
    b.x = scratch;
    b.y = b.x + row_buffer(r);
    b.where = b.y + row_buffer(r);
    load_exp_words(&b.constants);
    for (int64_t row = first; row < end; row++) {
        if (r->call->kind == FA_SOFTMAX_VJP)
            vjp_row(r, row, &b);
        else
            reduce_row(r, row, &b);
    }
}
