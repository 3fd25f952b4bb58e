/* Every kernel set of this CPU through the C interface: arrays of exactly their size (a sanitizer
 * sees each element read or written past an end), all data types, options and strides, against a
 * plain float64 attention; and the same bits for a row whether it comes alone or among others. */
#include "convert.h"
#include "fa.h"

#include "check.h"

#include <math.h>
#include <string.h>

#define TOLERANCE \
    2e-5 /* float32 arithmetic on scores of a few units, 16-bit inputs taken exactly */

typedef struct shape {
    int64_t n_head, n_kv_head, n_query, n_key, d_head, d_value;
} shape;

enum option { PLAIN, CAUSAL, WINDOW, MASK, BIAS, ALIBI, SOFTCAP, SINKS, LENGTHS, N_OPTION };

static uint64_t state = 1;

static double random_value(void) { /* in [-2, 2), a multiple of 2^-10: exact in every float type */
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(state >> 52) / 1024.0 - 2.0;
}

static size_t size_of(fa_dtype dtype) {
    static const size_t size[] = {1, 1, 2, 2, 4, 8};
    return size[dtype];
}

static double get(const fa_array *a, int64_t head, int64_t row, int64_t column) {
    const ptrdiff_t i = head * a->head + row * a->row + column * a->column;
    switch (a->dtype) {
    case FA_BOOL: return ((const uint8_t *)a->data)[i];
    case FA_INT8: return ((const int8_t *)a->data)[i];
    case FA_FLOAT16: return fa_f32_from_f16(((const uint16_t *)a->data)[i]);
    case FA_BFLOAT16: return fa_f32_from_bf16(((const uint16_t *)a->data)[i]);
    case FA_FLOAT32: return ((const float *)a->data)[i];
    default: return ((const double *)a->data)[i];
    }
}

static void set(void *data, fa_dtype dtype, size_t i, double x) {
    switch (dtype) {
    case FA_BOOL: ((uint8_t *)data)[i] = x > -1; break;
    case FA_INT8: ((int8_t *)data)[i] = (int8_t)(8 * x); break;
    case FA_FLOAT16: ((uint16_t *)data)[i] = fa_f16_from_f64(x); break;
    case FA_BFLOAT16: ((uint16_t *)data)[i] = fa_bf16_from_f64(x); break;
    case FA_FLOAT32: ((float *)data)[i] = (float)x; break;
    default: ((double *)data)[i] = x;
    }
}

/* A random array of exactly its size. `turned` puts the columns first in memory. */
static fa_array make(fa_dtype dtype, int64_t n_head, int64_t n_row, int64_t n_column, int turned) {
    fa_array a = {0};
    const size_t n = (size_t)(n_head * n_row * n_column);
    a.dtype = dtype;
    a.data = malloc(n * size_of(dtype));
    CHECK(a.data != NULL);
    a.head = n_row * n_column;
    a.row = turned ? 1 : n_column;
    a.column = turned ? n_row : 1;
    for (size_t i = 0; i < n; i++)
        set(a.data, dtype, i, random_value());
    return a;
}

static fa_attention make_call(shape s, fa_dtype kv_dtype, fa_dtype real, int turned) {
    fa_attention call;
    memset(&call, 0, sizeof call);
    call.n_batch = 1;
    call.n_head = s.n_head;
    call.n_kv_head = s.n_kv_head;
    call.n_query = s.n_query;
    call.n_key = s.n_key;
    call.d_head = s.d_head;
    call.d_value = s.d_value;
    call.query = make(real, s.n_head, s.n_query, s.d_head, turned);
    call.key = make(kv_dtype, s.n_kv_head, s.n_key, s.d_head, turned);
    call.value = make(kv_dtype, s.n_kv_head, s.n_key, s.d_value, turned);
    call.output = make(real, s.n_head, s.n_query, s.d_value, turned);
    call.lse = make(real, s.n_head, s.n_query, 1, 0);
    call.weights = make(real, s.n_head, s.n_query, s.n_key, 0);
    memset(call.weights.data, 0, (size_t)(s.n_head * s.n_query * s.n_key) * size_of(real));
    if (kv_dtype == FA_INT8) {
        call.key_scale = make(real, s.n_kv_head, 1, s.n_key, 0);
        call.value_scale = make(real, s.n_kv_head, 1, s.n_key, 0);
    }
    call.scale = 0.25;
    call.window_left = call.window_right = -1;
    call.n_thread = 2;
    return call;
}

