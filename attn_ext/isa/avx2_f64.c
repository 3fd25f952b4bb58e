/* float64 kernels for x86 CPUs with AVX2, FMA and F16C (Haswell, Zen and later). */
#include "isa.h"

#ifdef FA_X86
#include "target/avx2_begin.h"
#define FA_REAL_BITS 64
#include "simd/avx2.h"
#define FA_ATTENTION fa_attention_f64_avx2
#define FA_REDUCTION fa_reduction_f64_avx2
#define FA_TILE_ROWS fa_tile_rows_f64_avx2
#include "kernels/all.inl.h"
#include "target/end.h"
#endif
