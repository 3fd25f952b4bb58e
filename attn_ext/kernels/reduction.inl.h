/* The entry of the softmax family: tasks of whole rows, scratch, the pool. */

#define ELEMENTS_PER_TASK 32768
#define ELEMENTS_PER_THREAD 50000.0 /* below it another thread costs more than it brings */

typedef struct reduction_job {
    reduction r;
    int64_t n_unit, units_per_task; /* a unit: one row, or VEC_LANES neighbouring ones */
    real *scratch;
} reduction_job;

#define REDUCTION_SCRATCH (3 * ROW_BUFFER)

/* First row of group `unit`; the last group of each run of columns may be short. */
static int64_t row_of_columns(const reduction *r, int64_t unit) {
    const int64_t n_column = r->shape[r->n_outer - 1];
    const int64_t n_group = (n_column + VEC_LANES - 1) / VEC_LANES;
    return unit / n_group * n_column + unit % n_group * VEC_LANES;
}

static void reduce_unit(const reduction *r, int64_t unit, real *scratch) {
    const int is_vjp = r->call->kind == FA_SOFTMAX_VJP;
    if (!r->across) {
        row_buffers b = {scratch, scratch + ROW_BUFFER, scratch + 2 * ROW_BUFFER};
        if (is_vjp)
            vjp_row_along(r, unit, &b);
        else
            softmax_row_along(r, unit, &b);
        return;
    }
    const column_group c = open_columns(r, row_of_columns(r, unit), scratch);
    const int kind = r->call->kind, is_dense = kind != FA_LOGSUMEXP && is_dense_across(r);
    if (is_vjp)
        vjp_rows_across(&c);
    else if (is_dense && kind == FA_SOFTMAX)
        softmax_columns_dense(&c);
    else if (is_dense)
        log_softmax_columns_dense(&c);
    else if (kind == FA_SOFTMAX)
        softmax_rows_across(&c);
    else
        log_rows_across(&c);
}

static void reduction_task(void *context, int64_t index, int worker) {
    const reduction_job *job = context;
    real *scratch = job->scratch + (size_t)worker * REDUCTION_SCRATCH;
    const int64_t end = min_i64(job->n_unit, (index + 1) * job->units_per_task);
    for (int64_t unit = index * job->units_per_task; unit < end; unit++)
        reduce_unit(&job->r, unit, scratch);
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
        const int64_t n_column = r->shape[r->n_outer - 1];
        job.n_unit = r->n_row / n_column * ((n_column + VEC_LANES - 1) / VEC_LANES);
        unit *= VEC_LANES;
    }
    job.units_per_task = max_i64(1, ELEMENTS_PER_TASK / max_i64(1, unit));
    const int64_t n_task = (job.n_unit + job.units_per_task - 1) / job.units_per_task;
    const double worth = (double)r->n_row * (double)r->n / ELEMENTS_PER_THREAD;
    const int n_worker = threads_for(call->n_thread, n_task, worth);
    job.scratch = malloc((size_t)n_worker * REDUCTION_SCRATCH * sizeof(real));
    if (!job.scratch)
        return FA_NO_MEMORY;
    const fa_status status = (fa_status)fa_pool_run(reduction_task, &job, n_task, n_worker,
                                                    call->poll, call->poll_context);
    free(job.scratch);
    return status;
}
