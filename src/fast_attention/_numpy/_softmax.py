"""The softmax family, a block at a time: no temporary is larger than a block.

A block is many short rows in one part, or one long row in several parts. What is asked of a part
twice is computed twice, unless it is the only one. With m the greatest element of a row,

    softmax      exp(x - m) / sum(exp(x - m))
    logsumexp    m + a
    log_softmax  (x - m) - a         a = log1p(rest),  rest = sum(exp(x - m)) - 1

where the greatest element never enters the sum: beside its 1, what is small would be rounded away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from .._dtypes import Array
from .._reduction import Kind, ReductionDescriptor
from ._rounding import store
from ._tiles import stacks

# 128 KiB of float32, a few of which fit the second-level cache; from 2**14 to 2**17 measured
# the same within a few per cent.
BLOCK = 1 << 15

Part = Callable[[int], Array]


def reduce(d: ReductionDescriptor) -> None:
    """Fill the output of a call whose input is not empty."""
    outer, reduced = d.x.shape[: d.n_outer], d.x.shape[d.n_outer :]
    row_size = math.prod(reduced)
    parts = [(*part, *[slice(None)] * (len(reduced) - len(part))) for part in stacks(reduced, BLOCK)]
    with np.errstate(all="ignore"):
        for block in stacks(outer, max(1, BLOCK // row_size)):
            _COMPUTE[d.kind](_Rows(d, block, parts, row_size))


class _Rows:
    """The rows of a block: parts of them are read as (rows, elements), and written."""

    def __init__(
        self, d: ReductionDescriptor, block: tuple[Any, ...], parts: list[Any], row_size: int
    ) -> None:
        self._d, self._block, self._parts = d, block, parts
        self._n_row = d.x[(*block, ...)].size // row_size
        self.parts = range(len(parts))

    def _part(self, array: Array, part: int) -> Array:
        view: Array = array[(*self._block, ..., *self._parts[part])]
        return view

    def _read(self, array: Array, part: int) -> Array:
        dense = np.ascontiguousarray(self._part(array, part), dtype=self._d.compute_dtype)
        return dense.reshape(self._n_row, -1)

    def x(self, part: int) -> Array:
        """Return elements of the input, -inf where they do not exist."""
        values = self._read(self._d.x, part)
        if self._d.where is None:
            return values
        exists = self._part(self._d.where, part).reshape(values.shape)
        return np.where(exists, values, values.dtype.type(-np.inf))

    def y(self, part: int) -> Array:
        """Return elements of the second input."""
        assert self._d.y is not None
        return self._read(self._d.y, part)

    def write(self, part: int, result: Array, nothing: float = 0) -> None:
        """Store elements of the result, and `nothing` where they do not exist."""
        if self._d.where is not None:
            exists = self._part(self._d.where, part).reshape(result.shape)
            result = np.where(exists, result, result.dtype.type(nothing))
        target = self._part(self._d.output, part)
        store(result, target, target.shape[:-1])

    def write_rows(self, result: Array) -> None:
        """Store one number for each row, (rows, 1)."""
        target = self._d.output[(*self._block, ..., None)]
        store(result, target, target.shape[:-1])


def _softmax(rows: _Rows) -> None:
    x = lru_cache(maxsize=1)(rows.x)
    shift = _shift(_greatest(rows, x))
    powers = lru_cache(maxsize=1)(lambda part: _exp_of_difference(x(part), shift))
    total = _sum(powers(part) for part in rows.parts)
    total[total == 0] = 1  # a row of which nothing exists
    for part in rows.parts:
        rows.write(part, powers(part) / total)


def _log_softmax(rows: _Rows) -> None:
    x = lru_cache(maxsize=1)(rows.x)
    shift = _shift(_greatest(rows, x))
    difference = lru_cache(maxsize=1)(lambda part: x(part) - shift)
    log_total = _log_total(rows, difference)
    for part in rows.parts:
        rows.write(part, difference(part) - log_total, -np.inf)


def _logsumexp(rows: _Rows) -> None:
    x = lru_cache(maxsize=1)(rows.x)
    greatest = _greatest(rows, x)
    shift = _shift(greatest)
    result = greatest + _log_total(rows, lambda part: x(part) - shift)
    rows.write_rows(np.where(greatest == np.inf, greatest, result))


def _softmax_vjp(rows: _Rows) -> None:
    grad, y = lru_cache(maxsize=1)(rows.x), lru_cache(maxsize=1)(rows.y)
    mean = _sum(grad(part) * y(part) for part in rows.parts)
    for part in rows.parts:
        rows.write(part, y(part) * (grad(part) - mean))


_COMPUTE = {
    Kind.SOFTMAX: _softmax,
    Kind.LOG_SOFTMAX: _log_softmax,
    Kind.LOGSUMEXP: _logsumexp,
    Kind.SOFTMAX_VJP: _softmax_vjp,
}


def _greatest(rows: _Rows, x: Part) -> Array:
    """Return the maximum of each row, (rows, 1); NaN if there is one."""
    greatest = x(0).max(axis=-1, keepdims=True)
    for part in rows.parts[1:]:
        greatest = np.maximum(greatest, x(part).max(axis=-1, keepdims=True))
    return greatest


def _shift(greatest: Array) -> Array:
    """Return what is subtracted: 0 in a row where nothing exists, whose elements are all -inf."""
    return np.where(greatest == -np.inf, greatest.dtype.type(0), greatest)


def _exp_of_difference(x: Array, shift: Array) -> Array:
    difference = x - shift
    return np.exp(difference, out=difference)


def _log_total(rows: _Rows, difference: Part) -> Array:
    """Return log(sum(exp(difference))) of each row, (rows, 1), whose greatest difference is 0."""
    rest, n_greatest = 0, 0
    for part in rows.parts:
        is_greatest = difference(part) == 0
        powers = np.exp(difference(part))
        np.copyto(powers, 0, where=is_greatest)
        rest = rest + powers.sum(axis=-1, keepdims=True)
        n_greatest = n_greatest + np.count_nonzero(is_greatest, axis=-1, keepdims=True)
    return np.log1p(rest + np.maximum(n_greatest - 1, 0).astype(rest.dtype))


def _sum(parts: Iterable[Array]) -> Array:
    """Return the sum over each row, (rows, 1): pairwise within a part, as NumPy does."""
    total: Array = sum(part.sum(axis=-1, keepdims=True) for part in parts)
    return total
