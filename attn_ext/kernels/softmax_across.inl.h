/* The softmax family across the lanes: neighbouring rows in the lanes, for a reduced axis that is
 * not the contiguous one. A strip of rows is copied to scratch once, as far as it fits, because
 * elements a power of two apart would fight for the same cache sets in every pass. Each lane has
 * its own PARTIALS partial sums, so the bits are those of softmax_along.inl.h.
 */
#define STRIP_REALS ((int64_t)(2097152 / sizeof(real))) /* of the copy */
#define STRIP_MIN_WIDTH 64                              /* rows: whole cache lines in a run */
#define STRIP_MAX_WIDTH 128                             /* a multiple of any VEC_LANES */

/* `width` neighbouring rows: where element 0 of each array is. Arrays in scratch have `row` reals
 * per element, `width` rounded up to whole vectors. */
typedef struct strip {
    const reduction *r;
    int width, row;
    int64_t n_kept;                /* elements in scratch at once */
    ptrdiff_t x, y, where, output; /* elements */
    real *data;                    /* (n_kept, row) */
    real *gradient;                /* the same, for softmax_vjp: data is the softmax */
    real *where_row;               /* (row,) */
    real *partial;                 /* (PARTIALS, row) */
    real *max, *least;             /* (row,) */
    real *a, *z;                   /* (row,); a: the sum or log1p, z: 1 / sum */
    real *count;                   /* (row,), within a stretch */
    int64_t n_max[STRIP_MAX_WIDTH];
    int is_narrow;
    exp_words constants;
} strip;

/* Rows per strip: as many as keep whole rows in scratch, if those are not too few. */
static int strip_width(const reduction *r) {
    const int64_t fitting = STRIP_REALS / max_i64(1, r->n) / PARTIALS * PARTIALS;
    return (int)max_i64(STRIP_MIN_WIDTH, min_i64(STRIP_MAX_WIDTH, fitting));
}

/* Elements of a row that are kept in scratch, `row` reals each. */
FA_INLINE int64_t kept_elements(const reduction *r, int row) {
    return min_i64(r->n, STRIP_REALS / row);
}

/* Reals that a worker needs. */
static size_t strip_scratch(const reduction *r) {
    const int64_t n_column = r->shape[r->n_outer - 1];
    const int row = (int)whole_vectors(min_i64(strip_width(r), n_column));
    const size_t copies = r->call->kind == FA_SOFTMAX_VJP ? 2 : 1;
    return copies * (size_t)(kept_elements(r, row) * row) + (PARTIALS + 6) * STRIP_MAX_WIDTH;
}

static void open_strip(strip *s, const reduction *r, int64_t first_row, real *scratch) {
    const int lane = r->n_outer - 1;
    const int64_t n_column = r->shape[lane], rest = first_row / n_column;
    const ptrdiff_t column = (ptrdiff_t)(first_row % n_column);
    const fa_axes *arrays[] = {&r->x, &r->y, &r->where, &r->output};
    ptrdiff_t *offsets[] = {&s->x, &s->y, &s->where, &s->output};
    s->r = r;
    load_exp_words(&s->constants);
    s->width = (int)min_i64(strip_width(r), n_column - column);
    s->row = (int)whole_vectors(s->width);
    s->n_kept = kept_elements(r, s->row);
    for (int a = 0; a < 4; a++)
        *offsets[a] = offset_of(r, arrays[a], 0, lane, rest) + column * arrays[a]->stride[lane];
    real **parts[] = {&s->max, &s->least, &s->a, &s->z, &s->count, &s->where_row};
    s->partial = scratch;
    for (int i = 0; i < 6; i++)
        *parts[i] = s->partial + (PARTIALS + i) * STRIP_MAX_WIDTH;
    s->data = s->partial + (PARTIALS + 6) * STRIP_MAX_WIDTH;
    s->gradient = s->data + s->n_kept * s->row;
    memset(s->partial, 0, sizeof(real) * PARTIALS * STRIP_MAX_WIDTH);
    memset(s->n_max, 0, sizeof s->n_max);
    for (int w = 0; w < s->row; w++) {
        s->max[w] = -REAL_INFINITY;
        s->least[w] = REAL_INFINITY;
        s->count[w] = 0;
    }
}

