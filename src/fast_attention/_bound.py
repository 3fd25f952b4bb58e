"""The error bound of the arithmetic for one call, row by row.

`error_bound` is the public function; its docstring has the formula. What it bounds are both
backends, so their results differ by at most twice of it, which is what ``compare`` looks at:
`arithmetic_bound` is the bound before the last rounding, `difference_in_bounds` the judgement.

The bound is itself computed in float64, a block of query rows at a time, against the keys that the
block sees. Its sums have no negative term, so they are wrong by a relative D * 2**-53 at most, and
the result is made greater by more than that. Products that underflow, which the formula leaves out,
are covered by the smallest normal number n of the arithmetic: eps * n is half a subnormal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from ._descriptor import AttentionDescriptor
from ._dtypes import Array, ArrayInput
from ._options import ScoreOptions, describe_scores
from ._positions import Positions, positions

KEY_BLOCK = 96
_BLOCK_SCORES = 1 << 20  # scores held at a time, 8 MB

_MANTISSA_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
_LEAST_EXPONENT = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}


def error_bound(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    **options: Unpack[ScoreOptions],
) -> Array:
    """Bound the error of ``scaled_dot_product_attention`` for these inputs, row by row.

    No element of a row of the output is further than this from the exact result, whichever backend,
    instruction set and number of threads computes it.

    Parameters
    ----------
    query, key, value, attn_mask : array_like
        As for ``scaled_dot_product_attention``, with the same checks. Nothing is written.
    **options
        ``bias``, ``is_causal``, ``scale``, ``window``, ``query_offset``, ``kv_lengths``,
        ``softcap``, ``sinks``, ``alibi_slopes``, ``k_scale`` and ``v_scale``: as there. What only
        says where results go and who computes them is no option here.

    Returns
    -------
    ndarray, shape (..., Hq, L), float64
        The bound of each row, without the head axis if query, key and value all are 2-D. inf where
        the arithmetic gives no bound: the row sees something that is not finite, or its numbers
        come within a factor of 4 of the greatest finite one, or round beyond it in the output.

    Raises
    ------
    TypeError, ValueError
        As ``scaled_dot_product_attention``, and TypeError for an option that is not named above.

    Warns
    -----
    UserWarning
        As ``scaled_dot_product_attention``: if the alignment of queries and keys is left open, or
        if `attn_mask` is probably not what was meant.

    See Also
    --------
    scaled_dot_product_attention : what is bounded.
    attention_steps : where in the computation a number comes from.

    Notes
    -----
    Over the keys j that the row sees::

        abs(output - exact) <= u * ((2*D + C)*A + 6*B + 2*K + 4*S/K + 32) * V + (K + S/K)*t + h

        A = max_j abs(scale) * k_scale[j] * sum_d abs(query[d] * key[j, d])
        B = max_j (abs(alibi slope * distance) + abs(bias))
        V = max_j abs(value[j]), with v_scale

    u is the unit roundoff of the arithmetic (2**-24 for float32, 2**-53 for float64), t its
    smallest subnormal number, D the width of the keys, S their number, K = 96 the key block, C =
    12, or 20 with softcap. h is half an ulp of the output dtype at V, for the last rounding. Keys
    that are masked, out of the window or past the length count in no maximum.

    "exact" is the result in real numbers of the inputs as the arithmetic reads them: query, key and
    value widen without error; bias, slopes, sinks, softcap and the two scales of int8 are rounded
    to its dtype first.

    The bound is made for the worst case, in which all roundings conspire; errors are usually a few
    hundredths of it. The log-sum-exp keeps ``u * (the bracket) + 4*u*abs(lse)``.

    Cost: as one product of query and key in NumPy, in float64; blocks of rows, never all scores.

    References
    ----------
    .. [1] N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., 2002, chapter 3.

    Examples
    --------
    float32 against float64, whose own error does not count:

    >>> import numpy as np
    >>> from fast_attention import error_bound, scaled_dot_product_attention
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 8, 50, 16), dtype=np.float32)  # 8 heads
    >>> bound = error_bound(q, k, v, is_causal=True)
    >>> bound.shape
    (8, 50)
    >>> bool(bound.max() < 2e-4)
    True
    >>> output = scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> q, k, v = (x.astype(np.float64) for x in (q, k, v))
    >>> exact = scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> bool((abs(output - exact) <= bound[..., None]).all())
    True
    """
    d = describe_scores("error_bound", query, key, value, attn_mask, options)
    with np.errstate(all="ignore"):
        rows = _row_bounds(d)
        bound = rows.bound + _rounding_of_output(rows.value + rows.bound, d.query.dtype)
    return bound[0] if d.drop_head else bound


def difference_in_bounds(
    first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], bound: np.ndarray[Any, Any]
) -> float:
    """Return the largest ``|first - second|``, in units of the error bound.

    Parameters
    ----------
    first, second : ndarray, shape (..., L, Dv)
        Two results of one call, of the same dtype.
    bound : ndarray, shape (..., L)
        The rows' bound from `arithmetic_bound`; half an ulp of the results is added here.

    Returns
    -------
    float
        0 where both are the same, infinity and nan included; nan if the two differ where one of
        them is not finite.
    """
    if first.size == 0:
        return 0.0
    one, other = first.astype(np.float64), second.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    comparable = np.isfinite(one) & np.isfinite(other)
    with np.errstate(all="ignore"):
        difference = np.where(comparable, np.abs(one - other), np.nan)
    allowed = bound[..., None] + _half_ulp(np.maximum(np.abs(one), np.abs(other)), first.dtype)
    return float(np.max(np.where(same, 0, difference / allowed)))


def _half_ulp(magnitude: Array, dtype: np.dtype[Any]) -> Array:
    """Return half the distance between neighbours of `dtype` at `magnitude`."""
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, _LEAST_EXPONENT[dtype.name])
    return np.asarray(np.ldexp(1.0, exponent - _MANTISSA_BITS[dtype.name] - 1))


def _rounding_of_output(magnitude: Array, dtype: np.dtype[Any]) -> Array:
    """Bound the error of rounding numbers up to `magnitude` to `dtype`: inf where it overflows."""
    half = _half_ulp(magnitude, dtype)
    beyond = np.ldexp(1.0, 2 - _LEAST_EXPONENT[dtype.name])  # inf for float64
    return np.where(magnitude + half < beyond, half, np.inf)


def arithmetic_bound(descriptor: AttentionDescriptor) -> Array:
    """Return the bound of every row, less half an ulp of the output, ``(*lead, Hq, L)`` float64."""
    with np.errstate(all="ignore"):
        return _row_bounds(descriptor).bound


class _Rows(NamedTuple):
    """The bound of some rows, and the greatest absolute value that each of them sees."""

    bound: Array
    value: Array


class _Head(NamedTuple):
    """What the rows of one head have in common."""

    at: tuple[int, ...]  # index of the head in (*lead, Hq)
    key: Array  # |key|, (S, D)
    k_scale: Array | None  # |k_scale|, (S,)
    reach: Array  # k_scale * sum_d |key|, (S,)
    value: Array  # v_scale * max |value|, (S,)


def _row_bounds(d: AttentionDescriptor) -> _Rows:
    where = positions(d)
    result = _Rows(*np.empty((2, *d.lead, d.n_head, d.n_query)))
    for batch, index in enumerate(np.ndindex(d.lead)):
        ranges = Positions(*(array[batch] for array in where))
        for number in range(d.n_head):
            _bound_head(d, _head(d, index, number), ranges, result)
    return result


def _head(d: AttentionDescriptor, index: tuple[int, ...], number: int) -> _Head:
    kv = (*index, number // (d.n_head // d.n_kv_head))
    key = np.abs(d.key[kv].astype(np.float64))
    value = np.abs(d.value[kv].astype(np.float64)).max(axis=-1, initial=0)
    reach, k_scale = key.sum(axis=-1), None
    if d.k_scale is not None:
        k_scale = np.abs(d.k_scale[kv].astype(np.float64))
        reach *= k_scale
    if d.v_scale is not None:
        value *= np.abs(d.v_scale[kv].astype(np.float64))
    return _Head((*index, number), key, k_scale, reach, value)


def _bound_head(d: AttentionDescriptor, head: _Head, ranges: Positions, result: _Rows) -> None:
    """Fill the bounds of one head's rows, block by block."""
    rows = max(1, _BLOCK_SCORES // max(1, d.n_key))
    for start in range(0, d.n_query, rows):
        block = slice(start, min(start + rows, d.n_query))
        part = Positions(*(array[block] for array in ranges))
        bound, value = _bound_block(d, head, block, part)
        result.bound[head.at][block] = bound
        result.value[head.at][block] = value
    if d.sinks is not None and not d.sinks[head.at[-1]] < np.inf:
        result.bound[head.at] = np.inf


def _bound_block(d: AttentionDescriptor, head: _Head, block: slice, part: Positions) -> _Rows:
    first = int(part.low.min())
    keys = slice(first, max(first, int(part.high.max())))
    column = np.arange(keys.start, keys.stop)
    visible = (column >= part.low[:, None]) & (column < part.high[:, None])
    added: Array | None = None
    if d.mask is not None:
        visible &= d.mask[head.at][block, keys]
    if d.bias is not None:
        bias = d.bias[head.at][block, keys]
        visible &= bias != -np.inf
        added = np.abs(bias.astype(d.compute_dtype).astype(np.float64))
    if d.alibi_slopes is not None:
        slope = float(d.alibi_slopes[head.at])
        alibi = np.abs(slope * (part.position[:, None] - column))
        added = alibi if added is None else added + alibi

    def greatest(size: Array) -> Array:
        return np.asarray(np.where(visible, size, 0).max(axis=-1, initial=0))

    b = np.zeros(len(visible)) if added is None else greatest(added)
    query = np.abs(d.query[head.at][block].astype(np.float64))
    a, scores = _score_sizes(d, head, query, keys, greatest)
    return _put_together(d, a, b, greatest(head.value[keys]), scores)


def _score_sizes(
    d: AttentionDescriptor,
    head: _Head,
    query: Array,
    keys: slice,
    greatest: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """Return A, and the greatest size that a score has on its way there, of some rows."""
    size = query @ head.key[keys].T
    peak = greatest(size)
    scores = peak
    if head.k_scale is not None:
        peak = greatest(size * head.k_scale[keys])
        scores = np.maximum(scores, peak)
    normal = float(np.finfo(d.compute_dtype).smallest_normal)
    underflow = normal * (abs(d.scale) + greatest(head.reach[keys]))
    a = peak * abs(d.scale) + underflow
    return a, np.maximum(scores, a)


def _put_together(d: AttentionDescriptor, a: Array, b: Array, v: Array, scores: Array) -> _Rows:
    """Return the bound from A, B, max|v| and the size of the scores; inf where it does not hold."""
    info = np.finfo(d.compute_dtype)
    roundoff = math.ldexp(1.0, -info.nmant - 1)
    blocks = d.n_key / KEY_BLOCK
    factor = 2 * d.d_head + (12 if d.softcap is None else 20)
    bracket = factor * a + 6 * b + 2 * KEY_BLOCK + 4 * blocks + 32
    tiny = (KEY_BLOCK + blocks) * float(info.smallest_subnormal)
    bound = (roundoff * bracket * v + tiny) * (1 + (d.d_head + 16) * 2.0**-52)
    limit = float(info.max) / 4
    holds = (scores + b <= limit) & (d.n_key * v <= limit)  # False for NaN
    return _Rows(np.where(holds, bound, np.inf), v)
