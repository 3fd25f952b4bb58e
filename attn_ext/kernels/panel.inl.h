/* One panel of a tile against one block of keys: scores, softmax, values. See tile.inl.h.
 *
 * A panel is PANEL query rows, one per lane. Arrays are named with their shapes; (.., PANEL) is
 * always dense.
 */
#define TILE_PANELS 4
#define TILE_ROWS (TILE_PANELS * PANEL)

typedef struct softmax_state {
    real *max, *sum; /* (TILE_PANELS, PANEL): m and l */
    real *out;       /* (TILE_PANELS, d_value, PANEL): o */
} softmax_state;

typedef struct tile {
    const group *g;
    int64_t first_row;
    int n_row, n_panel;
    int careful;             /* select values by visibility: after a result that is not finite */
    real *query;             /* (TILE_PANELS, d_head, PANEL) */
    real *scores;            /* (PANELS_AT_ONCE, FA_KEY_BLOCK, PANEL): t, then p, then w */
    real *mask, *bias;       /* (PANELS_AT_ONCE, FA_KEY_BLOCK, PANEL), of a block */
    real *visible;           /* (FA_KEY_BLOCK, PANEL), careful only: 1 or 0 */
    real *alpha, *block_max; /* (PANELS_AT_ONCE, PANEL) */
    real *key, *value;       /* (FA_KEY_BLOCK, d_head or d_value): a widened block */
    softmax_state segment, total;
    row_rule rule[TILE_ROWS];
    key_range seen_by_some[TILE_PANELS], seen_by_all[TILE_PANELS]; /* rows of the panel */
} tile;

/* The keys of one block as one panel sees them; indices count from the block's first key. */
typedef struct block {
    int64_t first_key;
    int first, end;  /* keys to compute: some row of the panel may see them */
    int needs_range; /* some row does not see all of them */
    int needs_mask;
    real *scores, *mask, *bias; /* (FA_KEY_BLOCK, PANEL) */
    real *alpha, *block_max;    /* (PANEL,) */
    const real *key, *value;    /* element (first_key, 0) */
    ptrdiff_t key_row, key_step, value_row, value_step;
} block;

/* VEC_LANES rows of n elements to (n, PANEL) columns at `to`: rows[i] may be NULL for zeros. */
static void transpose_rows(real *FA_RESTRICT to, const char *const rows[VEC_LANES], fa_dtype dtype,
                           ptrdiff_t n, ptrdiff_t step) {
    real lanes[VEC_LANES][VEC_LANES];
    for (ptrdiff_t k = 0; k < n; k += VEC_LANES) {
        const int width = n - k < VEC_LANES ? (int)(n - k) : VEC_LANES;
        const ptrdiff_t skip = k * step * (ptrdiff_t)dtype_size(dtype);
        vec r[VEC_LANES];
        for (int i = 0; i < VEC_LANES; i++) {
            if (!rows[i]) {
                r[i] = v_set1(0);
            } else if (step == 1 && width == VEC_LANES) {
                r[i] = v_widen(rows[i] + skip, dtype);
            } else {
                widen_row(lanes[i], rows[i] + skip, dtype, width, step);
                r[i] = v_load_part(lanes[i], width);
            }
        }
        v_transpose(r);
        for (int i = 0; i < width; i++)
            v_store(to + (k + i) * PANEL, r[i]);
    }
}

/* ---- what the options say about scores ---- */

/* Ask for what the next block reads of the mask or bias: `size` bytes further on in each row. */
static void prefetch_next_plane(const char *const rows[PANEL], ptrdiff_t size) {
    for (int lane = 0; lane < PANEL; lane++)
        for (ptrdiff_t at = 0; rows[lane] && at < size; at += 64)
            FA_PREFETCH(rows[lane] + size + at);
}

/* Mask or bias of one panel and block, transposed: (FA_KEY_BLOCK, PANEL). One row that all
 * queries share (a padding mask) is spread instead. */
