/* Reading arrays of any data type as reals, and writing results.
 *
 * A row_view is one (row, column) plane of an array: where a batch entry and a head have been
 * chosen. Rows are widened to reals a block at a time; nothing is ever copied whole.
 */

typedef struct row_view {
    const char *data;
    fa_dtype dtype;
    ptrdiff_t row, column; /* elements */
} row_view;

#define REAL_DTYPE (FA_REAL_BITS == 32 ? FA_FLOAT32 : FA_FLOAT64)

FA_INLINE size_t dtype_size(fa_dtype dtype) {
    switch (dtype) {
    case FA_FLOAT64: return 8;
    case FA_FLOAT32: return 4;
    case FA_FLOAT16:
    case FA_BFLOAT16: return 2;
    default: return 1;
    }
}

/* Offset in elements of batch entry b along the leading axes, last axis fastest. */
static ptrdiff_t lead_offset(const fa_attention *call, const fa_array *array, int64_t b) {
    ptrdiff_t offset = 0;
    for (int axis = call->n_lead - 1; axis > 0; axis--) {
        offset += (ptrdiff_t)(b % call->lead_shape[axis]) * array->lead[axis];
        b /= call->lead_shape[axis];
    }
    return call->n_lead > 0 ? offset + (ptrdiff_t)b * array->lead[0] : offset;
}

static row_view plane(const fa_attention *call, const fa_array *array, int64_t b, int64_t head) {
    row_view view = {NULL, array->dtype, array->row, array->column};
    if (array->data) {
        const ptrdiff_t offset = lead_offset(call, array, b) + (ptrdiff_t)head * array->head;
        view.data = (const char *)array->data + offset * (ptrdiff_t)dtype_size(array->dtype);
    }
    return view;
}

/* Whether rows of n_column reals stand one behind the other. */
FA_INLINE int has_dense_reals(const row_view *view, int64_t n_column) {
    return view->dtype == REAL_DTYPE && view->column == 1 && view->row == n_column;
}

FA_INLINE const char *row_at(const row_view *view, ptrdiff_t i) {
    return view->data + i * view->row * (ptrdiff_t)dtype_size(view->dtype);
}

FA_INLINE void prefetch_row(const row_view *view, int64_t i, ptrdiff_t row_bytes) {
    const char *row = row_at(view, (ptrdiff_t)i);
    for (ptrdiff_t at = 0; at < row_bytes; at += 64)
        FA_PREFETCH_FAR(row + at);
}

/* float64 to T; a finite value that does not fit saturates, so it never turns into a mask. */
FA_INLINE real narrow_saturating(double x) {
    const real r = (real)x;
    if (r_is_finite(r) || x != x || x - x != 0)
        return r;
    return x > 0 ? REAL_HUGE : -REAL_HUGE;
}

FA_INLINE real element(const char *row, fa_dtype dtype, ptrdiff_t i) {
    switch (dtype) {
    case FA_FLOAT64: return narrow_saturating(((const double *)row)[i]);
    case FA_FLOAT32: return ((const float *)row)[i];
    case FA_FLOAT16: return fa_f32_from_f16(((const uint16_t *)row)[i]);
    case FA_BFLOAT16: return fa_f32_from_bf16(((const uint16_t *)row)[i]);
    case FA_INT8: return ((const int8_t *)row)[i];
    default: return ((const uint8_t *)row)[i] != 0;
    }
}

/* VEC_LANES neighbouring elements as reals. A bool becomes 0 or something else than 0. */
FA_INLINE vec v_widen(const char *row, fa_dtype dtype) {
    switch (dtype) {
#if FA_REAL_BITS == 64
    case FA_FLOAT64: return v_load((const double *)row);
#else
    case FA_FLOAT64: {
        real lanes[VEC_LANES];
        for (int i = 0; i < VEC_LANES; i++)
            lanes[i] = narrow_saturating(((const double *)row)[i]);
        return v_load(lanes);
    }
#endif
    case FA_FLOAT32: return v_widen_f32((const float *)row);
    case FA_FLOAT16: return v_widen_f16((const uint16_t *)row);
    case FA_BFLOAT16: return v_widen_bf16((const uint16_t *)row);
    default: return v_widen_i8((const int8_t *)row);
    }
}

/* n elements of a row, `step` elements apart, as reals. */
static void widen_row(real *FA_RESTRICT to, const char *row, fa_dtype dtype, ptrdiff_t n,
                      ptrdiff_t step) {
    ptrdiff_t i = 0;
    if (step == 1 && dtype == REAL_DTYPE) {
        memcpy(to, row, (size_t)n * sizeof(real));
        return;
    }
    if (step == 1)
        for (; i + VEC_LANES <= n; i += VEC_LANES)
            v_store(to + i, v_widen(row + i * (ptrdiff_t)dtype_size(dtype), dtype));
    for (; i < n; i++)
        to[i] = element(row, dtype, i * step);
}

/* Rows first .. first + n_row as a dense (n_row, n_column) block in `to`. */
static void widen_rows(real *FA_RESTRICT to, const row_view *view, ptrdiff_t first, ptrdiff_t n_row,
                       ptrdiff_t n_column) {
    for (ptrdiff_t i = 0; i < n_row; i++)
        widen_row(to + i * n_column, row_at(view, first + i), view->dtype, n_column, view->column);
}

FA_INLINE real quiet_nan(void) {
#if FA_REAL_BITS == 32
    return fa_f32_from_bits(0x7fc00000u);
#else
    return fa_f64_from_bits(UINT64_C(0x7ff8000000000000));
#endif
}

/* One rounding to float16 or bfloat16, one NaN, no negative zero. */
FA_INLINE uint16_t narrow(fa_dtype dtype, real x) {
#if FA_REAL_BITS == 32
    const uint16_t h = dtype == FA_FLOAT16 ? fa_f16_from_f32(x) : fa_bf16_from_f32(x);
#else
    const uint16_t h = dtype == FA_FLOAT16 ? fa_f16_from_f64(x) : fa_bf16_from_f64(x);
#endif
    return h == 0x8000u ? 0 : h;
}

/* The same to any type. */
FA_INLINE void put(char *row, fa_dtype dtype, ptrdiff_t i, real x) {
    if (dtype == FA_FLOAT16 || dtype == FA_BFLOAT16) {
        ((uint16_t *)row)[i] = narrow(dtype, x);
    } else {
        const real clean = x == x ? x : quiet_nan();
        if (dtype == FA_FLOAT32)
            ((float *)row)[i] = (float)clean + 0.0f;
        else
            ((double *)row)[i] = (double)clean + 0.0;
    }
}
