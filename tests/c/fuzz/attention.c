/* Fuzz target of attention: a valid call from bytes, as Python would describe it.
 *
 * It is computed by one thread, and by several with another kernel set of the same class, another
 * rounding mode and other bytes in the results before: all bits must be the same. Some queries of
 * some heads are computed once more on their own, from arrays without gaps. ARITHMETIC.md promises
 * all of it.
 */
#include "fuzz.h"

#ifndef FA_FUZZ_WORK
#define FA_FUZZ_WORK 40000.0 /* multiply-adds of a call, and elements of its arrays */
#endif

enum { QUERY, KEY, VALUE, MASK, BIAS, KEY_SCALE, VALUE_SCALE, SLOPES, SINKS, N_INPUT };
enum { OUTPUT, LSE, WEIGHTS, N_RESULT };
enum { MOST_LEAD = 2, MOST_BATCH = 9 };

typedef struct call {
    fa_attention d;
    int is_float64;
    fa_dtype real;
    array input[N_INPUT], result[N_RESULT]; /* memory NULL where absent */
    int64_t lengths[MOST_BATCH], offsets[MOST_BATCH];
} call;

static fa_array described(const array *a, int n_lead) {
    fa_array to;
    memset(&to, 0, sizeof to);
    if (!a->memory)
        return to;
    to.data = a->data;
    to.dtype = a->dtype;
    for (int axis = 0; axis < n_lead; axis++)
        to.lead[axis] = a->stride[axis];
    to.head = a->stride[n_lead];
    if (a->n_axis > n_lead + 1)
        to.row = a->stride[n_lead + 1];
    if (a->n_axis > n_lead + 2)
        to.column = a->stride[n_lead + 2];
    return to;
}

/* The arrays into the descriptor. */
static void describe(call *c) {
    fa_attention *d = &c->d;
    const int n = d->n_lead;
    d->query = described(&c->input[QUERY], n);
    d->key = described(&c->input[KEY], n);
    d->value = described(&c->input[VALUE], n);
    d->mask = described(&c->input[MASK], n);
    d->bias = described(&c->input[BIAS], n);
    d->key_scale = described(&c->input[KEY_SCALE], n);
    d->value_scale = described(&c->input[VALUE_SCALE], n);
    d->key_scale.column = d->key_scale.row; /* (*lead, n_kv_head, n_key) */
    d->value_scale.column = d->value_scale.row;
    d->key_scale.row = d->value_scale.row = 0;
    d->slopes = described(&c->input[SLOPES], n);
    d->sinks = c->input[SINKS].memory ? c->input[SINKS].data : NULL;
    d->output = described(&c->result[OUTPUT], n);
    d->lse = described(&c->result[LSE], n);
    d->weights = described(&c->result[WEIGHTS], n);
}

static void set_shape(array *a, const fa_attention *d, int64_t n_head, int64_t n_row,
                      int64_t n_column, fa_dtype dtype) {
    const int64_t last[] = {n_head, n_row, n_column};
    a->dtype = dtype;
    for (int axis = 0; axis < d->n_lead; axis++)
        a->shape[axis] = d->lead_shape[axis];
    a->n_axis = d->n_lead;
    for (int i = 0; i < 3; i++)
        if (last[i] >= 0) /* -1: no such axis */
            a->shape[a->n_axis++] = last[i];
}

static void set_result_shapes(call *c) {
    const fa_attention *d = &c->d;
    const fa_dtype dtype = c->input[QUERY].dtype;
    set_shape(&c->result[OUTPUT], d, d->n_head, d->n_query, d->d_value, dtype);
    set_shape(&c->result[LSE], d, d->n_head, d->n_query, -1, c->real);
    set_shape(&c->result[WEIGHTS], d, d->n_head, d->n_query, d->n_key, dtype);
}

/* ---- decoding ---- */

