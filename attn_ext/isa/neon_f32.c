/* float32 kernels for every aarch64 CPU. */
#include "isa.h"

#ifdef FA_NEON
#define FA_REAL_BITS 32
#include "simd/neon.h"
#define FA_ATTENTION fa_attention_f32_neon
#define FA_REDUCTION fa_reduction_f32_neon
#define FA_TILE_ROWS fa_tile_rows_f32_neon
#include "kernels/all.inl.h"
#endif
