"""attention_steps: every stage of attention as an array, in plain NumPy; and the lesson to it."""

from __future__ import annotations

import math
from typing import NamedTuple, Unpack

import numpy as np

from ._descriptor import AttentionDescriptor
from ._dtypes import Array, ArrayInput
from ._numpy._rounding import store
from ._options import ScoreOptions, describe_scores
from ._positions import positions


class AttentionSteps(NamedTuple):
    """The stages of attention in their order; all but the last have the shape (..., Hq, L, S).

    What each of them is: ``attention_steps``.
    """

    scores: Array  # query . key
    scaled: Array  # scale * scores
    capped: Array  # softcap * tanh(scaled / softcap), or scaled again
    biased: Array  # plus ALiBi and bias; -inf where the key is hidden from the query
    weights: Array  # softmax of biased, over the keys
    output: Array  # weights @ value, (..., Hq, L, Dv)


def attention_steps(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    **options: Unpack[ScoreOptions],
) -> AttentionSteps:
    """Attend step by step, and return what every step gives: for learning and for debugging.

    Parameters
    ----------
    query, key, value, attn_mask : array_like
        As for ``scaled_dot_product_attention``, with the same checks: (..., Hq, L, d_k),
        (..., Hkv, S, d_k) and (..., Hkv, S, d_v), or two axes for one head. Arrays and lists of
        integers are taken as float64.
    **options
        ``bias``, ``is_causal``, ``scale``, ``window``, ``query_offset``, ``kv_lengths``,
        ``softcap``, ``sinks``, ``alibi_slopes``, ``k_scale`` and ``v_scale``: as there.

    Returns
    -------
    AttentionSteps
        A named tuple ``(scores, scaled, capped, biased, weights, output)``, explained below. The
        output has the query's dtype, the rest that of the arithmetic: float64 if query, key or
        value is float64, else float32. Without a head axis if query, key and value have none. No
        two share memory.

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
    scaled_dot_product_attention : the same output, within the error bound, without these arrays.
    self_attention : from embeddings to context vectors, projections included.

    Notes
    -----
    **What goes in.** A text of T tokens is an array x of shape (T, d_e): one *embedding* of width
    d_e for each token. Three learned matrices make three vectors of it for each token::

        query = x @ w_query    (T, d_k)    what the token looks for
        key   = x @ w_key      (T, d_k)    what the token is found by
        value = x @ w_value    (T, d_v)    what the token tells those who find it

    d_k is free, but one for both, as queries are compared with keys; d_v is free. In
    self-attention, all three come from one x and L = S = T. In general there are L queries, from
    one text, and S keys with S values, from another. In the plain form there are no matrices: x is
    query, key and value, and d_k = d_v = d_e.

    **What happens.** For query i and key j, each line is one field of the result::

        scores[i, j]  = sum over d of query[i, d] * key[j, d]                       (L, S)
        scaled[i, j]  = scale * scores[i, j]             scale = 1 / sqrt(d_k)      (L, S)
        capped[i, j]  = c * tanh(scaled[i, j] / c)       only with softcap c        (L, S)
        biased[i, j]  = capped[i, j] - slope * abs(p - j) + bias[i, j]              (L, S)
                        or -inf, if key j is hidden from query i
        weights[i, j] = exp(biased[i, j]) / sum over k of exp(biased[i, k])         (L, S)
        output[i, :]  = sum over j of weights[i, j] * value[j, :]                   (L, d_v)

    *scores*: the dot product is large for vectors that point the same way; it measures similarity.

    *scaled*: a dot product of d_k independent terms of variance 1 has the variance d_k. Divided by
    sqrt(d_k) it has the variance 1 whatever d_k is, and the softmax is not driven to its ends.

    *biased*: ``-inf`` wherever a rule hides the key: a mask, causal (a token does not see those
    after it), a window, or the length of a padded sequence. p is the position of the query,
    ``i + query_offset``.

    *weights*: the softmax. Each row is made of numbers from 0 to 1 whose sum is 1: how much of its
    attention query i gives to key j. ``exp(-inf)`` is 0: what is hidden gets nothing. With a sink,
    ``exp(sink)`` is one more term of the sum, and the row sums to less. A row that is hidden
    everywhere is 0.

    *output*: the *context vector* of each query, a mean of the values with these weights.

    Of several heads, each does this on its own, with vectors of its own; if there are fewer key
    heads than query heads, neighbouring query heads share one.

    Every array is formed in full: L * S numbers per head and step.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention Is All You Need", 2017, section 3.2.

    Examples
    --------
    Three tokens with d_k = 4, so that the scale is 1/2, and d_v = 2:

    >>> import numpy as np
    >>> from fast_attention import attention_steps
    >>> query = key = np.array([[2, 0, 0, 0], [0, 2, 0, 0], [2, 2, 0, 0]])
    >>> value = np.array([[10, 0], [0, 10], [10, 10]])
    >>> steps = attention_steps(query, key, value, is_causal=True)

    The third token is similar to the first two, which have nothing in common:

    >>> steps.scores
    array([[4., 0., 4.],
           [0., 4., 4.],
           [4., 4., 8.]])

    Half of it, and no token sees a later one:

    >>> steps.biased
    array([[  2., -inf, -inf],
           [  0.,   2., -inf],
           [  2.,   2.,   4.]])

    In the second row the weights are 1 and exp(2) = 7.39 to their sum:

    >>> steps.weights.round(2)
    array([[1.  , 0.  , 0.  ],
           [0.12, 0.88, 0.  ],
           [0.11, 0.11, 0.79]])

    So its context vector is 0.12 times [10, 0] and 0.88 times [0, 10]:

    >>> steps.output.round(2)
    array([[10.  ,  0.  ],
           [ 1.19,  8.81],
           [ 8.93,  8.93]])
    """
    d = describe_scores("attention_steps", query, key, value, attn_mask, options)
    with np.errstate(all="ignore"):
        scores = score(d, d.key)
        scaled = scores * d.compute_dtype.type(d.scale)
        capped = cap(d, scaled)
        biased = add_and_hide(d, capped)
        weights, is_nan = _softmax(d, biased)
        output = _mean(d, weights, biased != -np.inf)
        output[is_nan] = np.nan
        output[np.isnan(output)] = np.nan  # one NaN, whatever its sign and payload were
        store(output, d.output, d.output.shape[:-1])
    stages = [scores, scaled, capped, biased, weights]
    return AttentionSteps(*[x[0] if d.drop_head else x for x in stages] + [d.returned[0]])


