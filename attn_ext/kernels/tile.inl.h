/* Attention for many query rows: queries in the vector lanes, keys one after another.
 *
 * A tile is some panels of PANEL rows of a group. Per block of keys and per panel:
 *     scores (n_key, PANEL)  = K . Q^T * factor           microkernel.inl.h
 *     probabilities          = exp2(t - max)              vertical: one lane is one row
 *     sums (d_value, PANEL)  = sums * alpha + V^T . P     microkernel.inl.h
 * Scores stay transposed, so softmax has no horizontal step. Keys that no row of the panel can see
 * are not computed at all. Arrays are named with their shapes; (.., PANEL) is always dense.
 */

/* Numbers that place_tile takes; double, so that what no memory holds does not wrap around. */
static double tile_reals(const fa_attention *call, int n_panel) {
    const double rows = n_panel * PANEL, d = (double)call->d_head, dv = (double)call->d_value;
    return rows * (d + 2 * dv + 4) + rows * sizeof(row_rule) / sizeof(real) +
           (1 + 3 * PANELS_AT_ONCE) * FA_KEY_BLOCK * PANEL + FA_KEY_BLOCK * (d + dv) +
           2 * PANELS_AT_ONCE * PANEL;
}

FA_INLINE real *take(real **from, size_t n) {
    real *p = *from;
    *from += n;
    return p;
}

static void place_tile(tile *t, const group *g, int n_panel, real *scratch) {
    const size_t d = (size_t)g->call->d_head, dv = (size_t)g->call->d_value;
    const size_t rows = (size_t)n_panel * PANEL;
    t->g = g;
    t->rule = (row_rule *)take(&scratch, rows * sizeof(row_rule) / sizeof(real));
    t->query = take(&scratch, rows * d);
    t->scores = take(&scratch, PANELS_AT_ONCE * FA_KEY_BLOCK * PANEL);
    t->mask = (uint8_t *)take(&scratch, PANELS_AT_ONCE * FA_KEY_BLOCK * PANEL / sizeof(real));
    t->bias = take(&scratch, PANELS_AT_ONCE * FA_KEY_BLOCK * PANEL);
    t->visible = take(&scratch, FA_KEY_BLOCK * PANEL);
    t->alpha = take(&scratch, PANELS_AT_ONCE * PANEL);
    t->block_max = take(&scratch, PANELS_AT_ONCE * PANEL);
    t->segment.max = take(&scratch, rows);
    t->segment.sum = take(&scratch, rows);
    t->total.max = take(&scratch, rows);
    t->total.sum = take(&scratch, rows);
    t->segment.out = take(&scratch, rows * dv);
    t->total.out = take(&scratch, rows * dv);
    t->key = take(&scratch, FA_KEY_BLOCK * d);
    t->value = take(&scratch, FA_KEY_BLOCK * dv);
}

/* Up to VEC_LANES rows of the tile from `row`, as columns (d_head, PANEL), and their rules. */
static void load_queries(tile *t, int row, real *query) {
    const fa_attention *call = t->g->call;
    const char *rows[VEC_LANES] = {NULL};
    int64_t index = quotient(t->first_row + row, t->g->n_heads);
    int64_t head = t->first_row + row - index * t->g->n_heads;
    for (int i = 0; i < VEC_LANES && row + i < t->n_row; i++) {
        row_rule *rule = &t->rule[row + i];
        *rule = rule_of_row(t->g, index, head);
        rows[i] = row_of(&t->g->query, index, rule->head);
        if (++head == t->g->n_heads) {
            head = 0;
            index++;
        }
    }
    transpose_rows(query, rows, call->query.dtype, call->d_head, call->query.column);
}

/* Lanes of the tile that are computed. */
FA_INLINE int lanes_of_tile(const tile *t) {
    const int last = t->n_panel - 1;
    return last * PANEL + vectors_of_panel(t, last) * VEC_LANES;
}

static void load_tile(tile *t, int64_t first_row, int n_panel) {
    const fa_attention *call = t->g->call;
    t->first_row = first_row;
    t->n_row = (int)min_i64(n_panel * PANEL, t->g->n_row - first_row);
    t->n_panel = (t->n_row + PANEL - 1) / PANEL;
    for (int i = 0; i < lanes_of_tile(t); i += VEC_LANES) {
        real *query = t->query + (ptrdiff_t)(i / PANEL * PANEL) * call->d_head + i % PANEL;
        if (i < t->n_row) {
            load_queries(t, i, query);
        } else {
            for (int64_t d = 0; d < call->d_head; d++)
                v_store(query + d * PANEL, v_set1(0));
        }
    }
    /* Lanes without a row see what the last one sees: their sums are as easy to divide. */
    for (int i = t->n_row; i < t->n_panel * PANEL; i++)
        t->rule[i] = t->rule[t->n_row - 1];
    for (int panel = 0; panel < t->n_panel; panel++)
        open_panel_keys(t, panel);
}

