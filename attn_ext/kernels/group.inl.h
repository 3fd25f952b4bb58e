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

/* The rows of one batch entry of an array (*lead, n_head, n_query, ...); data NULL if absent. */
typedef struct head_rows {
    char *data;
    fa_dtype dtype;
    ptrdiff_t head, row; /* bytes */
    ptrdiff_t column;    /* elements */
} head_rows;

typedef struct group {
    const fa_attention *call;
    int64_t batch, first_head, n_heads, n_row;
    int64_t n_key; /* valid keys of this batch entry */
    int64_t query_offset;
    row_view key, value;
    row_view key_scale, value_scale; /* one row; data NULL unless int8 */
    head_rows query, mask, bias, slopes, output, lse, weights;
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

/* a / b of numbers that are not negative. 64 bits take up to 90 cycles on some CPUs, 32 a third. */
FA_INLINE int64_t quotient(int64_t a, int64_t b) {
    return (a | b) <= UINT32_MAX ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}
FA_INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
FA_INLINE int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static head_rows open_rows(const fa_attention *call, const fa_array *array, int64_t batch) {
    const ptrdiff_t size = (ptrdiff_t)dtype_size(array->dtype);
    head_rows rows = {array->data, array->dtype, array->head * size, array->row * size,
                      array->column};
    if (rows.data)
        rows.data += lead_offset(call, array, batch) * size;
    return rows;
}

FA_INLINE char *row_of(const head_rows *rows, int64_t query, int64_t head) {
    return rows->data ? rows->data + head * rows->head + query * rows->row : NULL;
}

static group open_group(const fa_attention *call, int64_t index) {
    group g; /* every field is set below */
    g.call = call;
    g.batch = quotient(index, call->n_kv_head);
    g.n_heads = quotient(call->n_head, call->n_kv_head);
    const int64_t kv_head = index - g.batch * call->n_kv_head;
    g.first_head = kv_head * g.n_heads;
    g.n_row = call->n_query * g.n_heads;
    g.n_key = call->kv_lengths ? call->kv_lengths[g.batch] : call->n_key;
    g.query_offset = call->query_offset ? call->query_offset[g.batch] : 0;
    g.key = plane(call, &call->key, g.batch, kv_head);
    g.value = plane(call, &call->value, g.batch, kv_head);
    g.key_scale = plane(call, &call->key_scale, g.batch, kv_head);
    g.value_scale = plane(call, &call->value_scale, g.batch, kv_head);
    g.query = open_rows(call, &call->query, g.batch);
    g.mask = open_rows(call, &call->mask, g.batch);
    g.bias = open_rows(call, &call->bias, g.batch);
    g.slopes = open_rows(call, &call->slopes, g.batch);
    g.output = open_rows(call, &call->output, g.batch);
    g.lse = open_rows(call, &call->lse, g.batch);
    g.weights = open_rows(call, &call->weights, g.batch);
    g.has_long_form = call->softcap != 0 || call->slopes.data || call->bias.data;
    g.score_factor = (real)(g.has_long_form ? call->scale : call->scale * 0x1.71547652b82fep+0);
    g.form.softcap = (real)call->softcap;
    g.form.softcap_inverse = call->softcap != 0 ? 1 / g.form.softcap : 0;
    g.form.has_slopes = call->slopes.data != NULL;
    g.form.has_bias = call->bias.data != NULL;
    return g;
}

/* Row query * g->n_heads + head. */
static row_rule rule_of_row(const group *g, int64_t query, int64_t head) {
    const fa_attention *call = g->call;
    row_rule rule;
    rule.query = query;
    rule.head = g->first_head + head;
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
    const char *slope = row_of(&g->slopes, 0, rule.head);
    rule.slope = slope ? *(const real *)slope : 0;
    rule.mask = row_of(&g->mask, rule.query, rule.head);
    rule.bias = row_of(&g->bias, rule.query, rule.head);
    return rule;
}

/* Keys first <= j < end; none if end <= first. */
typedef struct key_range {
    int64_t first, end;
} key_range;

/* The shortest range with all keys that some of the rows has in range. */
static key_range range_of_rows(const row_rule *rule, int n_row) {
    key_range range = {INT64_MAX, 0};
    for (int i = 0; i < n_row; i++)
        if (rule[i].first < rule[i].end) {
            range.first = min_i64(range.first, rule[i].first);
            range.end = max_i64(range.end, rule[i].end);
        }
    return range;
}

/* Blocks and segments are counted from the absolute position of key 0. */
FA_INLINE int64_t segment_of_key(const fa_attention *call, int64_t j) {
    return (call->key_start + j) / ((int64_t)FA_KEY_BLOCK * FA_SEGMENT);
}
FA_INLINE int64_t first_key_of_segment(const fa_attention *call, int64_t segment) {
    return max_i64(0, segment * FA_KEY_BLOCK * FA_SEGMENT - call->key_start);
}
