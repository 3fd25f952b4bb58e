"""The first use of a kernel set: a few small calls whose results must have the published bits.

A compiler, an emulator or a processor that gets one operation wrong gives wrong numbers without an
error. The calls below meet every kernel and most of the operations once; ``verify`` is the thorough
form. They run when a kernel set is chosen, which for the default is the import of the package, so
that no call pays for them; they take less than a millisecond. To keep it so, nothing is loaded for
them (hashlib alone takes longer): the results are reduced to one polynomial in their bits, in which
no change of a single element goes unseen. What it must be comes from the specification.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _threads
from ._descriptor import AttentionDescriptor, describe_attention
from ._dtypes import Array
from ._reduction import Kind, ReductionDescriptor, describe_reduction

Call = AttentionDescriptor | ReductionDescriptor

# What the specification of arithmetic version 1 gives for the calls below, by class.
CHECKSUMS = {"fused": 0x78D52877099481A3, "unfused": 0x67DFDF6977883FB3}

_N_QUERY, _N_KEY, _D_HEAD, _D_VALUE = 19, 100, 9, 7  # two key blocks; no multiple of a vector
_ODD = np.uint64(0x9E3779B97F4A7C15)


def failure(module: Any, isa: str, arithmetic_class: str) -> str | None:
    """Return what is wrong with a kernel set of the compiled module, or None."""
    try:
        results = [_run(module, isa, call) for call in calls()]
    except Exception as error:  # no input is at fault here
        return f"{type(error).__name__}: {error}"
    if checksum(results) != CHECKSUMS[arithmetic_class]:
        return "its results differ from the published bits"
    return None


def calls() -> list[Call]:
    """Return the calls, described, with results to be filled."""
    numbers = _numbers()
    described: list[Call] = []
    with _threads.threads(1):
        for typed in (numbers.astype(np.float32), numbers):
            described += [_many_rows(typed), _few_rows(typed), *_reductions(typed)]
        described.append(_narrow(numbers))
    return described


def _run(module: Any, isa: str, call: Call) -> tuple[Array, ...]:
    if isinstance(call, AttentionDescriptor):
        module.attention(call, isa)
        return tuple(result for result in call.results() if result is not None)
    module.reduce(call, isa)
    return (call.result(),)


def checksum(results: list[tuple[Array, ...]]) -> int:
    """Return a polynomial in all bits, modulo 2**64, whose weights are odd."""
    bits = [array.view(f"u{array.itemsize}").ravel() for call in results for array in call]
    words = np.concatenate(bits, dtype=np.uint64)
    return int(np.dot(words, np.full(words.size, _ODD).cumprod()))


def _numbers() -> Array:
    """Return multiples of 2**-51 from -2 up to 2, the same on every platform."""
    index = np.arange(1500 + _N_KEY * _D_VALUE, dtype=np.uint64)
    return np.asarray((index * _ODD >> np.uint64(11)) * 2.0**-51 - 2)


def _operands(numbers: Array, *queries: int) -> tuple[Array, Array, Array]:
    """Return query, key and value as views of the numbers."""
    query = numbers[: math.prod(queries) * _D_HEAD].reshape(*queries, _D_HEAD)
    key = numbers[500 : 500 + _N_KEY * _D_HEAD].reshape(1, _N_KEY, _D_HEAD)
    value = numbers[1500 : 1500 + _N_KEY * _D_VALUE].reshape(1, _N_KEY, _D_VALUE)
    return query, key, value


def _plane(numbers: Array) -> Array:
    return numbers[: _N_QUERY * _N_KEY].reshape(1, _N_QUERY, _N_KEY)


def _many_rows(numbers: Array) -> AttentionDescriptor:
    """Put queries in the lanes, with a mask."""
    mask = _plane(numbers) < 1.0
    return describe_attention(*_operands(numbers, 1, _N_QUERY), mask, return_lse=True)


def _few_rows(numbers: Array) -> AttentionDescriptor:
    """Put keys in the lanes; two heads that share them, soft capping."""
    return describe_attention(*_operands(numbers, 2, 1), softcap=1.5, return_lse=True)


def _narrow(numbers: Array) -> AttentionDescriptor:
    """Convert: float16 in and out, int8 keys and values; with a bias."""
    query, key, value = _operands(numbers, 1, _N_QUERY)
    scale = np.full((1, _N_KEY), 0.01, np.float32)
    return describe_attention(
        query.astype(np.float16), (63 * key).astype(np.int8), (63 * value).astype(np.int8),
        bias=_plane(numbers), k_scale=scale, v_scale=scale,
    )  # fmt: skip


def _reductions(numbers: Array) -> list[ReductionDescriptor]:
    """Put rows along the lanes, and across them."""
    x = 4 * numbers[:777].reshape(21, 37)
    return [
        describe_reduction(Kind.LOG_SOFTMAX, x, -1),
        describe_reduction(Kind.SOFTMAX, x, 0),
    ]
