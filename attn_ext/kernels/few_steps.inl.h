/* The first steps of few.inl.h: scores of a range of keys, softmax of a row. */
#define FEW_ROWS 8
#define KEY_VECS 4
#define KEYS_AT_ONCE (KEY_VECS * VEC_LANES)
#define VALUES_AT_ONCE \
    8 /* in one pass over the output; one row keeps their weights in registers \
       */
#define SEGMENT_KEYS (FA_KEY_BLOCK * FA_SEGMENT)

typedef struct few {
    const group *g;
    int n_row;
    int careful;
    ptrdiff_t width;              /* d_value rounded up to whole vectors */
    real *query;                  /* (FEW_ROWS, d_head) */
    real *scores;                 /* (FEW_ROWS, SEGMENT_KEYS): t, then p, then w */
    real *mask, *bias;            /* (FA_KEY_BLOCK,), of one row and block */
    real *visible;                /* (FEW_ROWS, FA_KEY_BLOCK), careful only: 1 or 0 */
    real *key;                    /* (KEYS_AT_ONCE, d_head) */
    real *value;                  /* (VALUES_AT_ONCE, width) */
    real *block_out;              /* (FEW_ROWS, width) */
    softmax_state segment, total; /* (FEW_ROWS,), out (FEW_ROWS, width) */
    row_rule rule[FEW_ROWS];
} few;

/* Keys and values are asked for early, in the order of memory and into the second cache: requests
 * of the first would wait for each other, and rows of keys are read in turns that no hardware
 * foresees.
 */
#define BYTES_AHEAD 4096 /* of values */

/* The cache lines of rows of `size` bytes, one after another. */
typedef struct row_lines {
    const char *row;
    ptrdiff_t at, size, stride;
} row_lines;

FA_INLINE void prefetch_lines(row_lines *lines, int n) {
    for (int i = 0; i < n; i++) {
        FA_PREFETCH_FAR(lines->row + lines->at);
        lines->at += 64;
        if (lines->at >= lines->size) {
            lines->at = 0;
            lines->row += lines->stride;
        }
    }
}

/* ---- scores ---- */

/* Columns d .. d + VEC_LANES of a row of n neighbouring elements as reals, 0 past its end. */
FA_INLINE vec load_columns(fa_dtype dtype, const char *row, ptrdiff_t d, ptrdiff_t n) {
    const char *from = row + d * (ptrdiff_t)dtype_size(dtype);
    real lanes[VEC_LANES];
    if (d + VEC_LANES <= n)
        return v_widen(from, dtype);
    if (dtype == REAL_DTYPE)
        return v_load_part((const real *)from, (int)(n - d));
    widen_row(lanes, from, dtype, n - d, 1);
    return v_load_part(lanes, (int)(n - d));
}

/* Keys of a segment as the scores read them: rows of neighbouring elements. */
typedef struct key_rows {
    const char *data;
    ptrdiff_t row;     /* bytes */
    const real *scale; /* of int8 keys, or NULL */
} key_rows;

/* Columns k .. d of VEC_LANES keys, turned: t[i] is column k + i of all keys, 0 past d. */
FA_INLINE void turn_last_columns(fa_dtype dtype, const char *key, ptrdiff_t row, ptrdiff_t k,
                                 ptrdiff_t d, vec t[VEC_LANES]) {
    for (int i = 0; i < VEC_LANES; i++)
        t[i] = load_columns(dtype, key + i * row, k, d);
    v_transpose(t);
}

/* Scores of n_vec vectors of keys for n_row rows from row r on. Their product is the number of fma
 * chains: 4 at least, to hide the latency of one. */
FA_INLINE void score_keys(fa_dtype dtype, int n_row, int n_vec, const few *f, int r, key_rows keys,
                          real *scores) {
    const ptrdiff_t d = (ptrdiff_t)f->g->call->d_head, size = (ptrdiff_t)dtype_size(dtype);
    const real *query = f->query + r * d;
    vec dot[4][KEY_VECS], t[VEC_LANES];
    for (int m = 0; m < n_row; m++)
        for (int v = 0; v < n_vec; v++)
            dot[m][v] = v_set1(0);
    const int n_turned = columns_turned(dtype);
    const int n_line = r > 0 ? 0 : (int)((VEC_LANES * n_turned * size + 63) / 64); /* of a turn */
    row_lines next = {keys.data + KEYS_AT_ONCE * keys.row, 0, d * size, keys.row};
    ptrdiff_t k = 0;
    for (; k + n_turned <= d; k += n_turned) {
        for (int v = 0; v < n_vec; v++) {
            const char *place = keys.data + v * VEC_LANES * keys.row + k * size;
            prefetch_lines(&next, n_line);
            FA_LOAD_AGAIN(); /* the queries */
            turn_columns(dtype, place, keys.row, t);
            FA_UNROLL
            for (int i = 0; i < n_turned; i++)
                FA_UNROLL
            for (int m = 0; m < n_row; m++)
                dot[m][v] = v_fma(v_set1(query[m * d + k + i]), t[i], dot[m][v]);
        }
    }
    for (int v = 0; v < n_vec && k < d; v++) {
        turn_last_columns(dtype, keys.data + v * VEC_LANES * keys.row, keys.row, k, d, t);
        for (int i = 0; i < d - k; i++)
            for (int m = 0; m < n_row; m++)
                dot[m][v] = v_fma(v_set1(query[m * d + k + i]), t[i], dot[m][v]);
    }
    const vec factor = v_set1(f->g->score_factor);
    for (int v = 0; v < n_vec; v++) {
        const vec scale = keys.scale ? v_load(keys.scale + v * VEC_LANES) : v_set1(0);
        for (int m = 0; m < n_row; m++) {
            const vec x = keys.scale ? v_mul(dot[m][v], scale) : dot[m][v];
            v_store(scores + (r + m) * SEGMENT_KEYS + v * VEC_LANES, v_mul(x, factor));
        }
    }
}