FA_INLINE real *data_of(const strip *s, int64_t i) { return s->data + i % s->n_kept * s->row; }

/* Element i of all rows of the strip; lanes past the width are 0. */
static void load_lanes(const strip *s, const fa_axes *a, ptrdiff_t base, int64_t i, real *to) {
    const reduction *r = s->r;
    const char *from = element_at(a, base + offset_in_row(r, a, i));
    widen_row(to, from, a->dtype, s->width, a->stride[r->n_outer - 1]);
    for (int w = s->width; w < s->row; w++)
        to[w] = 0;
}

/* Element i of x, with what is excluded as -inf. */
static void load_x_lanes(const strip *s, int64_t i, real *to) {
    load_lanes(s, &s->r->x, s->x, i, to);
    if (!s->r->where.data)
        return;
    load_lanes(s, &s->r->where, s->where, i, s->where_row);
    for (int w = 0; w < s->width; w++)
        to[w] = s->where_row[w] != 0 ? to[w] : -REAL_INFINITY;
}

static void load_element(const strip *s, int64_t i) {
    if (s->r->call->kind == FA_SOFTMAX_VJP) {
        load_lanes(s, &s->r->y, s->y, i, data_of(s, i));
        load_lanes(s, &s->r->x, s->x, i, s->gradient + (data_of(s, i) - s->data));
    } else {
        load_x_lanes(s, i, data_of(s, i));
    }
}

/* Loads elements first .. first + n_kept unless they are all that there is; the end of them. */
static int64_t load_again(const strip *s, int64_t first) {
    const int64_t end = min_i64(s->r->n, first + s->n_kept);
    for (int64_t i = first; s->n_kept < s->r->n && i < end; i++)
        load_element(s, i);
    return end;
}

static void store_lanes(const strip *s, int64_t i) {
    real *y = data_of(s, i);
    const reduction *r = s->r;
    const fa_axes *out = &r->output;
    if (r->where.data) {
        const real excluded = r->call->kind == FA_LOG_SOFTMAX ? -REAL_INFINITY : 0;
        load_lanes(s, &r->where, s->where, i, s->where_row);
        for (int w = 0; w < s->width; w++)
            y[w] = s->where_row[w] != 0 ? y[w] : excluded;
    }
    char *to = element_at(out, s->output + offset_in_row(r, out, i));
    const ptrdiff_t step = out->stride[r->n_outer - 1];
    int w = 0;
    if (step == 1 && out->dtype == REAL_DTYPE)
        for (; w + VEC_LANES <= s->width; w += VEC_LANES)
            v_store((real *)to + w, v_clean(v_load(y + w)));
    for (; w < s->width; w += VEC_LANES)
        store_columns(to, out->dtype, step, w, (int)min_i64(VEC_LANES, s->width - w),
                      v_load(y + w));
}

FA_INLINE real *partial_of(const strip *s, int64_t i) { return s->partial + i % PARTIALS * s->row; }

static void tree_sum_of_lanes(const strip *s, real *to) {
    for (int h = PARTIALS / 2; h > 0; h /= 2)
        for (int k = 0; k < h * s->row; k += VEC_LANES)
            v_store(s->partial + k,
                    v_add(v_load(s->partial + k), v_load(s->partial + h * s->row + k)));
    memcpy(to, s->partial, sizeof(real) * (size_t)s->row);
}

/* ---- one element of all rows ---- */

static void extend(strip *s, int64_t i) {
    const real *x = data_of(s, i);
    for (int w = 0; w < s->row; w += VEC_LANES) {
        vec most = v_load(s->max + w), least = v_load(s->least + w);
        widen_extent(v_load(x + w), &most, &least);
        v_store(s->max + w, most);
        v_store(s->least + w, least);
    }
}

/* Whether all rows of the strip are narrow, so that they need no second look. */
static int is_narrow_strip(const strip *s) {
    int is_narrow = 1;
    for (int w = 0; w < s->row; w += VEC_LANES)
        is_narrow &= m_all(v_le(v_set1(NARROW), v_sub(v_load(s->least + w), v_load(s->max + w))));
    return is_narrow;
}

