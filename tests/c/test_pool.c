/* The thread pool under load: every task once, from any number of callers, and its odd days:
 * nesting, interruption, fork, foreign floating-point modes, shutdown. */
#include "threads.h"

#include "fpmode.h"
#include "pool.h"

#include "check.h"

#include <pthread.h> /* MinGW has it too: only the pool itself uses threads of Windows */
#include <string.h>
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

enum { MAX_TASK = 100000, N_CALLER = 12 }; /* more callers than slots in the pool's table */

#define FORK_SECONDS 20             /* a child that hangs is killed after this */
#define SHORT_NS 1000000            /* a task that lasts */
#define FAR_NS INT64_C(30000000000) /* nobody waits so long for a stop */

static void work_for(int64_t ns) {
    const int64_t end = fa_clock_ns() + ns;
    while (fa_clock_ns() < end)
        fa_pause();
}

/* --- Every task once, worker numbers in range and never shared --- */

struct tally {
    int n_thread;
    int64_t task_ns; /* how long each task lasts, at least */
    volatile intptr_t busy[FA_POOL_MAX_THREAD];
    uint8_t runs[MAX_TASK]; /* how often each task ran */
};

static void count(void *context, int64_t index, int worker) {
    struct tally *tally = context;
    CHECK(worker >= 0 && worker < tally->n_thread);
    CHECK(fa_atomic_add(&tally->busy[worker], 1) == 0);
    tally->runs[index]++;
    work_for(tally->task_ns);
    fa_atomic_add(&tally->busy[worker], -1);
}

static void check_every_task_runs_once(int64_t n_task, int n_thread, int64_t task_ns) {
    struct tally *tally = calloc(1, sizeof *tally);
    CHECK(tally != NULL);
    tally->n_thread = n_thread < 1 ? 1 : n_thread;
    tally->task_ns = task_ns;
    CHECK(fa_pool_run(count, tally, n_task, n_thread, NULL, NULL) == FA_OK);
    for (int64_t i = 0; i < MAX_TASK; i++)
        CHECK(tally->runs[i] == (i < n_task));
    free(tally);
}

static void test_every_task_runs_once_for_any_counts(void) {
    const int64_t n_task[] = {0, 1, 2, 3, 7, 1000, MAX_TASK};
    const int n_thread[] = {0, 1, 2, 3, 8};
    for (int i = 0; i < 7; i++) {
        for (int j = 0; j < 5; j++)
            check_every_task_runs_once(n_task[i], n_thread[j], 0);
    }
}

static void test_pool_grows_to_what_is_asked_and_stays(void) {
    CHECK(fa_pool_thread_count() == 7);
    check_every_task_runs_once(1000, 3, 0);
    CHECK(fa_pool_thread_count() == 7);
    check_every_task_runs_once(9, 100, 0);
    CHECK(fa_pool_thread_count() == 8);
}

static void test_run_takes_no_more_threads_than_asked(void) {
    check_every_task_runs_once(50, 2, SHORT_NS);
    check_every_task_runs_once(50, 3, SHORT_NS);
}

/* --- Results, from one caller and from many --- */

struct sum {
    int64_t parts[FA_POOL_MAX_THREAD];
};

static void add(void *context, int64_t index, int worker) {
    struct sum *sum = context;
    sum->parts[worker] += index;
}

static int64_t sum_of_tasks(int64_t n_task, int n_thread) {
    struct sum sum = {{0}};
    CHECK(fa_pool_run(add, &sum, n_task, n_thread, NULL, NULL) == FA_OK);
    int64_t total = 0;
    for (int i = 0; i < n_thread; i++)
        total += sum.parts[i];
    return total;
}

static void test_many_small_runs_in_a_row_are_complete(void) {
    for (int i = 0; i < 5000; i++)
        CHECK(sum_of_tasks(1 + i % 9, 4) == (int64_t)(1 + i % 9) * (i % 9) / 2);
}

static void *call_often(void *seed) {
    const int n_thread = 1 + *(int *)seed % 5;
    for (int64_t n = 1; n < 200; n++)
        CHECK(sum_of_tasks(n, n_thread) == n * (n - 1) / 2);
    return NULL;
}

