"""Which keys a query may see by its position: causal, window and valid length.

Query i stands at p = i + offset and sees the keys low <= j < high with
low = max(0, p - left) and high = min(length, p + right + 1, and p + 1 if causal).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._descriptor import AttentionDescriptor
from .._dtypes import Array
from ._tiles import Heads, Tile, compact


class KeyRange(NamedTuple):
    """The keys in range for the rows of a tile; low and high are ints where one holds for all."""

    low: Array | int  # (rows,) or (*stack, 1, rows)
    high: Array | int
    first: int  # smallest low
    full_from: int  # greatest low: from here
    full_to: int  # smallest high: to here, every row sees every key
    last: int  # greatest high


def positions(heads: Heads, tile: Tile) -> Array:
    """Positions of the queries of a tile: (rows,), or (*stack, 1, rows) if sequences differ."""
    rows = np.arange(tile.start, tile.stop)
    if heads.offset is None:
        return rows
    return rows + compact(heads.offset[tile.heads])[..., None, None]


def key_range(d: AttentionDescriptor, heads: Heads, tile: Tile) -> KeyRange:
    """Which keys the rows of a tile may see."""
    low: Array | int = 0
    high: Array | int = d.n_key
    if heads.length is not None:
        high = compact(heads.length[tile.heads])[..., None, None]
    if d.is_causal or d.window_left >= 0 or d.window_right >= 0:
        p = positions(heads, tile)
        if d.is_causal:
            high = np.minimum(high, p + 1)
        if d.window_right >= 0:
            high = np.minimum(high, p + (d.window_right + 1))
        if d.window_left >= 0:
            low = np.maximum(0, p - d.window_left)
    return KeyRange(low, high, *_least_and_greatest(low), *_least_and_greatest(high))


def _least_and_greatest(bound: Array | int) -> tuple[int, int]:
    return (bound, bound) if isinstance(bound, int) else (int(bound.min()), int(bound.max()))


def in_range(keys: KeyRange, first: int, last: int) -> Array | None:
    """Which keys of a chunk are in range, broadcastable to (*stack, G, rows, keys); None = all."""
    if keys.full_from <= first and last <= keys.full_to:
        return None
    j = np.arange(first, last)
    return (j >= np.asarray(keys.low)[..., None]) & (j < np.asarray(keys.high)[..., None])
