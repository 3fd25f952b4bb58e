/* The softmax family of every kernel set of this CPU through the C interface: arrays of exactly
 * their size, against plain float64, and the same bits along a row and across rows. */
#include "fa.h"

#include "check.h"

#include <math.h>
#include <string.h>

#define TOLERANCE 1e-5 /* float32 sums of up to 9000 terms */

static uint64_t state = 1;

static float random_value(void) { /* in [-8, 8), a multiple of 2^-8 */
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(state >> 52) / 256.0f - 8.0f;
}

/* A matrix of rows; `turned` puts neighbouring rows next to each other in memory. */
typedef struct matrix {
    float *data;
    int64_t n_row, n;
    int turned;
} matrix;

static matrix make(int64_t n_row, int64_t n, int turned) {
    matrix m = {malloc((size_t)(n_row * n) * sizeof(float)), n_row, n, turned};
    CHECK(m.data != NULL);
    return m;
}

static float *at(const matrix *m, int64_t row, int64_t i) {
    return &m->data[m->turned ? i * m->n_row + row : row * m->n + i];
}

static fa_axes axes_of(const matrix *m) {
    fa_axes axes = {.data = m->data, .dtype = FA_FLOAT32};
    axes.stride[0] = m->turned ? 1 : m->n;
    axes.stride[1] = m->turned ? m->n_row : 1;
    return axes;
}

static void run(int set, fa_reduction_kind kind, const matrix *x, const matrix *y,
                const matrix *out) {
    fa_reduction call;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.n_outer = call.n_reduced = 1;
    call.shape[0] = x->n_row;
    call.shape[1] = x->n;
    call.x = axes_of(x);
    if (y)
        call.y = axes_of(y);
    call.output = axes_of(out);
    if (kind == FA_LOGSUMEXP) {
        call.output.stride[0] = 1;
        call.output.stride[1] = 0;
    }
    call.n_thread = 2;
    CHECK(fa_kernel_set_at(set)->reduction_f32(&call) == FA_OK);
}

static double log_sum_exp(const matrix *x, int64_t row) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < x->n; i++)
        max = fmax(max, *at(x, row, i));
    for (int64_t i = 0; i < x->n; i++)
        sum += exp(*at(x, row, i) - max);
    return max + log(sum);
}

static void check_near(double got, double expected) {
    CHECK(fabs(got - expected) <= TOLERANCE * (1 + fabs(expected)));
}

static void check_softmax(const matrix *x, const matrix *y, const matrix *log_y,
                          const matrix *sums) {
    for (int64_t row = 0; row < x->n_row; row++) {
        const double total = log_sum_exp(x, row);
        check_near(sums->data[row], total);
        for (int64_t i = 0; i < x->n; i++) {
            check_near(*at(y, row, i), exp(*at(x, row, i) - total));
            check_near(*at(log_y, row, i), *at(x, row, i) - total);
        }
    }
}

static void check_vjp(const matrix *g, const matrix *y, const matrix *result) {
    for (int64_t row = 0; row < g->n_row; row++) {
        double sum = 0;
        for (int64_t i = 0; i < g->n; i++)
            sum += (double)*at(g, row, i) * *at(y, row, i);
        for (int64_t i = 0; i < g->n; i++)
            check_near(*at(result, row, i), *at(y, row, i) * (*at(g, row, i) - sum));
    }
}

/* All four results of one random matrix, rows after rows whatever the layout of x. */
static float *results(int set, int64_t n_row, int64_t n, int turned) {
    const int64_t size = n_row * n;
    matrix x = make(n_row, n, turned), g = make(n_row, n, turned), sums = make(n_row, 1, 0);
    matrix out[3] = {make(n_row, n, turned), make(n_row, n, turned), make(n_row, n, turned)};
    state = 1;
    for (int64_t i = 0; i < size; i++) {
        *at(&x, i / n, i % n) = random_value();
        *at(&g, i / n, i % n) = random_value();
    }
    run(set, FA_SOFTMAX, &x, NULL, &out[0]);
    run(set, FA_LOG_SOFTMAX, &x, NULL, &out[1]);
    run(set, FA_LOGSUMEXP, &x, NULL, &sums);
    run(set, FA_SOFTMAX_VJP, &g, &out[0], &out[2]);
    check_softmax(&x, &out[0], &out[1], &sums);
    check_vjp(&g, &out[0], &out[2]);
    float *all = malloc((size_t)(3 * size + n_row) * sizeof(float));
    CHECK(all != NULL);
    for (int64_t i = 0; i < 3 * size; i++)
        all[i] = *at(&out[i / size], i % size / n, i % n);
    memcpy(all + 3 * size, sums.data, (size_t)n_row * sizeof(float));
    float *used[] = {x.data, g.data, sums.data, out[0].data, out[1].data, out[2].data};
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++)
        free(used[i]);
    return all;
}

static void test_results_are_right_and_the_same_bits_in_either_layout(int set) {
    static const int64_t shapes[][2] = {{1, 1},  {3, 2},   {9, 15},   {8, 16},  {17, 33},
                                        {5, 97}, {33, 64}, {2, 8192}, {3, 9001}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const int64_t n_row = shapes[s][0], n = shapes[s][1];
        float *along = results(set, n_row, n, 0), *across = results(set, n_row, n, 1);
        CHECK(memcmp(along, across, (size_t)(3 * n_row * n + n_row) * sizeof(float)) == 0);
        free(along);
        free(across);
    }
}

int main(void) {
    for (int set = 0; set < fa_kernel_set_count(); set++)
        if (fa_kernel_set_runs_here(set))
            test_results_are_right_and_the_same_bits_in_either_layout(set);
    return 0;
}
