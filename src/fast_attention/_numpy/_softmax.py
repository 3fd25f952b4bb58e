"""The softmax family, a block at a time: no temporary is larger than a block.

A block is many short rows in one part, or one long row in several parts. What is asked of a part
twice is computed twice, unless it is the only one. With m the greatest element of a row,

    softmax      exp(x - m) / sum(exp(x - m))
    logsumexp    m + a
    log_softmax  (x - m) - a         a = log1p(rest),  rest = sum(exp(x - m)) - 1

where the greatest element never enters the sum: beside its 1, what is small would be rounded away.

A part is read as a matrix, (rows, elements) or, where neighbours in memory belong to different
rows, (elements, rows).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._dtypes import Array
from .._reduction import Kind, ReductionDescriptor
from ._rounding import store
from ._tiles import stacks

BLOCK = 1 << 17  # elements, half a MiB of float32: with fewer, the number of calls begins to show
_PARTIAL_SUMS = 16  # down the columns of a part
_LEAST: dict[str, Any] = {t: np.finfo(t).min for t in ("float32", "float64")}

Part = Callable[[int], Array]


def reduce(d: ReductionDescriptor) -> None:
    """Fill the output of a call whose input is not empty."""
    outer, reduced = d.x.shape[: d.n_outer], d.x.shape[d.n_outer :]
    row_size = math.prod(reduced)
    parts = [(*p, *[slice(None)] * (len(reduced) - len(p))) for p in stacks(reduced, BLOCK)]
    with np.errstate(all="ignore"):
        for block in stacks(outer, max(1, BLOCK // row_size)):
            _COMPUTE[d.kind](_Rows(d, block, parts))


class _Rows:
    """The rows of a block: their parts are read as matrices, and written."""

    def __init__(self, d: ReductionDescriptor, block: tuple[Any, ...], parts: list[Any]) -> None:
        self._d, self._block, self._parts = d, block, parts
        rows = d.x[(*block, ...)]
        self._n_outer = n_outer = rows.ndim - (d.x.ndim - d.n_outer)
        self._n_row = math.prod(rows.shape[:n_outer])
        is_across = n_outer > 0 and abs(rows.strides[n_outer - 1]) < abs(rows.strides[-1])
        self.axis = 0 if is_across else 1  # along a row
        self.parts = range(len(parts))

    def _view(self, array: Array, part: int) -> Array:
        view: Array = array[(*self._block, ..., *self._parts[part])]
        if self.axis == 1:
            return view
        return view.transpose(*range(self._n_outer, view.ndim), *range(self._n_outer))

    def _matrix(self, array: Array, part: int, dtype: Any) -> Array:
        dense = np.ascontiguousarray(self._view(array, part), dtype=dtype)
        return dense.reshape((self._n_row, -1) if self.axis == 1 else (-1, self._n_row))

    def x(self, part: int) -> Array:
        """Return elements of the input, -inf where they do not exist."""
        values = self._matrix(self._d.x, part, self._d.compute_dtype)
        if self._d.where is None:
            return values
        exists = self._matrix(self._d.where, part, np.bool_)
        return np.where(exists, values, values.dtype.type(-np.inf))

    def y(self, part: int) -> Array:
        """Return elements of the second input."""
        assert self._d.y is not None
        return self._matrix(self._d.y, part, self._d.compute_dtype)

    def write(self, part: int, result: Array, nothing: float = 0) -> None:
        """Store elements of the result, and `nothing` where they do not exist."""
        if self._d.where is not None:
            exists = self._matrix(self._d.where, part, np.bool_)
            result = np.where(exists, result, result.dtype.type(nothing))
        target = self._view(self._d.output, part)
        store(result, target, target.shape[:-1])

    def write_rows(self, result: Array) -> None:
        """Store one number for each row."""
        target = self._d.output[(*self._block, ..., None)]
        store(result, target, target.shape[:-1])

    def greatest(self, x: Part) -> Array:
        """Return the maximum of each row; NaN if there is one."""
        result: Array = x(0).max(axis=self.axis, keepdims=True)
        for part in self.parts[1:]:
            result = np.maximum(result, x(part).max(axis=self.axis, keepdims=True))
        return result

    def sum(self, matrix: Array) -> Array:
        """Return the sum of a part of each row, in partial sums that no rounding piles up in."""
        if self.axis == 1 or len(matrix) < _PARTIAL_SUMS:
            total: Array = matrix.sum(axis=self.axis, keepdims=True)  # pairwise along a row
            return total
        end = len(matrix) // _PARTIAL_SUMS * _PARTIAL_SUMS
        partial = matrix[:end].reshape(-1, _PARTIAL_SUMS * self._n_row).sum(axis=0)
        total = partial.reshape(_PARTIAL_SUMS, self._n_row).sum(axis=0, keepdims=True)
        total += matrix[end:].sum(axis=0, keepdims=True)
        return total


class _Kept:
    """A function of a part that keeps its last result."""

    __slots__ = ("_compute", "_part", "_result")

    def __init__(self, compute: Part) -> None:
        self._compute = compute
        self._part = -1
        self._result: Array

    def __call__(self, part: int) -> Array:
        if part != self._part:
            self._result, self._part = self._compute(part), part
        return self._result


def _softmax(rows: _Rows) -> None:
    x = _Kept(rows.x)
    shift = _shift(rows.greatest(x))
    powers = _Kept(lambda part: _exp_of_difference(x(part), shift))
    total = sum(rows.sum(powers(part)) for part in rows.parts)
    total = np.maximum(total, 1)  # it is at least 1, but 0 in a row where nothing exists
    for part in rows.parts:
        rows.write(part, powers(part) / total)


def _log_softmax(rows: _Rows) -> None:
    x = _Kept(rows.x)
    shift = _shift(rows.greatest(x))
    difference = _Kept(lambda part: x(part) - shift)
    log_total = _log_total(rows, difference)
    for part in rows.parts:
        rows.write(part, difference(part) - log_total, -np.inf)


def _logsumexp(rows: _Rows) -> None:
    x = _Kept(rows.x)
    greatest = rows.greatest(x)
    shift = _shift(greatest)
    result = greatest + _log_total(rows, _Kept(lambda part: x(part) - shift))
    rows.write_rows(np.where(greatest == np.inf, greatest, result))


def _softmax_vjp(rows: _Rows) -> None:
    grad, y = _Kept(rows.x), _Kept(rows.y)
    mean = sum(rows.sum(grad(part) * y(part)) for part in rows.parts)
    for part in rows.parts:
        rows.write(part, y(part) * (grad(part) - mean))


_COMPUTE = {
    Kind.SOFTMAX: _softmax,
    Kind.LOG_SOFTMAX: _log_softmax,
    Kind.LOGSUMEXP: _logsumexp,
    Kind.SOFTMAX_VJP: _softmax_vjp,
}


def _shift(greatest: Array) -> Array:
    """Return what is subtracted: anything finite where all is -inf."""
    shift: Array = np.maximum(greatest, _LEAST[greatest.dtype.name])
    return shift


def _exp_of_difference(x: Array, shift: Array) -> Array:
    powers: Array = x - shift
    np.exp(powers, out=powers)
    return powers


def _log_total(rows: _Rows, difference: Part) -> Array:
    """Return log(sum(exp(difference))) of each row, whose greatest difference is 0."""
    rest: Any = 0
    n_greatest: Any = 0
    for part in rows.parts:
        powers = np.exp(difference(part))
        is_greatest = difference(part) == 0
        np.copyto(powers, 0, where=is_greatest)
        rest = rest + rows.sum(powers)
        n_greatest = n_greatest + np.count_nonzero(is_greatest, axis=rows.axis, keepdims=True)
    rest += np.maximum(n_greatest - 1, 0)
    log_total: Array = np.log1p(rest)
    return log_total
