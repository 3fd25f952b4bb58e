/* The plan of a call is what the call then does: tasks and threads as the pool is asked for them,
 * scratch as it is allocated. run.py links this driver with malloc and both functions of the pool
 * wrapped. */
#include "fa.h"
#include "pool.h"

#include "check.h"

#include <string.h>

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
int __real_fa_pool_run(fa_task task, void *context, int64_t n_task, int n_thread, fa_poll poll,
                       void *poll_context);
int __wrap_fa_pool_run(fa_task task, void *context, int64_t n_task, int n_thread, fa_poll poll,
                       void *poll_context);

int __real_fa_pool_run_rounds(fa_task task, fa_settle settle, void *context, int64_t n_task,
                              int64_t n_round, int n_thread, fa_poll poll, void *poll_context);
int __wrap_fa_pool_run_rounds(fa_task task, fa_settle settle, void *context, int64_t n_task,
                              int64_t n_round, int n_thread, fa_poll poll, void *poll_context);

static int is_watching;
static fa_plan seen;

void *__wrap_malloc(size_t size) {
    if (is_watching)
        seen.scratch_bytes += size;
    return __real_malloc(size);
}

static void see_run(int64_t n_task, int n_thread) {
    seen.n_task += n_task;
    seen.n_thread += n_thread;
    is_watching = 0; /* what the pool needs for itself is no scratch of the call */
}

int __wrap_fa_pool_run_rounds(fa_task task, fa_settle settle, void *context, int64_t n_task,
                              int64_t n_round, int n_thread, fa_poll poll, void *poll_context) {
    see_run(n_task, n_thread);
    return __real_fa_pool_run_rounds(task, settle, context, n_task, n_round, n_thread, poll,
                                     poll_context);
}

int __wrap_fa_pool_run(fa_task task, void *context, int64_t n_task, int n_thread, fa_poll poll,
                       void *poll_context) {
    see_run(n_task, n_thread);
    return __real_fa_pool_run(task, context, n_task, n_thread, poll, poll_context);
}

enum { MOST = 1 << 20 };

static float memory[MOST], output[MOST];

static fa_array array_of(void *data, int64_t n_row, int64_t d) {
    return (fa_array){.data = data, .dtype = FA_FLOAT32, .head = n_row * d, .row = d, .column = 1};
}

static fa_plan checked_plan(int set, int64_t n_head, int64_t n_kv_head, int64_t n_query,
                            int64_t n_key, int n_thread) {
    const int64_t d = 16;
    fa_attention call;
    fa_plan plan;
    memset(&call, 0, sizeof call);
    call.n_batch = 1;
    call.n_head = n_head;
    call.n_kv_head = n_kv_head;
    call.n_query = n_query;
    call.n_key = n_key;
    call.d_head = call.d_value = d;
    call.query = array_of(memory, n_query, d);
    call.key = call.value = array_of(memory, 1, d);
    call.key.row = call.value.row = 0;
    call.output = array_of(output, n_query, d);
    call.window_left = call.window_right = -1;
    call.scale = 1;
    call.n_thread = n_thread;
    call.plan = &plan;
    memset(&seen, 0, sizeof seen);
    output[0] = 7;
    CHECK(fa_kernel_set_at(set)->attention_f32(&call) == FA_OK);
    CHECK(seen.n_task == 0 && output[0] == 7); /* nothing has run */
    call.plan = NULL;
    is_watching = 1;
    CHECK(fa_kernel_set_at(set)->attention_f32(&call) == FA_OK);
    is_watching = 0;
    CHECK(plan.n_task == seen.n_task);
    CHECK(plan.n_thread == seen.n_thread);
    CHECK(plan.scratch_bytes == seen.scratch_bytes);
    return plan;
}

static void check_rows(int set, int64_t n_head, int64_t n_kv_head, int64_t n_query, int n_thread) {
    const fa_plan plan = checked_plan(set, n_head, n_kv_head, n_query, 1500, n_thread);
    const int64_t n_row = n_query * (n_head / n_kv_head);
    CHECK(plan.rows_per_task * (plan.n_task / n_kv_head) >= n_row);
    CHECK(plan.rows_per_task * (plan.n_task / n_kv_head - 1) < n_row);
    CHECK(strcmp(plan.kernel, n_row <= 8 ? "few" : "tile") == 0);
}

/* Several small heads are a task; each thread has some. */
static void check_small_heads(int set, int64_t n_head, int n_thread) {
    const fa_plan plan = checked_plan(set, n_head, n_head, 3, 10, n_thread);
    CHECK(plan.rows_per_task > 3 && plan.rows_per_task % 3 == 0);
    CHECK(plan.rows_per_task * plan.n_task >= 3 * n_head);
    CHECK(plan.rows_per_task * (plan.n_task - 1) < 3 * n_head);
    CHECK(plan.n_thread == 1 || plan.n_task >= 16 * plan.n_thread);
}

/* Threads without a head of their own take segments of the keys of the others. */
static void check_segments(int set, int64_t n_head, int64_t n_query, int n_thread) {
    const int64_t n_key = 200001, n_segment = (n_key + 1535) / 1536;
    const fa_plan plan = checked_plan(set, n_head, n_head, n_query, n_key, n_thread);
    CHECK(plan.n_thread == n_thread);
    CHECK(plan.rows_per_task == n_query);
    CHECK(plan.n_task == (n_head < n_thread ? n_head * n_segment : n_head));
    CHECK(strcmp(plan.kernel, "few") == 0);
}

int main(void) {
    static const int64_t n_query[] = {1, 2, 8, 9, 63, 64, 65, 1000};
    for (int set = 0; set < fa_kernel_set_count(); set++) {
        if (!fa_kernel_set_runs_here(set))
            continue;
        for (int i = 0; i < 8; i++)
            for (int n_thread = 1; n_thread <= 5; n_thread += 2) {
                check_rows(set, 1, 1, n_query[i], n_thread);
                check_rows(set, 12, 12, n_query[i], n_thread);
                check_rows(set, 12, 3, n_query[i], n_thread);
            }
        for (int n_thread = 1; n_thread <= 5; n_thread += 2) {
            check_small_heads(set, 2, n_thread);
            check_small_heads(set, 20000, n_thread);
        }
        for (int n_head = 1; n_head <= 3; n_head += 2) {
            check_segments(set, n_head, 1, 1);
            check_segments(set, n_head, 2, 3);
            check_segments(set, n_head, 1, 4);
        }
    }
    return 0;
}
