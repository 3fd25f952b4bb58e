/* float32 to 16 bits: the code for vectors gives the bits of the one that rounds float64. */
#include "check.h"
#include "convert.h"
#include <math.h>

static void check_pattern(uint32_t bits) {
    const float x = fa_f32_from_bits(bits);
    CHECK(fa_f16_from_f32(x) == fa_f16_from_f64(x));
    CHECK(fa_bf16_from_f32(x) == fa_bf16_from_f64(x));
}

/* All upper bits, with lower ones about the ties: signs, exponents, subnormals, infinities, NaN. */
static void test_float32_rounds_as_float64_does(void) {
    static const uint32_t low[] = {0x00, 0x01, 0x7f, 0x80, 0x81, 0xff};
    for (uint32_t high = 0; high < 1u << 24; high++)
        for (unsigned i = 0; i < sizeof low / sizeof low[0]; i++)
            check_pattern(high << 8 | low[i]);
}

static void test_rounding_at_the_edges(void) {
    CHECK(fa_f16_from_f32(65519.996f) == 0x7bff && fa_f16_from_f32(65520.0f) == 0x7c00);
    CHECK(fa_f16_from_f32(0x1p-25f) == 0 && fa_f16_from_f32(0x1.8p-25f) == 1);
    CHECK(fa_f16_from_f32(0x1.8p-24f) == 2 && fa_f16_from_f32(-0x1p-14f) == 0x8400);
    CHECK(fa_f16_from_f32(0x1.ffcp-15f) == 0x0400 && fa_f16_from_f32(0x1.ffbp-15f) == 0x03ff);
    CHECK(fa_f16_from_f32(-NAN) == 0x7e00 && fa_bf16_from_f32(-NAN) == 0x7fc0);
    CHECK(fa_bf16_from_f32(0x1.01p0f) == 0x3f80 && fa_bf16_from_f32(0x1.03p0f) == 0x3f82);
    CHECK(fa_bf16_from_f32(0x1.ffp127f) == 0x7f80 && fa_bf16_from_f32(-INFINITY) == 0xff80);
    CHECK(fa_bf16_from_f32(0x1p-149f) == 0 && fa_bf16_from_f32(0x1p-133f) == 1);
}

int main(void) {
    test_float32_rounds_as_float64_does();
    test_rounding_at_the_edges();
    return 0;
}
