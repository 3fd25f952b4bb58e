/* float64 kernels in portable C, for every CPU. */
#include "isa.h"

#define FA_REAL_BITS 64
#include "simd/scalar.h"
#define FA_ATTENTION fa_attention_f64_scalar
#define FA_REDUCTION fa_reduction_f64_scalar
#define FA_TILE_ROWS fa_tile_rows_f64_scalar
#include "kernels/all.inl.h"
