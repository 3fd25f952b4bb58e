/* Attention for few query rows (decoding): keys in the vector lanes for scores, value columns in
 * the lanes for the output. The same chains in the same order as tile.inl.h, hence the same bits.
 *
 * A decode reads each key and value once, so memory is the limit: all scores of a segment come
 * before its values, the next keys and values are asked for in order while some keys are turned in
 * registers, and several values go into each pass over the output row.
 */

FA_INLINE ptrdiff_t whole_vectors(int64_t n) {
    return (ptrdiff_t)((n + VEC_LANES - 1) / VEC_LANES * VEC_LANES);
}

static size_t few_reals(const fa_attention *call) {
    const size_t d = (size_t)call->d_head, width = (size_t)whole_vectors(call->d_value);
    return FEW_ROWS * d + FEW_ROWS * SEGMENT_KEYS + (2 + FEW_ROWS) * FA_KEY_BLOCK +
           KEYS_AT_ONCE * d + (VALUES_AT_ONCE + 3 * FEW_ROWS) * width;
}

static void place_few(few *f, const group *g, real *scratch) {
    const size_t d = (size_t)g->call->d_head;
    f->g = g;
    f->width = whole_vectors(g->call->d_value);
    f->query = take(&scratch, FEW_ROWS * d);
    f->scores = take(&scratch, FEW_ROWS * SEGMENT_KEYS);
    f->mask = take(&scratch, FA_KEY_BLOCK);
    f->bias = take(&scratch, FA_KEY_BLOCK);
    f->visible = take(&scratch, FEW_ROWS * FA_KEY_BLOCK);
    f->key = take(&scratch, KEYS_AT_ONCE * d);
    f->value = take(&scratch, VALUES_AT_ONCE * (size_t)f->width);
    f->block_out = take(&scratch, FEW_ROWS * (size_t)f->width);
    f->segment_out = take(&scratch, FEW_ROWS * (size_t)f->width);
    f->total_out = take(&scratch, FEW_ROWS * (size_t)f->width);
}

static void load_few(few *f) {
    const fa_attention *call = f->g->call;
    f->n_row = (int)f->g->n_row;
    for (int r = 0; r < f->n_row; r++) {
        f->rule[r] = rule_of_row(f->g, r);
        const row_rule *rule = &f->rule[r];
        widen_row(f->query + r * call->d_head, row_of(&f->g->query, rule->query, rule->head),
                  call->query.dtype, call->d_head, call->query.column);
    }
}

static key_range range_in_segment(const few *f, int64_t segment_first, int64_t segment_end) {
    key_range range = range_of_rows(f->rule, f->n_row);
    range.first = max_i64(range.first, segment_first);
    range.end = min_i64(range.end, segment_end);
    return range;
}

static void finish_range(const few *f, key_range range, int64_t segment_first) {
    for (int64_t first = range.first - range.first % FA_KEY_BLOCK; first < range.end;
         first += FA_KEY_BLOCK) {
        const int n = (int)min_i64(FA_KEY_BLOCK, range.end - first);
        for (int r = 0; r < f->n_row; r++)
            finish_row(f, r, first, n, f->scores + r * SEGMENT_KEYS + (first - segment_first));
    }
}

static void attend_segment(few *f, key_range range, int64_t segment_first) {
    real alpha[FEW_ROWS];
    for (int r = 0; r < f->n_row; r++) {
        f->segment_max[r] = -REAL_INFINITY;
        f->segment_sum[r] = 0;
    }
    memset(f->segment_out, 0, sizeof(real) * (size_t)(f->n_row * f->width));
    score_range(f, range, segment_first);
    finish_range(f, range, segment_first);
    for (int64_t first = range.first - range.first % FA_KEY_BLOCK; first < range.end;
         first += FA_KEY_BLOCK) {
        const int n = (int)min_i64(FA_KEY_BLOCK, range.end - first);
        const int at = (int)(first - segment_first);
        const int begin = (int)max_i64(0, range.first - first); /* nobody has keys before it */
        int any = 0;
        for (int r = 0; r < f->n_row; r++)
            any |= softmax_row(f, r, first, n, f->scores + r * SEGMENT_KEYS + at, &alpha[r]);
        if (any)
            add_block(f, first, begin, n, at, alpha);
    }
}

