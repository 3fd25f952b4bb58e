"""The online softmax: one pass over the keys of a tile, chunk by chunk, with three running values.

For each row: peak, the greatest score so far; total, the sum of exp(score - peak); and output, the
sum of exp(score - peak) * value. A chunk with a greater score rescales the other two by exp(old
peak - new peak). (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.)

Values behind a mask have weight 0, but 0 * NaN is NaN. That is found afterwards: a tile whose
result is not finite is computed again, selecting by visibility, so that the usual case pays nothing
for it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .._descriptor import AttentionDescriptor
from .._dtypes import Array
from ._at_once import attend_at_once, is_small_and_plain
from ._rounding import store
from ._scores import TileScores, widen
from ._tiles import heads_of, tiles


class State(NamedTuple):
    """Running values of the rows of a tile."""

    peak: Array  # (*stack, G*rows)
    total: Array  # (*stack, G*rows)
    output: Array  # (*stack, G*rows, Dv)


def attention(d: AttentionDescriptor) -> None:
    """Fill the output, and lse and weights where wanted, of a described call."""
    with np.errstate(all="ignore"):
        if is_small_and_plain(d) and attend_at_once(d):
            return
        heads = heads_of(d)
        scratch = np.empty(0, d.compute_dtype)
        for tile in tiles(d):
            scores = TileScores(d, heads, tile)
            needed = math.prod(scores.shape) * tile.chunk
            if scratch.size < needed:
                scratch = np.empty(needed, d.compute_dtype)
            _attend(scores, scratch)


def _attend(tile_scores: TileScores, scratch: Array) -> None:
    """Compute the rows of one tile and store what is wanted of them."""
    heads, tile = tile_scores.heads, tile_scores.tile
    state = _run(tile_scores, scratch, careful=False)
    result = _normalised(state)
    if not np.isfinite(result).all():
        state = _run(tile_scores, scratch, careful=True)
        result = _normalised(state)
        result[np.isnan(result)] = np.nan  # one NaN, whatever its sign and payload were
    shape = tile_scores.grouped_shape
    store(result, heads.output[tile.heads][..., tile.start : tile.stop, :], shape)
    if heads.lse is not None:
        lse = state.peak + np.log(state.total)
        lse[state.total == 0] = -np.inf
        lse[np.isnan(lse)] = np.nan
        heads.lse[tile.heads][..., tile.start : tile.stop] = lse.reshape(shape)
    if heads.weights is not None:
        _write_weights(tile_scores, state, scratch)


def _run(tile_scores: TileScores, scratch: Array, careful: bool) -> State:
    """All keys of a tile, then the sink."""
    heads, tile, dtype = tile_scores.heads, tile_scores.tile, tile_scores.d.compute_dtype
    value = heads.value[tile.heads]
    state = None
    for first, last in tile_scores.chunks():
        scores = tile_scores.block(first, last, scratch)
        if scores is None:
            continue
        block = widen(value[..., first:last, :], dtype)
        if heads.v_scale is not None:
            block *= heads.v_scale[tile.heads][..., first:last, None]
        state = _step(state, scores, block, careful, careful or tile_scores.hides)
    if state is None:
        peak = np.full(tile_scores.shape, -np.inf, dtype)
        output = np.zeros((*tile_scores.shape, value.shape[-1]), dtype)
        state = State(peak, np.zeros_like(peak), output)
    if heads.sinks is None:
        return state
    return _with_sink(state, np.repeat(heads.sinks[tile.heads], tile_scores.grouped_shape[-1], -1))


def _step(
    state: State | None, scores: Array, value: Array, careful: bool, may_be_empty: bool
) -> State:
    """Take in one chunk; `scores` are overwritten."""
    peak = scores.max(-1)
    if state is not None:
        peak = np.maximum(peak, state.peak)
    shift = _finite_or_zero(peak) if may_be_empty else peak
    visible = scores != -np.inf if careful else None
    scores -= shift[..., None]
    weights = np.exp(scores, out=scores)
    total = weights @ np.ones(weights.shape[-1], weights.dtype)
    output = weights @ value if visible is None else _select(weights, visible, value)
    if state is None:
        return State(peak, total, output)
    rescale = np.exp(state.peak - shift)
    total += state.total * rescale
    output += state.output * rescale[..., None]
    return State(peak, total, output)


def _select(weights: Array, visible: Array, value: Array) -> Array:
    """Multiply over visible keys only; a value that is not finite reaches the rows that see it."""
    finite = np.isfinite(value)
    weights = np.where(visible, weights, 0)
    output = weights @ np.where(finite, value, 0)
    for *stack, j in np.argwhere(~finite.all(-1) & visible.any(-2)):
        at = tuple(stack)
        rows, columns = visible[at][:, j], ~finite[at][j]
        output[at][np.ix_(rows, columns)] += np.outer(weights[at][rows, j], value[at][j, columns])
    return output


def _with_sink(state: State, sink: Array) -> State:
    """Merge the sink: one more logit, without a value."""
    peak = np.maximum(state.peak, sink)
    shift = _finite_or_zero(peak)
    rescale = np.exp(state.peak - shift)
    total = state.total * rescale + np.exp(sink - shift)
    return State(peak, total, state.output * rescale[..., None])


def _finite_or_zero(peak: Array) -> Array:
    """Return what to subtract: without a visible key there is no peak, and -inf + inf is NaN."""
    return np.where(peak == -np.inf, peak.dtype.type(0), peak)


def _normalised(state: State) -> Array:
    """Return the output rows; 0 where nothing was seen."""
    total = state.total
    if not total.all():
        total = np.where(total == 0, total.dtype.type(1), total)
    return state.output / total[..., None]


def _write_weights(tile_scores: TileScores, state: State, scratch: Array) -> None:
    """exp(score - peak) / total with the final values, from scores computed a second time."""
    tile = tile_scores.tile
    assert tile_scores.heads.weights is not None
    target = tile_scores.heads.weights[tile.heads][..., tile.start : tile.stop, :]
    shift = _finite_or_zero(state.peak)[..., None]
    total = np.where(state.total == 0, state.total.dtype.type(1), state.total)[..., None]
    for first, last in tile_scores.chunks():
        scores = tile_scores.block(first, last, scratch)
        if scores is None:
            continue
        hidden = scores == -np.inf
        scores -= shift
        weights = np.exp(scores, out=scores)
        weights /= total
        weights[np.isnan(weights)] = np.nan
        weights[hidden] = 0
        store(weights, target[..., first:last], tile_scores.grouped_shape)
