/* The thread pool: a table of live runs, threads that serve whichever has the fewest of them.
 *
 * One mutex guards the table; tasks are taken from an atomic counter per run, without it. A run
 * stays in its slot until the last thread has left it. pool.published counts new runs (and the
 * shutdown): idle threads wait for it to change, and working threads look up at the next task, so
 * that a second caller soon has its share. A forked child has none of the threads; there the pool
 * is reset to empty and grows anew. At the shutdown a thread leaves a long task undone, and the
 * caller does it again: the process need not wait for it to end. */
#include "threads.h"

#include "fpmode.h"
#include "pool.h"

#include <stddef.h>
#include <string.h>

#define POLL_NS 50000000 /* Ctrl-C feels immediate; asking Python costs a lock */

/* The caller's side of a call: what to ask, when, and the floating-point mode to ask it in. */
struct asker {
    fa_poll poll;
    void *context;
    int64_t next_ns; /* 0: nobody has looked at the clock, which tiny calls need not do */
    fa_fpmode mode;
    int stopped;
    struct run *run; /* that others help with, or NULL */
};

#if FA_THREADS

enum { N_RUN = 8 };    /* live runs with helpers; a ninth caller works alone */
#define SPIN_NS 20000  /* longer than a gap between two calls, shorter than a sleep is worth */
#define SPIN_PAUSES 16 /* between two looks at the clock */

struct run {
    volatile intptr_t next;            /* first task not taken; >= end: nothing left */
    volatile intptr_t n_helper;        /* pool threads inside; written under the mutex */
    volatile intptr_t stopped;         /* poll said stop: its tasks may end early */
    uint8_t taken[FA_POOL_MAX_THREAD]; /* worker numbers in use (and apart from next: read only) */
    fa_task task;                      /* NULL: the slot is free */
    void *context;
    intptr_t end;
    int n_thread;
    int n_left; /* tasks that pool threads left undone at the shutdown; under the mutex */
    intptr_t left[FA_POOL_MAX_THREAD];
};

static struct {
    fa_mutex mutex;
    fa_condition work, done;
    volatile intptr_t published;
    struct run runs[N_RUN];
    fa_thread threads[FA_POOL_MAX_THREAD];
    int n_threads, n_sleeping;
    volatile intptr_t closed; /* written under the mutex */
    int n_fork;               /* forks between this process and the one that loaded the library */
} pool = {.mutex = FA_MUTEX_INIT, .work = FA_CONDITION_INIT, .done = FA_CONDITION_INIT};

static FA_THREAD_LOCAL struct run *helping; /* the run whose task this pool thread is in */
static FA_THREAD_LOCAL int gave_up;         /* that task was told to leave its work undone */

/* Waits up to SPIN_NS for *word to differ from value; tells whether it did. */
static int spin_while(volatile intptr_t *word, intptr_t value) {
    const int64_t end = fa_clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            if (fa_atomic_load(word) != value)
                return 1;
            fa_pause();
        }
    } while (fa_clock_ns() < end);
    return 0;
}

static int is_helping(void) { return helping != NULL; }
static int is_stopped(void) { return is_helping() && fa_atomic_load(&helping->stopped); }

static int is_closing(void) {
    gave_up = is_helping() && fa_atomic_load(&pool.closed);
    return gave_up;
}

static void stop_helpers(struct run *run) { fa_atomic_store(&run->stopped, 1); }
static int n_fork_now(void) { return pool.n_fork; }

#else

#define FA_THREAD_LOCAL

static int is_helping(void) { return 0; }
static int is_stopped(void) { return 0; }
static int is_closing(void) { return 0; }
static void stop_helpers(struct run *run) { (void)run; }
static int n_fork_now(void) { return 0; }

#endif

static FA_THREAD_LOCAL struct asker *asking; /* of the innermost call of this thread */

static int told_to_stop(struct asker *asker) {
    if (asker->stopped || asker->poll == NULL)
        return asker->stopped;
    const int64_t now = fa_clock_ns();
    if (asker->next_ns == 0)
        asker->next_ns = now + POLL_NS;
    if (now < asker->next_ns)
        return 0;
    const int n_fork = n_fork_now();
    fa_fpmode_set(asker->mode);
    asker->stopped = asker->poll(asker->context) != 0;
    asker->mode = fa_fpmode_enter();
    asker->next_ns = fa_clock_ns() + POLL_NS;
    if (asker->run != NULL && n_fork_now() != n_fork) { /* in this child the helpers are gone, */
        asker->run = NULL;                              /* and their tasks with them */
        asker->stopped = 1;
    } else if (asker->run != NULL && asker->stopped) {
        stop_helpers(asker->run);
    }
    return asker->stopped;
}

