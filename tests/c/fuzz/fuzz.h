/* What the fuzz targets share: a call is decoded from bytes, computed in several ways that must
 * agree bit for bit, and watched for what it touches.
 *
 * Bytes have fixed places, whatever they choose, so that a mutation changes one thing of a call.
 * Missing bytes are 0. Every array is on the heap in exactly its size, in any layout that Python
 * hands over; what lies between its elements is NaN or, in a result, must stay as it was.
 */
#ifndef FA_FUZZ_H
#define FA_FUZZ_H

#include "convert.h"
#include "cpu.h"
#include "fa.h"

#include "../check.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

/* ---- kernel sets: those that run.py compiled, FA_FUZZ_SETS, as far as they run here ---- */

#define SET(isa, kind) \
    fa_status fa_attention_f32_##isa(const fa_attention *call); \
    fa_status fa_attention_f64_##isa(const fa_attention *call); \
    fa_status fa_reduction_f32_##isa(const fa_reduction *call); \
    fa_status fa_reduction_f64_##isa(const fa_reduction *call);
FA_FUZZ_SETS
#undef SET

#define SET(isa, kind) \
    {#isa, \
     #kind, \
     fa_attention_f32_##isa, \
     fa_attention_f64_##isa, \
     fa_reduction_f32_##isa, \
     fa_reduction_f64_##isa},
static const fa_kernel_set kernel_sets[] = {FA_FUZZ_SETS};
#undef SET

enum { N_SET = sizeof kernel_sets / sizeof kernel_sets[0] };

static int runs_here(const fa_kernel_set *set) {
    const struct fa_cpu cpu = fa_cpu_detect();
    if (strcmp(set->name, "avx512") == 0)
        return cpu.avx512;
    if (strcmp(set->name, "avx2") == 0 || strcmp(set->name, "wide16") == 0)
        return cpu.avx2;
    return 1;
}

/* Two kernel sets of one class, or the same one twice. */
static void choose_sets(unsigned byte, const fa_kernel_set *chosen[2]) {
    const fa_kernel_set *here[N_SET], *alike[N_SET];
    unsigned n_here = 0, n_alike = 0;
    for (int i = 0; i < N_SET; i++)
        if (runs_here(&kernel_sets[i]))
            here[n_here++] = &kernel_sets[i];
    CHECK(n_here > 0);
    chosen[0] = here[byte % n_here];
    for (unsigned i = 0; i < n_here; i++)
        if (here[i] != chosen[0] &&
            strcmp(here[i]->arithmetic_class, chosen[0]->arithmetic_class) == 0)
            alike[n_alike++] = here[i];
    chosen[1] = n_alike > 0 ? alike[byte / n_here % n_alike] : chosen[0];
}

/* ---- bytes ---- */

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static unsigned take(bytes *b) { return b->at < b->end ? *b->at++ : 0; }

/* Half of the bytes are a size themselves, half give one near that of a block, a tile, a panel or
 * a vector, or a small one. */
static int64_t take_size(bytes *b) {
    static const uint8_t edges[] = {3, 4, 5, 6, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 144, 192};
    const unsigned byte = take(b);
    return byte < 128 ? (int64_t)byte : (int64_t)edges[byte % 16] + (byte - 128) / 16 - 3;
}

static uint64_t random_state;

static uint32_t random_bits(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

/* ---- arrays ---- */

enum { MOST_AXES = 8 };

typedef struct array {
    fa_dtype dtype;
    int n_axis;
    int64_t shape[MOST_AXES];
    ptrdiff_t stride[MOST_AXES]; /* elements; what it is for an axis of size 1 means nothing */
    char *memory, *data;         /* data: element 0 */
    size_t n_byte;
} array;

static size_t size_of(fa_dtype dtype) {
    static const size_t size[] = {1, 1, 2, 2, 4, 8};
    return size[dtype];
}

/* memcpy of a size that is not constant would cost a look at the shadow of the memory. */
static void copy_element(void *to, const void *from, size_t size) {
    switch (size) {
    case 1: memcpy(to, from, 1); break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 8); break;
    }
}

static int64_t n_element(const array *a) {
    int64_t n = 1;
    for (int axis = 0; axis < a->n_axis; axis++)
        n *= a->shape[axis];
    return n;
}

/* Element `i` in C order. */
static char *element_of(const array *a, int64_t i) {
    ptrdiff_t offset = 0;
    for (int axis = a->n_axis - 1; axis >= 0; axis--) {
        offset += (ptrdiff_t)(i % a->shape[axis]) * a->stride[axis];
        i /= a->shape[axis];
    }
    return a->data + offset * (ptrdiff_t)size_of(a->dtype);
}

/* How an array lies in memory. */
typedef struct layout {
    unsigned order;     /* bits 0-1: which order of axes; others as below */
    unsigned permuted;  /* an order by number */
    unsigned reversed;  /* axes, with WITH_REVERSED */
    unsigned broadcast; /* axes, with WITH_BROADCAST */
    int fastest;        /* the axis that is the fastest one in any case, or -1 */
} layout;

enum {
    WITH_STEP = 4,
    WITH_GAP = 8,
    WITH_REVERSED = 16,
    WITH_BROADCAST = 32,
    WITH_SHIFT = 64,
    WITH_ODD_ONES = 128
};

static const layout in_order = {0, 0, 0, 0, -1};

static layout take_layout(bytes *b) {
    layout l;
    l.order = take(b);
    l.permuted = take(b);
    l.reversed = take(b);
    l.broadcast = take(b);
    l.fastest = -1;
    return l;
}

/* The axes from the slowest to the fastest in memory. */
static void order_axes(layout l, int n_axis, int axes[MOST_AXES]) {
    for (int i = 0; i < n_axis; i++)
        axes[i] = i;
    const int kind = l.order & 3;
    unsigned code = l.permuted;
    for (int i = n_axis - 1; i > 0; i--) {
        int j = i;
        if (kind == 1) /* neighbours exchanged somewhere */
            j = i == 1 + (int)(l.permuted % (unsigned)n_axis) ? i - 1 : i;
        if (kind == 2 && i >= n_axis / 2) /* turned round */
            j = n_axis - 1 - i;
        if (kind == 3) {
            j = (int)(code % (unsigned)(i + 1));
            code /= (unsigned)(i + 1);
        }
        const int kept = axes[i];
        axes[i] = axes[j];
        axes[j] = kept;
    }
    for (int i = 0; i + 1 < n_axis; i++)
        if (axes[i] == l.fastest) {
            axes[i] = axes[i + 1];
            axes[i + 1] = l.fastest;
        }
}

/* Allocates the array: dtype, n_axis and shape are set. */
static void place_array(array *a, layout l) {
    int axes[MOST_AXES];
    ptrdiff_t step = l.order & WITH_STEP ? 2 + (ptrdiff_t)l.permuted % 2 : 1, low = 0, high = 0;
    const int is_empty = n_element(a) == 0;
    order_axes(l, a->n_axis, axes);
    for (int i = a->n_axis - 1; i >= 0; i--) {
        const int axis = axes[i];
        const int64_t n = a->shape[axis];
        if (l.order & WITH_BROADCAST && l.broadcast >> axis & 1) {
            a->stride[axis] = 0;
            continue;
        }
        a->stride[axis] = l.order & WITH_REVERSED && l.reversed >> axis & 1 ? -step : step;
        step *= (ptrdiff_t)(n > 1 ? n : 1);
        if (l.order & WITH_GAP && i == a->n_axis - 1)
            step += 1 + (ptrdiff_t)l.permuted % 3;
        if (n > 1 && a->stride[axis] < 0)
            low += a->stride[axis] * (ptrdiff_t)(n - 1);
        else if (n > 1)
            high += a->stride[axis] * (ptrdiff_t)(n - 1);
        if (n == 1 && l.order & WITH_ODD_ONES)
            a->stride[axis] = (ptrdiff_t)(l.permuted * 0x9e3779b97f4aull) - 0x80000000;
    }
    const size_t shift = l.order & WITH_SHIFT ? size_of(a->dtype) : 0; /* from cache lines */
    a->n_byte = shift + (is_empty ? 0 : (size_t)(high - low + 1) * size_of(a->dtype));
    a->memory = malloc(a->n_byte);
    CHECK(a->memory != NULL);
    a->data = a->memory + shift - low * (ptrdiff_t)size_of(a->dtype);
    if (is_empty)
        a->data = a->memory;
    memset(a->memory, 0xff, a->n_byte); /* NaN */
}

static void free_array(array *a) {
    free(a->memory);
    a->memory = NULL;
}

/* The elements first .. first + count of each axis, as an array of their own without gaps. */
static array slice_of(const array *a, const int64_t *first, const int64_t *count) {
    array s = {.dtype = a->dtype, .n_axis = a->n_axis};
    memcpy(s.shape, count, sizeof(int64_t) * (size_t)a->n_axis);
    place_array(&s, in_order);
    const int64_t n = n_element(&s);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i;
        ptrdiff_t offset = 0;
        for (int axis = a->n_axis - 1; axis >= 0; axis--) {
            offset += (ptrdiff_t)(first[axis] + rest % count[axis]) * a->stride[axis];
            rest /= count[axis];
        }
        copy_element(element_of(&s, i), a->data + offset * (ptrdiff_t)size_of(a->dtype),
                     size_of(a->dtype));
    }
    return s;
}

