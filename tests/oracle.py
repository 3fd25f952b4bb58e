"""Attention computed the slow and plain way, in a wider type, and how far a result may lie from it.

Written from the public contract alone: one loop over batches and query heads, one dense matrix of
scores per head.  ``attention`` takes the arguments of ``scaled_dot_product_attention`` and returns
the exact results (to the precision of the wider type) together with the documented error bound of
every row.  float32 arithmetic is judged in float64, float64 arithmetic in ``numpy.longdouble``.

The bound, with eps the unit roundoff of the arithmetic and over the keys that the row sees:

    |out - exact| <= eps * [(2 D + C) A + 6 B + 2 KEY_BLOCK + 4 S / KEY_BLOCK + 32] * max |v|
                     + (KEY_BLOCK + S / KEY_BLOCK) * tiny + half an ulp of the output type

    A = max_j |scale| k_scale_j sum_d |q_d k_jd|        B = max_j (|alibi| + |mask| + |bias|)
    C = 12, or 20 with softcap

lse: the bracket alone, plus 4 eps |lse|.  Weights: twice the bracket.
"""

from dataclasses import dataclass, fields

import numpy as np

KEY_BLOCK = 96
LOG2_E = 1.4426950408889634
FARTHEST = 2**60  # a window side beyond this is open


@dataclass
class Reference:
    """Exact results and their bounds, shaped as the call returns them."""

    output: np.ndarray  # (..., Hq, L, Dv), NaN where any non-finite number is right
    lse: np.ndarray  # (..., Hq, L)
    weights: np.ndarray  # (..., Hq, L, S)
    visible: np.ndarray  # (..., Hq, L, S) bool
    output_bound: np.ndarray  # (..., Hq, L, Dv)
    lse_bound: np.ndarray  # (..., Hq, L)
    weights_bound: np.ndarray  # (..., Hq, L, S)


@dataclass
class _Call:
    """The arguments, broadcast to one batch axis and converted to the wide type."""

    query: np.ndarray  # (B, Hq, L, D)
    key: np.ndarray  # (B, Hkv, S, D)
    value: np.ndarray  # (B, Hkv, S, Dv)
    keep: np.ndarray | None  # (B, Hq, L, S) bool
    added: np.ndarray | None  # (B, Hq, L, S), the float mask or the bias
    slopes: np.ndarray | None  # (B, Hq)
    key_scale: np.ndarray  # (B, Hkv, S)
    value_scale: np.ndarray  # (B, Hkv, S)
    sinks: np.ndarray  # (Hq,), -inf for none
    lengths: np.ndarray  # (B,)
    offsets: np.ndarray  # (B,)
    is_causal: bool
    window: tuple[int, int]  # -1 = open
    scale: np.floating
    softcap: np.floating | None
    compute: np.dtype
    output_dtype: np.dtype
    lead: tuple[int, ...]
    drop_head: bool


def half_ulp(size, dtype):
    """Half the spacing of ``dtype`` at the magnitudes ``size``, subnormals included."""
    if np.dtype(dtype).kind == "f":
        info = np.finfo(dtype)
    else:
        import ml_dtypes

        info = ml_dtypes.finfo(dtype)
    size = np.maximum(np.asarray(size, np.float64), float(info.smallest_normal))
    return np.ldexp(float(info.eps) / 4, np.frexp(size)[1])


