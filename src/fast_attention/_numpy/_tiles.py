"""How a call is cut into tiles: a stack of (batch, kv head) pairs by a range of query positions.

Grouped query heads are rows of the same tile, so that one matrix product serves them all and no key
is ever repeated in memory. Small heads are stacked, so that a call of many small heads costs few
NumPy calls; a large head makes many tiles, so that a block of scores stays within the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .._descriptor import AttentionDescriptor
from .._dtypes import Array

# Sizes that measured best with NumPy's own OpenBLAS on one core with half a MiB of L2 cache
# ("python -m fast_attention compare" times this backend).
TILE_ROWS = 256  # query rows (positions x grouped heads) of one head in a tile
NARROW_TILE_ROWS = 64  # the same at least, where a narrow window makes smaller tiles worth while
CHUNK_KEYS = 1024  # keys that are scored at a time,
LONGEST_CHUNK = 2048  # or up to so many if there are few rows; BLAS adds them up in one chain
STACK_SCORES = 65_536  # scores in a block of several heads

Index = tuple[Any, ...]


class Heads(NamedTuple):
    """The arrays of a call by kv head; every shape starts with the stack, (*lead, Hkv)."""

    query: Array  # (*stack, G, L, D)
    key: Array  # (*stack, S, D)
    value: Array  # (*stack, S, Dv)
    output: Array  # (*stack, G, L, Dv)
    lse: Array | None  # (*stack, G, L)
    weights: Array | None  # (*stack, G, L, S)
    mask: Array | None  # (*stack, G, L, S), axes that were broadcast have length 1
    bias: Array | None  # the same
    sinks: Array | None  # (*stack, G)
    slopes: Array | None  # (*stack, G)
    k_scale: Array | None  # (*stack, S)
    v_scale: Array | None  # (*stack, S)
    length: Array | None  # (*stack,)
    offset: Array | None  # (*stack,)


class Tile(NamedTuple):
    """A part of the stack and a range of query positions."""

    heads: Index
    start: int
    stop: int
    chunk: int  # keys that are scored at a time


def heads_of(d: AttentionDescriptor) -> Heads:
    """View everything with the head axis split into (kv head, query head of its group)."""
    n_lead = len(d.lead)
    group = (d.n_kv_head, d.n_head // d.n_kv_head)

    def split(array: Array | None) -> Array | None:
        if array is None:
            return None
        shape = array.shape
        return array.reshape(shape[:n_lead] + group + shape[n_lead + 1 :])

    def per_batch(array: Array | None) -> Array | None:
        if array is None:
            return None
        return np.broadcast_to(array.reshape(d.lead)[..., None], (*d.lead, d.n_kv_head))

    sinks = d.sinks
    if sinks is not None:
        sinks = np.broadcast_to(sinks.reshape(group), d.lead + group)
    query, output = split(d.query), split(d.output)
    assert query is not None
    assert output is not None
    return Heads(
        query,
        d.key,
        d.value,
        output,
        split(d.lse),
        split(d.weights),
        split(d.mask),
        split(d.bias),
        sinks,
        split(d.alibi_slopes),
        d.k_scale,
        d.v_scale,
        per_batch(d.kv_lengths),
        per_batch(d.query_offset),
    )


def tiles(d: AttentionDescriptor) -> Iterator[Tile]:
    """Cut the call into tiles."""
    group = d.n_head // d.n_kv_head
    rows = max(1, TILE_ROWS // group)
    reach = _window_width(d)
    if reach < rows:  # a tile visits rows + reach keys, of which each row sees only reach
        rows = max(reach, NARROW_TILE_ROWS // group, 1)
    rows = min(rows, d.n_query)
    chunk = min(max(CHUNK_KEYS, STACK_SCORES // (rows * group)), LONGEST_CHUNK)
    chunk = min(chunk, rows + reach, d.n_key)
    most = max(1, STACK_SCORES // (rows * group * chunk))
    for index in stacks((*d.lead, d.n_kv_head), most):
        for start in range(0, d.n_query, rows):
            yield Tile(index, start, min(start + rows, d.n_query), chunk)


def _window_width(d: AttentionDescriptor) -> int:
    """Return how many keys a row can see at most, by its position."""
    right = 0 if d.is_causal else d.window_right
    if d.window_left < 0 or right < 0:
        return d.n_key
    return min(d.n_key, d.window_left + 1 + right)


def stacks(shape: tuple[int, ...], most: int) -> Iterator[Index]:
    """Cover an array of `shape` by indices that each reach at most `most` elements."""
    if math.prod(shape) <= most:
        yield ()
        return
    first, *rest = shape
    inner = math.prod(rest)
    if inner <= most:
        step = most // inner
        for start in range(0, first, step):
            yield (slice(start, start + step),)
        return
    for i in range(first):
        for index in stacks(tuple(rest), most):
            yield (i, *index)


def compact(array: Array) -> Array:
    """Undo broadcasting: an axis of stride 0 becomes an axis of length 1."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