/* ---- numbers ---- */

typedef struct style {
    unsigned kind, detail;
} style;

static style take_style(bytes *b) {
    style s;
    s.kind = take(b);
    s.detail = take(b);
    return s;
}

enum { N_SPECIAL = 12 };

static double special(unsigned which, fa_dtype dtype) {
    const double largest = dtype == FA_FLOAT16    ? 65504
                           : dtype == FA_FLOAT64  ? 0x1.fffffffffffffp1023
                           : dtype == FA_BFLOAT16 ? 0x1.fep127
                                                  : 0x1.fffffep127;
    const double least = dtype == FA_FLOAT16    ? 0x1p-24
                         : dtype == FA_FLOAT64  ? 0x1p-1074
                         : dtype == FA_BFLOAT16 ? 0x1p-133
                                                : 0x1p-149;
    switch (which % N_SPECIAL) {
    case 0: return NAN;
    case 1: return INFINITY;
    case 2: return -INFINITY;
    case 3: return largest;
    case 4: return -largest;
    case 5: return least;
    case 6: return -3 * least;
    case 7: return -0.0;
    case 8: return 1;
    case 9: return largest / 2;
    case 10: return -88;
    default: return 1e-30;
    }
}

static void put_number(char *to, fa_dtype dtype, double x) {
    const uint16_t half = dtype == FA_FLOAT16 ? fa_f16_from_f64(x) : fa_bf16_from_f64(x);
    const float single = fabs(x) <= 0x1.fffffep127 || !isfinite(x) ? (float)x : 3e38f;
    const int8_t whole = (int8_t)(isfinite(x) ? fmin(fmax(x * 8, -128), 127) : -128);
    switch (dtype) {
    case FA_FLOAT16:
    case FA_BFLOAT16: memcpy(to, &half, sizeof half); break;
    case FA_FLOAT32: memcpy(to, &single, sizeof single); break;
    case FA_FLOAT64: memcpy(to, &x, sizeof x); break;
    default: memcpy(to, &whole, sizeof whole); break;
    }
}

