"""One call of the softmax family, checked and allocated: the descriptor that both backends consume.

All arguments are read here, once, for every backend. The axes are put in the order in which a row
is counted: first those that stay, then those that are reduced, both ascending. Only the order of
the axes changes, so nothing is copied for it.
"""

from __future__ import annotations

import contextlib
import operator
from enum import IntEnum
from typing import Any, SupportsIndex

import numpy as np

from . import _threads
from ._dtypes import (
    FLOAT32,
    FLOAT64,
    Array,
    as_array,
    as_numbers,
    broadcast,
    dtype_text,
    native_layout,
)
from ._output import check_out, needs_a_detour

Axis = SupportsIndex | tuple[SupportsIndex, ...] | None


class Kind(IntEnum):
    """What is computed over each row."""

    SOFTMAX = 0
    LOG_SOFTMAX = 1
    LOGSUMEXP = 2
    SOFTMAX_VJP = 3


class ReductionDescriptor:
    """What a call computes, and where its result goes.

    A row is the set of elements that differ only in the axes from ``n_outer`` on, of which there is
    at least one.
    """

    __slots__ = (
        "compute_dtype",
        "detour",
        "kind",
        "n_outer",
        "num_threads",
        "output",
        "returned",
        "where",
        "x",
        "y",
    )

    kind: Kind
    x: Array  # float16, bfloat16, float32 or float64, (*outer, *reduced); softmax_vjp: the gradient
    y: Array | None  # softmax_vjp only: the softmax, of the dtype and shape of x
    where: Array | None  # bool, of the shape of x; what is False does not exist
    n_outer: int
    output: Array  # in the dtype of x and of its shape; logsumexp: (*outer,)
    compute_dtype: np.dtype[Any]  # float32 or float64
    num_threads: int
    returned: Array  # what output is a view of, unless there is a detour
    detour: Array | None  # what output is a view of, to be copied to the caller's out

    def fill_without_elements(self) -> bool:
        """Fill the result of an empty input; False if there is something to compute."""
        if self.x.size > 0:
            return False
        self.output.fill(-np.inf)
        return True

    def result(self) -> Array:
        """Return what the caller gets, once it is filled."""
        if self.detour is not None:
            self.returned[...] = self.detour
        return self.returned


def describe_reduction(
    kind: Kind,
    x: object,
    axis: Axis,
    *,
    y: object = None,
    where: object = None,
    keepdims: bool = False,
    out: object = None,
) -> ReductionDescriptor:
    """Check everything, and return the call as one object with its result allocated."""
    d = ReductionDescriptor()
    d.kind = kind
    d.num_threads = _threads.resolve(None)
    d.y = d.where = d.detour = None
    if kind == Kind.SOFTMAX_VJP:
        d.x, d.y = _gradient_and_softmax(x, y)
    else:
        d.x = as_numbers("x", x)
    d.compute_dtype = FLOAT64 if d.x.dtype == FLOAT64 else FLOAT32
    axes = _reduced_axes(axis, d.x.shape, "grad" if kind == Kind.SOFTMAX_VJP else "x")
    if where is not None:
        d.where = _read_where(where, d.x.shape)
    if kind == Kind.LOGSUMEXP:
        d.returned = d.output = _reduced_result(d.x, axes, keepdims)
    elif out is None:
        d.returned = d.output = np.empty(d.x.shape, d.x.dtype)
    else:
        names = ("grad", "y") if kind == Kind.SOFTMAX_VJP else ("x",)
        given = dict(zip(names, (x, y), strict=False)) | {"where": where}
        _write_to(d, check_out(out, d.x.shape, d.x.dtype, given, like="the result", in_place=names))
    _put_axes_in_order(d, axes)
    return d


def _gradient_and_softmax(grad: object, y: object) -> tuple[Array, Array]:
    """Read both, and bring them to one dtype: it holds every number of theirs."""
    g, s = as_numbers("grad", grad), as_numbers("y", y)
    if g.shape != s.shape:
        raise ValueError(f"grad has shape {g.shape} and y {s.shape}, expected equal shapes")
    if g.dtype != s.dtype:
        common = FLOAT64 if FLOAT64 in (g.dtype, s.dtype) else FLOAT32
        g, s = g.astype(common, copy=False), s.astype(common, copy=False)
    return g, s


def _read_where(where: object, shape: tuple[int, ...]) -> Array:
    array = as_array("where", where)
    if array.dtype != np.bool_:
        text = dtype_text("where", where, array)
        raise TypeError(f"{text}, expected bool (True = exists)")
    return broadcast("where", native_layout(array), shape, "the shape of x,")


def _reduced_axes(axis: Axis, shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the axes that `axis` means, from 0 up and ascending, as NumPy's reductions read it."""
    ndim = len(shape)

    def within(number: int) -> int:
        if not -ndim <= number < ndim:
            raise np.exceptions.AxisError(number, ndim, f"{name} has shape {shape}")
        return number % ndim

    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, tuple):
        number = _axis_number(axis)
        return () if ndim == 0 and number in (0, -1) else (within(number),)
    axes = sorted(within(_axis_number(a)) for a in axis)
    if len(set(axes)) < len(axes):
        raise ValueError(f"axis {axis} names an axis of {ndim} twice")
    return tuple(axes)


def _axis_number(axis: object) -> int:
    if not isinstance(axis, (bool, np.bool_)):
        with contextlib.suppress(TypeError):
            return operator.index(axis)  # type: ignore[arg-type]
    raise TypeError(
        f"axis must be an int, a tuple of ints or None, not {type(axis).__name__} {axis!r}"
    )


def _reduced_result(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    ones = (1,) if keepdims else ()
    shape: tuple[int, ...] = ()
    for axis, size in enumerate(x.shape):
        shape += ones if axis in axes else (size,)
    return np.empty(shape, x.dtype)


def _write_to(d: ReductionDescriptor, out: Array) -> None:
    """Let the result go to the caller's array, straight or, if its layout is odd, afterwards."""
    d.returned = d.output = out
    if needs_a_detour(out):
        d.output = d.detour = np.empty(out.shape, out.dtype)


def _put_axes_in_order(d: ReductionDescriptor, axes: tuple[int, ...]) -> None:
    outer = tuple(axis for axis in range(d.x.ndim) if axis not in axes)
    shape = tuple(d.x.shape[axis] for axis in outer)
    d.n_outer = len(outer)

    def ordered(array: Array) -> Array:
        return array.transpose(outer + axes) if axes else array[..., None]

    d.x = ordered(d.x)
    d.y = None if d.y is None else ordered(d.y)
    d.where = None if d.where is None else ordered(d.where)
    d.output = d.output.reshape(shape) if d.kind == Kind.LOGSUMEXP else ordered(d.output)
