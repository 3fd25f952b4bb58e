/* Long tasks ask the pool whether to go on, often enough for Ctrl-C to feel immediate, and leave
 * soon after the first no. A task that says it may run again gives the same result when it does.
 *
 * run.py links this driver with the two questions wrapped, so that any one of them can be answered
 * with no. The tasks are called from one thread, so the thread sanitizer, with which this takes
 * minutes, looks at one kernel set and type only. */
#include "fa.h"
#include "pool.h"

#include "check.h"

#include <string.h>

enum { MOST_REALS = 1 << 21, MOST_VALUE = (3 << 20) + 40, N_SEGMENT = 4, D = 4 };

int __wrap_fa_pool_stopping(void);
int __wrap_fa_pool_leaving(void);

static int n_yes; /* answers before all others are no */
static int n_stopping, n_leaving;

static int answer(void) { return n_stopping + n_leaving > n_yes; }

int __wrap_fa_pool_stopping(void) {
    n_stopping++;
    return answer();
}

int __wrap_fa_pool_leaving(void) {
    n_leaving++;
    return answer();
}

static int asked(void) { return n_stopping + n_leaving; }

static double source[MOST_VALUE], gradient[MOST_VALUE], result[MOST_VALUE], expected[MOST_VALUE];

static void fill(int is_float64) {
    for (int64_t i = 0; i < MOST_VALUE; i++) {
        const double x = (double)(i * 37 % 101) / 50 - 1, g = (double)(i * 53 % 103) / 50;
        if (is_float64) {
            source[i] = x;
            gradient[i] = g;
        } else {
            ((float *)source)[i] = (float)x;
            ((float *)gradient)[i] = (float)g;
        }
    }
}

/* --- Reductions of one row, or of one strip of rows --- */

typedef struct way {
    const char *name;
    int64_t n, n_column;
    ptrdiff_t step, column; /* strides of the row and of its neighbours, in elements */
} way;

static const way ways[] = {
    {"neighbouring reals", (3 << 20) + 5, 1, 1, 1},
    {"reals apart", 100000, 1, 2, 1},
    {"a strip of rows", 3 << 17, 8, 8, 1},
};

static fa_status reduce(const fa_kernel_set *kernels, fa_reduction_kind kind, const way *w,
                        int is_float64, int in_place) {
    const fa_dtype dtype = is_float64 ? FA_FLOAT64 : FA_FLOAT32;
    fa_axes axes = {.data = source, .dtype = dtype, .stride = {w->column, w->step}};
    fa_reduction call;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.n_outer = call.n_reduced = 1;
    call.shape[0] = w->n_column;
    call.shape[1] = w->n;
    call.x = axes;
    if (kind == FA_SOFTMAX_VJP) {
        call.y = axes;
        call.y.data = gradient;
    }
    call.output = axes;
    call.output.data = in_place ? source : result;
    if (kind == FA_LOGSUMEXP) {
        call.output.stride[0] = 1;
        call.output.stride[1] = 0;
    }
    call.n_thread = 1;
    n_stopping = n_leaving = 0;
    return is_float64 ? kernels->reduction_f64(&call) : kernels->reduction_f32(&call);
}

static void check_reduction(const fa_kernel_set *kernels, fa_reduction_kind kind, const way *w,
                            int is_float64) {
    const int n_pass = kind == FA_LOGSUMEXP || kind == FA_SOFTMAX_VJP ? 2 : 3;
    n_yes = INT32_MAX;
    memset(result, 0, sizeof result);
    CHECK(reduce(kernels, kind, w, is_float64, 0) == FA_OK);
    memcpy(expected, result, sizeof expected);
    const int n_ask = asked();
    CHECK((int64_t)n_ask * MOST_REALS >= n_pass * w->n * w->n_column);
    CHECK(n_ask >= 2 * n_pass);
    for (n_yes = 0; n_yes < n_ask; n_yes += 1 + n_ask / 4) {
        reduce(kernels, kind, w, is_float64, 0);
        CHECK(asked() <= n_yes + n_pass);
    }
    n_yes = INT32_MAX;
    CHECK(reduce(kernels, kind, w, is_float64, 0) == FA_OK);
    CHECK(memcmp(result, expected, sizeof expected) == 0);
    if (kind == FA_LOGSUMEXP)
        return;
    CHECK(reduce(kernels, kind, w, is_float64, 1) == FA_OK);
    CHECK(n_leaving == 0 && n_stopping == n_ask); /* in place: it cannot run again */
    fill(is_float64);
}

/* --- Attention of one tile, and of few rows --- */

static void check_attention(const fa_kernel_set *kernels, int64_t n_query, int is_float64) {
    const fa_dtype dtype = is_float64 ? FA_FLOAT64 : FA_FLOAT32;
    const fa_array array = {.data = source, .dtype = dtype, .row = D, .column = 1};
    fa_attention call;
    memset(&call, 0, sizeof call);
    call.n_batch = call.n_head = call.n_kv_head = 1;
    call.n_query = n_query;
    call.n_key = N_SEGMENT * FA_SEGMENT * FA_KEY_BLOCK;
    call.d_head = call.d_value = D;
    call.query = call.key = call.value = call.output = array;
    call.output.data = result;
    call.window_left = call.window_right = -1;
    call.scale = 0.5;
    call.n_thread = 1;
    memset(result, 0x55, sizeof result);
    memcpy(expected, result, sizeof expected);
    for (n_yes = 0; n_yes < N_SEGMENT - 1; n_yes++) {
        n_stopping = n_leaving = 0;
        is_float64 ? kernels->attention_f64(&call) : kernels->attention_f32(&call);
        CHECK(asked() == n_yes + 1);
        CHECK(memcmp(result, expected, sizeof expected) == 0); /* as if it had not started */
    }
    n_stopping = n_leaving = 0;
    is_float64 ? kernels->attention_f64(&call) : kernels->attention_f32(&call);
    CHECK(n_leaving == N_SEGMENT - 1 && n_stopping == 0);
    CHECK(memcmp(result, expected, sizeof expected) != 0);
}

int main(void) {
#ifdef __SANITIZE_THREAD__
    int n_left = 1;
    const int n_type = 1;
#else
    int n_left = fa_kernel_set_count();
    const int n_type = 2;
#endif
    const fa_reduction_kind kinds[] = {FA_SOFTMAX, FA_LOG_SOFTMAX, FA_LOGSUMEXP, FA_SOFTMAX_VJP};
    for (int set = 0; set < fa_kernel_set_count() && n_left > 0; set++) {
        if (!fa_kernel_set_runs_here(set))
            continue;
        n_left--;
        const fa_kernel_set *kernels = fa_kernel_set_at(set);
        for (int is_float64 = 0; is_float64 < n_type; is_float64++) {
            fill(is_float64);
            check_attention(kernels, 1, is_float64);
            check_attention(kernels, 16, is_float64);
            for (int k = 0; k < 4; k++)
                for (int i = kinds[k] == FA_SOFTMAX_VJP; i < 3; i++) /* it has no way of its own */
                    check_reduction(kernels, kinds[k], &ways[i], is_float64);
        }
    }
    return 0;
}
