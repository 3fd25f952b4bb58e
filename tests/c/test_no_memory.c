/* Memory runs out at every allocation in turn, in every kernel of every set of this CPU: the call
 * says so, leaves nothing behind, and the next one is right.
 *
 * run.py links this driver with malloc wrapped (the linker's --wrap), so that the core needs no
 * hook. Allocations of this file itself are not counted: they are made outside of a call. */
#include "fa.h"
#include "pool.h"

#include "check.h"

#include <string.h>

enum { N_VALUE = 200 * 64, MOST_ALLOCATIONS = 100 };

void *__real_malloc(size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void __wrap_free(void *memory);

static int n_left = -1; /* allocations that succeed before one fails; -1: all do */
static int n_live, n_failed, is_counting;

void *__wrap_malloc(size_t size) {
    if (is_counting && n_left == 0) {
        n_failed++;
        return NULL;
    }
    if (is_counting && n_left > 0)
        n_left--;
    n_live += is_counting;
    return __real_malloc(size);
}

void __wrap_free(void *memory) {
    n_live -= is_counting && memory != NULL;
    __real_free(memory);
}

/* --- The calls: one for each way through the core --- */

static float query[N_VALUE], key[N_VALUE], value[N_VALUE], output[N_VALUE];
static double query64[N_VALUE], output64[N_VALUE];
static float expected[N_VALUE];

typedef struct way {
    const char *name;
    int64_t n_query, n_key, d_head;
    int is_float64, n_thread;
} way;

static const way ways[] = {
    {"tile", 200, 100, 16, 0, 1},           {"tile on threads", 200, 200, 64, 0, 4},
    {"few rows", 1, 200, 32, 0, 1},         {"few rows of float64", 3, 200, 32, 1, 4},
    {"tile of float64", 100, 200, 8, 1, 1}, {"segments on threads", 1, 50000, 32, 0, 4},
};

static fa_array array_of(void *data, fa_dtype dtype, int64_t d) {
    return (fa_array){.data = data, .dtype = dtype, .row = d, .column = 1};
}

static fa_status attend(const fa_kernel_set *kernels, const way *w) {
    const fa_dtype real = w->is_float64 ? FA_FLOAT64 : FA_FLOAT32;
    fa_attention call;
    memset(&call, 0, sizeof call);
    call.n_batch = call.n_head = call.n_kv_head = 1;
    call.n_query = w->n_query;
    call.n_key = w->n_key;
    call.d_head = call.d_value = w->d_head;
    call.query =
        w->is_float64 ? array_of(query64, real, w->d_head) : array_of(query, real, w->d_head);
    call.key = array_of(key, FA_FLOAT32, w->d_head);
    call.value = array_of(value, FA_FLOAT32, w->d_head);
    if (w->n_key > N_VALUE / w->d_head)
        call.key.row = call.value.row = 0;
    call.output =
        w->is_float64 ? array_of(output64, real, w->d_head) : array_of(output, real, w->d_head);
    call.window_left = call.window_right = -1;
    call.scale = 0.1;
    call.n_thread = w->n_thread;
    return w->is_float64 ? kernels->attention_f64(&call) : kernels->attention_f32(&call);
}

static fa_status reduce(const fa_kernel_set *kernels, const way *w) {
    const int across = w->n_query == 1; /* rows a column apart */
    fa_reduction call;
    memset(&call, 0, sizeof call);
    call.kind = FA_SOFTMAX;
    call.n_outer = call.n_reduced = 1;
    call.shape[0] = 100;
    call.shape[1] = w->d_head;
    call.x = (fa_axes){.data = query, .dtype = FA_FLOAT32};
    call.output = (fa_axes){.data = output, .dtype = FA_FLOAT32};
    call.x.stride[0] = call.output.stride[0] = across ? 1 : w->d_head;
    call.x.stride[1] = call.output.stride[1] = across ? 100 : 1;
    call.n_thread = w->n_thread;
    if (!w->is_float64)
        return kernels->reduction_f32(&call);
    call.x.data = query64;
    call.x.dtype = call.output.dtype = FA_FLOAT64;
    call.output.data = output64;
    return kernels->reduction_f64(&call);
}

typedef fa_status (*operation)(const fa_kernel_set *, const way *);

/* --- The test --- */

static fa_status run_with(int n, operation run, const fa_kernel_set *kernels, const way *w) {
    n_left = n;
    n_live = n_failed = 0;
    is_counting = 1;
    const fa_status status = run(kernels, w);
    is_counting = 0;
    CHECK(n_live == 0);
    return status;
}

static void check_every_allocation(operation run, const fa_kernel_set *kernels, const way *w) {
    void *result = w->is_float64 ? (void *)output64 : (void *)output;
    CHECK(run_with(-1, run, kernels, w) == FA_OK);
    memcpy(expected, result, sizeof expected);
    int n = 0;
    fa_status status;
    while ((status = run_with(n, run, kernels, w)) != FA_OK) {
        CHECK(status == FA_NO_MEMORY);
        CHECK(n_failed == 1);
        CHECK(++n < MOST_ALLOCATIONS);
    }
    CHECK(n_failed == 0);
    CHECK(n > 0); /* the count sees the allocations of the core */
    CHECK(memcmp(expected, result, sizeof expected) == 0);
}

/* A head so wide that no memory holds a row of it, in each way: the arrays have strides of 0, and
 * sizes in bytes wrap around more than once. */
static void check_wide_heads(const fa_kernel_set *kernels, const way *w) {
    static const int64_t widths[] = {INT64_C(1) << 60, INT64_C(256204778801521551), INT64_MAX / 8};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        way wide = *w;
        wide.d_head = sizeof(size_t) > 4 ? widths[i] : widths[i] >> 32;
        CHECK(run_with(-1, attend, kernels, &wide) == FA_NO_MEMORY);
    }
}

int main(void) {
    for (int i = 0; i < N_VALUE; i++) {
        query64[i] = query[i] = (float)(i * 37 % 101) / 50 - 1;
        key[i] = (float)(i * 53 % 103) / 50 - 1;
        value[i] = (float)(i * 71 % 107) / 50 - 1;
    }
    for (int set = 0; set < fa_kernel_set_count(); set++) {
        if (!fa_kernel_set_runs_here(set))
            continue;
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            check_every_allocation(attend, fa_kernel_set_at(set), &ways[i]);
            check_every_allocation(reduce, fa_kernel_set_at(set), &ways[i]);
            check_wide_heads(fa_kernel_set_at(set), &ways[i]);
        }
    }
    fa_pool_shutdown();
    return 0;
}