static double number_of(const char *from, fa_dtype dtype) {
    uint16_t half;
    float single;
    double x;
    switch (dtype) {
    case FA_FLOAT16: memcpy(&half, from, sizeof half); return fa_f32_from_f16(half);
    case FA_BFLOAT16: memcpy(&half, from, sizeof half); return fa_f32_from_bf16(half);
    case FA_FLOAT32: memcpy(&single, from, sizeof single); return single;
    case FA_FLOAT64: memcpy(&x, from, sizeof x); return x;
    default: return *(const int8_t *)from;
    }
}

/* A number between -2 and 2 of few digits, and what the style makes of it. */
static double styled_number(style s, fa_dtype dtype) {
    const double x = (double)(random_bits() >> 20) / 1024 - 2;
    switch (s.kind % 12) {
    case 0: return x;
    case 1: return 4 * x;
    case 2: return x * 1e-3;
    case 3: return 1;
    case 4: return x < 0 ? -0.0 : 0;
    case 5: return rint(4 * x);
    case 6: return special(4, dtype) * x / 2;
    case 7: return special(5, dtype) * rint(x * 1000);
    case 8: return ldexp(x, (int)(random_bits() % 120) - 60);
    case 9: return random_bits() % (s.detail % 2 ? 16 : 256) ? x : special(random_bits(), dtype);
    case 10: return random_bits() % 2 ? -INFINITY : x;
    default: return 40 * x;
    }
}

/* `column` and `row` are places along the last two axes. */
static uint8_t styled_bool(style s, int64_t row, int64_t column) {
    const unsigned r = random_bits();
    switch (s.kind % 8) {
    case 0: return r % 2;
    case 1: return 1;
    case 2: return 0;
    case 3: return column < s.detail;
    case 4: return (column / 48 + row / 8) % 2 == 0;
    case 5: return r % 2 ? (uint8_t)(r >> 8) : 0; /* NumPy's bools may hold any byte */
    case 6: return r % 32 != 0;
    default: return column <= row + s.detail && column + s.detail > row;
    }
}

