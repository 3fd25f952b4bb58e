/* Few rows over many keys on more threads than there are groups: a task is one segment of a group.
 *
 * Every segment starts from nothing, so tasks need nothing of each other; the calling thread merges
 * them in order (ARITHMETIC.md, step 4), hence the bits of few.inl.h. Tasks run in rounds, so that
 * the states that wait to be merged are bounded by the number of threads, not by that of keys.
 */
#define SEGMENTS_PER_THREAD 32 /* in a round: what one costs more than another evens out */

typedef struct split {
    const fa_attention *call;
    int64_t n_group, n_task;
    int64_t n_slot; /* tasks in a round */
    int n_worker;
    int careful, is_suspect;
    int64_t *end_task; /* (n_group,): tasks of the groups up to and with this one */
    real *scratch;     /* (n_worker, scratch_reals) */
    real *segments;    /* (n_slot, state_reals): of the tasks of a round */
    real *totals;      /* (n_group, state_reals) */
    size_t scratch_reals, state_reals;
    int n_row;
    ptrdiff_t width;
} split;

FA_INLINE int64_t group_of_task(const split *s, int64_t task) {
    int64_t i = 0;
    while (task >= s->end_task[i])
        i++;
    return i;
}

static softmax_state state_at(const split *s, real *states, int64_t i) {
    real *from = states + (size_t)i * s->state_reals;
    return take_state(&from, s->n_row, s->width);
}

static void open_few(const split *s, int64_t i, int worker, group *g, few *f) {
    *g = open_group(s->call, i);
    place_few(f, g, s->scratch + s->scratch_reals * (size_t)worker);
    load_few(f);
    f->careful = s->careful;
    f->total = state_at(s, s->totals, i);
}

static int64_t segment_of_task(const split *s, int64_t task, int64_t i, const few *f) {
    return segments_of_few(f).end - (s->end_task[i] - task);
}

static void attend_split_task(void *context, int64_t task, int worker) {
    const split *s = context;
    const int64_t i = group_of_task(s, task);
    group g;
    few f;
    open_few(s, i, worker, &g, &f);
    f.segment = state_at(s, s->segments, task % s->n_slot);
    visit_segment(&f, segment_of_task(s, task, i, &f), attend_segment);
}

static void weigh_split_task(void *context, int64_t task, int worker) {
    const split *s = context;
    const int64_t i = group_of_task(s, task);
    group g;
    few f;
    open_few(s, i, worker, &g, &f);
    visit_segment(&f, segment_of_task(s, task, i, &f), weigh_segment);
}

/* Whether a group has to be computed carefully; if none has, all are written. */
static void end_split(split *s) {
    group g;
    few f;
    s->is_suspect = 0;
    for (int64_t i = 0; i < s->n_group && !s->careful; i++) {
        open_few(s, i, 0, &g, &f);
        s->is_suspect |= few_is_suspect(&f);
    }
    for (int64_t i = 0; i < s->n_group && !s->is_suspect; i++) {
        open_few(s, i, 0, &g, &f);
        write_few(&f);
    }
}

static void merge_round(void *context, int64_t first, int64_t end) {
    split *s = context;
    few f;
    f.n_row = s->n_row;
    f.width = s->width;
    for (int64_t task = first; task < end; task++) {
        f.segment = state_at(s, s->segments, task % s->n_slot);
        f.total = state_at(s, s->totals, group_of_task(s, task));
        merge_few(&f);
    }
    if (end == s->n_task)
        end_split(s);
}

static fa_status attend_split(split *s, int careful) {
    few f;
    f.n_row = s->n_row;
    f.width = s->width;
    s->careful = careful;
    for (int64_t i = 0; i < s->n_group; i++) {
        f.total = state_at(s, s->totals, i);
        clear_few(&f, &f.total);
    }
    return fa_pool_run_rounds(attend_split_task, merge_round, s, s->n_task, s->n_slot, s->n_worker,
                              s->call->poll, s->call->poll_context);
}

static fa_status run_split(split *s) {
    fa_status status = attend_split(s, 0);
    if (status == FA_OK && s->is_suspect)
        status = attend_split(s, 1);
    if (status != FA_OK || !s->call->weights.data)
        return status;
    return fa_pool_run(weigh_split_task, s, s->n_task, s->n_worker, s->call->poll,
                       s->call->poll_context);
}

/* Tasks of the groups before n_group; end_task may be NULL. */
static int64_t count_split_tasks(const fa_attention *call, int64_t n_group, int64_t *end_task) {
    int64_t n_task = 0;
    for (int64_t i = 0; i < n_group; i++) {
        const group g = open_group(call, i);
        few f;
        f.g = &g;
        set_rules(&f);
        const segment_range segments = segments_of_few(&f);
        n_task += segments.end - segments.first;
        if (end_task)
            end_task[i] = n_task;
    }
    return n_task;
}

/* Lays the arrays out in `memory`, whole cache lines each but the last. */
static void place_split(split *s, real *memory) {
    s->scratch = take(&memory, (size_t)s->n_worker * s->scratch_reals);
    s->segments = take(&memory, (size_t)s->n_slot * s->state_reals);
    s->totals = take(&memory, (size_t)s->n_group * s->state_reals);
    s->end_task = (int64_t *)memory;
}
