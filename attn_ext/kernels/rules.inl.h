/* What the options say about the scores of one panel and block: mask and bias, turned so that a
 * lane is a row, and the rules that make final scores of products.
 */

/* Lanes whose byte is 0. */
#ifndef HAS_ZERO_BYTES
FA_INLINE vmask m_zero_bytes(const uint8_t *p) {
    return v_eq(v_widen_i8((const int8_t *)p), v_set1(0));
}
#endif

/* Ask for what the next block reads of the mask or bias: `size` bytes further on in each row. */
static void prefetch_next_plane(const char *const rows[PANEL], ptrdiff_t size) {
    for (int lane = 0; lane < PANEL; lane++)
        for (ptrdiff_t at = 0; at < size; at += 64)
            FA_PREFETCH(rows[lane] + size + at);
}

/* Whether all rows are the same one: a padding mask, say. */
static int is_one_row(const char *const rows[PANEL]) {
    int is_one = 1;
    for (int lane = 1; lane < PANEL; lane++)
        is_one &= rows[lane] == rows[0];
    return is_one;
}

/* Rows of the bias of a panel, from key `first` of a block on. */
FA_INLINE void find_bias(const tile *t, const block *b, int panel, int first,
                         const char *rows[PANEL]) {
    const fa_array *array = &t->g->call->bias;
    const ptrdiff_t size = (ptrdiff_t)dtype_size(array->dtype);
    const ptrdiff_t skip = (ptrdiff_t)(b->first_key + first) * array->column * size;
    for (int lane = 0; lane < PANEL; lane++)
        rows[lane] = t->rule[panel * PANEL + lane].bias + skip;
}

/* Bias of one panel and block from key `first` on, transposed: (FA_KEY_BLOCK, PANEL). */
static void load_bias(const tile *t, const block *b, int panel, int first) {
    const fa_array *array = &t->g->call->bias;
    const char *rows[PANEL];
    const int n = b->end - first;
    real *to = b->bias + first * PANEL;
    if (!array->data)
        return;
    find_bias(t, b, panel, first, rows);
    if (is_one_row(rows)) {
        real shared[FA_KEY_BLOCK];
        widen_row(shared, rows[0], array->dtype, n, array->column);
        for (int j = 0; j < n; j++)
            for (int v = 0; v < b->n_vec; v++)
                v_store(to + j * PANEL + v * VEC_LANES, v_set1(shared[j]));
        return;
    }
    if (array->column == 1 && !b->asks_bias)
        prefetch_next_plane(rows, n * (ptrdiff_t)dtype_size(array->dtype));
    for (int lane = 0; lane < b->n_vec * VEC_LANES; lane += VEC_LANES)
        transpose_rows(to + lane, rows + lane, array->dtype, n, array->column);
}

/* The first BYTES of a row of n bools, `step` bytes apart, False past its end. */
static bytes load_bools(const char *row, ptrdiff_t step, int64_t n) {
    char bools[BYTES] = {0};
    if (step == 1 && n >= BYTES)
        return b_load(row);
    for (int64_t k = 0; k < BYTES && k < n; k++)
        bools[k] = row[k * step];
    return b_load(bools);
}

FA_INLINE uint8_t *mask_at(const block *b, int v, int j) {
    return b->mask + (v * FA_KEY_BLOCK + j) * VEC_LANES;
}

/* Mask of one panel and block, transposed as it is, in bytes. Keys around first .. end that share
 * their BYTES with some of these come along. */
static void load_mask_plane(const tile *t, const block *b, int panel) {
    const fa_array *array = &t->g->call->mask;
    const char *rows[PANEL];
    const int begin = b->first - b->first % BYTES;
    const ptrdiff_t skip = (ptrdiff_t)b->first_key * array->column;
    for (int lane = 0; lane < PANEL; lane++)
        rows[lane] = t->rule[panel * PANEL + lane].mask + skip;
    if (is_one_row(rows)) {
        for (int v = 0; v < b->n_vec; v++)
            for (int j = b->first; j < b->end; j++)
                memset(mask_at(b, v, j), rows[0][j * array->column], VEC_LANES);
        return;
    }
    if (array->column == 1)
        prefetch_next_plane(rows, b->end);
    for (int v = 0; v < b->n_vec; v++)
        for (int j = begin; j < b->end; j += BYTES) {
            bytes r[VEC_LANES];
            for (int i = 0; i < VEC_LANES; i++)
                r[i] = load_bools(rows[v * VEC_LANES + i] + j * array->column, array->column,
                                  t->g->call->n_key - b->first_key - j);
            transpose_bytes(r, mask_at(b, v, j));
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
    for (int at_end = 0; at_end < 2; at_end++)
        while (b->first < b->end) {
            int any = 0;
            for (int v = 0; v < b->n_vec; v++)
                any |= !m_all(m_zero_bytes(mask_at(b, v, at_end ? b->end - 1 : b->first)));
            if (any)
                break;
            if (at_end)
                b->end--;
            else
                b->first++;
        }
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
    load_mask_plane(t, b, panel);
    trim_to_mask(b);
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
    const row_rule *rule; /* of the panel */
    const uint8_t *mask;  /* (PANEL_VECS, FA_KEY_BLOCK, VEC_LANES) */
    const real *bias;     /* (FA_KEY_BLOCK, PANEL) */
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
        for (int v = 0; v < b->n_vec; v++)
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
        x = v_select(m_zero_bytes(rules->mask + (v * FA_KEY_BLOCK + j) * VEC_LANES), hidden, x);
    if (rules->needs_range) {
        const vec key = v_set1((real)j);
        x = v_select(m_and(v_le(lanes->first, key), v_lt(key, lanes->end)), x, hidden);
    }
    return x;
}

/* The same for vector v of key j, with its softcap if any; stores and returns it. */
FA_INLINE vec finish_score(int has_softcap, const score_rules *rules, real *scores, int v, int j) {
    real *score = scores + j * PANEL + v * VEC_LANES;
    vec x = v_load(score);
    if (has_softcap)
        x = cap_score(&rules->form, x);
    x = final_score(rules, v, j, x);
    v_store(score, x);
    return x;
}

/* The same for the products of a block from key `first` on; the maximum counts what it was. */
FA_INLINE void finish_block(int has_softcap, score_rules rules, const block *b, int first) {
    const int end = b->end; /* locals, as in softmax_panel */
    real *scores = b->scores;
    for (int v = 0; v < b->n_vec; v++) {
        int j = first;
        vec even = v_load(b->block_max + v * VEC_LANES), odd = even;
        for (; j + 2 <= end; j += 2) { /* the next maximum need not wait for this one */
            even = v_max(finish_score(has_softcap, &rules, scores, v, j), even);
            odd = v_max(finish_score(has_softcap, &rules, scores, v, j + 1), odd);
        }
        if (j < end)
            even = v_max(finish_score(has_softcap, &rules, scores, v, j), even);
        v_store(b->block_max + v * VEC_LANES, v_max(even, odd));
    }
}

/* Before a pass over all of a block: the products have left theirs. */
FA_INLINE void forget_maximum(const block *b) {
    for (int v = 0; v < b->n_vec; v++)
        v_store(b->block_max + v * VEC_LANES, v_set1(-REAL_INFINITY));
}

/* With the softcap it is too much to do beside the sums of a product. */
FA_NOINLINE void finish_capped(const block *b, const score_rules *rules) {
    finish_block(1, *rules, b, b->first);
}
