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

static softmax_state take_state(real **from, int n_row, ptrdiff_t width) {
    softmax_state s;
    s.out = take(from, (size_t)(n_row * width));
    s.max = take(from, (size_t)n_row);
    s.sum = take(from, (size_t)n_row);
    return s;
}

static void clear_few(const few *f, softmax_state *s) {
    for (int r = 0; r < f->n_row; r++) {
        s->max[r] = -REAL_INFINITY;
        s->sum[r] = 0;
    }
    memset(s->out, 0, sizeof(real) * (size_t)(f->n_row * f->width));
}

/* Numbers that place_few takes; double, so that what no memory holds does not wrap around. */
static double few_reals(const fa_attention *call) {
    const double d = (double)call->d_head, width = (double)call->d_value + VEC_LANES - 1;
    return FEW_ROWS * d + FEW_ROWS * SEGMENT_KEYS + (2 + FEW_ROWS) * FA_KEY_BLOCK +
           KEYS_AT_ONCE * d + (VALUES_AT_ONCE + FEW_ROWS) * width + 2 * FEW_ROWS * (width + 2);
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
    f->segment = take_state(&scratch, FEW_ROWS, f->width);
    f->total = take_state(&scratch, FEW_ROWS, f->width);
}

static void set_rules(few *f) {
    f->n_row = (int)f->g->n_row;
    int r = 0;
    for (int64_t query = 0; query < f->g->call->n_query; query++)
        for (int64_t head = 0; head < f->g->n_heads; head++)
            f->rule[r++] = rule_of_row(f->g, query, head);
}

static void load_few(few *f) {
    const fa_attention *call = f->g->call;
    set_rules(f);
    for (int r = 0; r < f->n_row; r++) {
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
    clear_few(f, &f->segment);
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
        const real both = r_max(f->total.max[r], f->segment.max[r]);
        const real base = r_base(both);
        const real alpha = r_exp2(f->total.max[r] - base);
        const real beta = r_exp2(f->segment.max[r] - base);
        const real scaled = f->segment.sum[r] * beta;
        f->total.sum[r] = r_fma(f->total.sum[r], alpha, scaled);
        f->total.max[r] = both;
        for (ptrdiff_t d = r * f->width; d < (r + 1) * f->width; d += VEC_LANES)
            v_store(f->total.out + d, v_fma(v_load(f->total.out + d), v_set1(alpha),
                                            v_mul(v_load(f->segment.out + d), v_set1(beta))));
    }
}

/* What is to be done with the keys of one segment that some row has in range. */
typedef void segment_visit(few *f, key_range range, int64_t segment_first);

/* Segments first <= i < end: those with keys that some row has in range. */
typedef struct segment_range {
    int64_t first, end;
} segment_range;

static segment_range segments_of_few(const few *f) {
    const key_range keys = range_of_rows(f->rule, f->n_row);
    segment_range segments = {0, 0};
    if (keys.first < keys.end) {
        segments.first = segment_of_key(f->g->call, keys.first);
        segments.end = segment_of_key(f->g->call, keys.end - 1) + 1;
    }
    return segments;
}

static void visit_segment(few *f, int64_t segment, segment_visit *visit) {
    const int64_t first = first_key_of_segment(f->g->call, segment);
    const int64_t end = first_key_of_segment(f->g->call, segment + 1);
    visit(f, range_in_segment(f, first, end), first);
}

/* Returns 0 if told to stop. */
static int each_segment(few *f, segment_visit *visit) {
    const segment_range segments = segments_of_few(f);
    for (int64_t segment = segments.first; segment < segments.end; segment++) {
        if (segment > segments.first && fa_pool_leaving())
            return 0;
        visit_segment(f, segment, visit);
    }
    return 1;
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
        const real max = f->total.max[r];
        const vec base = v_set1(r_base(max)), sum = v_set1(f->total.sum[r]);
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

static int attend_few(few *f) {
    clear_few(f, &f->total);
    return each_segment(f, attend_and_merge);
}

static int few_is_suspect(const few *f) {
    real zeros[VEC_LANES];
    for (int r = 0; r < f->n_row; r++) {
        vec zero = v_set1(0); /* NaN once an x - x is; columns past d_value are 0 */
        for (ptrdiff_t d = 0; d < f->width; d += VEC_LANES) {
            const vec x = v_load(f->total.out + r * f->width + d);
            zero = v_add(zero, v_sub(x, x));
        }
        v_store(zeros, zero);
        for (int i = 0; i < VEC_LANES; i++)
            if (zeros[i] != 0 && f->total.sum[r] > 0)
                return 1;
    }
    return 0;
}

static void write_few_row(few *f, int r) {
    const group *g = f->g;
    const row_end end = end_row(g, &f->rule[r], &f->total.max[r], &f->total.sum[r]);
    const vec alpha = v_set1(end.alpha), sum = v_set1(end.sum), live = v_set1(end.live);
    const ptrdiff_t n = (ptrdiff_t)g->call->d_value;
    char *row = row_of(&g->output, f->rule[r].query, f->rule[r].head);
    for (ptrdiff_t d = 0; d < n; d += VEC_LANES) {
        const int width = n - d < VEC_LANES ? (int)(n - d) : VEC_LANES;
        const vec o = v_load(f->total.out + r * f->width + d);
        store_columns(row, g->output.dtype, g->output.column, d, width,
                      output_of(o, alpha, sum, live));
    }
}

static void write_few(few *f) {
    for (int r = 0; r < f->n_row; r++)
        write_few_row(f, r);
}

static void run_few(const group *g, real *scratch) {
    few f;
    place_few(&f, g, scratch);
    load_few(&f);
    f.careful = 0;
    if (!attend_few(&f))
        return;
    if (few_is_suspect(&f)) {
        f.careful = 1;
        if (!attend_few(&f))
            return;
    }
    write_few(&f);
    if (g->call->weights.data)
        each_segment(&f, weigh_segment);
}
