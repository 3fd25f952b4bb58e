"""The operator Attention of ONNX, opsets 23 to 25, on NumPy arrays.

Y comes from the ordinary kernels. A mask that is shorter than the keys hides the keys past its end,
so these are cut off by a view and the mask is used as it is. The scores that
``qk_matmul_output_mode`` asks for exist nowhere in those kernels; they are computed beside them, as
``attention_steps`` does.

References: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

# ruff: noqa: N803  (the operator calls its inputs Q, K and V)

from __future__ import annotations

from typing import Any, NamedTuple, Unpack, overload

import numpy as np

from .._attention import run
from .._descriptor import AttentionDescriptor, describe_attention
from .._dtypes import FLOAT64, Array, ArrayInput, round_to
from .._steps import add_and_hide, cap, score
from ._onnx_inputs import (
    Attributes,
    after_past,
    by_heads,
    lengths_and_offset,
    mask_and_its_end,
    read_attributes,
)

__all__ = ["AttentionOutputs", "AttentionOutputsAndScores", "attention"]


class AttentionOutputs(NamedTuple):
    """The outputs of the operator, without the last, which nobody asked for."""

    Y: Array
    present_key: Array
    present_value: Array

    @property
    def qk_matmul_output(self) -> None:
        """None: ``qk_matmul_output_mode`` was not given."""
        return


class AttentionOutputsAndScores(NamedTuple):
    """All outputs of the operator, if ``qk_matmul_output_mode`` is given."""

    Y: Array
    present_key: Array
    present_value: Array
    qk_matmul_output: Array


@overload
def attention(
    Q: ArrayInput,
    K: ArrayInput,
    V: ArrayInput,
    attn_mask: ArrayInput | None = None,
    past_key: ArrayInput | None = None,
    past_value: ArrayInput | None = None,
    nonpad_kv_seqlen: ArrayInput | None = None,
    *,
    qk_matmul_output_mode: None = None,
    **attributes: Unpack[Attributes],
) -> AttentionOutputs: ...
@overload
def attention(
    Q: ArrayInput,
    K: ArrayInput,
    V: ArrayInput,
    attn_mask: ArrayInput | None = None,
    past_key: ArrayInput | None = None,
    past_value: ArrayInput | None = None,
    nonpad_kv_seqlen: ArrayInput | None = None,
    *,
    qk_matmul_output_mode: int,
    **attributes: Unpack[Attributes],
) -> AttentionOutputsAndScores: ...
def attention(
    Q: ArrayInput,
    K: ArrayInput,
    V: ArrayInput,
    attn_mask: ArrayInput | None = None,
    past_key: ArrayInput | None = None,
    past_value: ArrayInput | None = None,
    nonpad_kv_seqlen: ArrayInput | None = None,
    **attributes: Any,
) -> AttentionOutputs | AttentionOutputsAndScores:
    """Attend as the ONNX operator Attention does, opsets 23 to 25.

    Parameters
    ----------
    Q : array_like, shape (B, Hq, L, D) or (B, L, Hq * D)
        Queries: float16, bfloat16, float32 or float64; lists and wider integers count as float64.
        With 3 axes all of Q, K and V have 3, and `q_num_heads` and `kv_num_heads` are required.
    K : array_like, shape (B, Hkv, S, D) or (B, S, Hkv * D)
        Keys, of one of the same dtypes. Hq is a multiple of Hkv; query head h reads
        ``h // (Hq // Hkv)``. Any strides: nothing is copied. NaN behind a mask has no effect.
    V : array_like, shape (B, Hkv, S, Dv) or (B, S, Hkv * Dv)
        Values, of one of the same dtypes.
    attn_mask : array_like, optional
        bool (True = attend) or floats that are added to the scores (-inf = masked), broadcastable
        to (B, Hq, L, total), where total counts past and new keys. A last axis that is shorter,
        one of length 1 included, ends early: the keys past its end are masked.
    past_key, past_value : array_like, shape (B, Hkv, P, D) and (B, Hkv, P, Dv), optional
        What comes before K and V, in the same dtypes. Both or neither; not with `nonpad_kv_seqlen`.
    nonpad_kv_seqlen : array_like of int, shape (B,), optional
        Valid keys of each sequence, from 0 to S, where K and V are whole caches.
    **attributes
        is_causal : 0 or 1, default 0
            Query i sees key j only if ``j <= i + offset``. The offset is P with a past,
            ``nonpad_kv_seqlen - L`` with that, else 0; it may be negative.
        left_window_size, right_window_size : int, default -1
            Query i sees key j only if ``i + offset - left <= j <= i + offset + right``; -1 = open.
        scale : float, default ``1 / sqrt(D)``
            Any finite number.
        softcap : float, default 0
            c > 0 replaces the scaled score s by ``c * tanh(s / c)``.
        q_num_heads, kv_num_heads : int
            For arrays of 3 axes; with 4 axes they may only repeat what the shapes say.
        qk_matmul_output_mode : 0, 1, 2 or 3
            Asks for the scores: 0 = scaled, 1 = capped too, 2 = masked too (-inf where masked),
            3 = weights after the softmax. This takes memory of their size. ONNX takes 0 where
            nothing is said, but has the fourth output only where a node names it; here this
            attribute asks for it.
        softmax_precision : 1, 10, 11 or 16
            float32, float16, float64 or bfloat16, as the least precision of the softmax. 11 makes
            the whole arithmetic float64; the others never make it less precise than it is.

    Returns
    -------
    Y : ndarray, shape (B, Hq, L, Dv) or (B, L, Hq * Dv)
        In the dtype of Q; 0 for a row that sees no key.
    present_key, present_value : ndarray, shape (B, Hkv, total, D) and (B, Hkv, total, Dv)
        Past and new keys and values in arrays of their own; without a past, views of K and V.
    qk_matmul_output : ndarray, shape (B, Hq, L, total)
        Only if `qk_matmul_output_mode` is given, else the named tuple has three elements. In the
        dtype of Q. Modes 0 and 1 show what lies behind masks, NaN included.

    Raises
    ------
    TypeError
        For an attribute that the operator does not have, and for integers as `attn_mask`.
    ValueError
        For shapes that do not fit each other, values that an attribute cannot have, a past key
        without a past value, and a past together with `nonpad_kv_seqlen`.

    See Also
    --------
    fast_attention.scaled_dot_product_attention : error bound, cost and threads, which are the same.

    Notes
    -----
    Where the operator computes in the dtype of Q, this computes in float32, or in float64 if Q, K
    or V is float64 or `softmax_precision` says so, and rounds once.

    References
    ----------
    .. [1] ONNX operators, Attention, https://onnx.ai/onnx/operators/onnx__Attention.html

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention.compat.onnx import attention
    >>> rng = np.random.default_rng(0)
    >>> Q = rng.standard_normal((2, 5, 4 * 8), dtype=np.float32)  # four heads of width 8
    >>> K = V = rng.standard_normal((2, 5, 2 * 8), dtype=np.float32)  # two
    >>> first = attention(Q, K, V, q_num_heads=4, kv_num_heads=2, is_causal=1)
    >>> first.Y.shape, first.present_key.shape
    ((2, 5, 32), (2, 2, 5, 8))

    One more token, after a past, with the weights:

    >>> Y, key, value, weights = attention(
    ...     Q[:, -1:], K[:, -1:], V[:, -1:], None, first.present_key, first.present_value,
    ...     q_num_heads=4, kv_num_heads=2, is_causal=1, qk_matmul_output_mode=3,
    ... )
    >>> Y.shape, key.shape, weights.shape
    ((2, 1, 32), (2, 2, 6, 8), (2, 4, 1, 6))
    """
    read = read_attributes(attributes)
    query, key, value, flat = by_heads(Q, K, V, read)
    dtype = query.dtype
    n_past, key, value = after_past(key, value, past_key, past_value)
    lengths, offset = lengths_and_offset(nonpad_kv_seqlen, n_past, query, key)
    mask, n_seen = mask_and_its_end(attn_mask, key.shape[2])
    if read.double:
        query = query.astype(FLOAT64)
    y, y_by_heads = _new_output(query, value.shape[3], flat)
    d = describe_attention(
        query,
        key[:, :, :n_seen],
        value[:, :, :n_seen],
        mask,
        is_causal=read.is_causal,
        scale=read.scale,
        window=read.window,
        query_offset=offset,
        kv_lengths=None if lengths is None else np.minimum(lengths, n_seen),
        softcap=read.softcap,
        return_weights=read.mode == 3,
        out=y_by_heads,
    )
    run(d)
    weights = d.returned[2]
    outputs = _rounded(y, dtype), key, value
    if read.mode is None:
        return AttentionOutputs(*outputs)
    scores = _scores(d, key, read.mode) if weights is None else _padded(weights, key.shape[2])
    return AttentionOutputsAndScores(*outputs, _rounded(scores, dtype))


def _new_output(query: Array, d_value: int, flat: bool) -> tuple[Array, Array]:
    """Return a new Y and the view of it by heads, (B, Hq, L, Dv)."""
    n_batch, n_head, n_query, _ = query.shape
    if not flat:
        y = np.empty((n_batch, n_head, n_query, d_value), query.dtype)
        return y, y
    y = np.empty((n_batch, n_query, n_head * d_value), query.dtype)
    return y, y.reshape(n_batch, n_query, n_head, d_value).transpose(0, 2, 1, 3)


def _rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        return round_to(array, dtype)


def _scores(d: AttentionDescriptor, key: Array, mode: int) -> Array:
    """Scores of all of `key` (B, Hq, L, S) as `mode` wants them; d.key may end before."""
    with np.errstate(all="ignore"):
        scores: Array = score(d, key) * d.compute_dtype.type(d.scale)
        if mode > 0:
            scores = cap(d, scores)
        if mode == 2:
            scores = _padded(add_and_hide(d, scores[..., : d.n_key]), key.shape[2], -np.inf)
    return scores


def _padded(array: Array, n_key: int, fill: float = 0.0) -> Array:
    """Give the keys past the end of a short mask the weight or score `fill`."""
    n_seen = array.shape[-1]
    if n_seen == n_key:
        return array
    wide = np.full((*array.shape[:-1], n_key), fill, array.dtype)
    wide[..., :n_seen] = array
    return wide
