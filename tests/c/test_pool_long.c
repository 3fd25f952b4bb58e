/* Long tasks of the pool are stopped inside, or handed over at the shutdown; many tasks are settled
 * in rounds. */
#include "threads.h"

#include "pool.h"

#include "check.h"

#include <string.h>

#define FAR_NS INT64_C(20000000000) /* nobody waits so long for a stop */
#define SHORT_NS 100000

static int stop_at_second_poll(void *n_poll) { return ++*(int *)n_poll >= 2; }

/* --- Stops inside a task --- */

struct endless {
    volatile intptr_t n_started;
    int caller_leaves; /* once a pool thread is in a task */
};

static void run_until_stopped(void *context, int64_t index, int worker) {
    struct endless *endless = context;
    const int64_t end = fa_clock_ns() + FAR_NS;
    (void)index;
    if (worker != 0)
        fa_atomic_add(&endless->n_started, 1);
    while (!fa_pool_stopping()) {
        CHECK(fa_clock_ns() < end);
        if (worker == 0 && endless->caller_leaves && fa_atomic_load(&endless->n_started) > 0)
            return;
    }
}

static void check_stop(int n_task, int n_thread, int caller_leaves) {
    struct endless endless = {0, caller_leaves};
    int n_poll = 0;
    CHECK(fa_pool_run(run_until_stopped, &endless, n_task, n_thread, stop_at_second_poll,
                      &n_poll) == FA_INTERRUPTED);
    CHECK(n_poll == 2);
    CHECK(!fa_pool_stopping()); /* there is no run any more */
}

static void test_tasks_of_all_threads_are_told_to_stop(void) {
    check_stop(1, 1, 0);
    check_stop(3, 3, 0);
    check_stop(100, 3, 0);
}

static void test_caller_that_waits_for_the_last_task_still_polls(void) { check_stop(2, 2, 1); }

static void ask(void *context, int64_t index, int worker) {
    (void)index;
    (void)worker;
    fa_atomic_add(context, fa_pool_stopping());
}

static void test_nothing_stops_without_a_poll_that_says_so(void) {
    volatile intptr_t n_stop = 0;
    CHECK(fa_pool_run(ask, (void *)&n_stop, 1000, 3, NULL, NULL) == FA_OK);
    CHECK(n_stop == 0);
}

/* --- Rounds --- */

enum { MOST = 1000 };

struct rounds {
    int64_t n_round, n_task, settled;
    uint8_t runs[MOST];
};

static void count(void *context, int64_t index, int worker) {
    struct rounds *rounds = context;
    (void)worker;
    CHECK(index >= rounds->settled && index < rounds->settled + rounds->n_round);
    rounds->runs[index]++;
}

static void settle(void *context, int64_t first, int64_t end) {
    struct rounds *rounds = context;
    CHECK(first == rounds->settled);
    CHECK(end == rounds->n_task || end == first + rounds->n_round);
    for (int64_t i = 0; i < MOST; i++)
        CHECK(rounds->runs[i] == (i < end));
    rounds->settled = end;
}

static void check_rounds(int64_t n_task, int64_t n_round, int n_thread) {
    struct rounds rounds = {.n_round = n_round, .n_task = n_task};
    CHECK(fa_pool_run_rounds(count, settle, &rounds, n_task, n_round, n_thread, NULL, NULL) ==
          FA_OK);
    CHECK(rounds.settled == n_task);
}

static void test_rounds_are_complete_and_settled_in_order(void) {
    for (int n_thread = 1; n_thread <= 4; n_thread++) {
        check_rounds(0, 5, n_thread);
        check_rounds(1, 5, n_thread);
        check_rounds(5, 5, n_thread);
        check_rounds(MOST, 1, n_thread);
        check_rounds(MOST, 7, n_thread);
        check_rounds(MOST, MOST + 1, n_thread);
    }
}

static void work_a_little(void *context, int64_t index, int worker) {
    const int64_t end = fa_clock_ns() + SHORT_NS;
    (void)context;
    (void)index;
    (void)worker;
    while (fa_clock_ns() < end)
        fa_pause();
}

static void test_many_rounds_shorter_than_a_poll_are_stopped(void) {
    int n_poll = 0;
    CHECK(fa_pool_run_rounds(work_a_little, NULL, NULL, INT32_MAX, 4, 3, stop_at_second_poll,
                             &n_poll) == FA_INTERRUPTED);
    CHECK(n_poll == 2);
}

/* --- Shutdown inside long tasks; the pool stays closed, so this comes last --- */

enum { N_HANDED = 20 };

static struct {
    volatile intptr_t n_helping, n_undone;
    intptr_t runs[N_HANDED]; /* to the end */
} handed;

static void leave_or_wait_for_helpers(void *context, int64_t index, int worker) {
    const int64_t end = fa_clock_ns() + FAR_NS;
    (void)context;
    if (worker != 0) {
        fa_atomic_add(&handed.n_helping, 1);
        while (!fa_pool_leaving())
            CHECK(fa_clock_ns() < end);
        CHECK(!fa_pool_stopping());
        fa_atomic_add(&handed.n_undone, 1);
        return;
    }
    while (fa_atomic_load(&handed.n_helping) < 2)
        CHECK(fa_clock_ns() < end);
    handed.runs[index]++;
}

static FA_THREAD_MAIN run_and_be_left(void *unused) {
    (void)unused;
    CHECK(fa_pool_run(leave_or_wait_for_helpers, NULL, N_HANDED, 3, NULL, NULL) == FA_OK);
    return 0;
}

static void test_shutdown_hands_long_tasks_to_their_caller(void) {
    fa_thread caller;
    CHECK(fa_thread_start(&caller, run_and_be_left) == 0);
    while (fa_atomic_load(&handed.n_helping) < 2)
        fa_pause();
    fa_pool_shutdown();
    fa_thread_join(caller);
    CHECK(handed.n_undone == 2);
    for (int i = 0; i < N_HANDED; i++)
        CHECK(handed.runs[i] == 1);
}

int main(void) {
    test_tasks_of_all_threads_are_told_to_stop();
    test_caller_that_waits_for_the_last_task_still_polls();
    test_nothing_stops_without_a_poll_that_says_so();
    test_rounds_are_complete_and_settled_in_order();
    test_many_rounds_shorter_than_a_poll_are_stopped();
    test_shutdown_hands_long_tasks_to_their_caller();
    return 0;
}
