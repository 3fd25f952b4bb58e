/* One panel of a tile against one block of keys: scores, softmax, values. See tile.inl.h. */

/* Asks for rows first .. end of the next block, those of n_ahead, between two products: all of them
 * at once would wait for each other. */
FA_INLINE void ask_for_rows(const block *b, const row_view *view, int64_t n_column, int64_t first,
                            int64_t end) {
    const ptrdiff_t row_bytes = (ptrdiff_t)n_column * (ptrdiff_t)dtype_size(view->dtype);
    for (int64_t i = first; i < min_i64(end, b->n_ahead); i++)
        prefetch_row(view, b->first_key + FA_KEY_BLOCK + i, row_bytes);
}

/* The bias of a pair between its products, with keys first .. end an even share of the rows. */
FA_INLINE void ask_for_bias(const tile *t, const block *b, int first, int end) {
    const ptrdiff_t size = (ptrdiff_t)dtype_size(t->g->call->bias.dtype);
    const ptrdiff_t skip = (ptrdiff_t)(b->first_key + b->first) * size;
    const int n = b->end - b->first;
    const int stop = (end - b->first) * 2 * PANEL / n;
    for (int i = (first - b->first) * 2 * PANEL / n; i < stop; i++)
        for (ptrdiff_t at = 0; at < n * size; at += 64) /* rows seldom start with a line */
            FA_PREFETCH_FAR(b->asks_bias[i].bias + skip + at + 63);
}

/* ---- scores ---- */

/* Plain: the score is the product times the factor and nothing else. b: one block for each of the
 * panels that n_vec vectors are. */