static void merge_few(few *f) {
    for (int r = 0; r < f->n_row; r++) {
        const real both = r_max(f->total_max[r], f->segment_max[r]);
        const real base = r_base(both);
        const real alpha = r_exp2(f->total_max[r] - base);
        const real beta = r_exp2(f->segment_max[r] - base);
        const real scaled = f->segment_sum[r] * beta;
        f->total_sum[r] = r_fma(f->total_sum[r], alpha, scaled);
        f->total_max[r] = both;
        for (ptrdiff_t d = r * f->width; d < (r + 1) * f->width; d += VEC_LANES)
            v_store(f->total_out + d, v_fma(v_load(f->total_out + d), v_set1(alpha),
                                            v_mul(v_load(f->segment_out + d), v_set1(beta))));
    }
}

/* Calls what is to be done with every segment that some row has keys in. */
static void each_segment(few *f, void (*visit)(few *, key_range, int64_t)) {
    const fa_attention *call = f->g->call;
    const key_range all = range_in_segment(f, 0, f->g->n_key);
    int64_t j = all.first;
    while (j < all.end) {
        const int64_t segment = segment_of_key(call, j);
        const int64_t first = first_key_of_segment(call, segment);
        const int64_t end = first_key_of_segment(call, segment + 1);
        visit(f, range_in_segment(f, first, end), first);
        j = end;
    }
}

static void attend_and_merge(few *f, key_range range, int64_t segment_first) {
    attend_segment(f, range, segment_first);
    merge_few(f);
}

static void weigh_segment(few *f, key_range range, int64_t segment_first) {
    const fa_array *weights = &f->g->call->weights;
    const vec hidden = v_set1(-REAL_INFINITY), zero = v_set1(0);
    score_range(f, range, segment_first);
    finish_range(f, range, segment_first);
    for (int r = 0; r < f->n_row; r++) {
        char *row = row_of(&f->g->weights, f->rule[r].query, f->rule[r].head);
        const real max = f->total_max[r];
        const vec base = v_set1(r_base(max)), sum = v_set1(f->total_sum[r]);
        for (int64_t j = range.first - range.first % FA_KEY_BLOCK; j < range.end; j += VEC_LANES) {
            real lanes[VEC_LANES];
            const vec x = v_load(f->scores + r * SEGMENT_KEYS + (j - segment_first));
            const vec w = v_div(v_exp2(v_sub(x, base)), sum);
            v_store(lanes, v_select(v_eq(x, hidden), zero, v_select(v_eq(sum, zero), zero, w)));
            for (int i = 0; i < VEC_LANES && j + i < range.end; i++)
                put(row, weights->dtype, (ptrdiff_t)(j + i) * weights->column, lanes[i]);
        }
    }
}

static void attend_few(few *f) {
    for (int r = 0; r < f->n_row; r++) {
        f->total_max[r] = -REAL_INFINITY;
        f->total_sum[r] = 0;
    }
    memset(f->total_out, 0, sizeof(real) * (size_t)(f->n_row * f->width));
    each_segment(f, attend_and_merge);
}

static int few_is_suspect(const few *f) {
    real zeros[VEC_LANES];
    for (int r = 0; r < f->n_row; r++) {
        vec zero = v_set1(0); /* NaN once an x - x is; columns past d_value are 0 */
        for (ptrdiff_t d = 0; d < f->width; d += VEC_LANES) {
            const vec x = v_load(f->total_out + r * f->width + d);
            zero = v_add(zero, v_sub(x, x));
        }
        v_store(zeros, zero);
        for (int i = 0; i < VEC_LANES; i++)
            if (zeros[i] != 0 && f->total_sum[r] > 0)
                return 1;
    }
    return 0;
}

static void write_few_row(few *f, int r) {
    const group *g = f->g;
    const row_end end = end_row(g, &f->rule[r], &f->total_max[r], &f->total_sum[r]);
    const vec alpha = v_set1(end.alpha), sum = v_set1(end.sum), live = v_set1(end.live);
    const ptrdiff_t n = (ptrdiff_t)g->call->d_value;
    char *row = row_of(&g->output, f->rule[r].query, f->rule[r].head);
    for (ptrdiff_t d = 0; d < n; d += VEC_LANES) {
        const int width = n - d < VEC_LANES ? (int)(n - d) : VEC_LANES;
        const vec o = v_load(f->total_out + r * f->width + d);
        store_columns(row, g->output.dtype, g->output.column, d, width,
                      output_of(o, alpha, sum, live));
    }
}

static void run_few(const group *g, real *scratch) {
    few f;
    place_few(&f, g, scratch);
    load_few(&f);
    f.careful = 0;
    attend_few(&f);
    if (few_is_suspect(&f)) {
        f.careful = 1;
        attend_few(&f);
    }
    for (int r = 0; r < f.n_row; r++) {
        write_few_row(&f, r);
    }
    if (g->call->weights.data)
        each_segment(&f, weigh_segment);
}