static void halve_largest(fa_attention *d, int64_t *group) {
    int64_t *sizes[] = {&d->n_key,         &d->n_query,       &d->d_head,    &d->d_value,
                        &d->lead_shape[0], &d->lead_shape[1], &d->n_kv_head, group};
    int64_t *largest = sizes[0];
    for (int i = 1; i < 8; i++)
        if (*sizes[i] > *largest)
            largest = sizes[i];
    *largest = (*largest + 1) / 2;
}

static double work_of(const fa_attention *d, int64_t group) {
    const double n_batch = (double)(d->lead_shape[0] * d->lead_shape[1]);
    const double width = (double)(d->d_head + d->d_value + 8);
    const double n_query = (double)(d->n_query * group);
    return n_batch * (double)d->n_kv_head *
           fmax(n_query * (double)d->n_key * width / 4, (n_query + (double)d->n_key) * width);
}

static void take_shape(bytes *b, fa_attention *d) {
    const unsigned byte = take(b);
    const int is_few = byte >= 128; /* rows: the way of a decode */
    d->n_lead = (int)(byte % (MOST_LEAD + 1));
    for (int axis = 0; axis < MOST_LEAD; axis++) {
        const int64_t n = 1 + take(b) % 3;
        d->lead_shape[axis] = axis < d->n_lead ? n : 1;
    }
    d->n_kv_head = 1 + take(b) % 3;
    int64_t group = 1 + take(b) % 9;
    d->n_query = take_size(b);
    d->n_query += d->n_query == 0;
    if (is_few) {
        group = 1 + group % 2;
        d->n_query = 1 + d->n_query % 4;
    }
    d->n_key = take_size(b);
    d->n_key += FA_KEY_BLOCK * (take(b) % 64 / 4);
    d->d_head = take_size(b);
    d->d_value = take_size(b);
    while (work_of(d, group) > FA_FUZZ_WORK)
        halve_largest(d, &group);
    d->n_head = d->n_kv_head * group;
    d->n_batch = d->lead_shape[0] * d->lead_shape[1];
}

static int64_t take_signed(bytes *b) { /* mostly small, and the farthest that Python lets through */
    const unsigned byte = take(b);
    switch (byte) {
    case 255: return INT64_C(1) << 61;
    case 254: return -(INT64_C(1) << 61);
    case 253: return (INT64_C(1) << 24) + 3;
    case 252: return -(INT64_C(1) << 53) - 5;
    default: return byte < 128 ? (int64_t)byte : ((int64_t)byte - 190) * 4;
    }
}

static int64_t take_window(bytes *b) {
    const unsigned byte = take(b);
    return byte == 255 ? INT64_C(1) << 62 : byte == 254 ? -1 : (int64_t)byte;
}

static double take_scale(bytes *b, int is_float64) {
    static const double scales[] = {0.25, 1,     0.1,  0,     -1,     -0.3, 8,   1e-30,
                                    1e30, -2e38, -0.0, 1e-44, 2.3e38, 1e-3, 100, 0.0625};
    const unsigned byte = take(b);
    return is_float64 && byte >= 240 ? (byte % 2 ? 1e308 : 1e-320) : scales[byte % 16];
}

static double take_softcap(bytes *b) {
    static const double caps[] = {1.5, 30, 0.01, 1e30, 1e-30, 3e-39, 3e38, 50};
    return caps[take(b) % 8];
}

enum {
    WITH_MASK = 1,
    WITH_BIAS = 2,
    WITH_SLOPES = 4,
    WITH_SINKS = 8,
    WITH_LENGTHS = 16,
    WITH_OFFSETS = 32,
    WITH_SOFTCAP = 64,
    IS_CAUSAL = 128
};
enum {
    WITH_LEFT = 1,
    WITH_RIGHT = 2,
    WITH_LSE = 4,
    WITH_WEIGHTS = 8,
    WITH_KEY_START = 16,
    ENDS_ALIGNED = 32
};