def _per_query_head(d: AttentionDescriptor, array: Array) -> Array:
    """Repeat (*lead, Hkv, ...) to (*lead, Hq, ...), in the type of the arithmetic."""
    group = d.n_head // max(1, d.n_kv_head)
    return np.repeat(array.astype(d.compute_dtype), group, axis=len(d.lead))


def score(d: AttentionDescriptor, key: Array) -> Array:
    """Return query . key, with the scale of int8 keys; `key` is d.key, or has more rows."""
    query = d.query.astype(d.compute_dtype)
    scores = query @ _per_query_head(d, key).swapaxes(-1, -2)
    if d.k_scale is not None:
        scores *= _per_query_head(d, d.k_scale)[..., None, :]
    return np.asarray(scores)


def cap(d: AttentionDescriptor, scaled: Array) -> Array:
    """Return c * tanh(scaled / c) if there is a softcap c, else a copy."""
    if d.softcap is None:
        return scaled.copy()
    c = d.compute_dtype.type(d.softcap)
    return np.asarray(c * np.tanh(scaled / c))


def add_and_hide(d: AttentionDescriptor, capped: Array) -> Array:
    """Add ALiBi and bias: of finite terms comes a finite sum; -inf where the key is hidden."""
    position, low, high = (array.reshape(*d.lead, 1, d.n_query, 1) for array in positions(d))
    key = np.arange(d.n_key)
    visible = np.broadcast_to((low <= key) & (key < high), capped.shape)
    biased = capped.copy()
    if d.alibi_slopes is not None:
        distance = np.abs(position - key).astype(d.compute_dtype)
        biased -= d.alibi_slopes[..., None, None] * distance
    if d.bias is not None:
        visible = visible & (d.bias != -np.inf)
        biased += d.bias.astype(d.compute_dtype)
    if d.alibi_slopes is not None or d.bias is not None:
        infinite = np.isinf(capped) | (False if d.bias is None else np.isinf(d.bias))
        limit = np.finfo(d.compute_dtype).max * d.compute_dtype.type(_LN2)
        np.clip(biased, -limit, limit, out=biased, where=~infinite)
    if d.mask is not None:
        visible = visible & d.mask
    biased[~visible] = -np.inf
    return biased


_LN2 = math.log(2)  # attention computes in base 2, where the greatest number stands for less


def _softmax(d: AttentionDescriptor, biased: Array) -> tuple[Array, Array]:
    """Return weights (*lead, Hq, L, S), and which rows (*lead, Hq, L) are NaN."""
    sink = np.full(1, -np.inf, d.compute_dtype) if d.sinks is None else d.sinks
    sink = sink[:, None, None]
    peak = np.maximum(biased.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    peak[peak == -np.inf] = 0  # nothing is visible, and -inf - -inf would be NaN
    weights = np.exp(biased - peak)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - peak)
    weights /= np.where(total == 0, 1, total)
    weights[biased == -np.inf] = 0
    return weights, np.isnan(total[..., 0])


def _mean(d: AttentionDescriptor, weights: Array, visible: Array) -> Array:
    """Return weights @ value over what is visible, where 0 * inf would be NaN elsewhere."""
    value = _per_query_head(d, d.value)
    if d.v_scale is not None:
        value *= _per_query_head(d, d.v_scale)[..., None]
    finite = np.isfinite(value)
    output = weights @ np.where(finite, value, 0)
    if not finite.all():
        seen = visible.astype(d.compute_dtype)
        for special in (np.nan, np.inf, -np.inf):
            here = np.isnan(value) if np.isnan(special) else value == special
            output[seen @ here.astype(d.compute_dtype) > 0] += special
    return np.asarray(output)
