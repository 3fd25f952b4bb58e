/* float64 kernels for every aarch64 CPU. */
#include "isa.h"

#ifdef FA_NEON
#define FA_REAL_BITS 64
#include "simd/neon.h"
#define FA_ATTENTION fa_attention_f64_neon
#define FA_REDUCTION fa_reduction_f64_neon
#define FA_TILE_ROWS fa_tile_rows_f64_neon
#include "kernels/all.inl.h"
#endif
