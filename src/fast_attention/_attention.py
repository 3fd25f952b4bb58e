"""scaled_dot_product_attention: the public function over both backends."""

from __future__ import annotations

from typing import Literal, NamedTuple, SupportsFloat, Unpack, overload

from . import _backend, _explain, _threads
from ._descriptor import AttentionDescriptor, describe_attention
from ._dtypes import Array, ArrayInput
from ._options import ScoreOptions, Window, warn_if_ends_differ, warn_of_odd_mask


class OutputLse(NamedTuple):
    """What ``return_lse=True`` returns."""

    output: Array
    lse: Array


class OutputWeights(NamedTuple):
    """What ``return_weights=True`` returns."""

    output: Array
    weights: Array


class OutputLseWeights(NamedTuple):
    """What ``return_lse=True, return_weights=True`` returns."""

    output: Array
    lse: Array
    weights: Array


class _Options(ScoreOptions, total=False):
    """The keyword arguments that do not change the type of the result."""

    out: Array | None
    num_threads: int | None


@overload
def scaled_dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[False] = False,
    **options: Unpack[_Options],
) -> Array: ...
@overload
def scaled_dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    *,
    return_lse: Literal[True],
    return_weights: Literal[False] = False,
    **options: Unpack[_Options],
) -> OutputLse: ...
@overload
def scaled_dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[True],
    **options: Unpack[_Options],
) -> OutputWeights: ...
@overload
def scaled_dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    *,
    return_lse: Literal[True],
    return_weights: Literal[True],
    **options: Unpack[_Options],
) -> OutputLseWeights: ...
@overload
def scaled_dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    *,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Unpack[_Options],
) -> Array | OutputLse | OutputWeights | OutputLseWeights: ...
def scaled_dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    *,
    bias: ArrayInput | None = None,
    is_causal: bool = False,
    scale: SupportsFloat | None = None,
    window: Window = None,
    query_offset: ArrayInput | Literal["end"] | None = None,
    kv_lengths: ArrayInput | None = None,
    softcap: SupportsFloat | None = None,
    sinks: ArrayInput | None = None,
    alibi_slopes: ArrayInput | None = None,
    k_scale: ArrayInput | None = None,
    v_scale: ArrayInput | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    out: Array | None = None,
    num_threads: int | None = None,
) -> Array | OutputLse | OutputWeights | OutputLseWeights:
    """Attend: ``softmax(scale * query @ key.T) @ value``, with masks and all that goes with them.

    The matrix of scores is never formed. Arrays are used where they lie, whatever their strides;
    inputs are never written.

    Parameters
    ----------
    query : array_like, shape (..., Hq, L, D)
        float16, bfloat16 (``ml_dtypes.bfloat16``), float32 or float64; lists and integers of 16 to
        64 bits are taken as float64. 2-D means one head and no head axis. A ``(B, L, H, D)`` array
        is passed as ``x.transpose(0, 2, 1, 3)``. NaN makes its row NaN if the row sees a key.
    key : array_like, shape (..., Hkv, S, D)
        One of the same dtypes, not necessarily the query's, or int8 with `k_scale`. Hq must be a
        multiple of Hkv: query head h reads kv head ``h // (Hq // Hkv)``. Leading axes broadcast as
        in NumPy over query, key and value, without a copy. NaN makes NaN of the rows that see the
        key, and of no other; what is masked may hold anything.
    value : array_like, shape (..., Hkv, S, Dv)
        As `key`, or int8 with `v_scale`; Dv is free. A visible value that is not finite makes its
        column not finite in the rows that see it.
    attn_mask : array_like, optional
        bool: True = attend. Floats: the same as `bias`. Broadcastable to (..., Hq, L, S), which it
        never enlarges.
    bias : array_like, optional
        Floats of any of the four dtypes, broadcastable to (..., Hq, L, S), added to the scaled and
        capped scores. -inf = masked; ``finfo.min`` is a number as any other, not a mask; NaN or
        +inf in a visible place makes the row NaN. Its dtype does not change that of the arithmetic.
    is_causal : bool, default False
        Key j is visible to query i only if ``j <= i + query_offset``.
    scale : float, optional
        Any finite number; default ``1 / sqrt(D)``, or 1 if D is 0.
    window : int or (int or None, int or None), optional
        ``(left, right)``: key j is visible to the query at position ``p = i + query_offset`` only
        if ``p - left <= j <= p + right``. None or -1 = open on this side. An int stands for both
        sides.
    query_offset : int or array_like of int or "end", optional
        Position of query 0 among the keys, may be negative; ints broadcast to the leading shape.
        "end" puts the last query at the last valid key. Default 0, the first query at the first
        key.
    kv_lengths : int or array_like of int, optional
        Number of valid keys, from 0 to S, broadcast to the leading shape. Later keys do not exist.
    softcap : float, optional
        c > 0 and finite replaces the scaled score s by ``c * tanh(s / c)``.
    sinks : float or array_like, shape (Hq,), optional
        One more logit per head, neither scaled nor capped and without a value: it takes its share
        of the weights (0.0 gives the softmax off by one). -inf = none; NaN or +inf makes NaN rows.
    alibi_slopes : array_like, shape (..., Hq), optional
        Finite slopes; ``-slope * abs(p - j)`` is added to the score, before the bias.
    k_scale, v_scale : array_like, shape (..., Hkv, S), optional
        Quantisation steps of an int8 `key` or `value`, broadcastable to this shape: the real number
        is ``scale * int8``. Required with int8, refused with floats. That of a masked key may hold
        anything.
    return_lse : bool, default False
        Also return the natural logarithm of the sum of the exponentials of the final scores.
    return_weights : bool, default False
        Also return the softmax weights, which do take L * S memory per head.
    out : ndarray, shape (..., Hq, L, Dv), optional
        Where to write the output: of the query's dtype, writeable, with any strides. It may overlap
        neither itself nor an input.
    num_threads : int, optional
        At least 1. Default: see ``threads``. The NumPy backend leaves its threads to BLAS.

    Returns
    -------
    output : ndarray, shape (..., Hq, L, Dv)
        In the query's dtype (float64 for lists and integers), C-ordered unless `out` is given. 0
        for a row that sees no key. No head axis if query, key and value all are 2-D.
    lse : ndarray, shape (..., Hq, L)
        Only with `return_lse`: float64 if query, key or value is, else float32. -inf, or the sink,
        for a row that sees no key.
    weights : ndarray, shape (..., Hq, L, S)
        Only with `return_weights`: in the query's dtype; rows sum to 1, less the share of the sink.
        With one or both of these the result is a named tuple ``(output, lse, weights)`` of what was
        asked for.

    Raises
    ------
    TypeError
        For a dtype that is not named above: integers as `attn_mask`, which could be read in two
        ways; int8, uint8, bool or complex as query, key or value; int8 without its scale, or a
        scale without int8.
    ValueError
        For shapes that do not fit; two float masks; a scale, softcap or slope that is not finite in
        the dtype of the arithmetic; lengths outside 0 to S; an `out` that overlaps.

    Warns
    -----
    UserWarning
        If L and S differ, no `query_offset` is given, and `is_causal`, `window` or `alibi_slopes`
        depends on it: libraries disagree on which end is aligned, so say ``0`` or ``"end"``.
        If a float `attn_mask` holds ones and zeros only: it was probably meant to be bool. If it is
        a Python bool or float: another argument was probably meant.

    See Also
    --------
    attention_steps : every stage of the computation as an array.
    merge_attention : one result from several over parts of the keys.
    explain : what a call would do, and what it costs.
    error_bound : the bound below for given inputs.
    masks : masks as arrays.
    show_config : backend, instruction set and threads in use.
    threads : limit the threads of a block of code.

    Notes
    -----
    In this order: score = q . k, times scale, softcap, plus ALiBi and bias, dropping what is
    masked, softmax with the sink, times value. Masks, causal, window and lengths always intersect.
    A final score of +inf makes the row NaN, as in SciPy; of -inf, the key is not visible.

    The arithmetic is float64 if query, key or value is float64, else float32; 16-bit and int8
    numbers widen exactly, and weights are not rounded before they meet the values. With u the unit
    roundoff of that type (2**-24 or 2**-53) and a rounding to the output dtype on top, over visible
    keys j::

        abs(output - exact) <= u * ((2*D + C)*A + 6*B + 2*K + 4*S/K + 32) * max(abs(value))
        A = max_j abs(scale) * sum_d abs(query[d] * key[j, d])
        B = max_j (abs(alibi) + abs(bias))

    where K = 96 is the key block and C = 12, or 20 with softcap. It holds while every score and S
    times the greatest value stay below a quarter of the greatest finite number; ``error_bound``
    computes it. The bound of lse has 1 in place of max(abs(value)), plus ``4 * u * abs(lse)``; that
    of the weights is twice that bracket.

    Cost: ``2 * L * S * (D + Dv)`` operations per query head, less what causal, window and lengths
    cut off; memory beside the results that does not grow with L or S. The native backend splits the
    work over `num_threads` threads of its own, gives the same bits for any number of them, and
    computes each row the same way whatever else is in the call. Several Python threads may call at
    once.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention Is All You Need", 2017, equation 1.
    .. [2] M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018.
    .. [3] T. Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with
       IO-Awareness", 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import scaled_dot_product_attention
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((2, 8, 5, 16), dtype=np.float32)  # (batch, heads, L, D)
    >>> key = rng.standard_normal((2, 2, 5, 16), dtype=np.float32)  # one for four query heads
    >>> value = rng.standard_normal((2, 2, 5, 16), dtype=np.float32)
    >>> scaled_dot_product_attention(query, key, value, is_causal=True).shape
    (2, 8, 5, 16)

    True in a mask means attend:

    >>> q, k = np.zeros((1, 2)), np.zeros((3, 2))
    >>> v = np.array([[0.0], [3.0], [6.0]])
    >>> scaled_dot_product_attention(q, k, v, [[False, True, True]])
    array([[4.5]])

    One query that continues three keys stands at the end:

    >>> scaled_dot_product_attention(q, k, v, is_causal=True, query_offset="end")
    array([[3.]])

    A result is what was asked for:

    >>> result = scaled_dot_product_attention(q, k, v, return_lse=True)
    >>> print(result.lse.round(4))
    [1.0986]
    """
    if (
        attn_mask is None
        and bias is None
        and window is None
        and query_offset is None
        and kv_lengths is None
        and softcap is None
        and sinks is None
        and alibi_slopes is None
        and k_scale is None
        and v_scale is None
        and out is None
        and not return_lse
        and not return_weights
        and not _explain.is_verbose
    ):
        plain = _backend.attend_plain(
            query, key, value, is_causal, scale, _threads.resolve(num_threads)
        )
        if plain is not None:
            return plain
    described = describe_attention(
        query,
        key,
        value,
        attn_mask,
        bias=bias,
        is_causal=is_causal,
        scale=scale,
        window=window,
        query_offset=query_offset,
        kv_lengths=kv_lengths,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        k_scale=k_scale,
        v_scale=v_scale,
        return_lse=return_lse,
        return_weights=return_weights,
        out=out,
        num_threads=num_threads,
    )
    if query_offset is None:
        warn_if_ends_differ(described)
    warn_of_odd_mask(attn_mask, described)
    return run(described)


def run(described: AttentionDescriptor) -> Array | OutputLse | OutputWeights | OutputLseWeights:
    """Compute a described call, logged if that is asked for; return what the caller wants."""
    if _explain.is_verbose:
        _explain.log_plan(described)
    _backend.attend(described)
    output, lse, weights = described.results()
    if lse is None:
        return output if weights is None else OutputWeights(output, weights)
    return OutputLse(output, lse) if weights is None else OutputLseWeights(output, lse, weights)
