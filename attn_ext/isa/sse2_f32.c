/* float32 kernels for every x86-64 CPU. */
#include "isa.h"

#ifdef FA_SSE2
#define FA_REAL_BITS 32
#include "simd/sse2.h"
#define FA_ATTENTION fa_attention_f32_sse2
#define FA_REDUCTION fa_reduction_f32_sse2
#define FA_TILE_ROWS fa_tile_rows_f32_sse2
#include "kernels/all.inl.h"
#endif