static void clear_sums(softmax_state *s, int first_panel, int n_panel, int64_t d_value) {
    const size_t panel_reals = (size_t)d_value * PANEL;
    memset(s->out + (size_t)first_panel * panel_reals, 0,
           sizeof(real) * (size_t)n_panel * panel_reals);
}

/* All but out, which the first block of a panel sets. */
static void open_state(softmax_state *s, int n_panel) {
    for (int i = 0; i < n_panel * PANEL; i++) {
        s->max[i] = -REAL_INFINITY;
        s->sum[i] = 0;
    }
}

/* Rows of K or V as reals: the caller's memory where that is fast, else a dense copy of the block.
 */
static const real *block_rows(const row_view *view, int64_t first, int64_t n, int64_t n_column,
                              int n_panel, real *copy, ptrdiff_t *row, ptrdiff_t *step) {
    if (has_dense_reals(view, n_column) || (view->dtype == REAL_DTYPE && n_panel <= 2)) {
        *row = view->row;
        *step = view->column;
        return (const real *)row_at(view, first);
    }
    widen_rows(copy, view, first, n, n_column);
    *row = n_column;
    *step = 1;
    return copy;
}

/* What all panels share of it, each in arrays of its own: keys first_key .. end_key. Filled where
 * it stays; copies of what was just written wait for it. */
static void open_block(const tile *t, int64_t first_key, int64_t end_key, block b[PANELS_AT_ONCE]) {
    const group *g = t->g;
    ptrdiff_t row, step;
    const real *key = block_rows(&g->key, first_key, end_key - first_key, g->call->d_head,
                                 t->n_panel, t->key, &row, &step);
    for (int i = 0; i < PANELS_AT_ONCE; i++) {
        b[i].first_key = first_key;
        b[i].scores = t->scores + i * FA_KEY_BLOCK * PANEL;
        b[i].mask = t->mask + i * FA_KEY_BLOCK * PANEL;
        b[i].bias = t->bias + i * FA_KEY_BLOCK * PANEL;
        b[i].alpha = t->alpha + i * PANEL;
        b[i].block_max = t->block_max + i * PANEL;
        b[i].key = key;
        b[i].key_row = row;
        b[i].key_step = step;
        b[i].asks_bias = NULL;
    }
}

/* Its values too, and how many rows of the next block it asks for. */
static void open_values(const tile *t, int64_t end_key, int n_ahead, block b[PANELS_AT_ONCE]) {
    const group *g = t->g;
    ptrdiff_t row, step;
    const real *value = block_rows(&g->value, b->first_key, end_key - b->first_key,
                                   g->call->d_value, t->n_panel, t->value, &row, &step);
    for (int i = 0; i < PANELS_AT_ONCE; i++) {
        b[i].value = value;
        b[i].value_row = row;
        b[i].value_step = step;
        b[i].n_ahead = n_ahead;
    }
}

/* (M, L, O) with the (m, l, o) of the next segment. */
static void merge_segment(const tile *t) {
    const int64_t d_value = t->g->call->d_value;
    for (int i = 0; i < lanes_of_tile(t); i += VEC_LANES) {
        const vec old = v_load(t->total.max + i), next = v_load(t->segment.max + i);
        const vec both = v_max(old, next);
        const vec base = v_base(both);
        const vec alpha = v_exp2(v_sub(old, base)), beta = v_exp2(v_sub(next, base));
        real *l = t->total.sum + i;
        v_store(t->total.max + i, both);
        v_store(l, v_fma(v_load(l), alpha, v_mul(v_load(t->segment.sum + i), beta)));
        const size_t at = (size_t)(i / PANEL * PANEL) * d_value + i % PANEL;
        for (int64_t d = 0; d < d_value; d++) {
            real *o = t->total.out + at + d * PANEL;
            v_store(o,
                    v_fma(v_load(o), alpha, v_mul(v_load(t->segment.out + at + d * PANEL), beta)));
        }
    }
}

/* Rows of the next block that are worth asking for: those that no other tile reads come from afar.
 */
