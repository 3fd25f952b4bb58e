/* What a tile and one block of its keys are. See tile.inl.h.
 *
 * A panel is PANEL query rows, one per lane. Arrays are named with their shapes; (.., PANEL) is
 * always dense.
 */
#define TILE_PANELS 4        /* at most, where keys and values are read where they are */
#define LARGE_TILE_PANELS 16 /* at most, where each tile copies their blocks */
#define TILE_ROWS (TILE_PANELS * PANEL)

typedef struct softmax_state {
    real *max, *sum; /* (n_panel, PANEL): m and l */
    real *out;       /* (n_panel, d_value, PANEL): o */
} softmax_state;

typedef struct tile {
    const group *g;
    int64_t first_row;
    int n_row, n_panel;
    int careful;             /* select values by visibility: after a result that is not finite */
    row_rule *rule;          /* (n_panel, PANEL) */
    real *query;             /* (n_panel, d_head, PANEL) */
    real *scores;            /* (PANELS_AT_ONCE, FA_KEY_BLOCK, PANEL): t, then p, then w */
    uint8_t *mask;           /* (PANELS_AT_ONCE, PANEL_VECS, FA_KEY_BLOCK, VEC_LANES), of a block */
    real *bias;              /* (PANELS_AT_ONCE, FA_KEY_BLOCK, PANEL), of a block */
    real *visible;           /* (FA_KEY_BLOCK, PANEL), careful only: 1 or 0 */
    real *alpha, *block_max; /* (PANELS_AT_ONCE, PANEL) */
    real *key, *value;       /* (FA_KEY_BLOCK, d_head or d_value): a widened block */
    softmax_state segment, total;
    int has_sums[LARGE_TILE_PANELS]; /* whether the segment's out of a panel is set */
    key_range seen_by_some[LARGE_TILE_PANELS], seen_by_all[LARGE_TILE_PANELS]; /* rows of a panel */
} tile;

/* PANEL_VECS, or half of them if the rest of a last panel has no row. */
FA_INLINE int vectors_of_panel(const tile *t, int panel) {
    return t->n_row - panel * PANEL <= NARROW_VECS * VEC_LANES ? NARROW_VECS : PANEL_VECS;
}

/* The keys of one block as one panel sees them; indices count from the block's first key. */
typedef struct block {
    int64_t first_key;
    int n_vec;       /* of the panel, with rows in them */
    int first, end;  /* keys to compute: some row of the panel may see them */
    int needs_range; /* some row does not see all of them */
    int needs_mask;
    const row_rule *asks_bias; /* of a pair whose bias is to be asked for, or NULL */
    int n_ahead;               /* rows of keys and of values of the next block to be asked for */
    int is_first;              /* of the segment for its panel: there are no older sums */
    real *scores, *bias;       /* (FA_KEY_BLOCK, PANEL) */
    uint8_t *mask;             /* (PANEL_VECS, FA_KEY_BLOCK, VEC_LANES) */
    real *alpha, *block_max;   /* (PANEL,) */
    const real *key, *value;   /* element (first_key, 0) */
    ptrdiff_t key_row, key_step, value_row, value_step;
} block;
