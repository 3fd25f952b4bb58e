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
    """Rows of a tile see no key before first or from last on, and all from full_from to full_to."""

    first: int
    full_from: int
    full_to: int
    last: int


def key_range(d: AttentionDescriptor, heads: Heads, tile: Tile) -> KeyRange:
    """Bound the keys in range, without looking at single rows."""
    least, greatest = _ends(heads.offset, tile, 0)
    least, greatest = tile.start + least, tile.stop - 1 + greatest
    shortest, longest = _ends(heads.length, tile, d.n_key)
    right = _right(d)
    first = full_from = 0
    if d.window_left >= 0:
        first, full_from = max(0, least - d.window_left), max(0, greatest - d.window_left)
    if right is not None:
        shortest = min(shortest, least + right + 1)
        longest = min(longest, greatest + right + 1)
    return KeyRange(first, full_from, shortest, longest)


def in_range(
    d: AttentionDescriptor, heads: Heads, tile: Tile, keys: KeyRange, first: int, last: int
) -> Array:
    """Tell which keys of a chunk are in range, broadcastable to (*stack, G, rows, keys)."""
    j = np.arange(first, last)
    p = np.arange(tile.start, tile.stop)[:, None]
    if heads.offset is not None:
        p = p + _per_sequence(heads.offset, tile)
    keep = np.True_ if d.window_left < 0 else j >= p - d.window_left
    high: Array | int = d.n_key
    if heads.length is not None:
        high = _per_sequence(heads.length, tile)
    right = _right(d)
    if right is not None:
        high = np.minimum(high, p + (right + 1))
    return keep & (j < high)


def _right(d: AttentionDescriptor) -> int | None:
    """How far ahead of its position a query may look; None = as far as there are keys."""
    if d.is_causal:
        return 0
    return d.window_right if d.window_right >= 0 else None


def _ends(per_head: Array | None, tile: Tile, default: int) -> tuple[int, int]:
    if per_head is None:
        return default, default
    part = compact(per_head[tile.heads])
    return int(part.min()), int(part.max())


def _per_sequence(per_head: Array, tile: Tile) -> Array:
    """Give an offset or length the axes (*stack, 1, 1, 1) of its tile."""
    return compact(per_head[tile.heads])[..., None, None, None]
