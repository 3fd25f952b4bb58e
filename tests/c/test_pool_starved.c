/* The pool where threads cannot be had: from the n-th on, starting one fails. */
#include "threads.h"

static int n_startable;

static int starved_thread_start(fa_thread *thread, fa_thread_main main) {
    return n_startable-- > 0 ? fa_thread_start(thread, main) : 1;
}

/* A second copy of the pool, which starts its threads through the function above. */
#define fa_thread_start starved_thread_start
#define fa_pool_run starved_pool_run
#define fa_pool_run_rounds starved_pool_run_rounds
#define fa_pool_stopping starved_pool_stopping
#define fa_pool_leaving starved_pool_leaving
#define fa_pool_thread_count starved_pool_thread_count
#define fa_pool_shutdown starved_pool_shutdown

#include "pool.c"

#include "check.h"

static void add(void *context, int64_t index, int worker) {
    (void)worker;
    fa_atomic_add((volatile intptr_t *)context, (intptr_t)index);
}

static void check_run_is_complete(int n_thread, int n_started) {
    volatile intptr_t sum = 0;
    CHECK(fa_pool_run(add, (void *)&sum, 1000, n_thread, NULL, NULL) == FA_OK);
    CHECK(sum == 499500);
    CHECK(fa_pool_thread_count() == n_started);
}

int main(void) {
    n_startable = 0;
    check_run_is_complete(4, 0);
    n_startable = 2;
    check_run_is_complete(8, 2);
    n_startable = 300;
    check_run_is_complete(1000, FA_POOL_MAX_THREAD - 1);
    fa_pool_shutdown();
    check_run_is_complete(4, 0);
    return 0;
}
