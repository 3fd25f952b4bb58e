/* Which instruction sets this compiler can build for: FA_X86 and its like say that the files of
 * isa/ have something in them. What the CPU has is asked at run time (cpu.h). */
#ifndef FA_ARCHITECTURE_H
#define FA_ARCHITECTURE_H

#if defined(__x86_64__) || defined(_M_X64)
#define FA_X86 64 /* and how wide its registers are */
#elif defined(__i386__) || defined(_M_IX86)
#define FA_X86 32
#endif

#if defined(FA_X86) && defined(FA_WITH_WIDE16) /* for tests */
#define FA_WIDE16 1
#endif

#if defined(__SSE2__) || defined(_M_X64) || (defined(_M_IX86_FP) && _M_IX86_FP >= 2)
#define FA_SSE2 1
#endif

#if (defined(__aarch64__) && !defined(__AARCH64EB__)) || defined(_M_ARM64)
#define FA_NEON 1
#endif

#if defined(__wasm_simd128__)
#define FA_WASM128 1
#endif

/* Microsoft's intrinsics in place of GNU's. Tests set it for Clang, which on Windows has both. */
#if defined(_MSC_VER) && !defined(__clang__)
#define FA_MSVC_INTRINSICS 1
#endif

#endif
