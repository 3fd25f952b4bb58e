"""Attention without options, written down as it stands in textbooks, for calls of a few scores.

There the number of NumPy calls is what costs. The steps are those of the online softmax with one
chunk. The result must be finite to count; if it is not, the caller goes the way of all other calls.
"""

from __future__ import annotations

import numpy as np

from .._descriptor import AttentionDescriptor
from ._scores import widen
from ._tiles import CHUNK_KEYS, TILE_ROWS

_FEW_SCORES = 16_384


def is_small_and_plain(d: AttentionDescriptor) -> bool:
    """Tell whether the call is one tile and one chunk of few scores, with nothing but a scale."""
    return (
        d.n_batch * d.n_head * d.n_query * d.n_key <= _FEW_SCORES
        and d.n_query <= TILE_ROWS
        and d.n_key <= CHUNK_KEYS
        and d.n_head == d.n_kv_head
        and abs(d.scale) <= 1
        and d.query.dtype == d.key.dtype == d.value.dtype == d.compute_dtype
        and not d.is_causal
        and d.window_left < 0
        and d.window_right < 0
        and d.mask is None
        and d.bias is None
        and d.kv_lengths is None
        and d.softcap is None
        and d.sinks is None
        and d.alibi_slopes is None
        and d.lse is None
        and d.weights is None
    )


def attend_at_once(d: AttentionDescriptor) -> bool:
    """softmax(query * scale @ key.T) @ value; False if that is not finite everywhere."""
    query = np.multiply(d.query, d.compute_dtype.type(d.scale), order="C")
    scores = query @ widen(d.key, d.compute_dtype).swapaxes(-1, -2)
    scores -= scores.max(-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    total = weights @ np.ones(d.n_key, d.compute_dtype)
    output = weights @ widen(d.value, d.compute_dtype)
    output /= total[..., None]
    np.add(output, 0.0, out=d.output)  # no negative zero
    return bool(np.isfinite(output).all())
