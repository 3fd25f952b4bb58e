/* parallel_for over one small pool of threads for the process.
 *
 * The pool starts with the first run of more than one thread and grows to what is asked. The
 * calling thread takes part, so a run never waits for a free thread; threads that cannot be
 * started, a full table of runs, a run inside a task, and a platform without threads only mean
 * that fewer threads (at worst the caller alone) do the same tasks. Tasks are taken in order of
 * index, and nothing else is promised about who runs which: a result must not depend on it. */
#ifndef FA_POOL_H
#define FA_POOL_H

#include <stdint.h>

#include "status.h"

enum { FA_POOL_MAX_THREAD = 256 };

/* One task. 0 <= worker < n_thread tells whose scratch to use: in one run, no two tasks have the
 * same number at the same time. Runs in the default floating-point mode. */
typedef void (*fa_task)(void *context, int64_t index, int worker);

/* Asked on the calling thread, in the caller's floating-point mode, between two of its tasks, where
 * a task asks fa_pool_stopping, and while it waits for the others; at most every 50 ms; non-zero =
 * stop. A run inside a task does not poll. */
typedef int (*fa_poll)(void *poll_context);

/* What becomes of tasks first .. end: called on the calling thread, while no task runs. */
typedef void (*fa_settle)(void *context, int64_t first, int64_t end);

/* Runs task(context, i, worker) for all i in [0, n_task), on at most n_thread threads; the caller
 * is worker 0. poll may be NULL. Returns FA_OK after all tasks, or FA_INTERRUPTED once poll said
 * stop (or forked, in the child): no further task is started, and those running have ended. */
fa_status fa_pool_run(fa_task task, void *context, int64_t n_task, int n_thread, fa_poll poll,
                      void *poll_context);

/* The same in rounds of n_round tasks, the last one shorter; each is settled before the next
 * starts. For results that are put together in order without keeping them all. */
fa_status fa_pool_run_rounds(fa_task task, fa_settle settle, void *context, int64_t n_task,
                             int64_t n_round, int n_thread, fa_poll poll, void *poll_context);

/* Asked inside a task, on any thread: whether its run has been told to stop. A task that then
 * returns with its work undone is as good as not started. On the calling thread this is where a
 * long task polls; it costs a look at the clock. */
int fa_pool_stopping(void);

/* The same for a task that may run again from its beginning: on a thread of the pool also whether
 * the pool is being shut down. The calling thread then does the task again. */
int fa_pool_leaving(void);

/* Threads that wait for work or do some, callers not counted. */
int fa_pool_thread_count(void);

/* Ends and joins the threads, for good, as soon as their tasks end or ask
 * fa_pool_leaving. Runs going on in other threads end without them. */
void fa_pool_shutdown(void);

#endif
