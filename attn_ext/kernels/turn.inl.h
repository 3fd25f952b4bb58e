/* Rows of VEC_LANES queries, keys or biases to columns, one lane a row. */

/* An instruction set may have v_load_turned for rows of some types. */
#ifndef TURNED_COLUMNS
#define TURNED_COLUMNS(dtype) ((void)(dtype), VEC_LANES)
#define TURNS_WHILE_LOADING(dtype) ((void)(dtype), 0)
#define v_load_turned(dtype, p, row, r) ((void)0)
#endif

#define BYTES 16
#ifndef HAS_BYTES
typedef struct bytes {
    uint8_t byte[BYTES];
} bytes;
FA_INLINE bytes b_load(const void *p) {
    bytes a;
    memcpy(&a, p, sizeof a);
    return a;
}
FA_INLINE void b_store(void *p, bytes a) { memcpy(p, &a, sizeof a); }
FA_INLINE bytes zip_from(const uint8_t *a, const uint8_t *b) {
    bytes zipped;
    for (int i = 0; i < BYTES / 2; i++) {
        zipped.byte[2 * i] = a[i];
        zipped.byte[2 * i + 1] = b[i];
    }
    return zipped;
}
FA_INLINE bytes b_zip_low(bytes a, bytes b) { return zip_from(a.byte, b.byte); }
FA_INLINE bytes b_zip_high(bytes a, bytes b) {
    return zip_from(a.byte + BYTES / 2, b.byte + BYTES / 2);
}
#endif

/* VEC_LANES rows of BYTES bytes to (BYTES, VEC_LANES): perfect shuffles until each is in its place.
 */
FA_INLINE void transpose_bytes(bytes r[VEC_LANES], void *to) {
    FA_UNROLL
    for (int n = 1; n < VEC_LANES; n *= 2) {
        bytes zipped[VEC_LANES];
        FA_UNROLL
        for (int i = 0; i < VEC_LANES / 2; i++) {
            zipped[2 * i] = b_zip_low(r[i], r[i + VEC_LANES / 2]);
            zipped[2 * i + 1] = b_zip_high(r[i], r[i + VEC_LANES / 2]);
        }
        FA_UNROLL
        for (int i = 0; i < VEC_LANES; i++)
            r[i] = zipped[i];
    }
    FA_UNROLL
    for (int i = 0; i < VEC_LANES; i++)
        b_store((char *)to + i * BYTES, r[i]);
}

/* Columns of VEC_LANES rows, `row` bytes apart: how many at once, and as one vector each. */
FA_INLINE int columns_turned(fa_dtype dtype) {
    return TURNS_WHILE_LOADING(dtype) ? TURNED_COLUMNS(dtype) : VEC_LANES;
}

FA_INLINE void turn_columns(fa_dtype dtype, const char *p, ptrdiff_t row, vec t[VEC_LANES]) {
    if (TURNS_WHILE_LOADING(dtype)) {
        v_load_turned(dtype, p, row, t);
        return;
    }
    FA_UNROLL
    for (int i = 0; i < VEC_LANES; i++)
        t[i] = v_widen(p + i * row, dtype);
    v_transpose(t);
}

/* Bytes from each row to the next if these are the same for all of them, and all are there; 0 for
 * one row repeated, which has to be turned all the same. */
static int are_evenly_spaced(const char *const rows[VEC_LANES], ptrdiff_t *apart) {
    int is_even = rows[0] && rows[1];
    *apart = is_even ? rows[1] - rows[0] : 0;
    for (int i = 2; i < VEC_LANES && is_even; i++)
        is_even = rows[i] && rows[i] - rows[i - 1] == *apart;
    return is_even;
}

/* VEC_LANES rows of n elements to (n, PANEL) columns at `to`: rows[i] may be NULL for zeros. */
static void transpose_rows(real *FA_RESTRICT to, const char *const rows[VEC_LANES], fa_dtype dtype,
                           ptrdiff_t n, ptrdiff_t step) {
    real lanes[VEC_LANES][VEC_LANES];
    ptrdiff_t k = 0, apart;
    if (dtype == REAL_DTYPE && step == 1 && are_evenly_spaced(rows, &apart)) {
        const int n_turned = columns_turned(REAL_DTYPE);
        vec t[VEC_LANES];
        for (; k + n_turned <= n; k += n_turned) {
            turn_columns(REAL_DTYPE, rows[0] + k * (ptrdiff_t)sizeof(real), apart, t);
            for (int i = 0; i < n_turned; i++)
                v_store(to + (k + i) * PANEL, t[i]);
        }
    }
    for (; k < n; k += VEC_LANES) {
        const int width = n - k < VEC_LANES ? (int)(n - k) : VEC_LANES;
        const ptrdiff_t skip = k * step * (ptrdiff_t)dtype_size(dtype);
        vec r[VEC_LANES];
        for (int i = 0; i < VEC_LANES; i++) {
            if (!rows[i]) {
                r[i] = v_set1(0);
            } else if (step == 1 && width == VEC_LANES) {
                r[i] = v_widen(rows[i] + skip, dtype);
            } else {
                widen_row(lanes[i], rows[i] + skip, dtype, width, step);
                r[i] = v_load_part(lanes[i], width);
            }
        }
        v_transpose(r);
        for (int i = 0; i < width; i++)
            v_store(to + (k + i) * PANEL, r[i]);
    }
}