static void add_option(fa_attention *call, enum option option, fa_dtype real, int64_t *length) {
    const int64_t n_head = call->n_head, n_query = call->n_query, n_key = call->n_key;
    *length = n_key / 2;
    call->is_causal = option == CAUSAL;
    if (option == WINDOW) {
        call->window_left = 3;
        call->window_right = 70;
    }
    if (option == MASK)
        call->mask = make(FA_BOOL, n_head, n_query, n_key, 0);
    if (option == BIAS)
        call->bias = make(FA_FLOAT16, n_head, n_query, n_key, 0);
    if (option == ALIBI)
        call->slopes = make(real, n_head, 1, 1, 0);
    if (option == SOFTCAP)
        call->softcap = 1.5;
    if (option == SINKS)
        call->sinks = make(real, n_head, 1, 1, 0).data;
    if (option == LENGTHS)
        call->kv_lengths = length;
}

static void free_call(fa_attention *call) {
    fa_array *arrays[] = {&call->query, &call->key,         &call->value,  &call->mask,
                          &call->bias,  &call->key_scale,   &call->slopes, &call->output,
                          &call->lse,   &call->value_scale, &call->weights};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]->data);
    free((void *)call->sinks);
}

/* ---- the plain reference, row by row ---- */

static int is_visible(const fa_attention *call, int64_t h, int64_t i, int64_t j) {
    const int64_t length = call->kv_lengths ? call->kv_lengths[0] : call->n_key;
    return j < length && (!call->is_causal || j <= i) &&
           (call->window_left < 0 || j >= i - call->window_left) &&
           (call->window_right < 0 || j <= i + call->window_right) &&
           (!call->mask.data || get(&call->mask, h, i, j) != 0);
}

static double score(const fa_attention *call, int64_t h, int64_t i, int64_t j) {
    const int64_t g = h / (call->n_head / call->n_kv_head);
    double dot = 0;
    for (int64_t d = 0; d < call->d_head; d++)
        dot += get(&call->query, h, i, d) * get(&call->key, g, j, d);
    if (call->key_scale.data)
        dot *= get(&call->key_scale, g, 0, j);
    dot *= call->scale;
    if (call->softcap != 0)
        dot = call->softcap * tanh(dot / call->softcap);
    if (call->slopes.data)
        dot -= get(&call->slopes, h, 0, 0) * (double)llabs((long long)(i - j));
    return call->bias.data ? dot + get(&call->bias, h, i, j) : dot;
}

static double sink_of(const fa_attention *call, int64_t h) {
    const fa_array sinks = {.data = (void *)call->sinks, .dtype = call->lse.dtype, .head = 1};
    return call->sinks ? get(&sinks, h, 0, 0) : -INFINITY;
}

static void check_near(double got, double expected, double size) {
    if (expected == -INFINITY)
        CHECK(got == -INFINITY);
    else
        CHECK(fabs(got - expected) <= TOLERANCE * size);
}

static void check_row(const fa_attention *call, int64_t h, int64_t i, double *p, double *out) {
    const int64_t g = h / (call->n_head / call->n_kv_head);
    double max = sink_of(call, h), sum = 0;
    for (int64_t j = 0; j < call->n_key; j++) {
        p[j] = is_visible(call, h, i, j) ? score(call, h, i, j) : -INFINITY;
        max = p[j] > max ? p[j] : max;
    }
    const double base = max == -INFINITY ? 0 : max;
    sum = exp(sink_of(call, h) - base);
    memset(out, 0, sizeof(double) * (size_t)call->d_value);
    for (int64_t j = 0; j < call->n_key; j++) {
        p[j] = exp(p[j] - base);
        sum += p[j];
        const double w = call->value_scale.data ? p[j] * get(&call->value_scale, g, 0, j) : p[j];
        for (int64_t d = 0; d < call->d_value; d++)
            out[d] += w * get(&call->value, g, j, d);
    }
    for (int64_t d = 0; d < call->d_value; d++)
        check_near(get(&call->output, h, i, d), sum == 0 ? 0 : out[d] / sum, 64);
    for (int64_t j = 0; j < call->n_key; j++)
        check_near(get(&call->weights, h, i, j), sum == 0 ? 0 : p[j] / sum, 4);
    check_near(get(&call->lse, h, i, 0), base + log(sum), 4 + fabs(base));
}

