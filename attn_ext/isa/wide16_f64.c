/* float64 kernels with the lanes of AVX-512 on AVX2, in builds for tests only. */
#include "isa.h"

#ifdef FA_WIDE16
#include "target/avx2_begin.h"
#define FA_REAL_BITS 64
#include "simd/wide16.h"
#define FA_ATTENTION fa_attention_f64_wide16
#define FA_REDUCTION fa_reduction_f64_wide16
#define FA_TILE_ROWS fa_tile_rows_f64_wide16
#include "kernels/all.inl.h"
#include "target/end.h"
#endif
