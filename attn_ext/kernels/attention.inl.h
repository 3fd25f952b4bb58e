/* The entry of attention: tasks, scratch, the pool.
 *
 * A task is a tile of query rows of one (batch entry, kv head), or several that are small, or,
 * where a few rows would leave threads idle, a segment of their keys. No task depends on another,
 * and the bits of a result do not depend on the split.
 */

/* Multiply-adds that are worth another thread: about 50 us of work. */
#define WORK_PER_THREAD 1.5e6

/* Those that are worth a task: about 5 us, beside which nothing is to ask whether to stop. */
#define WORK_PER_TASK 3e4
#define TILES_PER_TASK 32 /* at most: even a tile without a key takes a while */

/* Keys, or numbers in the keys or values of a head, up to which more than a quarter of FEW_ROWS are
 * a tile: where there is little to read, a panel has less work per row. */
#define TINY_KEYS 32
#define TINY_REALS 512

/* Queries and outputs of a large tile, at most: they stay in the second cache. */
#define TILE_BYTES (256 << 10)

/* At least, for a large tile: so many are shared evenly whatever their sizes. */
#define TASKS_PER_THREAD 16

typedef struct attention_job {
    const fa_attention *call;
    int is_few;
    int n_panel;       /* of a tile, at most */
    int64_t n_tile;    /* per group */
    int64_t n_all;     /* of all groups */
    int64_t n_at_once; /* in a task */
    real *scratch;
    size_t scratch_reals; /* per worker */
} attention_job;

static void attention_task(void *context, int64_t task, int worker) {
    const attention_job *job = context;
    real *scratch = job->scratch + job->scratch_reals * (size_t)worker;
    const int64_t first = task * job->n_at_once, end = min_i64(job->n_all, first + job->n_at_once);
    for (int64_t i = first; i < end; i++) {
        const int64_t index = quotient(i, job->n_tile);
        /* last tile first: under a causal mask it has most to do */
        const int64_t tile_index = job->n_tile - 1 - (i - index * job->n_tile);
        const group g = open_group(job->call, index);
        if (job->is_few)
            run_few(&g, scratch);
        else
            run_tile(&g, tile_index * job->n_panel * PANEL, job->n_panel, scratch);
    }
}

/* Whether the rows of a group are for few.inl.h. */
static int is_few(const fa_attention *call, int64_t rows) {
    const double reals = (double)call->n_key * (double)max_i64(call->d_head, call->d_value);
    const int is_tiny = call->n_key <= TINY_KEYS || reals <= TINY_REALS;
    return rows <= (is_tiny ? FEW_ROWS / 4 : FEW_ROWS);
}

/* As many threads as are allowed, have a task and are worth it; the caller at least. */
static int threads_for(int64_t allowed, int64_t n_task, double worth) {
    const int64_t n = min_i64(min_i64(allowed, FA_POOL_MAX_THREAD), n_task);
    return (int)max_i64(1, (double)n > worth ? (int64_t)worth : n);
}

/* Multiply-adds of a call, as if there were n_key keys. */
static double work_of(const fa_attention *call, int64_t n_key) {
    const double keys = (double)n_key * (double)call->n_query;
    return (double)call->n_batch * (double)call->n_head * keys *
           ((double)call->d_head + (double)call->d_value + 8) *
           (call->is_causal && call->n_query > 1 ? 0.5 : 1.0);
}

static int worthwhile_threads(const fa_attention *call, int64_t n_task) {
    return threads_for(call->n_thread, n_task, work_of(call, call->n_key) / WORK_PER_THREAD);
}

/* Of n_all tiles, how many are a task; outputs are written even if there is no key. */
static int64_t tiles_at_once(const fa_attention *call, int64_t n_all, int n_worker) {
    const double work = work_of(call, max_i64(1, call->n_key));
    const double n = WORK_PER_TASK * (double)n_all / work;
    const int64_t share = n_worker > 1 ? n_all / ((int64_t)n_worker * TASKS_PER_THREAD) : n_all;
    const int64_t most = min_i64(share, TILES_PER_TASK);
    return max_i64(1, n < (double)most ? (int64_t)n : most);
}

static size_t whole_lines(double n_real) {
    const size_t line = 64 / sizeof(real);
    return ((size_t)n_real + line - 1) / line * line;
}

/* On a cache line, with the address to be freed in *memory; NULL if there is no room. */
static real *allocate_lines(size_t n_byte, char **memory) {
    *memory = malloc(n_byte);
    return *memory ? (real *)(*memory + (64 - (uintptr_t)*memory % 64)) : NULL;
}

static int is_too_large(double n_real) { return n_real > (double)(PTRDIFF_MAX / 16); }

