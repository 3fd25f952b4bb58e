/* Fuzz target of the softmax family: a valid call from bytes, as Python would describe it.
 *
 * It is computed by one thread, and by several with another kernel set of the same class, another
 * rounding mode and other bytes in the result before; beside its input, and in place where that is
 * chosen; and some rows of it on their own, from arrays without gaps. The bits must be the same.
 */
#include "fuzz.h"

#ifndef FA_FUZZ_ELEMENTS
#define FA_FUZZ_ELEMENTS 4000
#endif

enum { X, Y, WHERE, N_INPUT };

typedef struct call {
    fa_reduction d;
    int is_float64;
    array input[N_INPUT], output;
} call;

static fa_axes described(const array *a) {
    fa_axes to;
    memset(&to, 0, sizeof to);
    to.data = a->memory ? a->data : NULL;
    to.dtype = a->dtype;
    memcpy(to.stride, a->stride, sizeof a->stride);
    return to;
}

static array like(const fa_reduction *d, fa_dtype dtype, int n_axis) {
    array a = {.dtype = dtype, .n_axis = n_axis};
    memcpy(a.shape, d->shape, sizeof a.shape);
    return a;
}

static int axes_of_output(const fa_reduction *d) {
    return d->kind == FA_LOGSUMEXP ? d->n_outer : d->n_outer + d->n_reduced;
}

/* ---- decoding ---- */

/* Returns a byte of which the shape takes but two bits. */
static unsigned take_shape(bytes *b, fa_reduction *d) {
    const unsigned byte = take(b);
    d->n_outer = (int)(byte % 4);
    d->n_reduced = 1 + (int)(take(b) % 3);
    int64_t n_element = 1;
    for (int axis = 0; axis < 6; axis++) {
        int64_t size = take_size(b); /* Python deals with empty arrays itself */
        size += size == 0;
        const unsigned more = take(b); /* long axes, and short ones */
        size = more >= 240 ? size * 16 + more : more >= 160 ? 1 + size % 3 : size;
        while (n_element * size > FA_FUZZ_ELEMENTS)
            size = (size + 1) / 2;
        if (axis >= d->n_outer + d->n_reduced)
            continue;
        d->shape[axis] = size;
        n_element *= size;
    }
    return byte;
}

/* Which input the result takes the place of: none, X or Y. */
static int take_place(bytes *b, const fa_reduction *d) {
    const unsigned place = take(b) % 4;
    if (place == 1 && d->kind != FA_LOGSUMEXP)
        return X;
    if (place == 2 && d->kind == FA_SOFTMAX_VJP)
        return Y;
    return N_INPUT;
}

static void take_call(bytes *b, call *c, int *place) {
    static const fa_dtype dtypes[] = {FA_FLOAT32, FA_FLOAT16, FA_BFLOAT16, FA_FLOAT64};
    memset(c, 0, sizeof *c);
    fa_reduction *d = &c->d;
    d->kind = (fa_reduction_kind)(take(b) % 4);
    const fa_dtype dtype = dtypes[take(b) % 4];
    const int has_where = take(b) & 1 && d->kind != FA_SOFTMAX_VJP;
    *place = take_place(b, d);
    const unsigned across = take_shape(b, d) & 64;
    c->is_float64 = dtype == FA_FLOAT64;
    const int n_axis = d->n_outer + d->n_reduced;
    for (int i = 0; i < N_INPUT; i++) {
        layout l = take_layout(b);
        const style s = take_style(b);
        if (across && i == X) { /* neighbouring rows beside each other */
            l.fastest = d->n_outer - 1;
            l.order &= ~(unsigned)(WITH_STEP | WITH_BROADCAST | WITH_REVERSED);
        }
        if (i == *place) /* NumPy has no result whose elements share memory */
            l.order &= ~(unsigned)WITH_BROADCAST;
        c->input[i] = like(d, i == WHERE ? FA_BOOL : dtype, n_axis);
        if ((i == Y && d->kind != FA_SOFTMAX_VJP) || (i == WHERE && !has_where))
            continue;
        place_array(&c->input[i], l);
        fill_array(&c->input[i], s);
    }
    layout l = take_layout(b);
    l.order &= ~(unsigned)WITH_BROADCAST;
    c->output = like(d, dtype, axes_of_output(d));
    place_array(&c->output, l);
}

