/* float32 kernels for x86-64 CPUs with AVX-512 F, DQ, BW and VL (Skylake-X, Zen 4 and later). */
#include "isa.h"

#if FA_X86 == 64
#include "target/avx512_begin.h"
#define FA_REAL_BITS 32
#include "simd/avx512.h"
#define FA_ATTENTION fa_attention_f32_avx512
#define FA_REDUCTION fa_reduction_f32_avx512
#define FA_TILE_ROWS fa_tile_rows_f32_avx512
#include "kernels/all.inl.h"
#include "target/end.h"
#endif
