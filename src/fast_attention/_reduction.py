"""One call of the softmax family, checked and allocated: the descriptor that both backends consume.

All arguments are read here, once, for every backend. The axes are put in the order that a row is
counted in: first those that stay, then those that are reduced, both ascending. Only the order of
the axes changes, so nothing is copied for it.
"""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Any, SupportsIndex

import numpy as np

from . import _threads
from ._dtypes import FLOAT32, FLOAT64, Array, as_array, as_numbers, broadcast, native_layout
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

    A row is the set of elements that differ in the last axes only, those from ``n_outer`` on; there
    is at least one of these.
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
    x: Array  # float16, bfloat16, float32 or float64 (*outer, *reduced); softmax_vjp: the gradient
    y: Array | None  # like x; softmax_vjp only: the softmax
    where: Array | None  # bool, of the shape of x; False = does not exist
    n_outer: int
    output: Array  # in the dtype of x, and of its shape, or (*outer,) for logsumexp
    compute_dtype: np.dtype[Any]  # float32 or float64
    num_threads: int
    returned: Array  # the array that output views
    detour: bool  # output is an array beside the caller's out, to be copied there

    def is_trivial(self) -> bool:
        """Fill what needs no arithmetic: an empty result, or rows without elements."""
        if self.x.size > 0:
            return False
        self.output.fill(-np.inf)
        return True

    def result(self) -> Any:
        """Return what the caller gets: an array, or a scalar if that is what NumPy would return."""
        if self.detour:
            self.returned[...] = self.output.reshape(self.returned.shape)
        return self.returned


def describe_reduction(
    kind: Kind,
    x: object,
    axis: Axis,
    *,
    y: object = None,
    where: object = None,
    out: object = None,
) -> ReductionDescriptor:
    """Check everything, and return the call as one object with its result allocated."""
    d = ReductionDescriptor()
    d.kind = kind
    d.num_threads = _threads.resolve(None)
    given = {"grad": x, "y": y} if kind == Kind.SOFTMAX_VJP else {"x": x, "where": where}
    ...
    return d