/* exp(x - max) of n vectors of lanes from w on. */
FA_INLINE void exp_lanes(const strip *s, int n, int w, const real *x, int is_narrow, vec *e) {
    for (int v = 0; v < n; v++)
        e[v] = v_sub(v_load(x + w + v * VEC_LANES), v_load(s->max + w + v * VEC_LANES));
    if (is_narrow)
        v_exp_normal(&s->constants, n, e, e);
    else
        v_exp_many(&s->constants, n, e, e);
}

FA_INLINE void add_some_lanes(const strip *s, int n, int w, real *x, real *sum, int is_narrow) {
    vec e[EXP_AT_ONCE];
    exp_lanes(s, n, w, x, is_narrow, e);
    for (int v = 0; v < n; v++) {
        const int at = w + v * VEC_LANES;
        v_store(sum + at, v_add(v_load(sum + at), e[v]));
        v_store(x + at, e[v]);
    }
}

FA_INLINE void add_lanes_as(int is_narrow, const strip *s, int64_t i) {
    real *x = data_of(s, i), *sum = partial_of(s, i);
    int w = 0;
    for (; w + LONG_STEP <= s->row; w += LONG_STEP)
        add_some_lanes(s, EXP_AT_ONCE, w, x, sum, is_narrow);
    for (; w < s->row; w += VEC_LANES)
        add_some_lanes(s, 1, w, x, sum, is_narrow);
}

/* x becomes exp(x - max), which is added to the partial sums. */
static void add_lanes(const strip *s, int64_t i) {
    if (s->is_narrow)
        add_lanes_as(1, s, i);
    else
        add_lanes_as(0, s, i);
}

FA_INLINE void add_some_others(const strip *s, int n, int w, const real *x, real *sum,
                               int is_narrow) {
    vec e[EXP_AT_ONCE];
    exp_lanes(s, n, w, x, is_narrow, e);
    for (int v = 0; v < n; v++) {
        const int at = w + v * VEC_LANES;
        const vmask is_max = v_eq(v_load(x + at), v_load(s->max + at));
        v_store(sum + at, v_add(v_load(sum + at), v_drop(is_max, e[v])));
        v_store(s->count + at, v_add(v_load(s->count + at), v_keep(is_max, v_set1(1))));
    }
}

FA_INLINE void add_other_lanes_as(int is_narrow, const strip *s, int64_t i) {
    const real *x = data_of(s, i);
    real *sum = partial_of(s, i);
    int w = 0;
    for (; w + LONG_STEP <= s->row; w += LONG_STEP)
        add_some_others(s, EXP_AT_ONCE, w, x, sum, is_narrow);
    for (; w < s->row; w += VEC_LANES)
        add_some_others(s, 1, w, x, sum, is_narrow);
}

/* The same without the elements equal to the maximum, which are counted; x stays. */
static void add_other_lanes(const strip *s, int64_t i) {
    if (s->is_narrow)
        add_other_lanes_as(1, s, i);
    else
        add_other_lanes_as(0, s, i);
}

static void divide_lanes(const strip *s, int64_t i) {
    real *p = data_of(s, i);
    for (int w = 0; w < s->row; w += VEC_LANES) {
        const vec at = v_load(p + w), sum = v_load(s->a + w);
        v_store(p + w,
                s->is_narrow ? v_quotient(at, sum, v_load(s->z + w)) : finish_softmax(at, sum));
    }
}

static void subtract_lanes(const strip *s, int64_t i) {
    const vec hidden = v_set1(-REAL_INFINITY);
    real *x = data_of(s, i);
    for (int w = 0; w < s->row; w += VEC_LANES) {
        const vec a = v_load(s->a + w);
        const vec y = v_sub(v_sub(v_load(x + w), v_load(s->max + w)), a);
        v_store(x + w, v_select(v_eq(a, hidden), hidden, y));
    }
}

static void add_product_lanes(const strip *s, int64_t i) {
    const real *y = data_of(s, i), *g = s->gradient + (y - s->data);
    real *sum = partial_of(s, i);
    for (int w = 0; w < s->row; w += VEC_LANES)
        v_store(sum + w, v_fma(v_load(g + w), v_load(y + w), v_load(sum + w)));
}