static void take_options(bytes *b, call *c, unsigned options, unsigned more) {
    fa_attention *d = &c->d;
    const int64_t left = take_window(b), right = take_window(b);
    const double scale = take_scale(b, c->is_float64), softcap = take_softcap(b);
    const unsigned start = take(b), length = take(b);
    const int64_t offset = take_signed(b);
    d->is_causal = (options & IS_CAUSAL) != 0;
    d->window_left = more & WITH_LEFT ? left : -1;
    d->window_right = more & WITH_RIGHT ? right : -1;
    d->scale = scale;
    d->softcap = options & WITH_SOFTCAP ? softcap : 0;
    d->key_start = more & WITH_KEY_START ? (int64_t)start * FA_KEY_BLOCK : 0;
    for (int64_t i = 0; i < d->n_batch; i++) {
        c->lengths[i] = (d->n_key * (int64_t)length / 255 + 7 * i) % (d->n_key + 1);
        c->offsets[i] = offset < 1000 && offset > -1000 ? offset + 5 * i : offset;
        if (more & ENDS_ALIGNED)
            c->offsets[i] = (options & WITH_LENGTHS ? c->lengths[i] : d->n_key) - d->n_query;
    }
}

static void take_arrays(bytes *b, call *c, unsigned options, unsigned more) {
    const fa_attention *d = &c->d;
    const int has_int8_key = c->input[KEY].dtype == FA_INT8;
    const int has_int8_value = c->input[VALUE].dtype == FA_INT8;
    const int is_there[N_INPUT] = {1,
                                   1,
                                   1,
                                   (options & WITH_MASK) != 0,
                                   (options & WITH_BIAS) != 0,
                                   has_int8_key,
                                   has_int8_value,
                                   (options & WITH_SLOPES) != 0,
                                   (options & WITH_SINKS) != 0};
    set_shape(&c->input[QUERY], d, d->n_head, d->n_query, d->d_head, c->input[QUERY].dtype);
    set_shape(&c->input[KEY], d, d->n_kv_head, d->n_key, d->d_head, c->input[KEY].dtype);
    set_shape(&c->input[VALUE], d, d->n_kv_head, d->n_key, d->d_value, c->input[VALUE].dtype);
    set_shape(&c->input[MASK], d, d->n_head, d->n_query, d->n_key, FA_BOOL);
    set_shape(&c->input[BIAS], d, d->n_head, d->n_query, d->n_key, c->input[BIAS].dtype);
    set_shape(&c->input[KEY_SCALE], d, d->n_kv_head, d->n_key, -1, c->real);
    set_shape(&c->input[VALUE_SCALE], d, d->n_kv_head, d->n_key, -1, c->real);
    set_shape(&c->input[SLOPES], d, d->n_head, -1, -1, c->real);
    c->input[SINKS] = (array){.dtype = c->real, .n_axis = 1, .shape = {d->n_head}};
    for (int i = 0; i < N_INPUT; i++) {
        const layout l = take_layout(b);
        const style s = take_style(b);
        if (!is_there[i])
            continue;
        place_array(&c->input[i], i == SINKS ? in_order : l);
        fill_array(&c->input[i], s);
    }
    layout l = take_layout(b);
    l.order &= ~(unsigned)WITH_BROADCAST;
    set_result_shapes(c);
    place_array(&c->result[OUTPUT], l);
    if (more & WITH_LSE || d->d_value == 0)
        place_array(&c->result[LSE], in_order);
    if (more & WITH_WEIGHTS)
        place_array(&c->result[WEIGHTS], in_order);
}

/* Slopes that are not finite are refused in Python. */
static void make_finite(array *a) {
    for (int64_t i = 0; a->memory && i < n_element(a); i++)
        if (!isfinite(number_of(element_of(a, i), a->dtype)))
            put_number(element_of(a, i), a->dtype, 0.5);
}

