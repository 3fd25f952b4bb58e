/* The C interface of fast_attention: one descriptor, one call per type of the arithmetic.
 *
 * Everything a path needs to know about a call is in fa_attention; a path implements all of it.
 * Arrays are described, never copied: a pointer, a data type, strides in elements (0 for a
 * broadcast axis, any sign). Shapes are checked in Python, once, for both backends.
 * ARITHMETIC.md defines the bits of the result.
 */
#ifndef FA_H
#define FA_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define FA_ARITHMETIC_VERSION 1
#define FA_KEY_BLOCK 96 /* keys per block of the softmax recurrence: part of the arithmetic */
#define FA_SEGMENT 16   /* blocks per segment: part of the arithmetic */
#define FA_MAX_AXES 64
#define FA_MAX_LEAD 61 /* NumPy arrays have at most 64 axes; head, row and column are apart */

typedef enum fa_dtype {
    FA_BOOL,
    FA_INT8,
    FA_FLOAT16,
    FA_BFLOAT16,
    FA_FLOAT32,
    FA_FLOAT64,
} fa_dtype;

/* An array of shape (*lead, head, row, column); data is NULL where the argument is absent. */
typedef struct fa_array {
    void *data;
    fa_dtype dtype;
    ptrdiff_t lead[FA_MAX_LEAD];
    ptrdiff_t head, row, column;
} fa_array;

/* What a call would do. */
typedef struct fa_plan {
    const char *kernel;    /* "tile" or "few": kernels/tile.inl.h, few.inl.h; NULL: nothing to do */
    int64_t rows_per_task; /* at most */
    int64_t n_task;
    int n_thread;
    size_t scratch_bytes; /* of all threads */
} fa_plan;

typedef struct fa_attention {
    int n_lead;
    int64_t lead_shape[FA_MAX_LEAD];
    int64_t n_batch; /* product of lead_shape */
    int64_t n_head, n_kv_head, n_query, n_key, d_head, d_value;

    fa_array query;              /* (*lead, n_head, n_query, d_head) */
    fa_array key, value;         /* (*lead, n_kv_head, n_key, d_head or d_value) */
    fa_array mask, bias;         /* (*lead, n_head, n_query, n_key); bool, float */
    fa_array key_scale;          /* (*lead, n_kv_head, 1, n_key), type of the arithmetic */
    fa_array value_scale;        /* the same */
    fa_array slopes;             /* ALiBi: (*lead, n_head, 1, 1), type of the arithmetic */
    fa_array output;             /* (*lead, n_head, n_query, d_value); shares no memory with the
                                    rest: a task may write it twice */
    fa_array lse;                /* (*lead, n_head, n_query, 1), type of the arithmetic */
    fa_array weights;            /* (*lead, n_head, n_query, n_key), zero where never written */
    const void *sinks;           /* (n_head,), type of the arithmetic, or NULL */
    const int64_t *kv_lengths;   /* (n_batch,) or NULL: all keys */
    const int64_t *query_offset; /* (n_batch,) or NULL: 0 */

    int is_causal;
    int64_t window_left, window_right; /* -1: open */
    double scale;
    double softcap;    /* 0: off */
    int64_t key_start; /* absolute position of key 0 for blocks and segments, multiple of a block */

    int n_thread;
    int (*poll)(void *); /* non-zero stops the call: pool.h; may be NULL */
    void *poll_context;
    fa_plan *plan; /* not NULL: filled instead of computing anything */
} fa_attention;

/* An array of shape (*outer, *reduced); data is NULL where the argument is absent. */
typedef struct fa_axes {
    void *data;
    fa_dtype dtype;
    ptrdiff_t stride[FA_MAX_AXES]; /* elements */
} fa_axes;

typedef enum fa_reduction_kind {
    FA_SOFTMAX,
    FA_LOG_SOFTMAX,
    FA_LOGSUMEXP,
    FA_SOFTMAX_VJP, /* x is the gradient, y the softmax */
} fa_reduction_kind;

typedef struct fa_reduction {
    fa_reduction_kind kind;
    int n_outer, n_reduced; /* axes */
    int64_t shape[FA_MAX_AXES];
    fa_axes x, y, where; /* where: bool */
    fa_axes output;      /* of logsumexp: the outer axes alone */
    int n_thread;
    int (*poll)(void *);
    void *poll_context;
} fa_reduction;

typedef fa_status (*fa_attention_function)(const fa_attention *call);
typedef fa_status (*fa_reduction_function)(const fa_reduction *call);

/* The kernels of one instruction set. */
typedef struct fa_kernel_set {
    const char *name;
    const char *arithmetic_class; /* "fused" or "unfused" */
    fa_attention_function attention_f32, attention_f64;
    fa_reduction_function reduction_f32, reduction_f64;
} fa_kernel_set;

/* dispatch.c: kernel sets of this build in ascending order of preference. */
int fa_kernel_set_count(void);
const fa_kernel_set *fa_kernel_set_at(int index);
int fa_kernel_set_runs_here(int index);
int fa_kernel_set_tile_rows(int index, int is_float64); /* query rows per tile, for tests */
const char *fa_compiler(void);
/* Index of the best set for a CPU with these words of CPUID and XCR0, here or not. */
int fa_kernel_set_for(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0);

#endif
