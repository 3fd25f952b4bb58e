/* The last step of few.inl.h: values of a block, weighted and added to the rows. */

/* Row j of the values with neighbouring columns: the caller's memory, or a copy in a slot. */
FA_INLINE const char *value_row(const few *f, int64_t j, int slot) {
    const row_view *value = &f->g->value;
    const char *row = row_at(value, j);
    if (value->column == 1)
        return row;
    real *copy = f->value + slot * f->width;
    widen_row(copy, row, value->dtype, f->g->call->d_value, value->column);
    return (const char *)copy;
}

FA_INLINE fa_dtype value_dtype(const few *f) {
    return f->g->value.column == 1 ? f->g->value.dtype : REAL_DTYPE;
}

/* sum += w v of n keys, in order, for one vector of columns. */
FA_INLINE vec add_weighted(int n, const vec *w, const vec *v, vec sum) {
    for (int i = 0; i < n; i++)
        sum = v_fma(w[i], v[i], sum);
    return sum;
}

/* block_out += w v of VALUES_AT_ONCE keys from column j of the scores on, for one row. */
FA_INLINE void add_values_to_row(fa_dtype dtype, const few *f,
                                 const char *const value[VALUES_AT_ONCE], int j) {
    const ptrdiff_t n = (ptrdiff_t)f->g->call->d_value;
    real *out = f->block_out;
    vec w[VALUES_AT_ONCE], v[VALUES_AT_ONCE];
    for (int i = 0; i < VALUES_AT_ONCE; i++)
        w[i] = v_set1(f->scores[j + i]);
    ptrdiff_t d = 0;
    for (; d + VEC_LANES <= n; d += VEC_LANES) {
        FA_UNROLL
        for (int i = 0; i < VALUES_AT_ONCE; i++)
            v[i] = v_widen(value[i] + d * (ptrdiff_t)dtype_size(dtype), dtype);
        v_store(out + d, add_weighted(VALUES_AT_ONCE, w, v, v_load(out + d)));
    }
    if (d < n) {
        for (int i = 0; i < VALUES_AT_ONCE; i++)
            v[i] = load_columns(dtype, value[i], d, n);
        v_store(out + d, add_weighted(VALUES_AT_ONCE, w, v, v_load(out + d)));
    }
}

/* Two vectors of columns from d on, or the last one, for n_row rows: their sums stay in registers.
 */
FA_INLINE void add_columns_to_rows(fa_dtype dtype, int n_row, int n_vec, const few *f, int r,
                                   const char *const value[VALUES_AT_ONCE], int j, ptrdiff_t d) {
    const ptrdiff_t n = (ptrdiff_t)f->g->call->d_value, width = f->width;
    const ptrdiff_t size = (ptrdiff_t)dtype_size(dtype);
    const real *weights = f->scores + r * SEGMENT_KEYS + j;
    real *out = f->block_out + r * width + d;
    vec sum[4][2], v[2];
    FA_UNROLL
    for (int m = 0; m < n_row; m++)
        for (int c = 0; c < n_vec; c++)
            sum[m][c] = v_load(out + m * width + c * VEC_LANES);
    FA_UNROLL
    for (int i = 0; i < VALUES_AT_ONCE; i++) {
        for (int c = 0; c < n_vec; c++)
            v[c] = n_vec == 2 ? v_widen(value[i] + (d + c * VEC_LANES) * size, dtype)
                              : load_columns(dtype, value[i], d, n);
        FA_UNROLL
        for (int m = 0; m < n_row; m++) {
            const vec w = v_set1(weights[m * SEGMENT_KEYS + i]);
            for (int c = 0; c < n_vec; c++)
                sum[m][c] = v_fma(w, v[c], sum[m][c]);
        }
    }
    FA_UNROLL
    for (int m = 0; m < n_row; m++)
        for (int c = 0; c < n_vec; c++)
            v_store(out + m * width + c * VEC_LANES, sum[m][c]);
}

