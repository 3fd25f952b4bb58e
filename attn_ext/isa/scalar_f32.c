/* float32 kernels in portable C, for every CPU. */
#include "isa.h"

#define FA_REAL_BITS 32
#include "simd/scalar.h"
#define FA_ATTENTION fa_attention_f32_scalar
#define FA_REDUCTION fa_reduction_f32_scalar
#define FA_TILE_ROWS fa_tile_rows_f32_scalar
#include "kernels/all.inl.h"
