/* One batch entry and one kv head: the unit that shares keys and values.
 *
 * Its rows are all (query, head) pairs of the heads that read this kv head, query-major: row r is
 * query r / heads of head r % heads. So grouped heads share each load of K and V, and rows of a
 * tile stand at neighbouring positions, which keeps causal tiles narrow.
 */

/* Which operations make a final score out of q . k: ARITHMETIC.md, step 2. */
typedef struct score_form {
    real softcap, softcap_inverse; /* 0: off */
    int has_slopes, has_bias;
} score_form;

typedef struct group {
    const fa_attention *call;
    int64_t batch, first_head, n_heads, n_row;
    int64_t n_key; /* valid keys of this batch entry */
    int64_t query_offset;
    row_view key, value;
    row_view key_scale, value_scale; /* one row; data NULL unless int8 */
    score_form form;
    int has_long_form; /* any of softcap, ALiBi, bias */
    real score_factor; /* c2, or scale in the long form */
} group;

/* What the options say about one row. */
typedef struct row_rule {
    int64_t first, end; /* keys in range: first <= j < end */
    int64_t position;
    int64_t query, head;
    real slope;
    const char *mask, *bias; /* rows of n_key elements, NULL if absent */
} row_rule;

/* The scale of int8 key j, `column` reals from that of the next, or NULL. */
FA_INLINE const real *scale_of_key(const row_view *scale, int64_t j) {
    return scale->data ? (const real *)scale->data + j * scale->column : NULL;
}

FA_INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
FA_INLINE int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static group open_group(const fa_attention *call, int64_t index) {
    group g = {0};
    g.call = call;
    g.batch = index / call->n_kv_head;
    g.n_heads = call->n_head / call->n_kv_head;
    const int64_t kv_head = index % call->n_kv_head;
    g.first_head = kv_head * g.n_heads;
    g.n_row = call->n_query * g.n_heads;
    g.n_key = call->kv_lengths ? call->kv_lengths[g.batch] : call->n_key;
    g.query_offset = call->query_offset ? call->query_offset[g.batch] : 0;
    g.key = plane(call, &call->key, g.batch, kv_head);
    g.value = plane(call, &call->value, g.batch, kv_head);
    g.key_scale = plane(call, &call->key_scale, g.batch, kv_head);
    g.value_scale = plane(call, &call->value_scale, g.batch, kv_head);
    g.has_long_form = call->softcap != 0 || call->slopes.data || call->bias.data;
    g.score_factor = (real)(g.has_long_form ? call->scale : call->scale * 0x1.71547652b82fep+0);
    g.form.softcap = (real)call->softcap;
    g.form.softcap_inverse = call->softcap != 0 ? 1 / g.form.softcap : 0;
    g.form.has_slopes = call->slopes.data != NULL;
    g.form.has_bias = call->bias.data != NULL;
    return g;
}

/* The row of an array (*lead, n_head, n_query, ...) that belongs to row r of the group. */
static char *group_row(const group *g, const fa_array *array, int64_t query, int64_t head) {
    if (!array->data)
        return NULL;
    const ptrdiff_t offset = lead_offset(g->call, array, g->batch) + (ptrdiff_t)head * array->head +
                             (ptrdiff_t)query * array->row;
    return (char *)array->data + offset * (ptrdiff_t)dtype_size(array->dtype);
}

static row_rule rule_of_row(const group *g, int64_t r) {
    const fa_attention *call = g->call;
    row_rule rule;
    rule.query = r / g->n_heads;
    rule.head = g->first_head + r % g->n_heads;
    rule.position = rule.query + g->query_offset;
    rule.first = 0;
    rule.end = g->n_key;
    if (call->window_left >= 0)
        rule.first = max_i64(0, rule.position - call->window_left);
    if (call->window_right >= 0)
        rule.end = min_i64(rule.end, rule.position + call->window_right + 1);
    if (call->is_causal)
        rule.end = min_i64(rule.end, rule.position + 1);
    if (rule.end <= rule.first)
        rule.first = rule.end = 0;
    const char *slope = group_row(g, &call->slopes, 0, rule.head);
    rule.slope = slope ? *(const real *)slope : 0;
    rule.mask = group_row(g, &call->mask, rule.query, rule.head);
    rule.bias = group_row(g, &call->bias, rule.query, rule.head);
    return rule;
}

/* Blocks and segments are counted from the absolute position of key 0. */
FA_INLINE int64_t segment_of_key(const fa_attention *call, int64_t j) {
    return (call->key_start + j) / ((int64_t)FA_KEY_BLOCK * FA_SEGMENT);
}
FA_INLINE int64_t first_key_of_segment(const fa_attention *call, int64_t segment) {
    return max_i64(0, segment * FA_KEY_BLOCK * FA_SEGMENT - call->key_start);
}

/* The last merge, with a sink of weight 1 and no value; returns what the sums so far shrink by. */
FA_INLINE real merge_sink(const group *g, int64_t head, real *max, real *sum) {
    if (!g->call->sinks)
        return 1;
    const real sink = ((const real *)g->call->sinks)[head];
    if (sink == -REAL_INFINITY)
        return 1;
    real sink2 = sink * LOG2E;
    if (r_is_finite(sink))
        sink2 = sink2 > REAL_HUGE ? REAL_HUGE : sink2 < -REAL_HUGE ? -REAL_HUGE : sink2;
    const real both = r_max(*max, sink2);
    const real base = both == -REAL_INFINITY ? 0 : both;
    const real alpha = r_exp2(*max - base);
    *sum = r_fma(*sum, alpha, r_exp2(sink2 - base));
    *max = both;
    return alpha;
}

/* What every path ends with: the sink, output and lse of one row. `total` is O of ARITHMETIC.md,
 * `step` reals from column to column; max and sum become the final ones. */
static void write_row(const group *g, const row_rule *rule, const real *total, ptrdiff_t step,
                      real *max, real *sum) {
    const fa_attention *call = g->call;
    const int sees_key = *sum != 0; /* else its total may be anything: 0 * NaN */
    const real alpha = merge_sink(g, rule->head, max, sum);
    const int is_nan = *sum != *sum;
    char *out = group_row(g, &call->output, rule->query, rule->head);
    for (int64_t d = 0; d < call->d_value; d++) {
        real x = 0;
        if (is_nan)
            x = quiet_nan();
        else if (sees_key)
            x = total[d * step] * alpha / *sum;
        put(out, call->output.dtype, (ptrdiff_t)d * call->output.column, x);
    }
    char *lse = group_row(g, &call->lse, rule->query, rule->head);
    if (!lse)
        return;
    real x = -REAL_INFINITY;
    if (is_nan)
        x = quiet_nan();
    else if (*sum != 0)
        x = (*max + r_log2(*sum)) * LN2;
    put(lse, REAL_DTYPE, 0, x);
}
