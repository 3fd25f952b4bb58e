/* The loops that no attention can outrun, with the widest vectors that the compiler may use: fused
 * multiply-adds on registers, a read of memory, a copy of memory. Each returns or writes what it
 * computes, so that it cannot be left out. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif

/* At least latency times units, fewer than registers. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { CHAINS = 16 };
#else
enum { CHAINS = 12 };
#endif

enum { STREAM = 8 }; /* vectors per turn of a loop over memory */

typedef float vector __attribute__((vector_size(WIDTH)));
typedef float unaligned __attribute__((vector_size(WIDTH), aligned(4)));

int64_t fma_flops_per_turn(void) { return (int64_t)CHAINS * 2 * (WIDTH / (int64_t)sizeof(float)); }

float fma_loop(int64_t n_turn, float factor, float term) {
    vector chain[CHAINS], factors, terms;
    for (int lane = 0; lane < WIDTH / (int)sizeof(float); lane++) {
        factors[lane] = factor;
        terms[lane] = term;
    }
    for (int c = 0; c < CHAINS; c++)
        chain[c] = terms * (float)c;
    for (int64_t turn = 0; turn < n_turn; turn++)
        for (int c = 0; c < CHAINS; c++)
            chain[c] = chain[c] * factors + terms;
    for (int c = 1; c < CHAINS; c++)
        chain[0] += chain[c];
    return chain[0][0];
}

float read_loop(const float *from, int64_t n) {
    const unaligned *vectors = (const unaligned *)from;
    vector sum[STREAM];
    memset(sum, 0, sizeof sum);
    int64_t n_turn = n * (int64_t)sizeof(float) / (WIDTH * STREAM);
    for (int64_t turn = 0; turn < n_turn; turn++)
        for (int s = 0; s < STREAM; s++)
            sum[s] += vectors[turn * STREAM + s];
    for (int s = 1; s < STREAM; s++)
        sum[0] += sum[s];
    return sum[0][0];
}

void copy_loop(float *restrict to, const float *restrict from, int64_t n) {
    const unaligned *source = (const unaligned *)from;
    unaligned *target = (unaligned *)to;
    int64_t n_turn = n * (int64_t)sizeof(float) / (WIDTH * STREAM);
    for (int64_t turn = 0; turn < n_turn; turn++) {
        for (int s = 0; s < STREAM; s++)
            target[turn * STREAM + s] = source[turn * STREAM + s];
        __asm__ volatile("" ::: "memory"); /* a loop, not a call of memcpy */
    }
}
