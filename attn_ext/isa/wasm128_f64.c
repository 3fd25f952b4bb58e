/* float64 kernels for WebAssembly with SIMD128. */
#include "isa.h"

#ifdef FA_WASM128
#define FA_REAL_BITS 64
#include "simd/wasm128.h"
#define FA_ATTENTION fa_attention_f64_wasm128
#define FA_REDUCTION fa_reduction_f64_wasm128
#define FA_TILE_ROWS fa_tile_rows_f64_wasm128
#include "kernels/all.inl.h"
#endif
