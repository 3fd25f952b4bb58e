"""The operator Attention of ONNX, opsets 23 to 25, on NumPy arrays.

Y comes from the ordinary kernels. A mask that is shorter than the keys hides the keys past its end,
so these are cut off by a view and the mask is used as it is. The scores that
``qk_matmul_output_mode`` asks for exist nowhere in those kernels; they are computed beside them.

References: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import operator
from typing import Any, Literal, NamedTuple, SupportsFloat, TypedDict, Unpack, overload

import numpy as np

from .. import _backend
from .._arguments import check_range
from .._descriptor import AttentionDescriptor, describe_attention
from .._dtypes import FLOAT64, Array, ArrayInput, as_array, as_integers, as_operand, round_to

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


class _Attributes(TypedDict, total=False):
    """The attributes that do not change how many outputs there are; None = not given."""

    is_causal: int | None
    kv_num_heads: int | None
    left_window_size: int | None
    q_num_heads: int | None
    right_window_size: int | None
    scale: SupportsFloat | None
    softcap: SupportsFloat | None
    softmax_precision: int | None


_MODE = "qk_matmul_output_mode"
_NAMES = sorted([*_Attributes.__annotations__, _MODE])
_PRECISIONS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


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
    **attributes: Unpack[_Attributes],
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
    **attributes: Unpack[_Attributes],
) -> AttentionOutputsAndScores: ...
def attention(  # type: ignore[misc]  # further keywords are read, to name those that are valid
    Q: ArrayInput,  # noqa: N803  (the names of the operator)
    K: ArrayInput,  # noqa: N803
    V: ArrayInput,  # noqa: N803
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
    read = _read_attributes(attributes)
    query, key, value = _by_heads(Q, K, V, read)
    dtype, n_query = query.dtype, query.shape[2]
    n_past, key, value = _after_past(key, value, past_key, past_value)
    lengths, offset = None, np.asarray(n_past)
    if nonpad_kv_seqlen is not None:
        if past_key is not None:
            raise ValueError("nonpad_kv_seqlen and past_key are both given, expected one of them")
        lengths = _lengths(nonpad_kv_seqlen, len(query), key.shape[2])
        offset = lengths - n_query
    mask, n_seen = _mask_and_its_end(attn_mask, key.shape[2])
    if read.double:
        query = query.astype(FLOAT64)
    y, y_by_heads = _new_output(query, value.shape[3], flat=as_array("Q", Q).ndim == 3)
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
    _backend.attend(d)
    weights = d.results()[2]
    outputs = _rounded(y, dtype), key, value
    if read.mode is None:
        return AttentionOutputs(*outputs)
    scores = _scores(d, key, read.mode) if weights is None else _padded(weights, key.shape[2])
    return AttentionOutputsAndScores(*outputs, _rounded(scores, dtype))


class _Read(NamedTuple):
    """The attributes, checked."""

    is_causal: bool
    n_head: int | None
    n_kv_head: int | None
    window: tuple[int, int]
    scale: SupportsFloat | None
    softcap: SupportsFloat | None
    mode: int | None
    double: bool  # the arithmetic is to be float64


def _read_attributes(attributes: dict[str, Any]) -> _Read:
    unknown = sorted(attributes.keys() - set(_NAMES))
    if unknown:
        raise TypeError(
            f"Attention has no attribute {', '.join(unknown)}; expected {', '.join(_NAMES)}"
        )

    def integer(name: str, expected: str, valid: range | dict[int, str]) -> int | None:
        given = attributes.get(name)
        if given is None:
            return None
        try:
            number = operator.index(given.item() if isinstance(given, np.generic) else given)
        except TypeError:
            raise TypeError(f"{name} must be {expected}, not {given!r}") from None
        if number not in valid:
            raise ValueError(f"{name} must be {expected}, given {given!r}")
        return number

    def side(name: str) -> int:
        width = integer(name, "-1 (open) or above", range(-1, 2**63))
        return -1 if width is None else width

    precision = integer(
        "softmax_precision", ", ".join(f"{n} ({kind})" for n, kind in _PRECISIONS.items()), _PRECISIONS
    )
    softcap = attributes.get("softcap")
    return _Read(
        is_causal=bool(integer("is_causal", "0 or 1", range(2))),
        n_head=integer("q_num_heads", "1 or above", range(1, 2**63)),
        n_kv_head=integer("kv_num_heads", "1 or above", range(1, 2**63)),
        window=(side("left_window_size"), side("right_window_size")),
        scale=attributes.get("scale"),
        softcap=None if softcap == 0 else softcap,
        mode=integer(_MODE, "0, 1, 2 or 3", range(4)),
        double=precision is not None and _PRECISIONS[precision] == "float64",
    )


def _by_heads(q: ArrayInput, k: ArrayInput, v: ArrayInput, read: _Read) -> tuple[Array, ...]:
    """View Q, K and V as (B, heads, length, width)."""
    arrays = as_operand("Q", q), as_operand("K", k), as_operand("V", v)
    shapes = "shapes are " + ", ".join(f"{n} {a.shape}" for n, a in zip("QKV", arrays, strict=True))
    if {a.ndim for a in arrays} not in ({3}, {4}):
        raise ValueError(f"Q, K and V need 3 axes each, or 4 each; {shapes}")
    if len({len(a) for a in arrays}) > 1:
        raise ValueError(f"Q, K and V differ in batch size; {shapes}")
    query, key, value = arrays
    return (
        _split("Q", query, "q_num_heads", read.n_head),
        _split("K", key, "kv_num_heads", read.n_kv_head),
        _split("V", value, "kv_num_heads", read.n_kv_head),
    )


def _split(name: str, array: Array, attribute: str, count: int | None) -> Array:
    if array.ndim == 4:
        if count not in (None, array.shape[1]):
            raise ValueError(f"{attribute} is {count}, but {name} of shape {array.shape} has "
                             f"{array.shape[1]} heads")
        return array
    batch, length, hidden = array.shape
    if count is None:
        raise ValueError(f"{name} of shape {array.shape} has 3 axes, expected {attribute} with it")
    if hidden % count:
        raise ValueError(
            f"{name} of shape {array.shape} cannot be split into {attribute}={count} heads: "
            f"{hidden} is not a multiple of {count}"
        )
    return array.reshape(batch, length, count, hidden // count).transpose(0, 2, 1, 3)


def _after_past(
    key: Array, value: Array, past_key: ArrayInput | None, past_value: ArrayInput | None
) -> tuple[int, Array, Array]:
    """Return the length of the past, and the keys and values that begin with it."""
    if past_key is None and past_value is None:
        return 0, key, value
    if past_key is None or past_value is None:
        given, missing = ("key", "value") if past_value is None else ("value", "key")
        raise ValueError(f"past_{given} is given without past_{missing}, expected both or neither")
    past_k, past_v = as_operand("past_key", past_key), as_operand("past_value", past_value)
    key = _joined("past_key", past_k, "K", key)
    value = _joined("past_value", past_v, "V", value)
    if past_k.shape[2] != past_v.shape[2]:
        raise ValueError(
            f"past_key of shape {past_k.shape} and past_value of shape {past_v.shape} "
            "differ in length"
        )
    return past_k.shape[2], key, value


def _joined(past_name: str, past: Array, name: str, new: Array) -> Array:
    if past.ndim != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
        batch, n_head, _, width = new.shape
        raise ValueError(
            f"{past_name} has shape {past.shape}, expected ({batch}, {n_head}, any length, "
            f"{width}) as {name} by heads has shape {new.shape}"
        )
    if past.dtype != new.dtype:
        raise TypeError(
            f"{past_name} has dtype {past.dtype}, expected {new.dtype}, the dtype of {name}"
        )
    return np.concatenate((past, new), axis=2)


def _lengths(given: ArrayInput, n_batch: int, n_key: int) -> Array:
    name = "nonpad_kv_seqlen"
    array = as_array(name, given)
    if array.shape != (n_batch,):
        raise ValueError(f"{name} has shape {array.shape}, expected one length each, ({n_batch},)")
    lengths = as_integers(name, array, (n_batch,))
    check_range(name, lengths, 0, n_key)
    return lengths


def _mask_and_its_end(attn_mask: ArrayInput | None, n_key: int) -> tuple[Array | None, int]:
    """Return the mask, and how many keys there are before it ends."""
    if attn_mask is None:
        return None, n_key
    mask = as_array("attn_mask", attn_mask)
    if mask.ndim == 0 or mask.shape[-1] > n_key:
        raise ValueError(
            f"attn_mask has shape {mask.shape}, expected a last axis of at most {n_key}, the number "
            "of keys with those of the past"
        )
    return mask, mask.shape[-1]


def _new_output(query: Array, d_value: int, *, flat: bool) -> tuple[Array, Array]:
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


def _padded(weights: Array, n_key: int) -> Array:
    """Give the keys past the end of a short mask the weight 0."""
    n_seen = weights.shape[-1]
    if n_seen == n_key:
        return weights
    wide = np.zeros((*weights.shape[:-1], n_key), weights.dtype)
    wide[..., :n_seen] = weights
    return wide


def _scores(d: AttentionDescriptor, key: Array, mode: int) -> Array:
    """Scaled scores of all of `key` (B, Hq, L, S); mode 1 capped, mode 2 with bias and masks."""
    dtype = d.compute_dtype
    n_group = d.n_head // max(1, d.n_kv_head)
    query = d.query.astype(dtype).reshape(d.n_batch, -1, n_group, d.n_query, d.d_head)
    with np.errstate(all="ignore"):
        grouped = query @ key.astype(dtype)[:, :, None].swapaxes(-1, -2)
        scores = grouped.reshape(d.n_batch, d.n_head, d.n_query, -1)
        scores *= dtype.type(d.scale)
        if mode > 0 and d.softcap is not None:
            scores = dtype.type(d.softcap) * np.tanh(scores / dtype.type(d.softcap))
        if mode == 2:
            seen = scores[..., : d.n_key]
            if d.bias is not None:
                np.add(seen, d.bias, out=seen, casting="same_kind")
            np.copyto(seen, -np.inf, where=~_visible(d))
            scores[..., d.n_key :] = -np.inf
    return scores


def _visible(d: AttentionDescriptor) -> Array:
    """Tell which keys the queries see, broadcastable to (B, Hq, L, S)."""
    assert d.query_offset is not None
    j = np.arange(d.n_key)
    p = np.arange(d.n_query)[:, None] + d.query_offset[:, None, None, None]
    length = d.n_key if d.kv_lengths is None else d.kv_lengths[:, None, None, None]
    visible = np.asarray(j < length)
    if d.is_causal:
        visible = visible & (j <= p)
    if d.window_left >= 0:
        visible = visible & (j >= p - d.window_left)
    if d.window_right >= 0:
        visible = visible & (j <= p + d.window_right)
    if d.mask is not None:
        visible = visible & d.mask
    if d.bias is not None:
        visible = visible & (d.bias != -np.inf)
    return visible
