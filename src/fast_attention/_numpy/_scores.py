"""The final scores of one block, (*stack, G, rows, keys), with -inf where a key is not visible.

score = q.k * scale -> softcap -> + alibi + bias -> selection of what is visible. The selection
takes the smaller of the score and a ceiling, which is -inf where a key is hidden and +inf
elsewhere, and ignores NaN; so nothing that stands in a hidden key survives. (NumPy's masked
assignment does the same, but takes twenty times as long on a random mask.) NaN in a visible key
becomes +inf, and either makes the row NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .._descriptor import AttentionDescriptor
from .._dtypes import Array
from ._tiles import Heads, Tile, compact
from ._visible import in_range, key_range


class TileScores:
    """Computes the scores of one tile, chunk by chunk."""

    def __init__(self, d: AttentionDescriptor, heads: Heads, tile: Tile) -> None:
        self.d, self.heads, self.tile = d, heads, tile
        self.keys = keys = key_range(d, heads, tile)
        self.hides = (
            heads.mask is not None
            or heads.bias is not None
            or keys.first < keys.full_from
            or keys.full_to < keys.last
        )
        query = heads.query[tile.heads][..., tile.start : tile.stop, :]
        *stack, group, rows, d_head = query.shape
        self.grouped_shape = (*stack, group, rows)
        self.shape = (*stack, group * rows)
        self.scale_first = abs(d.scale) <= 1  # as a product with the query, which is smaller
        self.query = self._prepare(query).reshape(*self.shape, d_head)
        self.key = heads.key[tile.heads]
        self.k_scale = None if heads.k_scale is None else heads.k_scale[tile.heads][..., None, :]

    def _prepare(self, query: Array) -> Array:
        """Return the query rows in the type of the arithmetic, times the scale."""
        dtype = self.d.compute_dtype
        if not self.scale_first:
            return query.astype(dtype, order="C")
        wide = query.astype(dtype, copy=False)
        scaled: Array = np.multiply(wide, dtype.type(self.d.scale), order="C")
        return scaled

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Cut the keys in range into chunks, and apart from those that some rows do not see."""
        keys, size = self.keys, self.tile.chunk
        edges = [keys.first, keys.last]
        if keys.full_to - keys.full_from >= _WORTH_AN_EDGE:
            edges = [keys.first, keys.full_from, keys.full_to, keys.last]
        for start, stop in pairwise(edges):
            for first in range(start, stop, size):
                yield first, min(first + size, stop)

    def block(self, first: int, last: int, scratch: Array) -> Array | None:
        """Scores (*stack, G*rows, keys) of a chunk, in `scratch`; None if no row sees any of it."""
        visible = self._visible(first, last) if self.hides else []
        if visible is None:
            return None
        d, n_key = self.d, last - first
        key = self.key if n_key == d.n_key else self.key[..., first:last, :]
        shape = (*self.shape, n_key)
        scores = scratch[: math.prod(shape)].reshape(shape)
        np.matmul(self.query, widen(key, d.compute_dtype).swapaxes(-1, -2), out=scores)
        if self.k_scale is not None:
            scores *= self.k_scale[..., first:last]
        if not self.scale_first:
            scores *= d.compute_dtype.type(d.scale)
        if d.softcap is not None:
            _cap(scores, d.compute_dtype.type(d.softcap))
        grouped = scores.reshape(*self.grouped_shape, n_key)
        if self.heads.slopes is not None or self.heads.bias is not None:
            self._add(grouped, first, last)
        for keep in visible:
            np.fmin(grouped, _ceiling(keep, d.compute_dtype), out=grouped)
        return scores

    def _visible(self, first: int, last: int) -> list[Array] | None:
        """Masks that hide some keys of a chunk, each broadcastable to (*stack, G, rows, keys).

        None if one of them hides every key from every row.
        """
        hiding = []
        if self.heads.mask is not None:
            hiding.append(self._part(self.heads.mask, first, last))
        if self.heads.bias is not None:
            hiding.append(self._part(self.heads.bias, first, last) != -np.inf)
        hiding = [mask for mask in hiding if not mask.all()]
        if not all(mask.any() for mask in hiding):
            return None
        if first < self.keys.full_from or self.keys.full_to < last:
            hiding.append(in_range(self.d, self.heads, self.tile, self.keys, first, last))
        return hiding

    def _part(self, array: Array, first: int, last: int) -> Array:
        """Return the block of a mask or bias; axes that were broadcast have length 1."""
        return compact(array[self.tile.heads][..., self.tile.start : self.tile.stop, first:last])

    def _add(self, scores: Array, first: int, last: int) -> None:
        """Add ALiBi and bias; what was finite stays finite, as the greatest or smallest number."""
        dtype = self.d.compute_dtype
        infinite = np.isinf(scores)
        if self.heads.slopes is not None:
            scores -= self._slope_times_distance(self.heads.slopes, first, last)
        if self.heads.bias is not None:
            bias = self._part(self.heads.bias, first, last)
            scores += _saturated(bias, dtype)
            too_great = bias == np.inf
            if too_great.any():
                infinite |= too_great
        limit = np.finfo(dtype).max * dtype.type(_LN2)
        np.clip(scores, -limit, limit, out=scores, where=~infinite if infinite.any() else True)

    def _slope_times_distance(self, slopes: Array, first: int, last: int) -> Array:
        """Return slope * abs(p - j), a view of one line of numbers, as it is equal on diagonals."""
        tile = self.tile
        line = np.arange(tile.stop - 1 - first, tile.start - last, -1)  # last row, then upwards
        if self.heads.offset is not None:
            line = line + compact(self.heads.offset[tile.heads])[..., None, None]
        distance = np.abs(line).astype(self.d.compute_dtype)
        diagonals = compact(slopes[tile.heads])[..., None] * distance
        return sliding_window_view(diagonals, last - first, axis=-1)[..., ::-1, :]


_WORTH_AN_EDGE = 64  # keys; fewer are cheaper to compare than to score apart
_LN2 = math.log(2)  # the native backend scores in base 2; what overflows there, saturates here


def widen(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return a block of key or value in the type of the arithmetic, such that BLAS can read it."""
    if array.dtype != dtype:
        return array.astype(dtype)
    rows, columns = array.shape[-2:]
    down, across = array.strides[-2:]
    size = array.itemsize
    if (across == size and down >= columns * size) or (down == size and across >= rows * size):
        return array
    return np.ascontiguousarray(array)


def _cap(scores: Array, cap: Any) -> None:
    scores *= 1 / cap
    np.tanh(scores, out=scores)
    scores *= cap


def _ceiling(keep: Array, dtype: np.dtype[Any]) -> Array:
    """Return +inf where `keep` is True, else -inf, without a branch for every element."""
    ceiling = keep.astype(dtype)
    ceiling -= 0.5
    ceiling *= np.inf
    return ceiling


def _saturated(bias: Array, dtype: np.dtype[Any]) -> Array:
    """Convert a bias; only what was infinite becomes infinite."""
    if bias.dtype == dtype:
        return bias
    wide = bias.astype(dtype)
    if bias.dtype.itemsize > dtype.itemsize:
        limit = np.finfo(dtype).max
        np.clip(wide, -limit, limit, out=wide, where=np.isfinite(bias))
    return wide
