/* The matrix product inside attention: c[m][lane] = sum over k of a(m, k) * b[k][lane].
 *
 * a is read as scalars through any two strides, straight from the caller's memory; b is a panel of
 * PANEL lanes per k. Every c[m][lane] is one fma chain over k in ascending order, which is what
 * makes the result independent of the shape of the kernel. Both products are this one:
 *     scores:  a(m, k) = K[key m][k],      b = Q^T (d_head, PANEL)
 *     output:  a(m, k) = V[key k][column m], b = P^T (n_key, PANEL)
 * 6 rows of 2 vectors use 15 of 16 registers and keep 12 independent chains, more than the latency
 * times the throughput of fma on every x86 core. An instruction set with more registers says so,
 * and may take two panels at once: more columns need fewer scalars for the same work.
 */
#ifndef PANEL_VECS
#define PANEL_VECS 2
#endif
#ifndef KERNEL_ROWS
#define KERNEL_ROWS 6 /* divides FA_KEY_BLOCK */
#endif
#ifndef PAIR_ROWS
#define PAIR_ROWS 0 /* rows for two panels at once; 0: never two */
#endif
#define PANEL (PANEL_VECS * VEC_LANES)
#define NARROW_VECS (PANEL_VECS / 2) /* of a panel whose other half has no row */
#define NARROW_KERNEL_ROWS 8         /* 8 chains; with 12 Clang keeps sums on the stack of AVX2 */
#define PANELS_AT_ONCE (PAIR_ROWS > 0 ? 2 : 1)

/* Row by row, n_vec vectors each. */
typedef struct row_sums {
    /* PAIR_ROWS is half of KERNEL_ROWS at most; half a panel has 8 rows of half the vectors */
    vec c[(KERNEL_ROWS > 4 ? KERNEL_ROWS : 4) * PANEL_VECS];
} row_sums;

/* b: n_vec vectors of one panel or two, `next_panel` reals apart. n_row and n_vec are constants at
 * every call, so the loops over rows and vectors unroll into registers. */
FA_INLINE row_sums multiply_rows(int n_row, int n_vec, const real *a, ptrdiff_t a_row,
                                 ptrdiff_t a_step, const real *b, ptrdiff_t next_panel,
                                 ptrdiff_t n_step) {
    row_sums sums;
    /* offsets of more than 6 rows would need too many registers */
    const real *a6 = n_row > 6 ? a + 6 * a_row : a;
    for (int m = 0; m < n_row; m++)
        for (int v = 0; v < n_vec; v++)
            sums.c[m * n_vec + v] = v_set1(0);
    for (const real *const end = b + n_step * PANEL; b < end; b += PANEL) {
        vec lanes[2 * PANEL_VECS];
        for (int v = 0; v < n_vec; v++)
            lanes[v] = v_load(b + v / PANEL_VECS * next_panel + v % PANEL_VECS * VEC_LANES);
        for (int m = 0; m < n_row; m++) {
            const vec scalar = v_set1(m < 6 ? a[m * a_row] : a6[(m - 6) * a_row]);
            for (int v = 0; v < n_vec; v++)
                sums.c[m * n_vec + v] = v_fma(scalar, lanes[v], sums.c[m * n_vec + v]);
        }
        a += a_step;
        a6 += a_step;
    }
    return sums;
}
