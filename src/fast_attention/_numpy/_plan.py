"""How this backend would cut a call, for those who ask before it runs."""

from __future__ import annotations

import math

from .._descriptor import AttentionDescriptor
from ._at_once import is_small_and_plain
from ._tiles import heads_of, tiles


def planned(d: AttentionDescriptor) -> tuple[str, int, int, int]:
    """Return (kernel, rows of a tile at most, tiles, bytes of its block of scores)."""
    if d.n_key == 0:
        return "none", 0, 0, 0
    if is_small_and_plain(d):
        n_row = d.n_batch * d.n_head * d.n_query
        return "at once", n_row, 1, n_row * d.n_key * d.compute_dtype.itemsize
    query = heads_of(d).query  # (*stack, heads of a group, L, D)
    n_row = n_tile = n_score = 0
    for tile in tiles(d):
        n_tile += 1
        of_tile = math.prod(query[tile.heads].shape[:-2]) * (tile.stop - tile.start)
        n_row = max(n_row, of_tile)
        n_score = max(n_score, of_tile * tile.chunk)
    return "online", n_row, n_tile, n_score * d.compute_dtype.itemsize
