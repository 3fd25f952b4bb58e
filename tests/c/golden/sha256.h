/* SHA-256 of a stream of bytes. Reference: FIPS 180-4, sections 4.1.2, 4.2.2, 5.1.1 and 6.2. */
#ifndef FA_SHA256_H
#define FA_SHA256_H

#include <stdint.h>
#include <stdio.h>

typedef struct sha256 {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t n_byte;
} sha256;

static inline sha256 sha256_start(void) {
    const sha256 s = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                       0x1f83d9ab, 0x5be0cd19},
                      {0},
                      0};
    return s;
}

static inline uint32_t sha256_turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline void sha256_expand(const uint8_t block[64], uint32_t w[64]) {
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        const uint32_t s0 = sha256_turn(a, 7) ^ sha256_turn(a, 18) ^ a >> 3;
        const uint32_t s1 = sha256_turn(b, 17) ^ sha256_turn(b, 19) ^ b >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static inline void sha256_compress(sha256 *s) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8];
    sha256_expand(s->block, w);
    for (int i = 0; i < 8; i++)
        v[i] = s->state[i];
    for (int i = 0; i < 64; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t s1 = sha256_turn(e, 6) ^ sha256_turn(e, 11) ^ sha256_turn(e, 25);
        const uint32_t s0 = sha256_turn(a, 2) ^ sha256_turn(a, 13) ^ sha256_turn(a, 22);
        const uint32_t chosen = (e & v[5]) ^ (~e & v[6]);
        const uint32_t majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        const uint32_t first = v[7] + s1 + chosen + k[i] + w[i];
        for (int j = 7; j > 0; j--)
            v[j] = v[j - 1];
        v[4] += first;
        v[0] = first + s0 + majority;
    }
    for (int i = 0; i < 8; i++)
        s->state[i] += v[i];
}

static inline void sha256_add(sha256 *s, uint8_t byte) {
    s->block[s->n_byte++ % 64] = byte;
    if (s->n_byte % 64 == 0)
        sha256_compress(s);
}

/* Ends the stream; `hex` gets 64 digits and a terminating zero. */
static inline void sha256_end(sha256 *s, char hex[65]) {
    const uint64_t n_bit = s->n_byte * 8;
    sha256_add(s, 0x80);
    while (s->n_byte % 64 != 56)
        sha256_add(s, 0);
    for (int i = 7; i >= 0; i--)
        sha256_add(s, (uint8_t)(n_bit >> 8 * i));
    for (int i = 0; i < 8; i++)
        snprintf(hex + 8 * i, 9, "%08x", (unsigned)s->state[i]);
}

#endif