static void run_alone(fa_task task, void *context, int64_t first, int64_t end,
                      struct asker *asker) {
    for (int64_t i = first; i < end && !(i > first && told_to_stop(asker)); i++)
        task(context, i, 0);
}

#if FA_THREADS

/* --- Pool threads; the mutex is held unless said otherwise --- */

static int wants_help(struct run *run) {
    return run->task != NULL && fa_atomic_load(&run->n_helper) < run->n_thread - 1 &&
           fa_atomic_load(&run->next) < run->end;
}

/* The run with the fewest helpers that wants one more; the one just left, if no other has fewer. */
static struct run *choose_run(struct run *left) {
    struct run *best = left != NULL && wants_help(left) ? left : NULL;
    for (struct run *run = pool.runs; run < pool.runs + N_RUN; run++) {
        if (wants_help(run) && (best == NULL || run->n_helper < best->n_helper))
            best = run;
    }
    return best;
}

/* Takes part in a run until it has no task left or something new was published. */
static void help(struct run *run) {
    int worker = 1;
    while (run->taken[worker])
        worker++;
    run->taken[worker] = 1;
    fa_atomic_add(&run->n_helper, 1);
    const intptr_t seen = fa_atomic_load(&pool.published);
    fa_unlock(&pool.mutex);

    const fa_fpmode mode = fa_fpmode_enter();
    helping = run;
    gave_up = 0;
    intptr_t i = 0;
    while (!gave_up && fa_atomic_load(&pool.published) == seen &&
           (i = fa_atomic_add(&run->next, 1)) < run->end)
        run->task(run->context, i, worker);
    helping = NULL;
    fa_fpmode_set(mode);

    fa_lock(&pool.mutex);
    if (gave_up) /* the pool is closed, so this thread enters no other run */
        run->left[run->n_left++] = i;
    run->taken[worker] = 0;
    if (fa_atomic_add(&run->n_helper, -1) == 1)
        fa_wake_all(&pool.done);
}

static void await_work(void) {
    const intptr_t seen = fa_atomic_load(&pool.published);
    fa_unlock(&pool.mutex);
    spin_while(&pool.published, seen);
    fa_lock(&pool.mutex);
    if (fa_atomic_load(&pool.published) == seen) {
        pool.n_sleeping++;
        fa_wait(&pool.work, &pool.mutex);
        pool.n_sleeping--;
    }
}

static FA_THREAD_MAIN thread_main(void *unused) {
    (void)unused;
    struct run *run = NULL;
    fa_lock(&pool.mutex);
    while (!fa_atomic_load(&pool.closed)) {
        run = choose_run(run);
        if (run != NULL)
            help(run);
        else
            await_work();
    }
    fa_unlock(&pool.mutex);
    return 0;
}

/* --- The calling thread --- */

#ifndef _WIN32
static void forget_after_fork(void) {
    const int n_fork = pool.n_fork + 1;
    memset(&pool, 0, sizeof pool);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.n_fork = n_fork;
}
#endif

/* Starts threads until there are n, or no more can be had. The mutex is held. */
static void grow(int n) {
#ifndef _WIN32
    static int watching_forks;
    if (!watching_forks)
        watching_forks = pthread_atfork(NULL, NULL, forget_after_fork) == 0;
    if (!watching_forks)
        return;
#endif
    while (pool.n_threads < n && fa_thread_start(&pool.threads[pool.n_threads], thread_main) == 0)
        pool.n_threads++;
}

static struct run *free_slot(void) {
    for (struct run *run = pool.runs; run < pool.runs + N_RUN; run++) {
        if (run->task == NULL)
            return run;
    }
    return NULL;
}

/* Puts a run into the table and wakes as many threads as it can use; NULL if there is no room. */
static struct run *publish(fa_task task, void *context, intptr_t first, intptr_t end,
                           int n_thread) {
    fa_lock(&pool.mutex);
    struct run *run = fa_atomic_load(&pool.closed) ? NULL : free_slot();
    int n_wake = 0, wake_all = 0;
    if (run != NULL) {
        grow(n_thread - 1);
        memset(run->taken, 0, (size_t)n_thread);
        fa_atomic_store(&run->next, first);
        fa_atomic_store(&run->stopped, 0);
        run->task = task;
        run->context = context;
        run->end = end;
        run->n_thread = n_thread;
        run->n_left = 0;
        fa_atomic_add(&pool.published, 1);
        n_wake = n_thread - 1;
        wake_all = n_wake >= pool.n_sleeping;
    }
    fa_unlock(&pool.mutex);
    if (wake_all)
        fa_wake_all(&pool.work);
    for (int i = 0; !wake_all && i < n_wake; i++)
        fa_wake_one(&pool.work);
    return run;
}