static void test_concurrent_callers_get_their_own_results(void) {
    pthread_t callers[N_CALLER];
    int seeds[N_CALLER];
    for (int i = 0; i < N_CALLER; i++) {
        seeds[i] = i;
        CHECK(pthread_create(&callers[i], NULL, call_often, &seeds[i]) == 0);
    }
    for (int i = 0; i < N_CALLER; i++)
        CHECK(pthread_join(callers[i], NULL) == 0);
}

/* --- A second caller beside a long run --- */

#define MANY_TASK (INT32_MAX / 2) /* shared between threads on 32-bit platforms too */

struct long_run {
    volatile intptr_t n_started, helped, end;
};

static void last(void *context, int64_t index, int worker) {
    struct long_run *run = context;
    (void)index;
    fa_atomic_add(&run->n_started, 1);
    if (worker != 0)
        fa_atomic_store(&run->helped, 1);
    work_for(SHORT_NS);
}

static int asked_to_end(void *context) {
    return (int)fa_atomic_load(&((struct long_run *)context)->end);
}

static void *run_until_told(void *context) {
    CHECK(fa_pool_run(last, context, MANY_TASK, 4, asked_to_end, context) == FA_INTERRUPTED);
    return NULL;
}

static void test_second_caller_gets_helpers_from_a_long_run(void) {
    struct long_run first = {0, 0, 0}, second = {0, 0, 0};
    pthread_t caller;
    CHECK(pthread_create(&caller, NULL, run_until_told, &first) == 0);
    while (!fa_atomic_load(&first.helped))
        work_for(SHORT_NS);
    CHECK(fa_pool_run(last, &second, 200, 4, NULL, NULL) == FA_OK);
    CHECK(fa_atomic_load(&second.helped));
    CHECK(fa_atomic_load(&second.n_started) == 200);
    fa_atomic_store(&first.end, 1);
    CHECK(pthread_join(caller, NULL) == 0);
}

/* --- Runs inside a task --- */

struct outer {
    volatile intptr_t n_inner;
};

static void count_inner(void *context, int64_t index, int worker) {
    (void)index;
    CHECK(worker == 0);
    fa_atomic_add(&((struct outer *)context)->n_inner, 1);
}

static void run_inner(void *context, int64_t index, int worker) {
    (void)index;
    (void)worker;
    CHECK(fa_pool_run(count_inner, context, 10, 4, NULL, NULL) == FA_OK);
}

static void test_run_inside_a_task_completes_on_its_thread(void) {
    struct outer outer = {0};
    CHECK(fa_pool_run(run_inner, &outer, 50, 4, NULL, NULL) == FA_OK);
    CHECK(fa_atomic_load(&outer.n_inner) == 500);
}

/* --- Interruption --- */

struct polled {
    volatile intptr_t n_poll, stop_at;
    int64_t last_ns, least_gap_ns;
};

static int note_poll(void *context) {
    struct polled *polled = context;
    const int64_t now = fa_clock_ns();
    if (now - polled->last_ns < polled->least_gap_ns)
        polled->least_gap_ns = now - polled->last_ns;
    polled->last_ns = now;
    return fa_atomic_add(&polled->n_poll, 1) + 1 >= polled->stop_at;
}

static void check_poll_stops_the_run(int64_t n_task, int n_thread) {
    struct long_run run = {0, 0, 0};
    struct polled polled = {0, 3, fa_clock_ns(), INT64_MAX};
    const int64_t start = fa_clock_ns();
    CHECK(fa_pool_run(last, &run, n_task, n_thread, note_poll, &polled) == FA_INTERRUPTED);
    CHECK(fa_clock_ns() - start < FAR_NS);
    CHECK(polled.n_poll == 3);
    CHECK(polled.least_gap_ns > 45000000);
    const intptr_t n_started = fa_atomic_load(&run.n_started);
    work_for(5 * SHORT_NS);
    CHECK(fa_atomic_load(&run.n_started) == n_started);
}

static void test_poll_stops_a_run_of_any_size(void) {
    check_poll_stops_the_run(INT32_MAX, 1);
    check_poll_stops_the_run(INT32_MAX, 4);
    check_poll_stops_the_run(INT64_C(1) << 40, 4);
    check_poll_stops_the_run(INT64_MAX, 4);
}