static void take_call(bytes *b, call *c) {
    static const fa_dtype dtypes[] = {FA_FLOAT32, FA_FLOAT16, FA_BFLOAT16, FA_FLOAT64, FA_INT8};
    memset(c, 0, sizeof *c);
    const unsigned options = take(b), more = take(b);
    take_shape(b, &c->d);
    c->input[QUERY].dtype = dtypes[take(b) % 4];
    c->input[KEY].dtype = dtypes[take(b) % 5];
    c->input[VALUE].dtype = dtypes[take(b) % 5];
    c->input[BIAS].dtype = dtypes[take(b) % 4];
    for (int i = QUERY; i <= VALUE; i++)
        c->is_float64 |= c->input[i].dtype == FA_FLOAT64;
    c->real = c->is_float64 ? FA_FLOAT64 : FA_FLOAT32;
    take_options(b, c, options, more);
    if (options & WITH_LENGTHS)
        c->d.kv_lengths = c->lengths;
    if (options & WITH_OFFSETS)
        c->d.query_offset = c->offsets;
    take_arrays(b, c, options, more);
}

/* ---- running ---- */

typedef struct results {
    char *data[N_RESULT];
} results;

static fa_status enter(const fa_kernel_set *set, const call *c) {
    return (c->is_float64 ? set->attention_f64 : set->attention_f32)(&c->d);
}

static results run(const fa_kernel_set *set, call *c, int n_thread, unsigned rounding, int fill) {
    results r = {{NULL}};
    uint64_t before[N_INPUT];
    fa_plan plan;
    for (int i = 0; i < N_INPUT; i++)
        before[i] = sum_of_memory(&c->input[i]);
    for (int i = 0; i < N_RESULT; i++)
        if (c->result[i].memory)
            memset(c->result[i].memory, i == WEIGHTS ? 0 : fill, c->result[i].n_byte);
    describe(c);
    c->d.n_thread = n_thread;
    c->d.poll = n_thread > 1 ? never : NULL;
    const int mode = enter_rounding(rounding);
    c->d.plan = &plan;
    CHECK(enter(set, c) == FA_OK);
    c->d.plan = NULL;
    CHECK(enter(set, c) == FA_OK);
    leave_rounding(mode);
    CHECK(plan.n_thread >= 1 && plan.n_thread <= n_thread && plan.n_task > 0);
    for (int i = 0; i < N_RESULT; i++)
        if (c->result[i].memory)
            r.data[i] = taken_result(&c->result[i], i == WEIGHTS ? 0 : fill);
    for (int i = 0; i < N_INPUT; i++)
        CHECK(sum_of_memory(&c->input[i]) == before[i]);
    return r;
}

static void free_results(results *r) {
    for (int i = 0; i < N_RESULT; i++)
        free(r->data[i]);
}

static void free_call(call *c) {
    for (int i = 0; i < N_INPUT; i++)
        free_array(&c->input[i]);
    for (int i = 0; i < N_RESULT; i++)
        free_array(&c->result[i]);
}

/* ---- a part of the call, on its own ---- */

typedef struct part {
    int64_t batch, kv_head, first_head, n_head, first_query, n_query;
} part;

static part take_part(bytes *b, const fa_attention *d) {
    const int64_t group = d->n_head / d->n_kv_head;
    part p;
    p.batch = take(b) % d->n_batch;
    p.kv_head = take(b) % d->n_kv_head;
    const unsigned head = take(b);
    p.first_head = p.kv_head * group + (head & 1 ? head / 2 % group : 0);
    p.n_head = head & 1 ? 1 : group;
    p.first_query = take(b) % d->n_query;
    p.n_query = 1 + take(b) % (d->n_query - p.first_query);
    return p;
}

/* That part of an array whose axis after the leading ones is a head or a kv head; `over_queries`
 * says whether queries come next. */