/* Frees the slot once the helpers are out. Nobody enters any more: no task is left. The caller may
 * still say stop, so that a helper's last task does not keep it. Returns how many tasks they left
 * undone; then the pool is closed, and nobody needs the slot. */
static int retire(struct run *run, struct asker *asker) {
    intptr_t n_helper = fa_atomic_load(&run->n_helper);
    while (n_helper > 0 && spin_while(&run->n_helper, n_helper))
        n_helper = fa_atomic_load(&run->n_helper);
    fa_lock(&pool.mutex);
    while (fa_atomic_load(&run->n_helper) > 0) {
        fa_wait_for(&pool.done, &pool.mutex, POLL_NS);
        fa_unlock(&pool.mutex);
        told_to_stop(asker);
        if (asker->run == NULL)
            return 0;
        fa_lock(&pool.mutex);
    }
    const int n_left = run->n_left;
    if (n_left == 0)
        run->task = NULL;
    fa_unlock(&pool.mutex);
    return n_left;
}

static void run_with_helpers(struct run *run, struct asker *asker) {
    intptr_t i;
    asker->run = run;
    while (!told_to_stop(asker) && (i = fa_atomic_add(&run->next, 1)) < run->end)
        run->task(run->context, i, 0);
    if (asker->run == NULL)
        return;
    fa_atomic_store(&run->next, run->end);
    for (int n = retire(run, asker); n > 0 && !told_to_stop(asker); n--)
        run->task(run->context, run->left[n - 1], 0);
    asker->run = NULL;
}

/* Tasks first .. end, on the threads that can be had. */
static void run_round(fa_task task, void *context, int64_t first, int64_t end, int n_thread,
                      struct asker *asker) {
    struct run *run = NULL;
    n_thread = end - first < n_thread ? (int)(end - first) : n_thread;
    n_thread = n_thread < FA_POOL_MAX_THREAD ? n_thread : FA_POOL_MAX_THREAD;
    if (n_thread > 1 && end <= INTPTR_MAX / 2)
        run = publish(task, context, (intptr_t)first, (intptr_t)end, n_thread);
    if (run != NULL)
        run_with_helpers(run, asker);
    else
        run_alone(task, context, first, end, asker);
}

int fa_pool_thread_count(void) {
    fa_lock(&pool.mutex);
    const int n = pool.n_threads;
    fa_unlock(&pool.mutex);
    return n;
}

void fa_pool_shutdown(void) {
    fa_lock(&pool.mutex);
    const int n = pool.n_threads;
    pool.n_threads = 0;
    fa_atomic_store(&pool.closed, 1);
    fa_atomic_add(&pool.published, 1);
    fa_unlock(&pool.mutex);
    fa_wake_all(&pool.work);
    for (int i = 0; i < n; i++)
        fa_thread_join(pool.threads[i]);
}

#else

static void run_round(fa_task task, void *context, int64_t first, int64_t end, int n_thread,
                      struct asker *asker) {
    (void)n_thread;
    run_alone(task, context, first, end, asker);
}

int fa_pool_thread_count(void) { return 0; }

void fa_pool_shutdown(void) {}

#endif

fa_status fa_pool_run_rounds(fa_task task, fa_settle settle, void *context, int64_t n_task,
                             int64_t n_round, int n_thread, fa_poll poll, void *poll_context) {
    struct asker *const outer = asking;
    const int nested = outer != NULL || is_helping();
    struct asker asker = {.poll = nested ? NULL : poll, .context = poll_context};
    asker.mode = fa_fpmode_enter();
    asking = &asker;
    for (int64_t first = 0; first < n_task && !asker.stopped; first += n_round) {
        const int64_t end = n_task - first > n_round ? first + n_round : n_task;
        run_round(task, context, first, end, nested ? 1 : n_thread, &asker);
        if (settle != NULL && !asker.stopped)
            settle(context, first, end);
    }
    asking = outer;
    fa_fpmode_set(asker.mode);
    return asker.stopped ? FA_INTERRUPTED : FA_OK;
}

fa_status fa_pool_run(fa_task task, void *context, int64_t n_task, int n_thread, fa_poll poll,
                      void *poll_context) {
    return fa_pool_run_rounds(task, NULL, context, n_task, n_task, n_thread, poll, poll_context);
}

int fa_pool_stopping(void) { return asking != NULL ? told_to_stop(asking) : is_stopped(); }

int fa_pool_leaving(void) { return fa_pool_stopping() || is_closing(); }
