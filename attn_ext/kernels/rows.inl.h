/* The rows of a reduction: which elements differ in the reduced axes only, and where they are.
 *
 * Neighbouring axes that every array steps through as one are joined first, so that most calls end
 * with one outer and one reduced axis.
 */
typedef struct reduction {
    const fa_reduction *call;
    int n_outer, n_reduced; /* axes, after neighbours were joined */
    int64_t shape[FA_MAX_AXES];
    fa_axes x, y, where, output;
    int64_t n_row, n; /* rows, elements in each */
    int across;       /* rows in the lanes: the last outer axis is the contiguous one */
    int is_in_place;  /* the result takes the place of an argument */
} reduction;

/* Whether every array steps through `axis` and the next one as through one longer axis. */
static int can_join(const reduction *r, int axis) {
    if (r->shape[axis] == 1 || r->shape[axis + 1] == 1)
        return 1;
    const fa_axes *arrays[] = {&r->x, &r->y, &r->where, &r->output};
    for (int a = 0; a < 4; a++)
        if (arrays[a]->data &&
            arrays[a]->stride[axis] != arrays[a]->stride[axis + 1] * r->shape[axis + 1])
            return 0;
    return 1;
}

/* One axis in place of `axis` and the next one. */
static void join_with_next(reduction *r, int axis) {
    fa_axes *arrays[] = {&r->x, &r->y, &r->where, &r->output};
    if (r->shape[axis + 1] == 1) /* its strides mean nothing */
        for (int a = 0; a < 4; a++)
            arrays[a]->stride[axis + 1] = arrays[a]->stride[axis];
    r->shape[axis + 1] *= r->shape[axis];
    for (int i = axis; i + 1 < FA_MAX_AXES; i++) {
        r->shape[i] = r->shape[i + 1];
        for (int a = 0; a < 4; a++)
            arrays[a]->stride[i] = arrays[a]->stride[i + 1];
    }
}

static int join_axes(reduction *r, int first, int n_axes) {
    for (int axis = first; axis + 1 < first + n_axes;) {
        if (can_join(r, axis)) {
            join_with_next(r, axis);
            n_axes--;
        } else {
            axis++;
        }
    }
    return n_axes;
}

static int64_t product_of(const int64_t *shape, int n) {
    int64_t product = 1;
    for (int i = 0; i < n; i++)
        product *= shape[i];
    return product;
}

/* Fewer columns than a quarter of the lanes are faster one by one, along the lanes. */
static int is_worth_lanes(int64_t n_column) { return n_column > 1 && n_column > VEC_LANES / 4; }

static reduction open_reduction(const fa_reduction *call) {
    reduction r;
    memset(&r, 0, sizeof r);
    r.call = call;
    r.n_outer = call->n_outer;
    r.n_reduced = call->n_reduced;
    memcpy(r.shape, call->shape, sizeof r.shape);
    r.x = call->x;
    r.y = call->y;
    r.where = call->where;
    r.output = call->output;
    r.n_row = product_of(r.shape, r.n_outer);
    r.n = product_of(r.shape + r.n_outer, r.n_reduced);
    r.n_reduced = join_axes(&r, r.n_outer, r.n_reduced);
    r.n_outer = join_axes(&r, 0, r.n_outer);
    const int last = r.n_outer + r.n_reduced - 1;
    r.across = r.n_outer > 0 && r.n_reduced > 0 && r.x.stride[r.n_outer - 1] == 1 &&
               r.x.stride[last] != 1 && is_worth_lanes(r.shape[r.n_outer - 1]) && r.n > 1;
    r.is_in_place = r.output.data == r.x.data || r.output.data == r.y.data;
    return r;
}

/* Offset in elements of position `index` of n axes from `first` on, in C order. */
static ptrdiff_t offset_of(const reduction *r, const fa_axes *a, int first, int n, int64_t index) {
    ptrdiff_t offset = 0;
    if (n == 1) /* the usual case, without a division */
        return (ptrdiff_t)index * a->stride[first];
    for (int axis = first + n - 1; axis >= first; axis--) {
        offset += (ptrdiff_t)(index % r->shape[axis]) * a->stride[axis];
        index /= r->shape[axis];
    }
    return offset;
}

/* Offset of element i of a row from its element 0. */
FA_INLINE ptrdiff_t offset_in_row(const reduction *r, const fa_axes *a, int64_t i) {
    return offset_of(r, a, r->n_outer, r->n_reduced, i);
}

FA_INLINE char *element_at(const fa_axes *a, ptrdiff_t offset) {
    return (char *)a->data + offset * (ptrdiff_t)dtype_size(a->dtype);
}