static int rows_ahead(const tile *t, int64_t next_key, int64_t end) {
    const group *g = t->g;
    if (t->n_row < g->n_row || g->key.column != 1 || g->value.column != 1)
        return 0;
    return (int)min_i64(FA_KEY_BLOCK, end - next_key);
}

/* Returns 0 if told to stop. */
static int attend_tile(tile *t) {
    const fa_attention *call = t->g->call;
    const key_range range = range_of_rows(t->rule, t->n_row);
    int64_t first = range.first;
    const int64_t end = range.end;
    int n_segment = 0;
    if (first >= end) {
        open_state(&t->total, t->n_panel);
        clear_sums(&t->total, 0, t->n_panel, call->d_value);
    }
    while (first < end) {
        if (n_segment > 0 && fa_pool_leaving())
            return 0;
        const int64_t segment = segment_of_key(call, first);
        const int64_t stop = min_i64(end, first_key_of_segment(call, segment + 1));
        open_state(&t->segment, t->n_panel);
        memset(t->has_sums, 0, sizeof t->has_sums);
        for (first -= first % FA_KEY_BLOCK; first < stop; first += FA_KEY_BLOCK) {
            const int64_t end_of_block = min_i64(stop, first + FA_KEY_BLOCK);
            block b[PANELS_AT_ONCE];
            open_block(t, first, end_of_block, b);
            open_values(t, end_of_block, rows_ahead(t, end_of_block, stop), b);
            for (int panel = 0; panel < t->n_panel;) {
                panel += attend_panels(t, b, panel, end_of_block);
                for (int i = 0; i < PANELS_AT_ONCE; i++)
                    b[i].n_ahead = 0;
            }
        }
        for (int panel = 0; panel < t->n_panel; panel++)
            if (!t->has_sums[panel])
                clear_sums(&t->segment, panel, 1, call->d_value);
        first = stop;
        if (n_segment++ == 0) { /* merging into nothing changes nothing */
            const softmax_state done = t->segment;
            t->segment = t->total;
            t->total = done;
        } else {
            merge_segment(t);
        }
    }
    return 1;
}

/* t of one panel to weights, in place: exp2(t - max) / sum, selected. */
static void weigh_panel(const tile *t, const block *b, int panel) {
    const vec hidden = v_set1(-REAL_INFINITY), zero = v_set1(0);
    for (int v = 0; v < b->n_vec; v++) {
        const int lane = panel * PANEL + v * VEC_LANES;
        const vec max = v_load(t->total.max + lane), sum = v_load(t->total.sum + lane);
        const vec base = v_base(max);
        for (int j = b->first; j < b->end; j++) {
            real *score = b->scores + j * PANEL + v * VEC_LANES;
            const vec x = v_load(score);
            const vec w = v_div(v_exp2(v_sub(x, base)), sum);
            v_store(score, v_select(v_eq(x, hidden), zero, v_select(v_eq(sum, zero), zero, w)));
        }
    }
}

static void write_weights(const tile *t) {
    const fa_attention *call = t->g->call;
    const key_range range = range_of_rows(t->rule, t->n_row);
    for (int64_t first = range.first - range.first % FA_KEY_BLOCK;
         first < range.end && !fa_pool_leaving(); first += FA_KEY_BLOCK) {
        const int64_t end = min_i64(range.end, first + FA_KEY_BLOCK);
        block b[PANELS_AT_ONCE];
        open_block(t, first, end, b);
        b->n_ahead = 0;
        for (int panel = 0; panel < t->n_panel; panel++) {
            b->n_vec = vectors_of_panel(t, panel);
            b->needs_mask = call->mask.data != NULL;
            panel_range(t, panel, end, b);
            if (b->first == b->end)
                continue;
            if (call->mask.data)
                load_mask_plane(t, b, panel);
            load_bias(t, b, panel, b->first);
            score_panel(t, b, panel);
            weigh_panel(t, b, panel);
            for (int lane = 0; lane < PANEL && panel * PANEL + lane < t->n_row; lane++) {
                const row_rule *rule = &t->rule[panel * PANEL + lane];
                char *row = row_of(&t->g->weights, rule->query, rule->head);
                for (int j = b->first; j < b->end; j++)
                    put(row, call->weights.dtype, (ptrdiff_t)(first + j) * call->weights.column,
                        b->scores[j * PANEL + lane]);
            }
        }
    }
}