static void check_result(const fa_attention *call) {
    double *p = malloc(sizeof(double) * (size_t)(call->n_key + 1));
    double *out = malloc(sizeof(double) * (size_t)(call->d_value + 1));
    CHECK(p != NULL && out != NULL);
    for (int64_t h = 0; h < call->n_head; h++)
        for (int64_t i = 0; i < call->n_query; i++)
            check_row(call, h, i, p, out);
    free(p);
    free(out);
}

/* ---- the tests ---- */

static fa_status run(int set, const fa_attention *call, fa_dtype real) {
    const fa_kernel_set *kernels = fa_kernel_set_at(set);
    return real == FA_FLOAT64 ? kernels->attention_f64(call) : kernels->attention_f32(call);
}

static const shape shapes[] = {
    {1, 1, 1, 1, 1, 1},     {2, 1, 3, 5, 7, 3},     {4, 2, 2, 97, 16, 9},
    {2, 2, 9, 193, 5, 17},  {1, 1, 17, 96, 33, 6},  {3, 1, 43, 95, 8, 13},
    {1, 1, 1, 3200, 4, 18}, {1, 1, 70, 1700, 3, 8}, {2, 1, 5, 0, 4, 4},
};
enum { N_SHAPE = sizeof shapes / sizeof shapes[0] };

static void test_every_option_and_type_agrees_with_the_plain_reference(int set) {
    static const fa_dtype kv[] = {FA_FLOAT32, FA_FLOAT64, FA_FLOAT16, FA_BFLOAT16, FA_INT8};
    for (int s = 0; s < N_SHAPE; s++)
        for (int option = 0; option < N_OPTION; option++)
            for (int k = 0; k < 5; k++) {
                /* large shapes take every option with one or two of the types only: time */
                const int is_large = shapes[s].n_query * shapes[s].n_key > 3000;
                if (is_large && (option + k) % 5 != 0)
                    continue;
                const fa_dtype real =
                    (kv[k] == FA_FLOAT64 || option % 3 == 2) ? FA_FLOAT64 : FA_FLOAT32;
                int64_t length;
                fa_attention call = make_call(shapes[s], kv[k], real, (option + k) % 2);
                add_option(&call, (enum option)option, real, &length);
                CHECK(run(set, &call, real) == FA_OK);
                check_result(&call);
                free_call(&call);
            }
}

static void test_a_row_alone_has_the_bits_it_has_among_others(int set, fa_dtype real) {
    fa_attention call = make_call((shape){1, 1, 130, 1900, 24, 10}, real, real, 0);
    float alone[10 * 2]; /* room for ten float64 */
    CHECK(run(set, &call, real) == FA_OK);
    free(call.weights.data);
    free(call.lse.data);
    call.weights.data = call.lse.data = NULL;
    for (int64_t i = 0; i < 130; i += 13) {
        fa_attention one = call;
        one.n_query = 1;
        one.query.data = (char *)call.query.data + i * 24 * (int64_t)size_of(real);
        one.output.data = alone;
        CHECK(run(set, &one, real) == FA_OK);
        const char *among = (char *)call.output.data + i * 10 * (int64_t)size_of(real);
        CHECK(memcmp(alone, among, 10 * size_of(real)) == 0);
    }
    free_call(&call);
}

int main(void) {
    for (int set = 0; set < fa_kernel_set_count(); set++) {
        if (!fa_kernel_set_runs_here(set))
            continue;
        test_every_option_and_type_agrees_with_the_plain_reference(set);
        test_a_row_alone_has_the_bits_it_has_among_others(set, FA_FLOAT32);
        test_a_row_alone_has_the_bits_it_has_among_others(set, FA_FLOAT64);
        printf("%s kernels: passed\n", fa_kernel_set_at(set)->name);
    }
    return 0;
}