static void fill_array(array *a, style s) {
    const int64_t n = n_element(a), n_column = a->n_axis > 0 ? a->shape[a->n_axis - 1] : 1;
    const int64_t n_row = a->n_axis > 1 ? a->shape[a->n_axis - 2] : 1;
    random_state = s.detail * UINT64_C(0x9e3779b97f4a7c15);
    for (int64_t i = 0; i < n; i++) {
        char *to = element_of(a, i);
        const uint64_t any = (uint64_t)random_bits() << 32 | random_bits();
        if (a->dtype == FA_BOOL)
            *(uint8_t *)to = styled_bool(s, i / n_column % n_row, i % n_column);
        else if (s.kind >= 240 || a->dtype == FA_INT8) /* any bits, signalling NaNs among them */
            copy_element(to, &any, size_of(a->dtype));
        else
            put_number(to, a->dtype, styled_number(s, a->dtype));
    }
}

/* Some single numbers that are special, at any place of any array. */
enum { N_POKE = 4 };

typedef struct poke {
    unsigned array, place, which; /* none, in half of the cases */
} poke;

static void take_pokes(bytes *b, poke pokes[N_POKE]) {
    for (int i = 0; i < N_POKE; i++) {
        pokes[i].array = take(b);
        pokes[i].place = take(b) << 8;
        pokes[i].place |= take(b);
        pokes[i].which = take(b);
    }
}

static void poke_arrays(const poke pokes[N_POKE], array *arrays, unsigned n_array) {
    for (int i = 0; i < N_POKE; i++) {
        array *a = &arrays[pokes[i].array % n_array];
        if (pokes[i].which < 128 || !a->memory || n_element(a) == 0)
            continue;
        char *to = element_of(a, pokes[i].place % n_element(a));
        if (a->dtype == FA_BOOL)
            *to = !*to;
        else
            put_number(to, a->dtype, special(pokes[i].which, a->dtype));
    }
}

/* ---- what a call leaves ---- */

static uint64_t sum_of_memory(const array *a) {
    uint64_t sum = 0;
    for (size_t i = 0; a->memory && i < a->n_byte; i++)
        sum = (sum ^ (uint8_t)a->memory[i]) * UINT64_C(1099511628211);
    return sum;
}

/* A copy of the elements in C order; every other byte must still be `fill`, every NaN be the one
 * of ARITHMETIC.md, and no zero negative. */
static char *taken_result(const array *a, int fill) {
    const size_t size = size_of(a->dtype), n = (size_t)n_element(a);
    char *result = malloc(n * size), *seen = malloc(a->n_byte);
    CHECK(result != NULL && seen != NULL);
    memset(seen, fill, a->n_byte);
    for (size_t i = 0; i < n; i++) {
        static const uint64_t nan[] = {0, 0, 0x7e00, 0x7fc0, 0x7fc00000, 0x7ff8000000000000};
        const char *from = element_of(a, (int64_t)i);
        const double x = number_of(from, a->dtype);
        uint64_t bits = 0;
        copy_element(result + i * size, from, size);
        copy_element(seen + (from - a->memory), from, size);
        copy_element(&bits, from, size); /* of little-endian machines */
        CHECK(x == x || bits == nan[a->dtype]);
        CHECK(x != 0 || bits == 0);
    }
    CHECK(memcmp(seen, a->memory, a->n_byte) == 0);
    free(seen);
    return result;
}

/* The shape of `a` over elements in order from `data` on, as taken_result gives them. */
static array over_result(const array *a, char *data) {
    array all = *a;
    ptrdiff_t step = 1;
    all.memory = all.data = data;
    for (int axis = all.n_axis - 1; axis >= 0; axis--) {
        all.stride[axis] = step;
        step *= (ptrdiff_t)all.shape[axis];
    }
    return all;
}

/* The caller's rounding must not matter, and must be as it was. */
static int enter_rounding(unsigned byte) {
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const int mode = modes[byte % 4];
    CHECK(fesetround(mode) == 0);
    return mode;
}

static void leave_rounding(int mode) {
    CHECK(fegetround() == mode);
    CHECK(fesetround(FE_TONEAREST) == 0);
}

static int never(void *context) {
    (void)context;
    return 0;
}

#endif
