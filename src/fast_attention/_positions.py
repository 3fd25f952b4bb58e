"""Where every query of a call stands, and the keys that its position lets it see.

Query i of a sequence stands at p = i + query_offset and sees the keys low <= j < high with
low = max(0, p - left) and high = min(length, p + right + 1, and p + 1 if causal).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._descriptor import AttentionDescriptor
from ._dtypes import Array


class Positions(NamedTuple):
    """One row of int64 for each sequence; low is 0 or more, high at most S."""

    position: Array  # (n_batch, L)
    low: Array  # (n_batch, L)
    high: Array  # (n_batch, L)


def positions(d: AttentionDescriptor) -> Positions:
    """Work out position, first key and end of the keys of every query."""
    position = np.broadcast_to(np.arange(d.n_query), (d.n_batch, d.n_query))
    if d.query_offset is not None:
        position = position + d.query_offset[:, None]
    low = np.zeros_like(position)
    high = np.full_like(position, d.n_key)
    if d.kv_lengths is not None:
        high = np.minimum(high, d.kv_lengths[:, None])
    if d.window_left >= 0:
        low = np.maximum(low, position - d.window_left)
    if d.window_right >= 0:
        high = np.minimum(high, position + d.window_right + 1)
    if d.is_causal:
        high = np.minimum(high, position + 1)
    return Positions(position, low, high)
