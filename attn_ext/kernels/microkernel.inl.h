/* The matrix product inside attention: c[m][lane] = sum over k of a(m, k) * b[k][lane].
 *
 * a is read as scalars through any two strides, straight from the caller's memory; b is a panel of
 * PANEL lanes per k. Every c[m][lane] is one fma chain over k in ascending order, which is what
 * makes the result independent of the shape of the kernel. Both products are this one:
 *     scores:  a(m, k) = K[key m][k],      b = Q^T (d_head, PANEL)
 *     output:  a(m, k) = V[key k][column m], b = P^T (n_key, PANEL)
 * 6 rows of 2 vectors use 15 of 16 registers and keep 12 independent chains, more than the latency
 * times the throughput of fma on every x86 core. An instruction set with more registers says so.
 */
#ifndef PANEL_VECS
#define PANEL_VECS 2
#endif
#ifndef KERNEL_ROWS
#define KERNEL_ROWS 6 /* divides FA_KEY_BLOCK */
#endif
#define PANEL (PANEL_VECS * VEC_LANES)

typedef struct row_sums {
    vec c[KERNEL_ROWS][PANEL_VECS];
} row_sums;

/* n_row is a constant at every call, so the loops over rows unroll into registers. */
FA_INLINE row_sums multiply_rows(int n_row, const real *a, ptrdiff_t a_row, ptrdiff_t a_step,
                                 const real *b, ptrdiff_t n_step) {
    row_sums sums;
    /* offsets of more than 6 rows would need too many registers */
    const real *a6 = n_row > 6 ? a + 6 * a_row : a;
    for (int m = 0; m < n_row; m++)
        for (int v = 0; v < PANEL_VECS; v++)
            sums.c[m][v] = v_set1(0);
    for (ptrdiff_t k = 0; k < n_step; k++) {
        vec lanes[PANEL_VECS];
        for (int v = 0; v < PANEL_VECS; v++)
            lanes[v] = v_load(b + v * VEC_LANES);
        for (int m = 0; m < n_row; m++) {
            const vec scalar = v_set1(m < 6 ? a[m * a_row] : a6[(m - 6) * a_row]);
            for (int v = 0; v < PANEL_VECS; v++)
                sums.c[m][v] = v_fma(scalar, lanes[v], sums.c[m][v]);
        }
        a += a_step;
        a6 += a_step;
        b += PANEL;
    }
    return sums;
}
