/* Instruction sets from raw CPUID and XCR0 words: what the processor has and the system saves. */
#include "cpu.h"

#include <string.h>
#ifdef _WIN32
#include <windows.h>
#endif

#include "check.h"

#define AVX_WORD 0x38001000u    /* leaf 1 ECX: F16C, AVX, OSXSAVE, FMA */
#define AVX2_WORD 0x00000020u   /* leaf 7 EBX: AVX2 */
#define AVX512_WORD 0xc0030020u /* leaf 7 EBX: AVX2, AVX-512 F, DQ, BW, VL */
#define ALL_BITS 0xffffffffu    /* every feature, known or not */
#define WITHOUT(word, bit) ((word) & ~(1u << (bit)))

static const struct {
    const char *what;
    uint32_t leaf1_ecx, leaf7_ebx;
    uint64_t xcr0;
    int avx2, avx512;
} cases[] = {
    {"no feature", 0, 0, 0, 0, 0},
    {"every feature, no saved state", ALL_BITS, ALL_BITS, 0, 0, 0},
    {"every feature, xmm saved", ALL_BITS, ALL_BITS, 0x3, 0, 0},
    {"AVX2, xmm saved", AVX_WORD, AVX2_WORD, 0x3, 0, 0},
    {"AVX2, ymm saved without xmm", AVX_WORD, AVX2_WORD, 0x5, 0, 0},
    {"AVX2, ymm saved", AVX_WORD, AVX2_WORD, 0x7, 1, 0},
    {"AVX2, everything saved", AVX_WORD, AVX2_WORD, 0xe7, 1, 0},
    {"AVX2 without OSXSAVE", WITHOUT(AVX_WORD, 27), AVX2_WORD, 0x7, 0, 0},
    {"AVX2 without AVX", WITHOUT(AVX_WORD, 28), AVX2_WORD, 0x7, 0, 0},
    {"AVX2 without FMA", WITHOUT(AVX_WORD, 12), AVX2_WORD, 0x7, 0, 0},
    {"AVX2 without F16C", WITHOUT(AVX_WORD, 29), AVX2_WORD, 0x7, 0, 0},
    {"AVX without AVX2", AVX_WORD, 0, 0x7, 0, 0},
    {"AVX-512, ymm saved", AVX_WORD, AVX512_WORD, 0x7, 1, 0},
    {"AVX-512, masks not saved", AVX_WORD, AVX512_WORD, 0xc7, 1, 0},
    {"AVX-512, upper 16 zmm not saved", AVX_WORD, AVX512_WORD, 0x67, 1, 0},
    {"AVX-512, zmm saved", AVX_WORD, AVX512_WORD, 0xe7, 1, 1},
    {"AVX-512 without F", AVX_WORD, WITHOUT(AVX512_WORD, 16), 0xe7, 1, 0},
    {"AVX-512 without DQ", AVX_WORD, WITHOUT(AVX512_WORD, 17), 0xe7, 1, 0},
    {"AVX-512 without BW", AVX_WORD, WITHOUT(AVX512_WORD, 30), 0xe7, 1, 0},
    {"AVX-512 without VL", AVX_WORD, WITHOUT(AVX512_WORD, 31), 0xe7, 1, 0},
    {"AVX-512 without AVX2", AVX_WORD, WITHOUT(AVX512_WORD, 5), 0xe7, 0, 0},
    {"every feature and state", ALL_BITS, ALL_BITS, ~UINT64_C(0), 1, 1},
};

static void test_classify_matches_the_table(void) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct fa_cpu cpu =
            fa_cpu_classify(cases[i].leaf1_ecx, cases[i].leaf7_ebx, cases[i].xcr0);
        if (cpu.avx2 != cases[i].avx2 || cpu.avx512 != cases[i].avx512)
            fprintf(stderr, "%s: avx2 %d, avx512 %d\n", cases[i].what, cpu.avx2, cpu.avx512);
        CHECK(cpu.avx2 == cases[i].avx2 && cpu.avx512 == cases[i].avx512);
    }
}

static const char *missing; /* the one sysctl that says no */

static int all_but_missing(const char *name) {
    CHECK(strncmp(name, "hw.optional.avx512", 18) == 0);
    return !missing || strcmp(name, missing) != 0;
}

static void test_macos_keeps_zmm_where_its_sysctls_say_so(void) {
    static const char *const names[] = {"hw.optional.avx512f", "hw.optional.avx512dq",
                                        "hw.optional.avx512bw", "hw.optional.avx512vl"};
    missing = NULL;
    const uint64_t lazy = fa_cpu_xcr0_on_macos(0x7, all_but_missing);
    CHECK(fa_cpu_classify(AVX_WORD, AVX512_WORD, lazy).avx512);
    CHECK(fa_cpu_classify(AVX_WORD, AVX512_WORD, 0x7).avx512 == 0);
    CHECK(fa_cpu_xcr0_on_macos(0xe7, all_but_missing) == 0xe7);
    for (int i = 0; i < 4; i++) {
        missing = names[i];
        CHECK(fa_cpu_xcr0_on_macos(0x7, all_but_missing) == 0x7);
    }
}

static void test_detect_agrees_with_others(void) {
    const struct fa_cpu cpu = fa_cpu_detect();
#if defined(__x86_64__) && defined(__gnu_linux__)
    CHECK(cpu.avx2 == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")));
    CHECK(cpu.avx512 ==
          (cpu.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")));
#elif defined(_WIN32)
    CHECK(cpu.avx2 == (IsProcessorFeaturePresent(PF_AVX2_INSTRUCTIONS_AVAILABLE) != 0));
    CHECK(cpu.avx2 || !cpu.avx512); /* Wine 8 does not tell of AVX-512 */
#else
    CHECK(cpu.avx2 || !cpu.avx512);
#endif
}

int main(void) {
    test_classify_matches_the_table();
    test_macos_keeps_zmm_where_its_sysctls_say_so();
    test_detect_agrees_with_others();
    return 0;
}
