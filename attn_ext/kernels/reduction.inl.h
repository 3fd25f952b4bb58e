/* The entry of the softmax family: tasks of whole rows, scratch, the pool. */

#define ELEMENTS_PER_TASK 32768
#define ELEMENTS_PER_THREAD 50000.0 /* below it another thread costs more than it brings */

/* A unit of work is one row along the lanes, or a strip of neighbouring ones across them. */
typedef struct reduction_job {
    reduction r;
    int64_t n_unit, units_per_task;
    size_t n_scratch; /* reals of each worker */
    real *scratch;
} reduction_job;

static int64_t strips_per_run(const reduction *r) {
    return (r->shape[r->n_outer - 1] + strip_width(r) - 1) / strip_width(r);
}

static void reduction_task(void *context, int64_t index, int worker) {
    const reduction_job *job = context;
    const reduction *r = &job->r;
    real *scratch = job->scratch + (size_t)worker * job->n_scratch;
    const int64_t first = index * job->units_per_task;
    const int64_t end = min_i64(job->n_unit, first + job->units_per_task);
    if (!r->across) {
        reduce_along(r, first, end, scratch);
        return;
    }
    const int64_t n_column = r->shape[r->n_outer - 1], n_strip = strips_per_run(r);
    for (int64_t unit = first; unit < end; unit++)
        reduce_across(r, unit / n_strip * n_column + unit % n_strip * strip_width(r), scratch);
}

fa_status FA_REDUCTION(const fa_reduction *call) {
    reduction_job job;
    job.r = open_reduction(call);
    const reduction *r = &job.r;
    if (r->n_row == 0 || (r->n == 0 && call->kind != FA_LOGSUMEXP))
        return FA_OK;
    job.n_unit = r->n_row;
    int64_t unit = r->n;
    if (r->across) {
        job.n_unit = r->n_row / r->shape[r->n_outer - 1] * strips_per_run(r);
        unit *= strip_width(r);
    }
    job.units_per_task = max_i64(1, ELEMENTS_PER_TASK / max_i64(1, unit));
    const int64_t n_task = (job.n_unit + job.units_per_task - 1) / job.units_per_task;
    const double worth = (double)r->n_row * (double)r->n / ELEMENTS_PER_THREAD;
    const int n_worker = threads_for(call->n_thread, n_task, worth);
    job.n_scratch = r->across ? strip_scratch(r) : along_scratch(r);
    job.scratch = malloc((size_t)n_worker * job.n_scratch * sizeof(real));
    if (!job.scratch)
        return FA_NO_MEMORY;
    const fa_status status =
        fa_pool_run(reduction_task, &job, n_task, n_worker, call->poll, call->poll_context);
    free(job.scratch);
    return status;
}
