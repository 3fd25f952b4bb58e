/* What an isa/<name>_<type>.c file needs before it switches the target on.
 *
 * Every standard header comes first: a header that were first included inside a target region
 * would define its inline functions with instructions that the baseline lacks. The region itself
 * holds only static code and the one function whose name carries the instruction set.
 */
#ifndef FA_ISA_H
#define FA_ISA_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "architecture.h"
#include "convert.h"
#include "fa.h"
#include "pool.h"

#if defined(_M_ARM64)
#include <intrin.h>
#endif
#if defined(FA_X86)
#include <immintrin.h>
#elif defined(FA_NEON)
#include <arm_neon.h>
#elif defined(FA_WASM128)
#include <wasm_simd128.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define FA_INLINE static __forceinline
#define FA_NOINLINE static __declspec(noinline)
#define FA_RESTRICT __restrict
#else
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FA_INLINE static inline /* checks in all copies would take minutes to compile */
#else
#define FA_INLINE static inline __attribute__((always_inline))
#endif
#define FA_NOINLINE static __attribute__((noinline))
#define FA_RESTRICT restrict
#endif

/* Before a loop of a small constant count whose arrays are to stay in registers. */
#if defined(__clang__)
#define FA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define FA_UNROLL _Pragma("GCC unroll 16")
#else
#define FA_UNROLL
#endif

/* Before loads of constants that a compiler would otherwise do once, early, and keep on the stack.
 */
#if defined(__GNUC__)
#define FA_LOAD_AGAIN() __asm__ volatile("" ::: "memory")
#else
#define FA_LOAD_AGAIN() ((void)0)
#endif

/* Ask for a cache line: into the nearest cache, or into the second, for what is needed later. */
#if defined(__GNUC__)
#define FA_PREFETCH(address) __builtin_prefetch(address)
#define FA_PREFETCH_FAR(address) __builtin_prefetch(address, 0, 2)
#elif defined(FA_X86)
#define FA_PREFETCH(address) _mm_prefetch((const char *)(address), _MM_HINT_T0)
#define FA_PREFETCH_FAR(address) _mm_prefetch((const char *)(address), _MM_HINT_T1)
#elif defined(_M_ARM64)
#define FA_PREFETCH(address) __prefetch(address)
#define FA_PREFETCH_FAR(address) __prefetch2(address, 2) /* PLDL2KEEP */
#else
#define FA_PREFETCH(address) ((void)(address))
#define FA_PREFETCH_FAR(address) ((void)(address))
#endif

#endif
