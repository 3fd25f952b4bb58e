/* Which instruction sets this CPU has and this operating system lets programs use. */
#ifndef FA_CPU_H
#define FA_CPU_H

#include <stdint.h>

struct fa_cpu {
    int avx2;   /* AVX2, FMA and F16C, with the ymm registers kept by the system */
    int avx512; /* avx2 and AVX-512 F, DQ, BW, VL, with the zmm and mask registers kept */
};

/* Decides from the raw words: ECX of CPUID leaf 1, EBX of leaf 7 (subleaf 0), and XCR0. */
struct fa_cpu fa_cpu_classify(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0);

/* macOS keeps zmm and mask registers from the first use on, so XCR0 may lack their bits where the
 * instructions work. `has_feature` answers for a sysctl name; returns XCR0 as it will be. */
uint64_t fa_cpu_xcr0_on_macos(uint64_t xcr0, int (*has_feature)(const char *name));

/* Reads the words of this machine; nothing is set on other architectures than x86. */
struct fa_cpu fa_cpu_detect(void);

#endif