static void multiply_lanes(const strip *s, int64_t i) {
    real *y = data_of(s, i), *g = s->gradient + (y - s->data);
    for (int w = 0; w < s->row; w += VEC_LANES)
        v_store(y + w, v_mul(v_load(y + w), v_sub(v_load(g + w), v_load(s->a + w))));
}

/* ---- the functions ---- */

/* The number of elements equal to the maximum, counted in T while that is exact. */
static void count_maxima(strip *s) {
    for (int w = 0; w < s->row; w++) {
        s->n_max[w] += (int64_t)s->count[w];
        s->count[w] = 0;
    }
}

static void softmax_strip(strip *s) {
    const int64_t n = s->r->n;
    for (int w = 0; w < s->row; w++)
        s->max[w] = r_base(s->max[w]);
    for (int64_t first = 0, end; first < n && !stopped_before(first, s->r->is_in_place);
         first = end) {
        end = load_again(s, first);
        for (int64_t i = first; i < end; i++)
            add_lanes(s, i);
    }
    tree_sum_of_lanes(s, s->a);
    for (int w = 0; w < s->row; w++)
        s->z[w] = 1 / s->a[w];
    for (int64_t first = 0, end; first < n && !stopped_before(first, s->r->is_in_place);
         first = end) {
        end = load_again(s, first);
        for (int64_t i = first; i < end; i++) {
            if (s->n_kept < n) /* loaded once more: the sums are not read again */
                add_lanes(s, i);
            divide_lanes(s, i);
            store_lanes(s, i);
        }
    }
}

static void log_strip(strip *s) {
    const int64_t n = s->r->n;
    for (int64_t first = 0, end; first < n && !stopped_before(first, s->r->is_in_place);
         first = end) {
        end = load_again(s, first);
        for (int64_t i = first; i < end; i++)
            add_other_lanes(s, i);
        count_maxima(s);
    }
    tree_sum_of_lanes(s, s->a);
    logs_of_rest(s->width, s->max, s->a, s->n_max, s->a);
    if (s->r->call->kind == FA_LOGSUMEXP) {
        for (int w = 0; w < s->width; w++)
            put(element_at(&s->r->output, s->output), s->r->output.dtype,
                w * s->r->output.stride[s->r->n_outer - 1], log_sum(s->max[w], s->a[w]));
        return;
    }
    for (int w = 0; w < s->width; w++)
        if (s->max[w] == REAL_INFINITY)
            s->a[w] = quiet_nan();
    for (int64_t first = 0, end; first < n && !stopped_before(first, s->r->is_in_place);
         first = end) {
        end = load_again(s, first);
        for (int64_t i = first; i < end; i++) {
            subtract_lanes(s, i);
            store_lanes(s, i);
        }
    }
}

static void vjp_strip(strip *s) {
    const int64_t n = s->r->n;
    for (int64_t i = 0; i < n; i++) {
        if (i % s->n_kept == 0 && stopped_before(i, s->r->is_in_place))
            return;
        load_element(s, i);
        add_product_lanes(s, i);
    }
    tree_sum_of_lanes(s, s->a);
    for (int64_t first = 0, end; first < n && !stopped_before(first, s->r->is_in_place);
         first = end) {
        end = load_again(s, first);
        for (int64_t i = first; i < end; i++) {
            multiply_lanes(s, i);
            store_lanes(s, i);
        }
    }
}

/* The strip of rows that starts at `first_row`. */
static void reduce_across(const reduction *r, int64_t first_row, real *scratch) {
    strip s;
    open_strip(&s, r, first_row, scratch);
    if (r->call->kind == FA_SOFTMAX_VJP) {
        vjp_strip(&s);
        return;
    }
    for (int64_t i = 0; i < r->n; i++) {
        if (i % s.n_kept == 0 && stopped_before(i, r->is_in_place))
            return;
        load_element(&s, i);
        extend(&s, i);
    }
    s.is_narrow = is_narrow_strip(&s);
    if (r->call->kind == FA_SOFTMAX)
        softmax_strip(&s);
    else
        log_strip(&s);
}
