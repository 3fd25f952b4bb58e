/* The entry of attention: tasks, scratch, the pool.
 *
 * Work is split by shape, never by the number of threads: a task is a tile of query rows of one
 * (batch entry, kv head), and no task depends on another.
 */

/* Multiply-adds that are worth another thread: about 50 us of work. */
#define WORK_PER_THREAD 1.5e6

typedef struct attention_job {
    const fa_attention *call;
    int64_t n_tile; /* per group */
    real *scratch;
    size_t scratch_reals; /* per worker */
} attention_job;

static void attention_task(void *context, int64_t index, int worker) {
    const attention_job *job = context;
    real *scratch = job->scratch + job->scratch_reals * (size_t)worker;
    const group g = open_group(job->call, index / job->n_tile);
    if (g.n_row <= FEW_ROWS)
        run_few(&g, scratch);
    else /* last tile first: under a causal mask it has most to do */
        run_tile(&g, (job->n_tile - 1 - index % job->n_tile) * TILE_ROWS, scratch);
}

/* As many threads as are allowed, have a task and are worth it; the caller at least. */
static int threads_for(int64_t allowed, int64_t n_task, double worth) {
    const int64_t n = min_i64(allowed, n_task);
    return (int)max_i64(1, (double)n > worth ? (int64_t)worth : n);
}

static int worthwhile_threads(const fa_attention *call, int64_t n_task) {
    const double keys = (double)call->n_key * (double)call->n_query;
    const double work = (double)call->n_batch * (double)call->n_head * keys *
                        ((double)call->d_head + (double)call->d_value + 8) *
                        (call->is_causal && call->n_query > 1 ? 0.5 : 1.0);
    return threads_for(call->n_thread, n_task, work / WORK_PER_THREAD);
}

fa_status FA_ATTENTION(const fa_attention *call) {
    attention_job job;
    if (call->plan)
        *call->plan = (fa_plan){0};
    if (call->n_batch == 0 || call->n_kv_head == 0 || call->n_head == 0 || call->n_query == 0)
        return FA_OK;
    const int64_t rows = call->n_query * (call->n_head / call->n_kv_head);
    const size_t cache_line = 64 / sizeof(real);
    job.call = call;
    job.n_tile = (rows + TILE_ROWS - 1) / TILE_ROWS;
    job.scratch_reals = rows <= FEW_ROWS ? few_reals(call) : tile_reals(call);
    job.scratch_reals = (job.scratch_reals + cache_line - 1) / cache_line * cache_line;
    const int64_t n_task = call->n_batch * call->n_kv_head * job.n_tile;
    const int n_worker = worthwhile_threads(call, n_task);
    if ((double)n_worker * (double)job.scratch_reals > (double)(PTRDIFF_MAX / 16))
        return FA_NO_MEMORY;
    const size_t scratch_bytes = (size_t)n_worker * job.scratch_reals * sizeof(real) + 64;
    if (call->plan) {
        *call->plan = (fa_plan){rows <= FEW_ROWS ? "few" : "tile", min_i64(rows, TILE_ROWS), n_task,
                                n_worker, scratch_bytes};
        return FA_OK;
    }
    char *memory = malloc(scratch_bytes);
    if (!memory)
        return FA_NO_MEMORY;
    job.scratch = (real *)(memory + (64 - (uintptr_t)memory % 64));
    const fa_status status = (fa_status)fa_pool_run(attention_task, &job, n_task, n_worker,
                                                    call->poll, call->poll_context);
    free(memory);
    return status;
}

const int FA_TILE_ROWS = TILE_ROWS;