FA_INLINE void add_values_to_some_rows(fa_dtype dtype, int n_row, const few *f, int r,
                                       const char *const value[VALUES_AT_ONCE], int j) {
    const ptrdiff_t n = (ptrdiff_t)f->g->call->d_value;
    ptrdiff_t d = 0;
    for (; d + 2 * VEC_LANES <= n; d += 2 * VEC_LANES)
        add_columns_to_rows(dtype, n_row, 2, f, r, value, j, d);
    for (; d < n; d += VEC_LANES)
        add_columns_to_rows(dtype, n_row, 1, f, r, value, j, d);
}

/* The same for all rows. */
FA_INLINE void add_values_to_rows(fa_dtype dtype, const few *f,
                                  const char *const value[VALUES_AT_ONCE], int j) {
    int r = 0;
    for (; r + 4 <= f->n_row; r += 4)
        add_values_to_some_rows(dtype, 4, f, r, value, j);
    for (; r + 2 <= f->n_row; r += 2)
        add_values_to_some_rows(dtype, 2, f, r, value, j);
    if (r < f->n_row)
        add_values_to_some_rows(dtype, 1, f, r, value, j);
}

/* block_out += w v for the rows that see this key. */
static void add_value(const few *f, const char *value, int j, const real *visible) {
    const ptrdiff_t n = (ptrdiff_t)f->g->call->d_value;
    for (int r = 0; r < f->n_row; r++) {
        if (visible && visible[r * FA_KEY_BLOCK] == 0)
            continue;
        const vec w = v_set1(f->scores[r * SEGMENT_KEYS + j]);
        for (ptrdiff_t d = 0; d < n; d += VEC_LANES) {
            real *out = f->block_out + r * f->width + d;
            v_store(out, v_fma(w, load_columns(value_dtype(f), value, d, n), v_load(out)));
        }
    }
}

/* VALUES_AT_ONCE values from key `first` on, whose weights start in column j of the scores. */
FA_INLINE void add_values_as(fa_dtype dtype, const few *f, int64_t first, int j) {
    const char *value[VALUES_AT_ONCE];
    const ptrdiff_t row_bytes =
        (ptrdiff_t)f->g->call->d_value * (ptrdiff_t)dtype_size(f->g->value.dtype);
    const int64_t ahead = max_i64(VALUES_AT_ONCE, BYTES_AHEAD / max_i64(1, row_bytes));
    for (int i = 0; i < VALUES_AT_ONCE; i++) {
        value[i] = value_row(f, first + i, i);
        prefetch_row(&f->g->value, first + i + ahead, row_bytes);
    }
    if (f->n_row == 1)
        add_values_to_row(dtype, f, value, j);
    else
        add_values_to_rows(dtype, f, value, j);
}

static void add_several_values(const few *f, int64_t first, int j) {
    switch (value_dtype(f)) {
    case REAL_DTYPE: add_values_as(REAL_DTYPE, f, first, j); break;
#if FA_REAL_BITS == 64
    case FA_FLOAT32: add_values_as(FA_FLOAT32, f, first, j); break;
#endif
    case FA_FLOAT16: add_values_as(FA_FLOAT16, f, first, j); break;
    case FA_BFLOAT16: add_values_as(FA_BFLOAT16, f, first, j); break;
    default: add_values_as(FA_INT8, f, first, j); break;
    }
}

/* Keys begin .. n of the block whose first key is `first`, in column `at` of f->scores. */
FA_NOINLINE void add_block(const few *f, int64_t first, int begin, int n, int at,
                           const real *alpha) {
    memset(f->block_out, 0, sizeof(real) * (size_t)(f->n_row * f->width));
    int j = begin;
    for (; !f->careful && j + VALUES_AT_ONCE <= n; j += VALUES_AT_ONCE)
        add_several_values(f, first + j, at + j);
    for (; j < n; j++)
        add_value(f, value_row(f, first + j, 0), at + j, f->careful ? f->visible + j : NULL);
    for (int r = 0; r < f->n_row; r++)
        for (ptrdiff_t d = 0; d < f->width; d += VEC_LANES) {
            real *o = f->segment.out + r * f->width + d;
            v_store(o, v_fma(v_load(o), v_set1(alpha[r]), v_load(f->block_out + r * f->width + d)));
        }
}
