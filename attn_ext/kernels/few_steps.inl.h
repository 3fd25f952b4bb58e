/* The steps of few.inl.h: scores of a range of keys, softmax of a row, values of a block. */
#define FEW_ROWS 8
#define KEY_VECS 4
#define KEYS_AT_ONCE (KEY_VECS * VEC_LANES)
#define VALUES_AT_ONCE 8  /* whose weights one row keeps in registers */
#define VALUES_FOR_ROWS 4 /* that several rows share */
#define SEGMENT_KEYS (FA_KEY_BLOCK * FA_SEGMENT)

typedef struct few {
    const group *g;
    int n_row;
    int careful;
    ptrdiff_t width;                           /* d_value rounded up to whole vectors */
    real *query;                               /* (FEW_ROWS, d_head) */
    real *scores;                              /* (FEW_ROWS, SEGMENT_KEYS): t, then p, then w */
    real *mask, *bias;                         /* (FA_KEY_BLOCK,), of one row and block */
    real *visible;                             /* (FEW_ROWS, FA_KEY_BLOCK), careful only: 1 or 0 */
    real *key;                                 /* (KEYS_AT_ONCE, d_head) */
    real *value;                               /* (VALUES_AT_ONCE, width) */
    real *block_out, *segment_out, *total_out; /* (FEW_ROWS, width) */
    real segment_max[FEW_ROWS], segment_sum[FEW_ROWS];
    real total_max[FEW_ROWS], total_sum[FEW_ROWS];
    row_rule rule[FEW_ROWS];
} few;

/* Ask for a row early: rows follow each other faster than the hardware looks ahead. */
FA_INLINE void prefetch_row(const row_view *view, int64_t i, int64_t n_column) {
    const char *row = row_at(view, (ptrdiff_t)i);
    for (ptrdiff_t at = 0; at < n_column * (ptrdiff_t)dtype_size(view->dtype); at += 64)
        FA_PREFETCH(row + at);
}

/* ---- scores ---- */

/* Columns d .. d + VEC_LANES of a row of n, 0 past its end. */
FA_INLINE vec load_columns(const real *row, ptrdiff_t d, ptrdiff_t n) {
    return d + VEC_LANES <= n ? v_load(row + d) : v_load_part(row + d, (int)(n - d));
}

/* Columns k .. d of VEC_LANES keys, turned: t[i] is column k + i of all keys, 0 past d. */
FA_INLINE void turn_last_columns(const real *key, ptrdiff_t key_row, ptrdiff_t k, ptrdiff_t d,
                                 vec t[VEC_LANES]) {
    for (int i = 0; i < VEC_LANES; i++)
        t[i] = load_columns(key + i * key_row, k, d);
    v_transpose(t);
}

/* Ask for what the same place `ahead` reals on holds in VEC_LANES rows, a little with each load: in
 * a burst it would fill the miss buffers. */
FA_INLINE void prefetch_keys(const real *key, ptrdiff_t key_row, ptrdiff_t ahead) {
    for (int i = 0; i < VEC_LANES; i++)
        FA_PREFETCH(key + i * key_row + ahead);
}

/* How far on to ask: for one row, which is through with its keys soonest, 64 columns on, in the
 * rows of the next keys once these end; for more rows, the same columns of the next keys. */
FA_INLINE ptrdiff_t distance_ahead(int n_row, int n_vec, ptrdiff_t key_row, ptrdiff_t k,
                                   ptrdiff_t d) {
    const ptrdiff_t next = n_vec * VEC_LANES * key_row;
    if (n_row > 1)
        return next;
    return k + 64 < d ? 64 : next + 64 - d;
}

/* Scores of n_vec vectors of keys, key_row reals apart, for n_row rows from row r on. Their product
 * is the number of fma chains: 4 at least, to hide the latency of one. */
