/* The floating-point mode of ARITHMETIC.md: round to nearest, subnormals kept, nothing traps.
 *
 * A caller may run in another mode (flush to zero, mostly). Tasks run in the default one, and the
 * caller's comes back afterwards, with its exception flags where they share the register. Where
 * no control register is known to this file, the mode is left alone. */
#ifndef FA_FPMODE_H
#define FA_FPMODE_H

#include <stdint.h>

#if defined(__SSE__) || defined(_M_X64) || (defined(_M_IX86_FP) && _M_IX86_FP >= 1)

#include <xmmintrin.h>

typedef unsigned int fa_fpmode;

static inline fa_fpmode fa_fpmode_get(void) { return _mm_getcsr(); }

static inline void fa_fpmode_set(fa_fpmode mode) { _mm_setcsr(mode); }

#define FA_FPMODE_DEFAULT 0x1f80u /* MXCSR at reset: all exceptions masked, no FTZ, no DAZ */

#elif defined(_M_ARM64) && !defined(__clang__)

#include <intrin.h>

typedef __int64 fa_fpmode;

static inline fa_fpmode fa_fpmode_get(void) { return _ReadStatusReg(ARM64_FPCR); }

static inline void fa_fpmode_set(fa_fpmode mode) { _WriteStatusReg(ARM64_FPCR, mode); }

#define FA_FPMODE_DEFAULT 0

#elif defined(__aarch64__)

typedef uint64_t fa_fpmode;

static inline fa_fpmode fa_fpmode_get(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}

static inline void fa_fpmode_set(fa_fpmode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }

#define FA_FPMODE_DEFAULT 0

#else

typedef int fa_fpmode;

static inline fa_fpmode fa_fpmode_get(void) { return 0; }

static inline void fa_fpmode_set(fa_fpmode mode) { (void)mode; }

#define FA_FPMODE_DEFAULT 0

#endif

/* Enters the default mode; give the result to fa_fpmode_set to leave it. */
static inline fa_fpmode fa_fpmode_enter(void) {
    const fa_fpmode before = fa_fpmode_get();
    fa_fpmode_set(FA_FPMODE_DEFAULT);
    return before;
}

#endif
