/* The table of kernel sets, in ascending order of preference.
 *
 * A new instruction set is one simd/<isa>.h, one isa/<isa>_<type>.c per type and one row here.
 */
#include "architecture.h"
#include "cpu.h"
#include "fa.h"

#define FA_DECLARE(isa) \
    fa_status fa_attention_f32_##isa(const fa_attention *call); \
    fa_status fa_attention_f64_##isa(const fa_attention *call); \
    fa_status fa_reduction_f32_##isa(const fa_reduction *call); \
    fa_status fa_reduction_f64_##isa(const fa_reduction *call); \
    extern const int fa_tile_rows_f32_##isa, fa_tile_rows_f64_##isa;

FA_DECLARE(scalar)
FA_DECLARE(sse2)
FA_DECLARE(avx2)
FA_DECLARE(avx512)
FA_DECLARE(wide16)
FA_DECLARE(neon)
FA_DECLARE(wasm128)

static int always(struct fa_cpu cpu) {
    (void)cpu;
    return 1;
}

#ifdef FA_X86
static int has_avx2(struct fa_cpu cpu) { return cpu.avx2; }
#endif
#if FA_X86 == 64
static int has_avx512(struct fa_cpu cpu) { return cpu.avx512; }
#endif

typedef struct table_row {
    fa_kernel_set set;
    const int *tile_rows_f32, *tile_rows_f64;
    int (*runs_on)(struct fa_cpu cpu);
} table_row;

#define FA_ROW(isa, arithmetic_class, runs_on) \
    {{#isa, arithmetic_class, fa_attention_f32_##isa, fa_attention_f64_##isa, \
      fa_reduction_f32_##isa, fa_reduction_f64_##isa}, \
     &fa_tile_rows_f32_##isa, \
     &fa_tile_rows_f64_##isa, \
     runs_on}

static const table_row table[] = {
#ifdef FA_WIDE16
    FA_ROW(wide16, "fused", has_avx2), /* for tests: never the best */
#endif
    FA_ROW(scalar, "unfused", always),
#ifdef FA_SSE2
    FA_ROW(sse2, "unfused", always),
#endif
#ifdef FA_X86
    FA_ROW(avx2, "fused", has_avx2),
#endif
#if FA_X86 == 64
    FA_ROW(avx512, "fused", has_avx512),
#endif
#ifdef FA_NEON
    FA_ROW(neon, "fused", always),
#endif
#ifdef FA_WASM128
    FA_ROW(wasm128, "unfused", always),
#endif
};

int fa_kernel_set_count(void) { return (int)(sizeof table / sizeof table[0]); }

const fa_kernel_set *fa_kernel_set_at(int index) { return &table[index].set; }

int fa_kernel_set_tile_rows(int index, int is_float64) {
    return is_float64 ? *table[index].tile_rows_f64 : *table[index].tile_rows_f32;
}

int fa_kernel_set_runs_here(int index) { return table[index].runs_on(fa_cpu_detect()); }

int fa_kernel_set_for(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0) {
    const struct fa_cpu cpu = fa_cpu_classify(leaf1_ecx, leaf7_ebx, xcr0);
    int best = 0;
    for (int i = 0; i < fa_kernel_set_count(); i++)
        if (table[i].runs_on(cpu))
            best = i;
    return best;
}

#define FA_TEXT_OF(x) #x
#define FA_TEXT(x) FA_TEXT_OF(x)

const char *fa_compiler(void) {
#if defined(__clang__)
    return "Clang " __clang_version__;
#elif defined(__GNUC__)
    return "GCC " __VERSION__;
#elif defined(_MSC_VER)
    return "MSVC " FA_TEXT(_MSC_FULL_VER);
#else
    return "unknown";
#endif
}
