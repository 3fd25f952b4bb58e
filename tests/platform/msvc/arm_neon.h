/* Intrinsics of NEON from Clang's own header; after it, what only GNU C has is an error. */
#ifndef STUB_ARM_NEON_H
#define STUB_ARM_NEON_H
#include_next <arm_neon.h>
#undef __attribute__
#define __attribute__(x) MICROSOFTS_COMPILER_HAS_NO_ATTRIBUTES
#pragma GCC poison __builtin_prefetch __builtin_expect __builtin_unreachable __builtin_isnan
#pragma GCC poison __atomic_fetch_add __atomic_load_n __atomic_store_n __typeof__ __asm__
#endif