def attention(query, key, value, attn_mask=None, **options):
    """Exact attention and its error bounds; arguments as in the public function."""
    call = _prepare(query, key, value, attn_mask, **options)
    (n_batch, n_head, n_query, _), (n_key, d_value) = call.query.shape, call.value.shape[2:]
    rows, wide = (n_batch, n_head, n_query), call.query.dtype
    result = Reference(
        output=np.zeros((*rows, d_value), wide),
        lse=np.zeros(rows, wide),
        weights=np.zeros((*rows, n_key), wide),
        visible=np.zeros((*rows, n_key), bool),
        output_bound=np.zeros((*rows, d_value)),
        lse_bound=np.zeros(rows),
        weights_bound=np.zeros((*rows, n_key)),
    )
    with np.errstate(all="ignore"):
        for b, h in np.ndindex(n_batch, n_head):
            head = _one_head(call, b, h, h // (n_head // call.key.shape[1]))
            for field in fields(Reference):
                getattr(result, field.name)[b, h] = getattr(head, field.name)
    for field in fields(Reference):
        array = getattr(result, field.name)
        array = array.reshape(call.lead + array.shape[1:])
        setattr(result, field.name, array[0] if call.drop_head else array)
    return result


def error_bound(query, key, value, attn_mask=None, **options):
    """(..., Hq, L) the documented bound of the output, its largest over the columns of a row."""
    bound = attention(query, key, value, attn_mask, **options).output_bound
    return bound.max(axis=-1, initial=0)


def _floating(array):
    array = np.asarray(array)
    counts = array.dtype.kind == "i" and array.dtype.itemsize > 1
    return array.astype(np.float64) if counts else array


def _saturated(values, dtype):
    """Values rounded once to the arithmetic: infinities stay, what is finite stays finite."""
    largest = float(np.finfo(dtype).max)
    values = np.asarray(values).astype(np.float64)
    return np.where(np.isinf(values), values, np.clip(values, -largest, largest)).astype(dtype)


def _window_sides(window):
    if window is None:
        return -1, -1
    left, right = (window, window) if np.ndim(window) == 0 else window
    return tuple(-1 if side is None else min(int(side), FARTHEST) for side in (left, right))


def _prepare(
    query, key, value, attn_mask=None, *, bias=None, is_causal=False, scale=None, window=None,
    query_offset=None, kv_lengths=None, softcap=None, sinks=None, alibi_slopes=None,
    k_scale=None, v_scale=None, out=None, return_lse=False, return_weights=False, num_threads=None,
):  # fmt: skip
    arrays = [_floating(x) for x in (query, key, value)]
    drop_head = all(x.ndim == 2 for x in arrays)
    output_dtype = arrays[0].dtype
    arrays = [x[None] if x.ndim == 2 else x for x in arrays]
    compute = np.dtype(np.float64 if any(x.dtype == np.float64 for x in arrays) else np.float32)
    wide = np.dtype(np.longdouble if compute == np.float64 else np.float64)
    lead = np.broadcast_shapes(*(x.shape[:-3] for x in arrays))
    (n_head, n_query, d_head), (n_kv_head, n_key) = arrays[0].shape[-3:], arrays[1].shape[-3:-1]

    def spread(values, *tail):
        return np.broadcast_to(values, lead + tail).reshape((int(np.prod(lead, dtype=int)), *tail))

    def parameter(values, *tail):
        if values is None:
            return None
        values = np.asarray(values)
        if values.dtype != bool:
            values = _saturated(values, compute).astype(wide)
        return spread(values, *tail)

    is_bool = attn_mask is not None and np.asarray(attn_mask).dtype == bool
    keep, added = (attn_mask, bias) if is_bool or attn_mask is None else (None, attn_mask)
    lengths = spread(np.asarray(n_key if kv_lengths is None else kv_lengths, np.int64))
    if isinstance(query_offset, str):
        offsets = lengths - n_query
    else:
        offsets = spread(np.asarray(0 if query_offset is None else query_offset, np.int64))
    default_scale = 1.0 / np.sqrt(d_head) if d_head else 1.0
    return _Call(
        *(spread(x.astype(wide), *x.shape[-3:]) for x in arrays),
        keep=parameter(keep, n_head, n_query, n_key),
        added=parameter(added, n_head, n_query, n_key),
        slopes=parameter(alibi_slopes, n_head),
        key_scale=parameter(1.0 if k_scale is None else k_scale, n_kv_head, n_key),
        value_scale=parameter(1.0 if v_scale is None else v_scale, n_kv_head, n_key),
        sinks=np.broadcast_to(np.asarray(-np.inf if sinks is None else sinks, compute), (n_head,)),
        lengths=lengths,
        offsets=offsets,
        is_causal=is_causal,
        window=_window_sides(window),
        scale=wide.type(default_scale if scale is None else scale),
        softcap=None if softcap is None else wide.type(compute.type(softcap)),
        compute=compute,
        output_dtype=output_dtype,
        lead=lead,
        drop_head=drop_head,
    )


def _allowed(call, b, h):
    """(L, S) bool: what lengths, causal, window, mask and bias let a row see."""
    n_query, n_key = call.query.shape[2], call.key.shape[2]
    position = np.arange(n_query)[:, None] + call.offsets[b]
    key = np.arange(n_key)[None, :]
    left, right = call.window
    allowed = np.broadcast_to(key < call.lengths[b], (n_query, n_key))
    if call.is_causal:
        allowed = allowed & (key <= position)
    if left >= 0:
        allowed = allowed & (key >= position - left)
    if right >= 0:
        allowed = allowed & (key <= position + right)
    if call.keep is not None:
        allowed = allowed & call.keep[b, h]
    return allowed if call.added is None else allowed & (call.added[b, h] != -np.inf)


def _position_bias(call, b, h):
    if call.slopes is None:
        return None
    position = np.arange(call.query.shape[2])[:, None] + call.offsets[b]
    distance = np.abs(position - np.arange(call.key.shape[2]))
    return -call.slopes[b, h] * distance.astype(call.query.dtype)


def _overflowed(score, limit):
    return np.where(np.abs(score) > limit, np.copysign(np.inf, score), score)


def _scores(call, b, h, g):
    """Return final scores (L, S) in the arithmetic's range, and |alibi| + |mask| + |bias|."""
    largest = call.query.dtype.type(np.finfo(call.compute).max)
    limit = largest / call.query.dtype.type(LOG2_E)
    dot = (call.query[b, h] @ call.key[b, g].T) * call.key_scale[b, g]
    score = _overflowed(dot, largest) * call.scale
    if call.softcap is not None:
        score = call.softcap * np.tanh(score / call.softcap)
    terms = [_position_bias(call, b, h), None if call.added is None else call.added[b, h]]
    terms = [term for term in terms if term is not None]
    clamped = np.isfinite(score) & (call.softcap is not None or len(terms) > 0)
    bias_size = np.zeros_like(score)
    for term in terms:
        score = score + term
        bias_size = bias_size + np.abs(term)
        clamped &= np.isfinite(term)
    score = np.where(clamped, np.clip(score, -limit, limit), _overflowed(score, limit))
    return score, bias_size


def _softmax(score, visible, sink):
    """Weights and log-sum-exp of the rows of one head; a sink of -inf is none."""
    top = np.maximum(np.max(score, axis=1, initial=-np.inf, where=visible), sink)
    shift = np.where(np.isneginf(top), 0, top)
    part = np.where(visible, np.exp(score - shift[:, None]), 0)
    total = part.sum(axis=1) + np.exp(sink - shift)
    total = np.where(top == np.inf, np.nan, total)
    empty = total == 0
    divisor = np.where(empty, 1, total)
    lse = np.where(empty, -np.inf, shift + np.log(divisor))
    return np.where(visible, part / divisor[:, None], 0), lse


def _mix(weights, value, visible):
    """Mix values by weights; a non-finite value touches the rows that see it and no other."""
    finite = np.isfinite(value)
    output = weights @ np.where(finite, value, 0)
    if finite.all():
        return output
    return np.where(visible.astype(np.int64) @ (~finite).astype(np.int64) > 0, np.nan, output)


def _one_head(call, b, h, g):
    score, bias_size = _scores(call, b, h, g)
    visible = _allowed(call, b, h) & (score != -np.inf)
    weights, lse = _softmax(score, visible, call.sinks[h].astype(score.dtype))
    value = call.value[b, g] * call.value_scale[b, g][:, None]
    output = _mix(weights, value, visible)
    output[np.isnan(lse)] = np.nan

    def largest(size):
        size = np.where(visible & np.isfinite(size), size, 0)
        return np.max(size, axis=1, initial=0).astype(np.float64)

    dot_size = np.abs(call.query[b, h]) @ np.abs(call.key[b, g]).T
    dot_size = dot_size * np.abs(call.key_scale[b, g] * call.scale)
    value_size = np.max(np.abs(value), axis=1, initial=0, where=np.isfinite(value))
    n_key, d_head = call.key.shape[2:]
    factor = 2 * d_head + (12 if call.softcap is None else 20)
    bracket = factor * largest(dot_size) + 6 * largest(bias_size)
    bracket = bracket + 2 * KEY_BLOCK + 4 * n_key / KEY_BLOCK + 32
    return _judged(call, bracket, largest(value_size), output, lse, weights, visible)


def _judged(call, bracket, value_size, output, lse, weights, visible):
    """Pair the results of one head with the bounds that follow from the bracket (L,)."""
    info = np.finfo(call.compute)
    eps = float(info.eps) / 2
    tiny = (KEY_BLOCK + call.key.shape[2] / KEY_BLOCK) * float(info.smallest_subnormal)
    output_bound = (eps * bracket * value_size + tiny)[:, None]
    weights_bound = (2 * eps * bracket + tiny)[:, None]
    return Reference(
        output=output,
        lse=lse,
        weights=weights,
        visible=visible,
        output_bound=output_bound + half_ulp(np.abs(output) + output_bound, call.output_dtype),
        lse_bound=eps * bracket + 4 * eps * np.abs(lse) + tiny,
        weights_bound=weights_bound + half_ulp(np.abs(weights) + weights_bound, call.output_dtype),
    )