static void test_poll_that_agrees_lets_the_run_complete(void) {
    struct long_run run = {0, 0, 0};
    struct polled polled = {0, INTPTR_MAX, fa_clock_ns(), INT64_MAX};
    CHECK(fa_pool_run(last, &run, 400, 2, note_poll, &polled) == FA_OK);
    CHECK(run.n_started == 400);
    CHECK(polled.n_poll > 0);
}

/* --- Floating-point mode --- */

#if defined(__x86_64__)
#define OTHER_MODE 0xffc0u /* flush to zero, denormals are zero, round towards zero */
#elif defined(__aarch64__)
#define OTHER_MODE 0x1c00000u
#else
#define OTHER_MODE FA_FPMODE_DEFAULT
#endif

static void check_default_mode(void *context, int64_t index, int worker) {
    (void)context;
    (void)index;
    (void)worker;
    CHECK(fa_fpmode_get() == FA_FPMODE_DEFAULT);
    work_for(SHORT_NS);
}

static int check_other_mode(void *context) {
    (void)context;
    CHECK(fa_fpmode_get() == OTHER_MODE);
    return 0;
}

static void test_tasks_run_in_the_default_mode_and_the_callers_comes_back(void) {
    const int n_thread[] = {1, 4, fa_pool_thread_count() + 3}; /* new threads inherit the mode */
    const fa_fpmode before = fa_fpmode_get();
    for (int i = 0; i < 3; i++) {
        fa_fpmode_set(OTHER_MODE);
        CHECK(fa_pool_run(check_default_mode, NULL, 200, n_thread[i], check_other_mode, NULL) ==
              FA_OK);
        CHECK(fa_fpmode_get() == OTHER_MODE);
    }
    fa_fpmode_set(before);
}

/* --- Stack of the pool's threads --- */

#ifndef __SANITIZE_THREAD__       /* its own records fill the stack */
static int use_stack(int depth) { /* 4 KiB a level */
    volatile char page[4096];
    page[0] = (char)depth;
    return depth == 0 ? page[0] : use_stack(depth - 1) + page[0];
}

static void use_half_the_stack(void *context, int64_t index, int worker) {
    (void)context;
    (void)index;
    (void)worker;
    use_stack(FA_STACK_SIZE / 2 / 4096);
}
#endif

static void test_pool_threads_have_the_stack_that_was_asked_for(void) {
#ifndef __SANITIZE_THREAD__
    CHECK(fa_pool_run(use_half_the_stack, NULL, 50, 4, NULL, NULL) == FA_OK);
#endif
}

#ifndef _WIN32

/* --- Signals --- */

static void check_signals_blocked(void *context, int64_t index, int worker) {
    (void)context;
    (void)index;
    sigset_t mask;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
    CHECK(sigismember(&mask, SIGINT) == (worker != 0));
    CHECK(sigismember(&mask, SIGTERM) == (worker != 0));
    CHECK(!sigismember(&mask, SIGSEGV));
    work_for(SHORT_NS);
}

static void test_pool_threads_leave_signals_to_the_others(void) {
    CHECK(fa_pool_run(check_signals_blocked, NULL, 50, 4, NULL, NULL) == FA_OK);
}

#ifdef __linux__
int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes);

/* Whatever the system's own choice is: 8 MB with glibc, 128 KB with musl. */
static void check_stack_size(void *context, int64_t index, int worker) {
    pthread_attr_t attributes;
    size_t size = 0;
    (void)context;
    (void)index;
    work_for(SHORT_NS);
    if (worker == 0) /* musl would look for the end of the first stack, under QEMU without end */
        return;
    CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0);
    CHECK(pthread_attr_getstacksize(&attributes, &size) == 0);
    pthread_attr_destroy(&attributes);
    CHECK(size >= FA_STACK_SIZE && size <= 2 * FA_STACK_SIZE);
}
#endif

static void test_pool_threads_have_no_other_stack_size(void) {
#ifdef __linux__
    CHECK(fa_pool_run(check_stack_size, NULL, 50, 4, NULL, NULL) == FA_OK);
#endif
}

/* --- Between runs --- */

enum { N_GAP = 20 };

#define GAP_NS 20000000
/* Of processor time: three threads spin for 20 us, a sanitizer has a thread too, a host steals. */
#define IDLE_NS 1000000

