/* Computes the calls on record with every kernel set that runs here and compares the digests.
 *
 * `golden [NAME...]`: each NAME is a kernel set that has to be among them. Exits with 0 if all
 * digests are those on record. It needs nothing but the core and standard C, so it runs wherever
 * the core compiles: under emulators, without an operating system's files. The calls come from
 * write_cases.py; digests are of the little-endian bytes, on every machine.
 */
#include "fa.h"

#include <math.h>
#include <string.h>

#include "sha256.h"

typedef struct golden_result {
    const char *name;
    void *data;
    size_t n_element, element_size;
    const char *fused, *unfused; /* SHA-256, hexadecimal */
} golden_result;

typedef struct golden_case {
    const char *name;
    int is_float64;                /* the arithmetic */
    const fa_attention *attention; /* one of both */
    const fa_reduction *reduction;
    golden_result results[3];
} golden_case;

#include "golden_cases.h"

enum { N_CASE = sizeof golden_cases / sizeof golden_cases[0] };

static uint64_t bits_at(const void *data, size_t size) {
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    switch (size) {
    case 2: memcpy(&two, data, 2); return two;
    case 4: memcpy(&four, data, 4); return four;
    default: memcpy(&eight, data, 8); return eight;
    }
}

static void digest_of(const golden_result *r, char hex[65]) {
    sha256 s = sha256_start();
    for (size_t i = 0; i < r->n_element; i++) {
        const uint64_t bits = bits_at((const char *)r->data + i * r->element_size, r->element_size);
        for (size_t byte = 0; byte < r->element_size; byte++)
            sha256_add(&s, (uint8_t)(bits >> 8 * byte));
    }
    sha256_end(&s, hex);
}

/* Weights start as zeros, as fa.h demands; of the others every element must be written. */
static void clear_results(const golden_case *c) {
    for (int i = 0; i < 3; i++)
        if (c->results[i].name)
            memset(c->results[i].data, strcmp(c->results[i].name, "weights") == 0 ? 0 : 0xa5,
                   c->results[i].n_element * c->results[i].element_size);
}

static fa_status compute(const fa_kernel_set *set, const golden_case *c) {
    if (c->attention)
        return (c->is_float64 ? set->attention_f64 : set->attention_f32)(c->attention);
    return (c->is_float64 ? set->reduction_f64 : set->reduction_f32)(c->reduction);
}

/* Whether all digests of one call are those on record; says which are not. */
static int agrees(const fa_kernel_set *set, const golden_case *c) {
    const int is_fused = strcmp(set->arithmetic_class, "fused") == 0;
    int agree = 1;
    clear_results(c);
    if (compute(set, c) != FA_OK) {
        printf("%s: %s: no result\n", set->name, c->name);
        return 0;
    }
    for (int i = 0; i < 3 && c->results[i].name; i++) {
        char hex[65];
        digest_of(&c->results[i], hex);
        if (strcmp(hex, is_fused ? c->results[i].fused : c->results[i].unfused) != 0) {
            printf("%s: %s: %s differs: %s\n", set->name, c->name, c->results[i].name, hex);
            agree = 0;
        }
    }
    return agree;
}

static int check_set(const fa_kernel_set *set) {
    int n_agree = 0;
    for (int i = 0; i < N_CASE; i++)
        n_agree += agrees(set, &golden_cases[i]);
    printf("%s (%s): %d of %d calls as on record\n", set->name, set->arithmetic_class, n_agree,
           N_CASE);
    fflush(stdout);
    return n_agree == N_CASE;
}

static int runs_here(const char *name) {
    for (int i = 0; i < fa_kernel_set_count(); i++)
        if (strcmp(fa_kernel_set_at(i)->name, name) == 0)
            return fa_kernel_set_runs_here(i);
    return 0;
}

int main(int n_argument, char **arguments) {
    int is_good = 1;
    for (int i = 1; i < n_argument; i++)
        if (!runs_here(arguments[i])) {
            printf("%s does not run here\n", arguments[i]);
            is_good = 0;
        }
    for (int i = 0; i < fa_kernel_set_count(); i++)
        if (fa_kernel_set_runs_here(i))
            is_good &= check_set(fa_kernel_set_at(i));
    printf("%s, compiled by %s\n", is_good ? "passed" : "FAILED", fa_compiler());
    return !is_good;
}