static void load_panel_plane(const tile *t, const block *b, int panel, const fa_array *array,
                             size_t row_member, real *to) {
    const char *rows[PANEL];
    const int n = b->end - b->first;
    const ptrdiff_t skip =
        (ptrdiff_t)(b->first_key + b->first) * array->column * (ptrdiff_t)dtype_size(array->dtype);
    int is_shared = 1;
    for (int lane = 0; lane < PANEL; lane++) {
        const row_rule *rule = &t->rule[panel * PANEL + lane];
        const char *row = *(const char *const *)((const char *)rule + row_member);
        rows[lane] = row ? row + skip : NULL;
        is_shared &= rows[lane] == rows[0] || !row;
    }
    if (!is_shared && array->column == 1)
        prefetch_next_plane(rows, n * (ptrdiff_t)dtype_size(array->dtype));
    to += b->first * PANEL;
    if (is_shared) {
        real shared[FA_KEY_BLOCK];
        widen_row(shared, rows[0], array->dtype, n, array->column);
        for (int j = 0; j < n; j++)
            for (int v = 0; v < PANEL_VECS; v++)
                v_store(to + j * PANEL + v * VEC_LANES, v_set1(shared[j]));
    } else {
        for (int lane = 0; lane < PANEL; lane += VEC_LANES)
            transpose_rows(to + lane, rows + lane, array->dtype, n, array->column);
    }
}

/* Whether n neighbouring bools are all `value`. */
static int all_bools_are(int value, const char *bools, int n) {
    static const char no[FA_KEY_BLOCK] = {0};
    return value ? !memchr(bools, 0, (size_t)n) : memcmp(bools, no, (size_t)n) == 0;
}

/* Whether the mask is `value` for all keys of the block and all lanes; no answer (0) if it cannot
 * be told cheaply. */
static int mask_is_all(int value, const tile *t, const block *b, int panel) {
    const fa_array *mask = &t->g->call->mask;
    if (mask->column != 1)
        return 0;
    for (int lane = panel * PANEL; lane < (panel + 1) * PANEL && lane < t->n_row; lane++)
        if (!all_bools_are(value, t->rule[lane].mask + b->first_key + b->first, b->end - b->first))
            return 0;
    return 1;
}

/* Take keys off both ends of the block that the mask hides from the whole panel. */
static void trim_to_mask(block *b) {
    const vec zero = v_set1(0);
    for (int at_end = 0; at_end < 2; at_end++)
        while (b->first < b->end) {
            const real *row = b->mask + (at_end ? b->end - 1 : b->first) * PANEL;
            int any = 0;
            for (int v = 0; v < PANEL_VECS; v++)
                any |= !m_all(v_eq(v_load(row + v * VEC_LANES), zero));
            if (any)
                break;
            if (at_end)
                b->end--;
            else
                b->first++;
        }
}

/* Per lane, as reals: the keys in range, counted from the block; where ALiBi counts from. */
typedef struct lane_rules {
    vec first, end, slope, from;
    int exact; /* |position - key| may be computed in T */
} lane_rules;

static lane_rules rules_of_lanes(const row_rule *rule, int64_t first_key) {
    real first[VEC_LANES], end[VEC_LANES], slope[VEC_LANES], from[VEC_LANES];
    lane_rules lanes;
    lanes.exact = 1;
    for (int i = 0; i < VEC_LANES; i++) {
        const int64_t apart = rule[i].position - first_key;
        first[i] = (real)min_i64(FA_KEY_BLOCK, max_i64(0, rule[i].first - first_key));
        end[i] = (real)min_i64(FA_KEY_BLOCK, max_i64(0, rule[i].end - first_key));
        slope[i] = rule[i].slope;
        from[i] = (real)apart;
        lanes.exact &= apart < EXACT_INTEGER && apart > -EXACT_INTEGER;
    }
    lanes.first = v_load(first);
    lanes.end = v_load(end);
    lanes.slope = v_load(slope);
    lanes.from = v_load(from);
    return lanes;
}

