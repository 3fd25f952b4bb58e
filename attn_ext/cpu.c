/* CPUID says what the processor has, XCR0 which registers the operating system saves on a switch;
 * only both together make an instruction usable. Compilers' own checks are not used, as some
 * runtimes leave them out. Reference: Intel 64 and IA-32 Architectures Software Developer's
 * Manual, volume 1, sections 14.3 and 15.2-15.4. */
#include "cpu.h"

#include "architecture.h"

#define BIT(n) (UINT32_C(1) << (n))

/* CPUID leaf 1, ECX */
#define FMA BIT(12)
#define OSXSAVE BIT(27)
#define AVX BIT(28)
#define F16C BIT(29)

/* CPUID leaf 7, EBX */
#define AVX2 BIT(5)
#define AVX512F BIT(16)
#define AVX512DQ BIT(17)
#define AVX512BW BIT(30)
#define AVX512VL BIT(31)

#define XCR0_YMM 0x06 /* xmm, upper halves of ymm */
#define XCR0_ZMM 0xe6 /* and masks, upper halves of zmm 0-15, zmm 16-31 */

static int has(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

struct fa_cpu fa_cpu_classify(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0) {
    struct fa_cpu cpu;
    cpu.avx2 =
        has(leaf1_ecx, OSXSAVE | AVX | FMA | F16C) && has(leaf7_ebx, AVX2) && has(xcr0, XCR0_YMM);
    cpu.avx512 =
        cpu.avx2 && has(leaf7_ebx, AVX512F | AVX512DQ | AVX512BW | AVX512VL) && has(xcr0, XCR0_ZMM);
    return cpu;
}

uint64_t fa_cpu_xcr0_on_macos(uint64_t xcr0, int (*has_feature)(const char *name)) {
    static const char *const names[] = {"hw.optional.avx512f", "hw.optional.avx512dq",
                                        "hw.optional.avx512bw", "hw.optional.avx512vl"};
    for (int i = 0; i < 4; i++)
        if (!has_feature(names[i]))
            return xcr0;
    return xcr0 | XCR0_ZMM;
}

#ifdef FA_X86

#ifdef FA_MSVC_INTRINSICS
#include <intrin.h>

static uint32_t max_leaf(void) {
    int words[4];
    __cpuid(words, 0);
    return (uint32_t)words[0];
}

static void cpuid(uint32_t leaf, uint32_t *ebx, uint32_t *ecx) {
    int words[4];
    __cpuidex(words, (int)leaf, 0);
    *ebx = (uint32_t)words[1];
    *ecx = (uint32_t)words[2];
}

static uint64_t read_xcr0(void) { return _xgetbv(0); }

#else
#include <cpuid.h>

static uint32_t max_leaf(void) {
    return (uint32_t)__get_cpuid_max(0, 0); /* 0 also where there is no CPUID */
}

static void cpuid(uint32_t leaf, uint32_t *ebx, uint32_t *ecx) {
    uint32_t eax, edx;
    __cpuid_count(leaf, 0, eax, *ebx, *ecx, edx);
    (void)eax;
    (void)edx;
}

static uint64_t read_xcr0(void) {
    uint32_t eax, edx;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(eax), "=d"(edx) : "c"(0)); /* xgetbv */
    return (uint64_t)edx << 32 | eax;
}
#endif

#ifdef __APPLE__
#include <sys/sysctl.h>

static int sysctl_is_set(const char *name) {
    int is_set = 0;
    size_t size = sizeof is_set;
    return sysctlbyname(name, &is_set, &size, NULL, 0) == 0 && is_set;
}

static uint64_t usable_xcr0(void) { return fa_cpu_xcr0_on_macos(read_xcr0(), sysctl_is_set); }
#else
static uint64_t usable_xcr0(void) { return read_xcr0(); }
#endif

struct fa_cpu fa_cpu_detect(void) {
    const uint32_t n_leaf = max_leaf();
    uint32_t leaf1_ecx = 0, leaf7_ebx = 0, unused;
    if (n_leaf >= 1)
        cpuid(1, &unused, &leaf1_ecx);
    if (n_leaf >= 7)
        cpuid(7, &leaf7_ebx, &unused);
    return fa_cpu_classify(leaf1_ecx, leaf7_ebx, has(leaf1_ecx, OSXSAVE) ? usable_xcr0() : 0);
}

#else

struct fa_cpu fa_cpu_detect(void) { return fa_cpu_classify(0, 0, 0); }

#endif
