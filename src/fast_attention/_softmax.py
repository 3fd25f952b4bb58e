"""softmax, log_softmax, logsumexp and the gradient of softmax: the public functions."""

from __future__ import annotations
from typing import Any
from . import _backend
from ._dtypes import Array, ArrayInput
from ._reduction import Axis, Kind, ReductionDescriptor, describe_reduction

def softmax(x, axis=-1, *, where=None, out=None):
    return _computed(describe_reduction(Kind.SOFTMAX, x, axis, where=where, out=out), out)
def log_softmax(x, axis=-1, *, where=None, out=None):
    return _computed(describe_reduction(Kind.LOG_SOFTMAX, x, axis, where=where, out=out), out)
def logsumexp(x, axis=-1, *, where=None, keepdims=False):
    return _computed(describe_reduction(Kind.LOGSUMEXP, x, axis, where=where, keepdims=keepdims))
def softmax_vjp(grad, y, axis=-1, *, out=None):
    return _computed(describe_reduction(Kind.SOFTMAX_VJP, grad, axis, y=y, out=out), out)
def _computed(d, out=None):
    _backend.reduce(d)
    result = d.result()
    return result if result.ndim or out is not None else result[()]