FA_INLINE void score_rows(int n_row, int n_vec, int is_plain, const tile *t, const block *b,
                          const score_rules *rules, const real *query, int j) {
    const vec factor = v_set1(t->g->score_factor);
    const real *key_scale = is_plain ? NULL : scale_of_key(&t->g->key_scale, b->first_key + j);
    const ptrdiff_t scale_step = t->g->key_scale.column, d = (ptrdiff_t)t->g->call->d_head;
    const int is_final = !is_plain && rules->form.softcap == 0 && has_rules(rules);
    ask_for_rows(b, &t->g->key, d, j, j + n_row);
    if (n_vec > PANEL_VECS && b->asks_bias)
        ask_for_bias(t, b, j, j + n_row);
    const row_sums dot = multiply_rows(n_row, n_vec, b->key + j * b->key_row, b->key_row,
                                       b->key_step, query, PANEL * d, d);
    FA_UNROLL
    for (int w = 0; w < n_vec; w++) {
        const int v = w % PANEL_VECS;
        real *scores = b[w / PANEL_VECS].scores + j * PANEL + v * VEC_LANES;
        real *block_max = b[w / PANEL_VECS].block_max + v * VEC_LANES;
        vec max = v_load(block_max);
        for (int m = 0; m < n_row; m++) {
            vec x = dot.c[m * n_vec + w];
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

FA_INLINE void score_panels_as(int n_row, int n_vec, int is_plain, const tile *t, const block *b,
                               const score_rules *rules, const real *query) {
    int j = b->first;
    for (int i = 0; i < n_vec; i += PANEL_VECS)
        forget_maximum(&b[i / PANEL_VECS]);
    for (; j + n_row <= b->end; j += n_row)
        score_rows(n_row, n_vec, is_plain, t, b, rules, query, j);
    for (; n_row > 6 && j + 4 <= b->end; j += 4)
        score_rows(4, n_vec, is_plain, t, b, rules, query, j);
    for (; j + 2 <= b->end; j += 2)
        score_rows(2, n_vec, is_plain, t, b, rules, query, j);
    if (j < b->end)
        score_rows(1, n_vec, is_plain, t, b, rules, query, j);
}

FA_INLINE const real *query_of_panel(const tile *t, int panel) {
    return t->query + (size_t)panel * PANEL * (size_t)t->g->call->d_head;
}

/* Functions of their own: what else there is would take registers from the loops. */
FA_NOINLINE void score_plain(const tile *t, const block *b, const real *query) {
    score_panels_as(KERNEL_ROWS, PANEL_VECS, 1, t, b, NULL, query);
}

FA_NOINLINE void score_narrow_plain(const tile *t, const block *b, const real *query) {
    score_panels_as(NARROW_KERNEL_ROWS, NARROW_VECS, 1, t, b, NULL, query);
}

FA_NOINLINE void score_with_rules(const tile *t, const block *b, const score_rules *rules,
                                  const real *query) {
    score_panels_as(KERNEL_ROWS, PANEL_VECS, 0, t, b, rules, query);
}

FA_NOINLINE void score_narrow_with_rules(const tile *t, const block *b, const score_rules *rules,
                                         const real *query) {
    score_panels_as(NARROW_KERNEL_ROWS, NARROW_VECS, 0, t, b, rules, query);
}

/* Whether a score is more than the product times the factor, the scale of int8 keys aside. */
FA_INLINE int needs_rules(const tile *t, const block *b) {
    return t->g->has_long_form || b->needs_mask || b->needs_range;
}

/* Final scores of one panel and block, and their maximum. */
static void score_panel(const tile *t, const block *b, int panel) {
    const real *query = query_of_panel(t, panel);
    const int is_full = b->n_vec == PANEL_VECS;
    if (!needs_rules(t, b) && !t->g->key_scale.data) {
        if (is_full)
            score_plain(t, b, query);
        else
            score_narrow_plain(t, b, query);
        return;
    }
    const score_rules rules = open_rules(t, b, panel);
    if (is_full)
        score_with_rules(t, b, &rules, query);
    else
        score_narrow_with_rules(t, b, &rules, query);
    if (rules.form.softcap != 0) {
        forget_maximum(b);
        finish_capped(b, &rules);
    }
}

/* ---- softmax ---- */

/* Scores to weights of the block; max and sum move on; alpha is what older sums shrink by. */
FA_INLINE void softmax_of_vectors(int n_vec, const tile *t, const block *b, int panel) {
    const group *g = t->g;
    vec base[PANEL_VECS], sum[PANEL_VECS];
    real *max = t->segment.max + panel * PANEL;
    for (int v = 0; v < n_vec; v++) {
        const vec old = v_load(max + v * VEC_LANES);
        const vec both = v_max(old, v_load(b->block_max + v * VEC_LANES));
        base[v] = v_base(both);
        sum[v] = v_set1(0);
        v_store(b->alpha + v * VEC_LANES, v_exp2(v_sub(old, base[v])));
        v_store(max + v * VEC_LANES, both);
    }
    for (int j = b->first; t->careful && j < b->end; j++)
        for (int i = j * PANEL; i < j * PANEL + n_vec * VEC_LANES; i++)
            t->visible[i] = b->scores[i] != -REAL_INFINITY;
    /* locals: a vector store may alias anything, so fields would be read again after each */
    const int end = b->end;
    const real *value_scale = scale_of_key(&g->value_scale, b->first_key);
    const ptrdiff_t scale_step = g->value_scale.column;
    real *scores = b->scores;
    for (int j = b->first; j < end; j++)
        for (int v = 0; v < n_vec; v++) {
            real *score = scores + j * PANEL + v * VEC_LANES;
            const vec x = v_load(score);
            vec p = v_exp2(v_sub(x, base[v]));
            sum[v] = v_add(sum[v], p);
            if (value_scale)
                p = v_drop(v_eq(x, v_set1(-REAL_INFINITY)),
                           v_mul(p, v_set1(value_scale[j * scale_step])));
            v_store(score, p);
        }
    for (int v = 0; v < n_vec; v++) {
        real *l = t->segment.sum + panel * PANEL + v * VEC_LANES;
        v_store(l, v_fma(v_load(l), v_load(b->alpha + v * VEC_LANES), sum[v]));
    }
}

FA_NOINLINE void softmax_panel(const tile *t, const block *b, int panel) {
    if (b->n_vec == PANEL_VECS)
        softmax_of_vectors(PANEL_VECS, t, b, panel);
    else
        softmax_of_vectors(NARROW_VECS, t, b, panel);
}

/* ---- output ---- */

FA_INLINE void add_columns(int n_column, int n_vec, const tile *t, const block *b, real *out,
                           ptrdiff_t d) {
    const ptrdiff_t n = (ptrdiff_t)t->g->call->d_value;
    if (b->n_ahead > 0) /* an even share of them */
        ask_for_rows(b, &t->g->value, n, b->n_ahead * d / n, b->n_ahead * (d + n_column) / n);
    const row_sums sums = multiply_rows(
        n_column, n_vec, b->value + d * b->value_step + b->first * b->value_row, b->value_step,
        b->value_row, b->scores + b->first * PANEL, FA_KEY_BLOCK * PANEL, b->end - b->first);
    const int is_first = b->is_first;
    const ptrdiff_t next_panel = PANEL * n;
    for (int m = 0; m < n_column; m++)
        for (int w = 0; w < n_vec; w++) {
            const int panel = w / PANEL_VECS, lane = w % PANEL_VECS * VEC_LANES;
            real *o = out + panel * next_panel + (d + m) * PANEL + lane;
            const vec sum = sums.c[m * n_vec + w];
            v_store(o, is_first ? sum : v_fma(v_load(o), v_load(b[panel].alpha + lane), sum));
        }
}

FA_INLINE void add_all_columns(int n_column, int n_vec, const tile *t, const block *b, real *out) {
    const ptrdiff_t n = (ptrdiff_t)t->g->call->d_value;
    ptrdiff_t d = 0;
    for (; d + n_column <= n; d += n_column)
        add_columns(n_column, n_vec, t, b, out, d);
    for (; d + 4 <= n; d += 4)
        add_columns(4, n_vec, t, b, out, d);
    if (d + 2 <= n) {
        add_columns(2, n_vec, t, b, out, d);
        d += 2;
    }
    if (d < n)
        add_columns(1, n_vec, t, b, out, d);
}

FA_NOINLINE void add_values(const tile *t, const block *b, real *out) {
    add_all_columns(KERNEL_ROWS, PANEL_VECS, t, b, out);
}

FA_NOINLINE void add_values_of_narrow(const tile *t, const block *b, real *out) {
    add_all_columns(NARROW_KERNEL_ROWS, NARROW_VECS, t, b, out);
}

/* The same with values selected by visibility: what is hidden may be NaN or infinite. */
FA_NOINLINE void add_visible_values(const tile *t, const block *b, real *out) {
    for (ptrdiff_t d = 0; d < t->g->call->d_value; d++)
        for (int v = 0; v < b->n_vec; v++) {
            vec sum = v_set1(0);
            for (int j = b->first; j < b->end; j++) {
                const int at = j * PANEL + v * VEC_LANES;
                const vec value = v_set1(b->value[j * b->value_row + d * b->value_step]);
                const vec next = v_fma(value, v_load(b->scores + at), sum);
                sum = v_select(v_eq(v_load(t->visible + at), v_set1(0)), sum, next);
            }
            real *o = out + d * PANEL + v * VEC_LANES;
            v_store(o, b->is_first ? sum : v_fma(v_load(o), v_load(b->alpha + v * VEC_LANES), sum));
        }
}

/* ---- all of it ---- */

static void open_panel_keys(tile *t, int panel) {
    const row_rule *rule = &t->rule[panel * PANEL];
    const int n = (int)min_i64(PANEL, t->n_row - panel * PANEL);
    key_range all = {0, INT64_MAX};
    for (int i = 0; i < n; i++) {
        all.first = max_i64(all.first, rule[i].first);
        all.end = min_i64(all.end, rule[i].end);
    }
    t->seen_by_some[panel] = range_of_rows(rule, n);
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

FA_INLINE real *output_of_panel(const tile *t, int panel) {
    return t->segment.out + (size_t)panel * PANEL * (size_t)t->g->call->d_value;
}

static void attend_panel(const tile *t, const block *b, int panel) {
    if (b->first == b->end)
        return;
    load_bias(t, b, panel, b->first);
    score_panel(t, b, panel);
    softmax_panel(t, b, panel);
    if (t->careful)
        add_visible_values(t, b, output_of_panel(t, panel));
    else if (b->n_vec == PANEL_VECS)
        add_values(t, b, output_of_panel(t, panel));
    else
        add_values_of_narrow(t, b, output_of_panel(t, panel));
}

#if PAIR_ROWS > 0
FA_NOINLINE void score_pair(const tile *t, const block pair[2], const real *query) {
    score_panels_as(PAIR_ROWS, 2 * PANEL_VECS, 1, t, pair, NULL, query);
}

FA_NOINLINE void add_values_of_pair(const tile *t, const block pair[2], real *out) {
    add_all_columns(PAIR_ROWS, 2 * PANEL_VECS, t, pair, out);
}

/* Each of the usual kinds of rules in a loop that knows of no other. */
FA_NOINLINE void finish_scores(const block *b, const score_rules *given, int first) {
    score_rules rules = *given;
    const int hides = rules.needs_mask || rules.needs_range;
    if (!rules.has_long_form && !rules.needs_range) {
        rules.has_long_form = rules.needs_range = 0;
        rules.needs_mask = 1;
        finish_block(0, rules, b, first);
    } else if (rules.form.has_bias && !rules.form.has_slopes && !hides) {
        rules.has_long_form = rules.form.has_bias = 1;
        rules.form.has_slopes = rules.needs_mask = rules.needs_range = 0;
        finish_block(0, rules, b, first);
    } else if (rules.form.has_slopes && !rules.form.has_bias && !hides) {
        rules.has_long_form = rules.form.has_slopes = 1;
        rules.form.has_bias = rules.needs_mask = rules.needs_range = 0;
        finish_block(0, rules, b, first);
    } else {
        finish_block(0, rules, b, first);
    }
}

/* Bias, and mask if any, for vector v of a panel, from key b->first on: rows of reals, `apart`
 * bytes apart, are turned next to the scores. Returns the first key that is not done. */
FA_INLINE int add_turned_bias(int needs_mask, const block *b, int v, const char *row,
                              ptrdiff_t apart) {
    static const score_form form = {0, 0, 0, 1};
    const vec log2e = v_set1(LOG2E), none = v_set1(0);
    const int n = columns_turned(REAL_DTYPE), end = b->end;
    const uint8_t *mask = mask_at(b, v, 0);
    real *scores = b->scores + v * VEC_LANES;
    vec max[2]; /* two chains: of even and odd keys */
    max[0] = max[1] = v_load(b->block_max + v * VEC_LANES);
    int j = b->first;
    for (; j + n <= end; j += n, row += n * (ptrdiff_t)sizeof(real)) {
        vec bias[VEC_LANES], x[VEC_LANES];
        turn_columns(REAL_DTYPE, row, apart, bias);
        vec zero[2] = {none, none}; /* NaN once a score is not finite */
        FA_UNROLL
        for (int i = 0; i < n; i++) {
            x[i] = v_mul(v_add(v_load(scores + (j + i) * PANEL), bias[i]), log2e);
            zero[i % 2] = v_fma(x[i], none, zero[i % 2]);
        }
        if (!m_all(v_eq(v_add(zero[0], zero[1]), none)))
            for (int i = 0; i < n; i++)
                x[i] = saturated_form(&form, v_load(scores + (j + i) * PANEL), none, none, bias[i]);
        FA_UNROLL
        for (int i = 0; i < n; i++) {
            if (needs_mask)
                x[i] = v_select(m_zero_bytes(mask + (j + i) * VEC_LANES), v_set1(-REAL_INFINITY),
                                x[i]);
            v_store(scores + (j + i) * PANEL, x[i]);
            max[i % 2] = v_max(x[i], max[i % 2]);
        }
    }
    v_store(b->block_max + v * VEC_LANES, v_max(max[0], max[1]));
    return j;
}

FA_NOINLINE int add_bias_to_vector(const block *b, int v, const char *row, ptrdiff_t apart) {
    return b->needs_mask ? add_turned_bias(1, b, v, row, apart)
                         : add_turned_bias(0, b, v, row, apart);
}

/* Bias, and mask if any, for the products of a panel, where its rows can be turned in registers.
 * Returns the first key that is not done. */
static int add_bias(const tile *t, const block *b, int panel) {
    const fa_array *bias = &t->g->call->bias;
    const score_form form = t->g->form;
    const char *rows[PANEL];
    ptrdiff_t apart[PANEL_VECS];
    if (!form.has_bias || bias->column != 1 || bias->dtype != REAL_DTYPE || form.has_slopes ||
        form.softcap != 0 || b->needs_range)
        return b->first;
    find_bias(t, b, panel, b->first, rows);
    for (int v = 0; v < PANEL_VECS; v++)
        if (!are_evenly_spaced(rows + v * VEC_LANES, &apart[v]))
            return b->first;
    int end = b->first;
    for (int v = 0; v < PANEL_VECS; v++)
        end = add_bias_to_vector(b, v, rows[v * VEC_LANES], apart[v]);
    return end;
}

/* What the rules make of the products of a panel. */
static void finish_panel(const tile *t, const block *b, int panel) {
    forget_maximum(b);
    const int first = add_bias(t, b, panel);
    if (first == b->end)
        return;
    load_bias(t, b, panel, first);
    const score_rules rules = open_rules(t, b, panel);
    if (rules.form.softcap != 0)
        finish_capped(b, &rules);
    else
        finish_scores(b, &rules, first);
}

/* Panels `panel` and the next one, which see the same keys: products of both at once. */
static void attend_pair(const tile *t, const block pair[2], int panel) {
    score_pair(t, pair, query_of_panel(t, panel));
    for (int i = 0; i < 2; i++) {
        if (needs_rules(t, &pair[i]))
            finish_panel(t, &pair[i], panel + i);
        softmax_panel(t, &pair[i], panel + i);
    }
    add_values_of_pair(t, pair, output_of_panel(t, panel));
}
#else
static void attend_pair(const tile *t, const block *pair, int panel) {
    (void)t, (void)pair, (void)panel;
}
#endif

/* Whether two panels may be taken at once. */
FA_INLINE int is_pair(const tile *t, const block *b) {
    return b[0].first == b[1].first && b[0].end == b[1].end && b[0].first < b[0].end &&
           b[0].is_first == b[1].is_first && b[1].n_vec == PANEL_VECS && !t->careful &&
           !t->g->key_scale.data;
}

/* Those of a pair if there is a bias whose columns are neighbours, else NULL. */
FA_INLINE const row_rule *rules_to_ask(const tile *t, int panel) {
    const fa_array *bias = &t->g->call->bias;
    return bias->data && bias->column == 1 ? t->rule + panel * PANEL : NULL;
}

/* What panel `panel` makes of a block, and the next one if there are arrays for two; returns how
 * many these are. */
static int attend_panels(tile *t, block b[PANELS_AT_ONCE], int panel, int64_t end_of_block) {
    const int n = panel + PANELS_AT_ONCE <= t->n_panel ? PANELS_AT_ONCE : 1;
    for (int i = 0; i < n; i++) {
        b[i].n_vec = vectors_of_panel(t, panel + i);
        b[i].needs_mask = 0;
        b[i].asks_bias = NULL;
        panel_range(t, panel + i, end_of_block, &b[i]);
        if (t->g->call->mask.data && b[i].first < b[i].end)
            load_mask(t, &b[i], panel + i);
        b[i].is_first = !t->has_sums[panel + i];
        t->has_sums[panel + i] |= b[i].first < b[i].end;
    }
    if (n == 2 && is_pair(t, b)) {
        b[0].asks_bias = b[1].asks_bias = rules_to_ask(t, panel);
        attend_pair(t, b, panel);
        return n;
    }
    for (int i = 0; i < n; i++)
        attend_panel(t, &b[i], panel + i);
    return n;
}
