"""The error bound of the arithmetic for one call, row by row.

With eps the unit roundoff of the arithmetic, over the keys j that a row sees,

    |out - exact| <= eps * [(2 D + C) A + 6 B + 2 K + 4 S / K + 32] * max|v| + (K + S / K) * tiny
                     + half an ulp of the output,
    A = max_j |scale| k_scale_j sum_d |q_d k_jd|,    B = max_j (|alibi| + |mask| + |bias|),

where C is 12, or 20 with softcap, K is ``KEY_BLOCK`` and tiny the smallest subnormal. Both backends keep it, so their results
differ by at most twice of it. The sums of A are themselves rounded, by a relative D eps, which is
far below what the bound leaves open. A block of query rows is worked on at a time, against the
keys that the block sees.
"""

import math
from typing import Any

import numpy as np

from ._descriptor import AttentionDescriptor

KEY_BLOCK = 96
_BLOCK_SCORES = 1 << 20  # scores held at a time, 4 MB of float32

_MANTISSA_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
_LEAST_EXPONENT = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}


def difference_in_bounds(
    first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], bound: np.ndarray[Any, Any]
) -> float:
    """Return the largest ``|first - second|``, in units of the error bound.

    Parameters
    ----------
    first, second : ndarray, shape (..., L, Dv)
        Two results of one call, of the same dtype.
    bound : ndarray, shape (..., L)
        The rows' bound from `error_bound`; half an ulp of the results is added here.

    Returns
    -------
    float
        0 where both are the same; nan if the two are not finite in the same places.
    """
    if first.size == 0:
        return 0.0
    wide_first, wide_second = first.astype(np.float64), second.astype(np.float64)
    difference = np.abs(wide_first - wide_second)
    largest = np.maximum(np.abs(wide_first), np.abs(wide_second))
    allowed = bound[..., None] + _half_ulp(largest, first.dtype)
    return float(np.max(difference / allowed))


def _half_ulp(magnitude: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return half the distance between neighbours of `dtype` at `magnitude`."""
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, _LEAST_EXPONENT[dtype.name])
    return np.asarray(np.ldexp(1.0, exponent - _MANTISSA_BITS[dtype.name] - 1))


def error_bound(descriptor: AttentionDescriptor) -> np.ndarray[Any, Any]:
    """Return the bound of every row, less half an ulp of the output, ``(*lead, Hq, L)`` float64."""
    d = descriptor
    bound = np.empty((*d.lead, d.n_head, d.n_query))
    for batch, index in enumerate(np.ndindex(d.lead)):
        for head in range(d.n_head):
            bound[(*index, head)] = _head_bound(d, batch, index, head)
    return bound


def _head_bound(
    d: AttentionDescriptor, batch: int, index: tuple[int, ...], head: int
) -> np.ndarray[Any, Any]:
    """Return the bound of one head's rows, ``(L,)``."""
    kv = (*index, head // (d.n_head // d.n_kv_head))
    magnitude = np.abs(d.key[kv].astype(d.compute_dtype)) * abs(d.scale)  # (S, D)
    peak = np.abs(d.value[kv].astype(d.compute_dtype)).max(axis=-1, initial=0)  # (S,)
    if d.k_scale is not None:
        magnitude *= np.abs(d.k_scale[kv])[:, None]
    if d.v_scale is not None:
        peak = peak * np.abs(d.v_scale[kv])
    rows = max(1, _BLOCK_SCORES // max(1, d.n_key))
    bound = np.empty(d.n_query)
    for start in range(0, d.n_query, rows):
        block = slice(start, min(start + rows, d.n_query))
        bound[block] = _block_bound(d, batch, (*index, head), block, magnitude, peak)
    return bound


def _block_bound(
    d: AttentionDescriptor,
    batch: int,
    index: tuple[int, ...],
    block: slice,
    magnitude: np.ndarray[Any, Any],
    peak: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return the bound of the rows `block` of the head at `index`, ``(rows,)``."""
    position, low, high = _key_range(d, batch, block)
    keys = slice(int(low.min()), max(int(low.min()), int(high.max())))
    column = np.arange(keys.start, keys.stop)
    visible = (column >= low[:, None]) & (column < high[:, None])
    added = np.zeros(visible.shape, d.compute_dtype)
    if d.mask is not None:
        visible &= d.mask[index][block, keys]
    if d.bias is not None:
        bias = d.bias[index][block, keys].astype(d.compute_dtype)
        visible &= bias != -np.inf
        added += np.abs(bias)
    if d.alibi_slopes is not None:
        added += np.abs(d.alibi_slopes[index] * (position[:, None] - column))
    query = np.abs(d.query[index][block].astype(d.compute_dtype))
    score = query @ magnitude[keys].T
    a = np.max(score, axis=-1, where=visible, initial=0).astype(np.float64)
    b = np.max(added, axis=-1, where=visible, initial=0).astype(np.float64)
    v = np.max(np.broadcast_to(peak[keys], visible.shape), axis=-1, where=visible, initial=0)
    return _bound(d, a, b, v.astype(np.float64))


def _key_range(
    d: AttentionDescriptor, batch: int, block: slice
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return position, first key and end of the keys that each row of `block` may see."""
    offset = 0 if d.query_offset is None else int(d.query_offset[batch])
    length = d.n_key if d.kv_lengths is None else int(d.kv_lengths[batch])
    position = np.arange(block.start, block.stop) + offset
    low = np.zeros_like(position)
    high = np.full_like(position, length)
    if d.window_left >= 0:
        low = np.maximum(low, position - d.window_left)
    if d.window_right >= 0:
        high = np.minimum(high, position + d.window_right + 1)
    if d.is_causal:
        high = np.minimum(high, position + 1)
    return position, np.minimum(low, d.n_key), np.clip(high, 0, d.n_key)


def _bound(
    d: AttentionDescriptor,
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Put A, B and max|v| of some rows together."""
    info = np.finfo(d.compute_dtype)
    roundoff = math.ldexp(1.0, -info.nmant - 1)
    blocks = d.n_key / KEY_BLOCK
    bracket = (2 * d.d_head + (12 if d.softcap is None else 20)) * a + 6 * b + 2 * KEY_BLOCK + 4 * blocks + 32
    tiny = (KEY_BLOCK + blocks) * float(info.smallest_subnormal)
    return np.asarray(roundoff * bracket * v + tiny)