/* ---- running ---- */

static fa_status enter(const fa_kernel_set *set, const call *c) {
    return (c->is_float64 ? set->reduction_f64 : set->reduction_f32)(&c->d);
}

static void describe(call *c, int n_thread) {
    c->d.x = described(&c->input[X]);
    c->d.y = described(&c->input[Y]);
    c->d.where = described(&c->input[WHERE]);
    c->d.output = described(&c->output);
    c->d.n_thread = n_thread;
    c->d.poll = n_thread > 1 ? never : NULL;
}

static char *run(const fa_kernel_set *set, call *c, int n_thread, unsigned rounding, int fill) {
    uint64_t before[N_INPUT];
    for (int i = 0; i < N_INPUT; i++)
        before[i] = sum_of_memory(&c->input[i]);
    memset(c->output.memory, fill, c->output.n_byte);
    describe(c, n_thread);
    const int mode = enter_rounding(rounding);
    CHECK(enter(set, c) == FA_OK);
    leave_rounding(mode);
    for (int i = 0; i < N_INPUT; i++)
        CHECK(sum_of_memory(&c->input[i]) == before[i]);
    return taken_result(&c->output, fill);
}

/* The result in the place of an input, which is what it was afterwards. */
static char *run_in_place(const fa_kernel_set *set, call *c, int place, int n_thread) {
    array *a = &c->input[place];
    char *kept = malloc(a->n_byte);
    CHECK(kept != NULL);
    memcpy(kept, a->memory, a->n_byte);
    describe(c, n_thread);
    c->d.output = described(a);
    CHECK(enter(set, c) == FA_OK);
    char *result = taken_result(a, 0xff); /* as place_array fills what lies between */
    memcpy(a->memory, kept, a->n_byte);
    free(kept);
    return result;
}

/* Rows first .. first + count along each outer axis. */
static void check_part(bytes *b, const call *whole, char *expected, const fa_kernel_set *set) {
    int64_t first[MOST_AXES] = {0}, count[MOST_AXES];
    call c = *whole;
    memcpy(count, whole->d.shape, sizeof count);
    for (int axis = 0; axis < whole->d.n_outer; axis++) {
        first[axis] = take(b) % count[axis];
        count[axis] = 1 + take(b) % (count[axis] - first[axis]);
    }
    memcpy(c.d.shape, count, sizeof count);
    for (int i = 0; i < N_INPUT; i++)
        if (whole->input[i].memory)
            c.input[i] = slice_of(&whole->input[i], first, count);
    c.output = like(&c.d, whole->output.dtype, whole->output.n_axis);
    place_array(&c.output, in_order);
    char *got = run(set, &c, 1, 0, 0x5a);
    const array all = over_result(&whole->output, expected);
    array same = slice_of(&all, first, count);
    CHECK(memcmp(same.memory, got, same.n_byte) == 0);
    free_array(&same);
    free(got);
    free_array(&c.output);
    for (int i = 0; i < N_INPUT; i++)
        free_array(&c.input[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, data + size};
    const fa_kernel_set *sets[2];
    poke pokes[N_POKE];
    call c;
    int place;
    choose_sets(take(&b), sets);
    const int n_thread = 1 + (int)(take(&b) % 4);
    const unsigned rounding = take(&b);
    bytes of_part = b;
    for (int i = 0; i < 6; i++) /* taken below, when the shape is known */
        take(&b);
    take_pokes(&b, pokes);
    take_call(&b, &c, &place);
    poke_arrays(pokes, c.input, N_INPUT);
    const size_t n = (size_t)n_element(&c.output) * size_of(c.output.dtype);
    char *one = run(sets[0], &c, 1, 0, 0xa5);
    char *other = run(sets[1], &c, n_thread, rounding, 0x5a);
    CHECK(memcmp(one, other, n) == 0);
    if (place != N_INPUT) {
        char *here = run_in_place(sets[rounding / 4 % 2], &c, place, n_thread);
        CHECK(memcmp(one, here, n) == 0);
        free(here);
    }
    check_part(&of_part, &c, one, sets[rounding / 8 % 2]);
    free(one);
    free(other);
    free_array(&c.output);
    for (int i = 0; i < N_INPUT; i++)
        free_array(&c.input[i]);
    return 0;
}