FA_INLINE void score_keys(int n_row, int n_vec, const few *f, int r, const real *key,
                          ptrdiff_t key_row, const real *key_scale, real *scores) {
    const ptrdiff_t d = (ptrdiff_t)f->g->call->d_head;
    const real *query = f->query + r * d;
    vec dot[4][KEY_VECS], t[VEC_LANES];
    for (int m = 0; m < n_row; m++)
        for (int v = 0; v < n_vec; v++)
            dot[m][v] = v_set1(0);
    ptrdiff_t k = 0;
    for (; k + VEC_LANES <= d; k += VEC_LANES) {
        const ptrdiff_t ahead = distance_ahead(n_row, n_vec, key_row, k, d);
        for (int v = 0; v < n_vec; v++) {
            const real *place = key + v * VEC_LANES * key_row + k;
            prefetch_keys(place, key_row, ahead);
            v_load_turned(place, key_row, t);
            for (int i = 0; i < VEC_LANES; i++)
                for (int m = 0; m < n_row; m++)
                    dot[m][v] = v_fma(v_set1(query[m * d + k + i]), t[i], dot[m][v]);
        }
    }
    for (int v = 0; v < n_vec && k < d; v++) {
        turn_last_columns(key + v * VEC_LANES * key_row, key_row, k, d, t);
        for (int i = 0; i < d - k; i++)
            for (int m = 0; m < n_row; m++)
                dot[m][v] = v_fma(v_set1(query[m * d + k + i]), t[i], dot[m][v]);
    }
    const vec factor = v_set1(f->g->score_factor);
    for (int v = 0; v < n_vec; v++) {
        const vec scale = key_scale ? v_load(key_scale + v * VEC_LANES) : v_set1(0);
        for (int m = 0; m < n_row; m++) {
            const vec x = key_scale ? v_mul(dot[m][v], scale) : dot[m][v];
            v_store(scores + (r + m) * SEGMENT_KEYS + v * VEC_LANES, v_mul(x, factor));
        }
    }
}

/* Scores of KEYS_AT_ONCE keys for all rows. */
static void score_rows_of_keys(const few *f, const real *key, ptrdiff_t key_row,
                               const real *key_scale, real *scores) {
    int r = 0;
    for (; r + 2 <= f->n_row; r += r + 4 <= f->n_row ? 4 : 2)
        for (int v = 0; v < KEY_VECS; v += 2) {
            const int first = v * VEC_LANES;
            const real *scale = key_scale ? key_scale + first : NULL;
            if (r + 4 <= f->n_row)
                score_keys(4, 2, f, r, key + first * key_row, key_row, scale, scores + first);
            else
                score_keys(2, 2, f, r, key + first * key_row, key_row, scale, scores + first);
        }
    if (r < f->n_row)
        score_keys(1, KEY_VECS, f, r, key, key_row, key_scale, scores);
}

/* KEYS_AT_ONCE keys from j on as rows of reals, of which n exist: the caller's memory or a copy. */
FA_INLINE const real *rows_of_keys(const few *f, int64_t j, int n, ptrdiff_t *key_row) {
    const row_view *keys = &f->g->key;
    const ptrdiff_t d = (ptrdiff_t)f->g->call->d_head;
    if (keys->dtype == REAL_DTYPE && keys->column == 1 && n == KEYS_AT_ONCE) {
        *key_row = keys->row;
        return (const real *)row_at(keys, j);
    }
    widen_rows(f->key, keys, j, n, d);
    *key_row = d;
    return f->key;
}

/* A segment is a multiple of KEYS_AT_ONCE, and steps are counted from its start, so the last keys
 * may lie past range.end, but not past the row of f->scores. */
FA_NOINLINE void score_range(const few *f, key_range range, int64_t segment_first) {
    real lanes[KEYS_AT_ONCE] = {0};
    const row_view *scale = &f->g->key_scale;
    const int64_t skipped = (range.first - segment_first) % KEYS_AT_ONCE;
    for (int64_t j = range.first - skipped; j < range.end; j += KEYS_AT_ONCE) {
        const int n = (int)min_i64(KEYS_AT_ONCE, range.end - j);
        ptrdiff_t key_row;
        const real *key = rows_of_keys(f, j, n, &key_row);
        if (scale->data)
            widen_row(lanes, row_at(scale, 0) + j * scale->column * (ptrdiff_t)sizeof(real),
                      REAL_DTYPE, n, scale->column);
        score_rows_of_keys(f, key, key_row, scale->data ? lanes : NULL,
                           f->scores + (j - segment_first));
    }
}

static void load_row_plane(const char *row, const fa_array *array, int64_t first, int n, real *to) {
    widen_row(to, row + first * array->column * (ptrdiff_t)dtype_size(array->dtype), array->dtype,
              n, array->column);
}

