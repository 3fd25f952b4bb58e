/* The pool built for a platform without threads: the same runs, on the caller alone. */
#define FA_NO_THREADS
#define fa_pool_run plain_pool_run
#define fa_pool_run_rounds plain_pool_run_rounds
#define fa_pool_stopping plain_pool_stopping
#define fa_pool_leaving plain_pool_leaving
#define fa_pool_thread_count plain_pool_thread_count
#define fa_pool_shutdown plain_pool_shutdown

#include "pool.c"

#include "check.h"

static void count_in_order(void *context, int64_t index, int worker) {
    int64_t *n_done = context;
    CHECK(worker == 0);
    CHECK(index == *n_done);
    ++*n_done;
}

static int stop(void *context) {
    (void)context;
    return 1;
}

int main(void) {
    int64_t n_done = 0;
    CHECK(fa_pool_run(count_in_order, &n_done, 1000, 4, NULL, NULL) == FA_OK);
    CHECK(n_done == 1000);
    n_done = 0;
    CHECK(fa_pool_run(count_in_order, &n_done, INT64_MAX, 4, stop, NULL) == FA_INTERRUPTED);
    CHECK(n_done > 0);
    CHECK(fa_pool_thread_count() == 0);
    fa_pool_shutdown();
    return 0;
}