/* Up to VEC_LANES rows of the output, one per lane of total (d_value, PANEL), turned into rows.
 * Returns NaN in the lanes whose total has a column that is not finite, else 0. */
FA_INLINE vec write_columns(fa_dtype dtype, ptrdiff_t step, char *const *to, int n_row,
                            const real *total, ptrdiff_t n, vec alpha, vec sum, vec live) {
    const vec inverse_sum = v_div(v_set1(1), sum);
    vec nonfinite = v_set1(0);
    for (ptrdiff_t d = 0; d < n; d += VEC_LANES) {
        const int width = n - d < VEC_LANES ? (int)(n - d) : VEC_LANES;
        vec x[VEC_LANES];
        for (int k = 0; k < VEC_LANES; k++)
            x[k] = k < width ? v_load(total + (d + k) * PANEL) : v_set1(1);
        outputs_of(VEC_LANES, x, alpha, sum, inverse_sum, live, &nonfinite);
        v_transpose(x);
        for (int i = 0; i < n_row; i++)
            store_columns(to[i], dtype, step, d, width, x[i]);
    }
    return nonfinite;
}

/* end_row of n_row rows; returns their sums. */
static vec end_rows(const tile *t, int row, int n_row, vec *alpha, vec *live) {
    real alphas[VEC_LANES], sums[VEC_LANES], lives[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++) /* lanes without a row keep these */
        alphas[i] = sums[i] = lives[i] = 1;
    for (int i = 0; i < n_row; i++) {
        const row_end end =
            end_row(t->g, &t->rule[row + i], &t->total.max[row + i], &t->total.sum[row + i]);
        alphas[i] = end.alpha;
        sums[i] = end.sum;
        lives[i] = end.live;
    }
    *alpha = v_load(alphas);
    *live = v_load(lives);
    return v_load(sums);
}

/* Output and lse of up to VEC_LANES rows. Returns whether one of them that sees a key and is not
 * NaN has a column that is not finite. */
static int write_rows(const tile *t, int row) {
    const group *g = t->g;
    const int n_row = (int)min_i64(VEC_LANES, t->n_row - row);
    const ptrdiff_t n = (ptrdiff_t)g->call->d_value, step = g->output.column;
    const real *total = t->total.out + (ptrdiff_t)(row / PANEL * PANEL) * n + row % PANEL;
    vec alpha = v_set1(1), sum = v_load(t->total.sum + row);
    vec live = v_select(v_eq(sum, v_set1(0)), v_set1(0), v_set1(1));
    char *to[VEC_LANES];
    for (int i = 0; i < n_row; i++)
        to[i] = row_of(&g->output, t->rule[row + i].query, t->rule[row + i].head);
    if (g->call->sinks || g->lse.data)
        sum = end_rows(t, row, n_row, &alpha, &live);
    const fa_dtype dtype = step == 1 ? g->output.dtype : FA_BOOL; /* of loops of their own */
    vec seen;
    if (dtype == REAL_DTYPE)
        seen = write_columns(REAL_DTYPE, 1, to, n_row, total, n, alpha, sum, live);
    else if (dtype == FA_FLOAT16)
        seen = write_columns(FA_FLOAT16, 1, to, n_row, total, n, alpha, sum, live);
    else if (dtype == FA_BFLOAT16)
        seen = write_columns(FA_BFLOAT16, 1, to, n_row, total, n, alpha, sum, live);
    else
        seen = write_columns(g->output.dtype, step, to, n_row, total, n, alpha, sum, live);
    /* sums that are hidden, 0 or NaN are not suspect */
    seen = v_select(m_and(v_lt(v_set1(0), sum), v_eq(live, v_set1(1))), seen, v_set1(0));
    return !m_all(v_eq(seen, v_set1(0)));
}

/* Outputs and lse; returns whether a row is not finite that might be. */
static int write_outputs(const tile *t) {
    int is_suspect = 0;
    for (int row = 0; row < t->n_row; row += VEC_LANES)
        is_suspect |= write_rows(t, row);
    return is_suspect;
}

/* Up to n_panel panels of rows. */
static void run_tile(const group *g, int64_t first_row, int n_panel, real *scratch) {
    tile t;
    place_tile(&t, g, n_panel, scratch);
    load_tile(&t, first_row, n_panel);
    t.careful = 0;
    if (!attend_tile(&t))
        return;
    if (write_outputs(&t)) {
        t.careful = 1;
        if (!attend_tile(&t))
            return;
        write_outputs(&t);
    }
    if (g->call->weights.data)
        write_weights(&t);
}
