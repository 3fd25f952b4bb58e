/* Conversions between 16-bit floats and wider ones, in portable integer code.
 *
 * Widening is exact. Narrowing rounds once, to nearest even, straight from float64 (float32 widens
 * exactly first), so a float64 result never passes through float32. NaN becomes the canonical one.
 */
#ifndef FA_CONVERT_H
#define FA_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t fa_bits_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float fa_f32_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t fa_bits_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double fa_f64_from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float fa_f32_from_bf16(uint16_t h) { return fa_f32_from_bits((uint32_t)h << 16); }

static inline float fa_f32_from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity and NaN: the exponent moves from all ones to all ones */
        return fa_f32_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x0400u) { /* zero and subnormals: an exact multiple of 2^-24 */
        const uint32_t bits = fa_bits_f32((float)magnitude * 0x1p-24f);
        return fa_f32_from_bits(sign | bits);
    }
    return fa_f32_from_bits(sign | ((magnitude << 13) + (112u << 23)));
}

/* Round the fraction of a normal float64 to `keep` bits and rebias; the carry may enter the
 * exponent, which is what rounding up to the next power of two means. */
static inline uint16_t fa_narrow_normal(uint64_t magnitude, int keep, int bias) {
    const int drop = 52 - keep;
    const uint64_t odd = (magnitude >> drop) & 1u;
    const uint64_t rounded = (magnitude + ((UINT64_C(1) << (drop - 1)) - 1) + odd) >> drop;
    return (uint16_t)(rounded - ((uint64_t)(1023 - bias) << keep));
}

/* An exact multiple of 2^-24 or 2^-133 below 2^52, rounded to an integer, ties to even. */
static inline uint16_t fa_narrow_subnormal(double steps) {
    return (uint16_t)((steps + 0x1p52) - 0x1p52);
}

static inline uint16_t fa_f16_from_f64(double x) {
    const uint64_t bits = fa_bits_f64(x);
    const uint64_t magnitude = bits & UINT64_C(0x7fffffffffffffff);
    const uint16_t sign = (uint16_t)((bits >> 48) & 0x8000u);
    const double size = fa_f64_from_bits(magnitude);
    if (magnitude > UINT64_C(0x7ff0000000000000))
        return 0x7e00u;
    if (size >= 65520.0) /* halfway to 2^16 and above */
        return sign | 0x7c00u;
    if (size < 0x1p-14)
        return sign | fa_narrow_subnormal(size * 0x1p24);
    return sign | fa_narrow_normal(magnitude, 10, 15);
}

static inline uint16_t fa_bf16_from_f64(double x) {
    const uint64_t bits = fa_bits_f64(x);
    const uint64_t magnitude = bits & UINT64_C(0x7fffffffffffffff);
    const uint16_t sign = (uint16_t)((bits >> 48) & 0x8000u);
    const double size = fa_f64_from_bits(magnitude);
    if (magnitude > UINT64_C(0x7ff0000000000000))
        return 0x7fc0u;
    if (size >= 0x1.ffp127)
        return sign | 0x7f80u;
    if (size < 0x1p-126)
        return sign | fa_narrow_subnormal(size * 0x1p133);
    return sign | fa_narrow_normal(magnitude, 7, 127);
}

/* From float32 to the same bits, without a branch: compilers make vectors of a loop over them. */
static inline uint16_t fa_f16_from_f32(float x) {
    const uint32_t bits = fa_bits_f32(x), magnitude = bits & 0x7fffffffu;
    const uint32_t odd = (magnitude >> 13) & 1u;
    const uint32_t normal = ((magnitude + 0xfffu + odd) >> 13) - (112u << 10);
    /* the last place of numbers from 0.5 to 1 is 2^-24, as that of subnormals */
    const uint32_t half = fa_bits_f32(0.5f);
    const uint32_t subnormal = fa_bits_f32(fa_f32_from_bits(magnitude) + 0.5f) - half;
    const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
    const uint32_t number = magnitude < 0x477ff000u ? finite : 0x7c00u; /* 65520, as above */
    return (uint16_t)(magnitude > 0x7f800000u ? 0x7e00u : number | (bits >> 16 & 0x8000u));
}

static inline uint16_t fa_bf16_from_f32(float x) {
    const uint32_t bits = fa_bits_f32(x);
    const uint32_t number = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : number);
}

#endif