/* Few rows of n_group groups whose segments are the tasks. */
static fa_status attend_by_segments(const fa_attention *call, int64_t n_group, int64_t n_task) {
    split s = {.call = call, .n_group = n_group, .n_task = n_task};
    s.n_row = (int)(call->n_query * (call->n_head / call->n_kv_head));
    s.width = whole_vectors(call->d_value);
    s.n_worker = worthwhile_threads(call, n_task);
    s.n_slot = min_i64(n_task, (int64_t)s.n_worker * SEGMENTS_PER_THREAD);
    const size_t n_state = (size_t)(s.n_slot + n_group);
    const double scratch = few_reals(call), state = (double)s.n_row * ((double)s.width + 2);
    if (is_too_large((double)s.n_worker * scratch + (double)n_state * state))
        return FA_NO_MEMORY;
    s.scratch_reals = whole_lines(scratch);
    s.state_reals = whole_lines(state);
    const size_t n_real = (size_t)s.n_worker * s.scratch_reals + n_state * s.state_reals;
    const size_t n_byte = n_real * sizeof(real) + (size_t)n_group * sizeof(int64_t) + 64;
    if (call->plan) {
        *call->plan = (fa_plan){"few", s.n_row, n_task, s.n_worker, n_byte};
        return FA_OK;
    }
    char *memory;
    real *lines = allocate_lines(n_byte, &memory);
    if (!lines)
        return FA_NO_MEMORY;
    place_split(&s, lines);
    count_split_tasks(call, n_group, s.end_task);
    const fa_status status = run_split(&s);
    free(memory);
    return status;
}

/* Whether each tile copies the blocks of keys or values. */
static int copies_blocks(const fa_attention *call) {
    const row_view key = plane(call, &call->key, 0, 0), value = plane(call, &call->value, 0, 0);
    return !has_dense_reals(&key, call->d_head) || !has_dense_reals(&value, call->d_value);
}

static int64_t tiles_of(int64_t rows, int n_panel) {
    return (rows + n_panel * PANEL - 1) / (n_panel * PANEL);
}

/* Panels of a tile: more of them share the copy of a block, fewer leave more tasks to threads. */
static int panels_of_tile(const fa_attention *call, int64_t n_group, int64_t rows) {
    if (rows <= TILE_ROWS)
        return (int)tiles_of(rows, 1);
    if (!copies_blocks(call))
        return TILE_PANELS;
    const double columns = (double)call->d_head + (double)call->d_value;
    const int n_thread = worthwhile_threads(call, INT64_MAX);
    const int64_t least = n_thread > 1 ? (int64_t)n_thread * TASKS_PER_THREAD : 0;
    int n = TILE_PANELS;
    while (n < LARGE_TILE_PANELS && 2 * n * PANEL * columns * sizeof(real) <= TILE_BYTES &&
           n_group * tiles_of(rows, 2 * n) >= least)
        n *= 2;
    return n;
}

static fa_status attend_by_rows(const fa_attention *call, int64_t n_group, int64_t rows) {
    attention_job job = {.call = call, .is_few = is_few(call, rows)};
    job.n_panel = panels_of_tile(call, n_group, rows);
    job.n_tile = tiles_of(rows, job.n_panel); /* 1 if they are few */
    job.n_all = n_group * job.n_tile;
    const int n_worker = worthwhile_threads(call, job.n_all);
    job.n_at_once = tiles_at_once(call, job.n_all, n_worker);
    const int64_t n_task = (job.n_all + job.n_at_once - 1) / job.n_at_once;
    const double scratch = job.is_few ? few_reals(call) : tile_reals(call, job.n_panel);
    if (is_too_large((double)n_worker * scratch))
        return FA_NO_MEMORY;
    job.scratch_reals = whole_lines(scratch);
    const size_t n_byte = (size_t)n_worker * job.scratch_reals * sizeof(real) + 64;
    if (call->plan) {
        const int64_t rows_at_once = min_i64(rows, job.n_panel * PANEL) * job.n_at_once;
        *call->plan =
            (fa_plan){job.is_few ? "few" : "tile", rows_at_once, n_task, n_worker, n_byte};
        return FA_OK;
    }
    char *memory;
    job.scratch = allocate_lines(n_byte, &memory);
    if (!job.scratch)
        return FA_NO_MEMORY;
    const fa_status status =
        fa_pool_run(attention_task, &job, n_task, n_worker, call->poll, call->poll_context);
    free(memory);
    return status;
}

fa_status FA_ATTENTION(const fa_attention *call) {
    if (call->plan)
        *call->plan = (fa_plan){0};
    if (call->n_batch == 0 || call->n_kv_head == 0 || call->n_head == 0 || call->n_query == 0)
        return FA_OK;
    const int64_t rows = call->n_query * (call->n_head / call->n_kv_head);
    const int64_t n_group = call->n_batch * call->n_kv_head;
    if (is_few(call, rows) && call->n_key > SEGMENT_KEYS &&
        worthwhile_threads(call, INT64_MAX) > n_group) {
        const int64_t n_segment = count_split_tasks(call, n_group, NULL);
        if (n_segment > n_group)
            return attend_by_segments(call, n_group, n_segment);
    }
    return attend_by_rows(call, n_group, rows);
}

const int FA_TILE_ROWS = TILE_ROWS;