static array cut(const array *a, const fa_attention *d, const part *p, int over_kv_heads,
                 int over_queries) {
    array s = {.memory = NULL};
    if (!a->memory)
        return s;
    int64_t first[MOST_AXES] = {0}, count[MOST_AXES], batch = p->batch;
    memcpy(count, a->shape, sizeof count);
    for (int axis = d->n_lead - 1; axis >= 0; axis--) {
        first[axis] = batch % d->lead_shape[axis];
        count[axis] = 1;
        batch /= d->lead_shape[axis];
    }
    first[d->n_lead] = over_kv_heads ? p->kv_head : p->first_head;
    count[d->n_lead] = over_kv_heads ? 1 : p->n_head;
    if (over_queries) {
        first[d->n_lead + 1] = p->first_query;
        count[d->n_lead + 1] = p->n_query;
    }
    return slice_of(a, first, count);
}

static void cut_call(const call *whole, const part *p, call *c) {
    const fa_attention *d = &whole->d;
    memset(c, 0, sizeof *c);
    c->d = *d;
    c->is_float64 = whole->is_float64;
    c->real = whole->real;
    for (int axis = 0; axis < d->n_lead; axis++)
        c->d.lead_shape[axis] = 1;
    c->d.n_batch = c->d.n_kv_head = 1;
    c->d.n_head = p->n_head;
    c->d.n_query = p->n_query;
    c->lengths[0] = whole->lengths[p->batch];
    c->offsets[0] = (d->query_offset ? whole->offsets[p->batch] : 0) + p->first_query;
    c->d.kv_lengths = d->kv_lengths ? c->lengths : NULL;
    c->d.query_offset = c->offsets;
    for (int i = 0; i < N_INPUT; i++)
        if (i != SINKS) {
            const int over_kv_heads = i == KEY || i == VALUE || i == KEY_SCALE || i == VALUE_SCALE;
            c->input[i] =
                cut(&whole->input[i], d, p, over_kv_heads, i == QUERY || i == MASK || i == BIAS);
        }
    if (whole->input[SINKS].memory)
        c->input[SINKS] = slice_of(&whole->input[SINKS], &p->first_head, &p->n_head);
    c->input[QUERY].dtype = whole->input[QUERY].dtype;
    set_result_shapes(c);
    for (int i = 0; i < N_RESULT; i++)
        if (whole->result[i].memory)
            place_array(&c->result[i], in_order);
}

static void check_part(const call *whole, const results *expected, const part *p,
                       const fa_kernel_set *set) {
    call c;
    cut_call(whole, p, &c);
    results got = run(set, &c, 1, 0, 0x5a);
    for (int i = 0; i < N_RESULT; i++)
        if (got.data[i]) {
            const array all = over_result(&whole->result[i], expected->data[i]);
            array same = cut(&all, &whole->d, p, 0, 1);
            CHECK(memcmp(same.memory, got.data[i], same.n_byte) == 0);
            free_array(&same);
        }
    free_results(&got);
    free_call(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, data + size};
    const fa_kernel_set *sets[2];
    poke pokes[N_POKE];
    call c;
    choose_sets(take(&b), sets);
    const int n_thread = 1 + (int)(take(&b) % 4);
    const unsigned rounding = take(&b);
    const uint8_t *const of_part = b.at;
    for (int i = 0; i < 5; i++) /* taken below, when the shape is known */
        take(&b);
    take_pokes(&b, pokes);
    take_call(&b, &c);
    bytes part_bytes = {of_part, data + size};
    const part p = take_part(&part_bytes, &c.d);
    poke_arrays(pokes, c.input, N_INPUT);
    make_finite(&c.input[SLOPES]);
    results one = run(sets[0], &c, 1, 0, 0xa5);
    results other = run(sets[1], &c, n_thread, rounding, 0x5a);
    for (int i = 0; i < N_RESULT; i++)
        if (one.data[i]) {
            const size_t n = (size_t)n_element(&c.result[i]) * size_of(c.result[i].dtype);
            CHECK(memcmp(one.data[i], other.data[i], n) == 0);
        }
    check_part(&c, &one, &p, sets[rounding / 4 % 2]);
    free_results(&one);
    free_results(&other);
    free_call(&c);
    return 0;
}