/* Scores of n <= KEYS_AT_ONCE keys, in whole vectors, for n_row rows. */
FA_INLINE void score_some_rows(fa_dtype dtype, int n_row, const few *f, int r, key_rows keys, int n,
                               real *scores) {
    for (int first = 0; first < n; first += 2 * VEC_LANES) {
        key_rows part = keys;
        part.data += first * keys.row;
        part.scale = keys.scale ? keys.scale + first : NULL;
        score_keys(dtype, n_row, 2, f, r, part, scores + first);
    }
}

/* The same for all rows. */
FA_INLINE void score_rows_as(fa_dtype dtype, const few *f, key_rows keys, int n, real *scores) {
    int r = 0;
    for (; r + 4 <= f->n_row; r += 4)
        score_some_rows(dtype, 4, f, r, keys, n, scores);
    for (; r + 2 <= f->n_row; r += 2)
        score_some_rows(dtype, 2, f, r, keys, n, scores);
    if (r < f->n_row)
        score_keys(dtype, 1, KEY_VECS, f, r, keys, scores);
}

static void score_rows_of_keys(fa_dtype dtype, const few *f, key_rows keys, int n, real *scores) {
    switch (dtype) {
    case REAL_DTYPE: score_rows_as(REAL_DTYPE, f, keys, n, scores); break;
#if FA_REAL_BITS == 64
    case FA_FLOAT32: score_rows_as(FA_FLOAT32, f, keys, n, scores); break;
#endif
    case FA_FLOAT16: score_rows_as(FA_FLOAT16, f, keys, n, scores); break;
    case FA_BFLOAT16: score_rows_as(FA_BFLOAT16, f, keys, n, scores); break;
    default: score_rows_as(FA_INT8, f, keys, n, scores); break;
    }
}

/* KEYS_AT_ONCE keys from j on, of which n exist: the caller's memory, or a copy as reals. */
FA_INLINE key_rows rows_of_keys(const few *f, int64_t j, int n, fa_dtype *dtype) {
    const row_view *keys = &f->g->key;
    const ptrdiff_t d = (ptrdiff_t)f->g->call->d_head;
    if (keys->column == 1 && n == KEYS_AT_ONCE) {
        const key_rows rows = {row_at(keys, j), keys->row * (ptrdiff_t)dtype_size(keys->dtype),
                               NULL};
        *dtype = keys->dtype;
        return rows;
    }
    widen_rows(f->key, keys, j, n, d);
    const key_rows copy = {(const char *)f->key, d * (ptrdiff_t)sizeof(real), NULL};
    *dtype = REAL_DTYPE;
    return copy;
}

/* A segment is a multiple of KEYS_AT_ONCE, and steps are counted from its start, so the last keys
 * may lie past range.end, but not past the row of f->scores. */
FA_NOINLINE void score_range(const few *f, key_range range, int64_t segment_first) {
    real lanes[KEYS_AT_ONCE] = {0};
    const row_view *scale = &f->g->key_scale;
    const int64_t skipped = (range.first - segment_first) % KEYS_AT_ONCE;
    for (int64_t j = range.first - skipped; j < range.end; j += KEYS_AT_ONCE) {
        const int n = (int)min_i64(KEYS_AT_ONCE, range.end - j);
        fa_dtype dtype;
        key_rows keys = rows_of_keys(f, j, n, &dtype);
        if (scale->data)
            widen_row(lanes, row_at(scale, 0) + j * scale->column * (ptrdiff_t)sizeof(real),
                      REAL_DTYPE, n, scale->column);
        keys.scale = scale->data ? lanes : NULL;
        score_rows_of_keys(dtype, f, keys, n, f->scores + (j - segment_first));
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
            if (g->form.softcap != 0)
                x = cap_score(&g->form, x);
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
    const real both = r_max(f->segment.max[r], largest_visible(scores, n, &any));
    const real base = r_base(both);
    real sum = 0;
    *alpha = r_exp2(f->segment.max[r] - base);
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
    f->segment.sum[r] = r_fma(f->segment.sum[r], *alpha, sum);
    f->segment.max[r] = both;
    return any;
}