static int64_t processor_ns(void) {
    struct timespec used;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

static void test_threads_without_work_sleep(void) {
    const struct timespec gap = {0, GAP_NS};
    int n_busy = 0; /* a loaded machine may charge for some gaps, threads that spin fill most */
    for (int i = 0; i < N_GAP; i++) {
        CHECK(fa_pool_run(last, &(struct long_run){0, 0, 0}, 8, 4, NULL, NULL) == FA_OK);
        const int64_t before = processor_ns();
        nanosleep(&gap, NULL);
        n_busy += processor_ns() - before > IDLE_NS;
    }
    CHECK(n_busy <= N_GAP / 2);
}

/* --- Fork --- */

static void check_child_ends_well(pid_t child) {
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void use_pool_in_child(void) {
    alarm(FORK_SECONDS);
    CHECK(fa_pool_thread_count() == 0);
    CHECK(sum_of_tasks(1000, 4) == 499500);
    CHECK(fa_pool_thread_count() == 3);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
        CHECK(sum_of_tasks(1000, 4) == 499500);
        _exit(0);
    }
    check_child_ends_well(grandchild);
    _exit(0);
}

static void test_child_of_a_busy_parent_has_a_pool_of_its_own(void) {
    struct long_run run = {0, 0, 0};
    pthread_t caller;
    CHECK(pthread_create(&caller, NULL, run_until_told, &run) == 0);
    while (!fa_atomic_load(&run.helped))
        work_for(SHORT_NS);
    for (int i = 0; i < 5; i++) {
        const pid_t child = fork();
        if (child == 0)
            use_pool_in_child();
        check_child_ends_well(child);
        CHECK(sum_of_tasks(1000, 4) == 499500);
    }
    fa_atomic_store(&run.end, 1);
    CHECK(pthread_join(caller, NULL) == 0);
}

static int fork_once(void *context) {
    pid_t *child = context;
    if (*child < 0)
        *child = fork();
    return 0;
}

static void test_fork_inside_poll_interrupts_the_child_alone(void) {
    struct long_run run = {0, 0, 0};
    pid_t child = -1;
    const int status = fa_pool_run(last, &run, 400, 4, fork_once, &child);
    if (child == 0) {
        alarm(FORK_SECONDS);
        CHECK(status == FA_INTERRUPTED);
        CHECK(sum_of_tasks(1000, 4) == 499500);
        _exit(0);
    }
    CHECK(status == FA_OK);
    CHECK(run.n_started == 400);
    check_child_ends_well(child);
}

#endif

/* --- Shutdown; the pool stays closed, so this comes last --- */

static void test_shutdown_leaves_a_run_going_on_to_its_caller(void) {
    struct long_run run = {0, 0, 0};
    pthread_t caller;
    CHECK(pthread_create(&caller, NULL, run_until_told, &run) == 0);
    while (!fa_atomic_load(&run.helped))
        work_for(SHORT_NS);
    fa_pool_shutdown();
    CHECK(fa_pool_thread_count() == 0);
    fa_atomic_store(&run.helped, 0);
    CHECK(sum_of_tasks(1000, 4) == 499500);
    CHECK(fa_pool_thread_count() == 0);
    fa_atomic_store(&run.end, 1);
    CHECK(pthread_join(caller, NULL) == 0);
    CHECK(!fa_atomic_load(&run.helped));
    fa_pool_shutdown();
}

int main(void) {
    test_every_task_runs_once_for_any_counts();
    test_pool_grows_to_what_is_asked_and_stays();
    test_run_takes_no_more_threads_than_asked();
    test_many_small_runs_in_a_row_are_complete();
    test_concurrent_callers_get_their_own_results();
    test_second_caller_gets_helpers_from_a_long_run();
    test_run_inside_a_task_completes_on_its_thread();
    test_poll_stops_a_run_of_any_size();
    test_poll_that_agrees_lets_the_run_complete();
    test_tasks_run_in_the_default_mode_and_the_callers_comes_back();
    test_pool_threads_have_the_stack_that_was_asked_for();
#ifndef _WIN32
    test_pool_threads_leave_signals_to_the_others();
    test_pool_threads_have_no_other_stack_size();
    test_threads_without_work_sleep();
    test_child_of_a_busy_parent_has_a_pool_of_its_own();
    test_fork_inside_poll_interrupts_the_child_alone();
#endif
    test_shutdown_leaves_a_run_going_on_to_its_caller();
    return 0;
}