FA_INLINE vec key_distances(const row_rule *rule, int64_t first_key, int j) {
    real apart[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        apart[i] = distance(rule->position, first_key + j + i);
    return v_load(apart);
}

/* The long form and everything that hides a key, for row r and the n keys of a block.
 * Scores are whole vectors; lanes past n hold garbage and are set to hidden. */
static void finish_row(const few *f, int r, int64_t first_key, int n, real *scores) {
    const group *g = f->g;
    const row_rule *rule = &f->rule[r];
    const vec hidden = v_set1(-REAL_INFINITY);
    real iota[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        iota[i] = (real)i;
    if (rule->bias)
        load_row_plane(rule->bias, &g->call->bias, first_key, n, f->bias);
    if (rule->mask)
        load_row_plane(rule->mask, &g->call->mask, first_key, n, f->mask);
    const vec first = v_set1((real)max_i64(0, min_i64(n, rule->first - first_key)));
    const vec end = v_set1((real)max_i64(0, min_i64(n, rule->end - first_key)));
    for (int j = 0; j < n; j += VEC_LANES) {
        vec x = v_load(scores + j);
        if (g->has_long_form) {
            const vec bias = rule->bias ? v_load(f->bias + j) : v_set1(0);
            const vec apart = g->form.has_slopes ? key_distances(rule, first_key, j) : v_set1(0);
            x = long_form(&g->form, x, v_set1(rule->slope), apart, bias);
        }
        if (rule->mask)
            x = v_select(v_eq(v_load(f->mask + j), v_set1(0)), hidden, x);
        const vec key = v_add(v_load(iota), v_set1((real)j));
        x = v_select(m_and(v_le(first, key), v_lt(key, end)), x, hidden);
        v_store(scores + j, x);
    }
}

/* ---- softmax ---- */

/* The largest of n scores, and whether any is visible; a NaN is visible and may not be the maximum.
 */
static real largest_visible(const real *scores, int n, int *any) {
    const vec hidden = v_set1(-REAL_INFINITY);
    real lanes[VEC_LANES], max = -REAL_INFINITY;
    vec most = hidden;
    *any = 0;
    for (int j = 0; j < n; j += VEC_LANES) {
        const vec x = v_load(scores + j);
        *any |= !m_all(v_eq(x, hidden));
        most = v_max(x, most);
    }
    v_store(lanes, most);
    for (int i = 0; i < VEC_LANES; i++)
        max = r_max(lanes[i], max);
    return max;
}

/* Weights of values in int8 carry the scale of their key; a hidden key's scale does not exist. */
static void scale_weights(const few *f, const real *scores, int64_t first_key, int n, real *p) {
    const real *scale = scale_of_key(&f->g->value_scale, first_key);
    const ptrdiff_t step = f->g->value_scale.column;
    for (int i = 0; i < n; i++)
        p[i] = scores[i] == -REAL_INFINITY ? 0 : p[i] * scale[i * step];
}

/* Scores of one row and block to weights of the block in place; returns whether any is visible. */
static int softmax_row(few *f, int r, int64_t first_key, int n, real *scores, real *alpha) {
    int any;
    const real both = r_max(f->segment_max[r], largest_visible(scores, n, &any));
    const real base = r_base(both);
    real sum = 0;
    *alpha = r_exp2(f->segment_max[r] - base);
    if (f->careful)
        for (int j = 0; j < n; j++)
            f->visible[r * FA_KEY_BLOCK + j] = scores[j] != -REAL_INFINITY;
    for (int j = 0; j < n; j += VEC_LANES) {
        const int width = n - j < VEC_LANES ? n - j : VEC_LANES;
        real p[VEC_LANES];
        v_store(p, v_exp2(v_sub(v_load(scores + j), v_set1(base))));
        for (int i = 0; i < width; i++)
            sum += p[i];
        if (f->g->value_scale.data)
            scale_weights(f, scores + j, first_key + j, width, p);
        v_store(scores + j, v_load(p));
    }
    f->segment_sum[r] = r_fma(f->segment_sum[r], *alpha, sum);
    f->segment_max[r] = both;
    return any;
}

/* ---- output ---- */

FA_INLINE const real *value_row(const few *f, int64_t j, int slot) {
    const row_view *value = &f->g->value;
    const char *row = row_at(value, j);
    if (value->dtype == REAL_DTYPE && value->column == 1)
        return (const real *)row;
    real *copy = f->value + slot * f->width;
    widen_row(copy, row, value->dtype, f->g->call->d_value, value->column);
    return copy;
}

/* sum += w v of n keys, in order, for one vector of columns. */
FA_INLINE vec add_weighted(int n, const vec *w, const vec *v, vec sum) {
    for (int i = 0; i < n; i++)
        sum = v_fma(w[i], v[i], sum);
    return sum;
}

/* block_out += w v of VALUES_AT_ONCE keys from column j of the scores on, for one row. */
static void add_values_to_row(const few *f, const real *const value[VALUES_AT_ONCE], int j) {
    const ptrdiff_t n = (ptrdiff_t)f->g->call->d_value;
    real *out = f->block_out;
    vec w[VALUES_AT_ONCE], v[VALUES_AT_ONCE];
    for (int i = 0; i < VALUES_AT_ONCE; i++)
        w[i] = v_set1(f->scores[j + i]);
    ptrdiff_t d = 0;
    for (; d + VEC_LANES <= n; d += VEC_LANES) {
        for (int i = 0; i < VALUES_AT_ONCE; i++)
            v[i] = v_load(value[i] + d);
        v_store(out + d, add_weighted(VALUES_AT_ONCE, w, v, v_load(out + d)));
    }
    if (d < n) {
        for (int i = 0; i < VALUES_AT_ONCE; i++)
            v[i] = load_columns(value[i], d, n);
        v_store(out + d, add_weighted(VALUES_AT_ONCE, w, v, v_load(out + d)));
    }
}

/* The same of VALUES_FOR_ROWS keys for all rows: each vector of values serves them all. */
static void add_values_to_rows(const few *f, const real *const value[VALUES_FOR_ROWS], int j) {
    /* locals: a vector store may alias anything, so fields would be read again after each */
    const ptrdiff_t n = (ptrdiff_t)f->g->call->d_value, width = f->width;
    const int n_row = f->n_row;
    const real *weights = f->scores + j;
    real *block_out = f->block_out;
    for (ptrdiff_t d = 0; d < n; d += VEC_LANES) {
        vec w[VALUES_FOR_ROWS], v[VALUES_FOR_ROWS];
        for (int i = 0; i < VALUES_FOR_ROWS; i++)
            v[i] = load_columns(value[i], d, n);
        for (int r = 0; r < n_row; r++) {
            real *out = block_out + r * width + d;
            for (int i = 0; i < VALUES_FOR_ROWS; i++)
                w[i] = v_set1(weights[r * SEGMENT_KEYS + i]);
            v_store(out, add_weighted(VALUES_FOR_ROWS, w, v, v_load(out)));
        }
    }
}

/* block_out += w v for the rows that see this key. */
static void add_value(const few *f, const real *value, int j, const real *visible) {
    const ptrdiff_t n = (ptrdiff_t)f->g->call->d_value;
    for (int r = 0; r < f->n_row; r++) {
        if (visible && visible[r * FA_KEY_BLOCK] == 0)
            continue;
        const vec w = v_set1(f->scores[r * SEGMENT_KEYS + j]);
        for (ptrdiff_t d = 0; d < n; d += VEC_LANES) {
            real *out = f->block_out + r * f->width + d;
            v_store(out, v_fma(w, load_columns(value, d, n), v_load(out)));
        }
    }
}

/* Keys begin .. n of the block whose first key is `first`, in column `at` of f->scores. */
FA_NOINLINE void add_block(const few *f, int64_t first, int begin, int n, int at,
                           const real *alpha) {
    memset(f->block_out, 0, sizeof(real) * (size_t)(f->n_row * f->width));
    int j = begin;
    if (f->careful) {
        for (; j < n; j++)
            add_value(f, value_row(f, first + j, 0), at + j, f->visible + j);
    } else {
        const real *value[VALUES_AT_ONCE];
        for (; j + VALUES_AT_ONCE <= n; j += VALUES_AT_ONCE) {
            for (int i = 0; i < VALUES_AT_ONCE; i++) {
                value[i] = value_row(f, first + j + i, i);
                prefetch_row(&f->g->value, first + j + i + VALUES_AT_ONCE, f->g->call->d_value);
            }
            if (f->n_row == 1)
                add_values_to_row(f, value, at + j);
            for (int i = 0; f->n_row > 1 && i < VALUES_AT_ONCE; i += VALUES_FOR_ROWS)
                add_values_to_rows(f, value + i, at + j + i);
        }
        for (; j < n; j++)
            add_value(f, value_row(f, first + j, 0), at + j, NULL);
    }
    for (int r = 0; r < f->n_row; r++)
        for (ptrdiff_t d = 0; d < f->width; d += VEC_LANES) {
            real *o = f->segment_out + r * f->width + d;
            v_store(o, v_fma(v_load(o), v_set1(alpha[r]), v_load(f->block_out + r * f->width + d)));
        }
}