FA_INLINE vec distances(const lane_rules *lanes, const row_rule *rule, int64_t first_key, int j) {
    if (lanes->exact)
        return v_abs(v_sub(lanes->from, v_set1((real)j)));
    real apart[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        apart[i] = distance(rule[i].position, first_key + j);
    return v_load(apart);
}

/* What is left to do with the scores of one panel and block once they are products. */
typedef struct score_rules {
    const row_rule *rule;    /* of the panel */
    const real *mask, *bias; /* (FA_KEY_BLOCK, PANEL) */
    int64_t first_key;
    score_form form;
    int has_long_form, needs_mask, needs_range;
    lane_rules lanes[PANEL_VECS];
} score_rules;

static score_rules open_rules(const tile *t, const block *b, int panel) {
    score_rules rules;
    rules.rule = &t->rule[panel * PANEL];
    rules.mask = b->mask;
    rules.bias = b->bias;
    rules.first_key = b->first_key;
    rules.form = t->g->form;
    rules.has_long_form = t->g->has_long_form;
    rules.needs_mask = b->needs_mask;
    rules.needs_range = b->needs_range;
    if (rules.needs_range || rules.form.has_slopes)
        for (int v = 0; v < PANEL_VECS; v++)
            rules.lanes[v] = rules_of_lanes(rules.rule + v * VEC_LANES, b->first_key);
    return rules;
}

FA_INLINE int has_rules(const score_rules *rules) {
    return rules->has_long_form || rules->needs_mask || rules->needs_range;
}

/* The final score of key j for vector v of the panel, from the capped one: the rest of the long
 * form, and everything that hides a key. */
FA_INLINE vec final_score(const score_rules *rules, int v, int j, vec x) {
    const vec hidden = v_set1(-REAL_INFINITY);
    const lane_rules *lanes = &rules->lanes[v];
    const score_form *form = &rules->form;
    const int at = j * PANEL + v * VEC_LANES;
    if (rules->has_long_form) {
        const vec bias = form->has_bias ? v_load(rules->bias + at) : v_set1(0);
        if (form->has_slopes)
            x = long_form(form, x, lanes->slope,
                          distances(lanes, rules->rule + v * VEC_LANES, rules->first_key, j), bias);
        else
            x = long_form(form, x, v_set1(0), v_set1(0), bias);
    }
    if (rules->needs_mask)
        x = v_select(v_eq(v_load(rules->mask + at), v_set1(0)), hidden, x);
    if (rules->needs_range) {
        const vec key = v_set1((real)j);
        x = v_select(m_and(v_le(lanes->first, key), v_lt(key, lanes->end)), x, hidden);
    }
    return x;
}

/* The same for a whole block of products, and their maximum. */
FA_INLINE void finish_block(int has_softcap, score_rules rules, const block *b) {
    const score_form form = rules.form; /* locals, as in softmax_panel */
    const int end = b->end;
    real *scores = b->scores;
    for (int v = 0; v < PANEL_VECS; v++) {
        vec max = v_set1(-REAL_INFINITY);
        for (int j = b->first; j < end; j++) {
            real *score = scores + j * PANEL + v * VEC_LANES;
            vec x = v_load(score);
            if (has_softcap)
                x = cap_score(&form, x);
            x = final_score(&rules, v, j, x);
            v_store(score, x);
            max = v_max(x, max);
        }
        v_store(b->block_max + v * VEC_LANES, max);
    }
}

/* With the softcap it is too much to do beside the sums of a product. */
FA_NOINLINE void finish_capped(const block *b, const score_rules *rules) {
    finish_block(1, *rules, b);
}

/* ---- scores ---- */

/* Plain: the score is the product times the factor and nothing else. b: one block for each of the
 * n_panel panels. */
FA_INLINE void score_rows(int n_row, int n_panel, int is_plain, const tile *t, const block *b,
                          const score_rules *rules, const real *query, int j) {
    const vec factor = v_set1(t->g->score_factor);
    const real *key_scale = is_plain ? NULL : scale_of_key(&t->g->key_scale, b->first_key + j);
    const ptrdiff_t scale_step = t->g->key_scale.column, d = (ptrdiff_t)t->g->call->d_head;
    const int is_final = !is_plain && rules->form.softcap == 0 && has_rules(rules);
    const row_sums dot = multiply_rows(n_row, n_panel, b->key + j * b->key_row, b->key_row,
                                       b->key_step, query, PANEL * d, d);
    FA_UNROLL
    for (int w = 0; w < n_panel * PANEL_VECS; w++) {
        const int v = w % PANEL_VECS;
        real *scores = b[w / PANEL_VECS].scores + j * PANEL + v * VEC_LANES;
        real *block_max = b[w / PANEL_VECS].block_max + v * VEC_LANES;
        vec max = v_load(block_max);
        for (int m = 0; m < n_row; m++) {
            vec x = dot.c[m * n_panel * PANEL_VECS + w];
            if (key_scale)
                x = v_mul(x, v_set1(key_scale[m * scale_step]));
            x = v_mul(x, factor);
            if (is_final)
                x = final_score(rules, v, j + m, x);
            v_store(scores + m * PANEL, x);
            max = v_max(x, max);
        }
        v_store(block_max, max);
    }
}

FA_INLINE void score_panels_as(int n_row, int n_panel, int is_plain, const tile *t, const block *b,
                               const score_rules *rules, const real *query) {
    int j = b->first;
    for (int i = 0; i < n_panel * PANEL_VECS; i++)
        v_store(b[i / PANEL_VECS].block_max + i % PANEL_VECS * VEC_LANES, v_set1(-REAL_INFINITY));
    for (; j + n_row <= b->end; j += n_row)
        score_rows(n_row, n_panel, is_plain, t, b, rules, query, j);
    for (; n_row > 6 && j + 4 <= b->end; j += 4)
        score_rows(4, n_panel, is_plain, t, b, rules, query, j);
    for (; j + 2 <= b->end; j += 2)
        score_rows(2, n_panel, is_plain, t, b, rules, query, j);
    if (j < b->end)
        score_rows(1, n_panel, is_plain, t, b, rules, query, j);
}

FA_INLINE const real *query_of_panel(const tile *t, int panel) {
    return t->query + (size_t)panel * PANEL * (size_t)t->g->call->d_head;
}

/* Functions of their own: what else there is would take registers from the loops. */
FA_NOINLINE void score_plain(const tile *t, const block *b, const real *query) {
    score_panels_as(KERNEL_ROWS, 1, 1, t, b, NULL, query);
}

FA_NOINLINE void score_with_rules(const tile *t, const block *b, const score_rules *rules,
                                  const real *query) {
    score_panels_as(KERNEL_ROWS, 1, 0, t, b, rules, query);
}

/* Final scores of one panel and block, and their maximum. */
static void score_panel(const tile *t, const block *b, int panel) {
    const score_rules rules = open_rules(t, b, panel);
    if (!has_rules(&rules) && !t->g->key_scale.data)
        score_plain(t, b, query_of_panel(t, panel));
    else
        score_with_rules(t, b, &rules, query_of_panel(t, panel));
    if (rules.form.softcap != 0)
        finish_capped(b, &rules);
}

/* ---- softmax ---- */

/* Scores to weights of the block; max and sum move on; alpha is what older sums shrink by. */
FA_NOINLINE void softmax_panel(const tile *t, const block *b, int panel) {
    const group *g = t->g;
    vec base[PANEL_VECS], sum[PANEL_VECS];
    real *max = t->segment.max + panel * PANEL;
    for (int v = 0; v < PANEL_VECS; v++) {
        const vec old = v_load(max + v * VEC_LANES);
        const vec both = v_max(old, v_load(b->block_max + v * VEC_LANES));
        base[v] = v_base(both);
        sum[v] = v_set1(0);
        v_store(b->alpha + v * VEC_LANES, v_exp2(v_sub(old, base[v])));
        v_store(max + v * VEC_LANES, both);
    }
    if (t->careful)
        for (int i = b->first * PANEL; i < b->end * PANEL; i++)
            t->visible[i] = b->scores[i] != -REAL_INFINITY;
    /* locals: a vector store may alias anything, so fields would be read again after each */
    const int end = b->end;
    const real *value_scale = scale_of_key(&g->value_scale, b->first_key);
    const ptrdiff_t scale_step = g->value_scale.column;
    real *scores = b->scores;
    for (int j = b->first; j < end; j++)
        for (int v = 0; v < PANEL_VECS; v++) {
            real *score = scores + j * PANEL + v * VEC_LANES;
            const vec x = v_load(score);
            vec p = v_exp2(v_sub(x, base[v]));
            sum[v] = v_add(sum[v], p);
            if (value_scale)
                p = v_drop(v_eq(x, v_set1(-REAL_INFINITY)),
                           v_mul(p, v_set1(value_scale[j * scale_step])));
            v_store(score, p);
        }
    for (int v = 0; v < PANEL_VECS; v++) {
        real *l = t->segment.sum + panel * PANEL + v * VEC_LANES;
        v_store(l, v_fma(v_load(l), v_load(b->alpha + v * VEC_LANES), sum[v]));
    }
}

/* ---- output ---- */

FA_INLINE void add_columns(int n_column, int n_panel, const tile *t, const block *b, real *out,
                           ptrdiff_t d) {
    const row_sums sums = multiply_rows(
        n_column, n_panel, b->value + d * b->value_step + b->first * b->value_row, b->value_step,
        b->value_row, b->scores + b->first * PANEL, FA_KEY_BLOCK * PANEL, b->end - b->first);
    const ptrdiff_t next_panel = PANEL * (ptrdiff_t)t->g->call->d_value;
    for (int m = 0; m < n_column; m++)
        for (int w = 0; w < n_panel * PANEL_VECS; w++) {
            const int panel = w / PANEL_VECS, lane = w % PANEL_VECS * VEC_LANES;
            real *o = out + panel * next_panel + (d + m) * PANEL + lane;
            v_store(o, v_fma(v_load(o), v_load(b[panel].alpha + lane),
                             sums.c[m * n_panel * PANEL_VECS + w]));
        }
}

FA_INLINE void add_values_of_panels(int n_column, int n_panel, const tile *t, const block *b,
                                    real *out) {
    const ptrdiff_t n = (ptrdiff_t)t->g->call->d_value;
    ptrdiff_t d = 0;
    for (; d + n_column <= n; d += n_column)
        add_columns(n_column, n_panel, t, b, out, d);
    for (; d + 4 <= n; d += 4)
        add_columns(4, n_panel, t, b, out, d);
    if (d + 2 <= n) {
        add_columns(2, n_panel, t, b, out, d);
        d += 2;
    }
    if (d < n)
        add_columns(1, n_panel, t, b, out, d);
}

FA_NOINLINE void add_values(const tile *t, const block *b, real *out) {
    add_values_of_panels(KERNEL_ROWS, 1, t, b, out);
}

/* The same with values selected by visibility: what is hidden may be NaN or infinite. */
FA_NOINLINE void add_visible_values(const tile *t, const block *b, real *out) {
    for (ptrdiff_t d = 0; d < t->g->call->d_value; d++)
        for (int v = 0; v < PANEL_VECS; v++) {
            vec sum = v_set1(0);
            for (int j = b->first; j < b->end; j++) {
                const int at = j * PANEL + v * VEC_LANES;
                const vec value = v_set1(b->value[j * b->value_row + d * b->value_step]);
                const vec next = v_fma(value, v_load(b->scores + at), sum);
                sum = v_select(v_eq(v_load(t->visible + at), v_set1(0)), sum, next);
            }
            real *o = out + d * PANEL + v * VEC_LANES;
            v_store(o, v_fma(v_load(o), v_load(b->alpha + v * VEC_LANES), sum));
        }
}

/* ---- all of it ---- */

static void open_panel_keys(tile *t, int panel) {
    key_range some = {INT64_MAX, 0}, all = {0, INT64_MAX};
    for (int i = panel * PANEL; i < (panel + 1) * PANEL && i < t->n_row; i++) {
        const row_rule *rule = &t->rule[i];
        if (rule->first < rule->end) {
            some.first = min_i64(some.first, rule->first);
            some.end = max_i64(some.end, rule->end);
        }
        all.first = max_i64(all.first, rule->first);
        all.end = min_i64(all.end, rule->end);
    }
    t->seen_by_some[panel] = some;
    t->seen_by_all[panel] = all;
}

static void panel_range(const tile *t, int panel, int64_t end_of_block, block *b) {
    const key_range some = t->seen_by_some[panel], all = t->seen_by_all[panel];
    const int64_t first = max_i64(some.first, b->first_key);
    const int64_t end = min_i64(some.end, end_of_block);
    b->first = (int)(first < end ? first - b->first_key : 0);
    b->end = (int)(first < end ? end - b->first_key : 0);
    b->needs_range = all.first > first || all.end < end;
}

/* The mask of one panel and block; keys that it hides from all rows are taken off the ends. */
static void load_mask(const tile *t, block *b, int panel) {
    b->needs_mask = !mask_is_all(1, t, b, panel);
    if (!b->needs_mask)
        return;
    if (mask_is_all(0, t, b, panel)) {
        b->end = b->first;
        return;
    }
    load_panel_plane(t, b, panel, &t->g->call->mask, offsetof(row_rule, mask), b->mask);
    trim_to_mask(b);
}

static void load_bias(const tile *t, const block *b, int panel) {
    if (t->g->call->bias.data)
        load_panel_plane(t, b, panel, &t->g->call->bias, offsetof(row_rule, bias), b->bias);
}

FA_INLINE real *output_of_panel(const tile *t, int panel) {
    return t->segment.out + (size_t)panel * PANEL * (size_t)t->g->call->d_value;
}

static void attend_panel(const tile *t, const block *b, int panel) {
    if (b->first == b->end)
        return;
    load_bias(t, b, panel);
    score_panel(t, b, panel);
    softmax_panel(t, b, panel);
    if (t->careful)
        add_visible_values(t, b, output_of_panel(t, panel));
    else
        add_values(t, b, output_of_panel(t, panel));
}

#if PAIR_ROWS > 0
FA_NOINLINE void score_pair(const tile *t, const block pair[2], const real *query) {
    score_panels_as(PAIR_ROWS, 2, 1, t, pair, NULL, query);
}

FA_NOINLINE void add_values_of_pair(const tile *t, const block pair[2], real *out) {
    add_values_of_panels(PAIR_ROWS, 2, t, pair, out);
}

/* Each of the usual kinds of rules in a loop that knows of no other. */
FA_NOINLINE void finish_scores(const block *b, const score_rules *given) {
    score_rules rules = *given;
    const int hides = rules.needs_mask || rules.needs_range;
    if (!rules.has_long_form && !rules.needs_range) {
        rules.has_long_form = rules.needs_range = 0;
        rules.needs_mask = 1;
        finish_block(0, rules, b);
    } else if (rules.form.has_bias && !rules.form.has_slopes && !hides) {
        rules.has_long_form = rules.form.has_bias = 1;
        rules.form.has_slopes = rules.needs_mask = rules.needs_range = 0;
        finish_block(0, rules, b);
    } else if (rules.form.has_slopes && !rules.form.has_bias && !hides) {
        rules.has_long_form = rules.form.has_slopes = 1;
        rules.form.has_bias = rules.needs_mask = rules.needs_range = 0;
        finish_block(0, rules, b);
    } else {
        finish_block(0, rules, b);
    }
}

/* Panels `panel` and the next one, which see the same keys: products of both at once. */
static void attend_pair(const tile *t, const block pair[2], int panel) {
    score_pair(t, pair, query_of_panel(t, panel));
    for (int i = 0; i < 2; i++) {
        load_bias(t, &pair[i], panel + i);
        const score_rules rules = open_rules(t, &pair[i], panel + i);
        if (rules.form.softcap != 0)
            finish_capped(&pair[i], &rules);
        else if (has_rules(&rules))
            finish_scores(&pair[i], &rules);
        softmax_panel(t, &pair[i], panel + i);
    }
    add_values_of_pair(t, pair, output_of_panel(t, panel));
}
#else
static void attend_pair(const tile *t, const block pair[2], int panel) {
    (void)t, (void)pair, (void)panel;
}
#endif

/* What panel `panel` makes of a block, and the next one if two may be taken at once; returns how
 * many these are. */
static int attend_panels(const tile *t, const block *b, int panel, int64_t end_of_block) {
    const int n = panel + PANELS_AT_ONCE <= t->n_panel ? PANELS_AT_ONCE : 1;
    block part[2];
    for (int i = 0; i < n; i++) {
        part[i] = *b;
        part[i].scores += i * FA_KEY_BLOCK * PANEL;
        part[i].mask += i * FA_KEY_BLOCK * PANEL;
        part[i].bias += i * FA_KEY_BLOCK * PANEL;
        part[i].alpha += i * PANEL;
        part[i].block_max += i * PANEL;
        panel_range(t, panel + i, end_of_block, &part[i]);
        if (t->g->call->mask.data && part[i].first < part[i].end)
            load_mask(t, &part[i], panel + i);
    }
    if (n == 2 && part[0].first == part[1].first && part[0].end == part[1].end &&
        part[0].first < part[0].end && !t->careful && !t->g->key_scale.data) {
        attend_pair(t, part, panel);
        return n;
    }
    for (int i = 0; i < n; i++)
        attend_panel(t, &part[i], panel + i);
    return n;
}
