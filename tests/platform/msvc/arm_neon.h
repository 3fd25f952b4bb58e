/* Intrinsics of NEON from Clang's own header; after it, what only GNU C has is an error. */
#ifndef STUB_ARM_NEON_H
#define STUB_ARM_NEON_H
#include_next <arm_neon.h>
#undef __attribute__
#define __attribute__(x) MICROSOFTS_COMPILER_HAS_NO_ATTRIBUTES
#endif
