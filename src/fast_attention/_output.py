"""The caller's ``out``: what it must be, and whether it overlaps an input or itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ._dtypes import Array, as_array

_OVERLAP_WORK = 100_000  # candidate solutions that NumPy may try before an overlap is assumed


def check_out(
    out: object,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: Mapping[str, object],
    *,
    like: str = "the query",
    in_place: Collection[str] = (),
) -> Array:
    """Return `out` if it is as it must be: shape, dtype, writeable, overlapping nothing.

    `like` names what gives `out` its dtype. An input named in `in_place` may be `out` itself,
    element by element.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy.ndarray, not {type(out).__name__}")
    if out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}, expected {dtype}, the dtype of {like}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, expected {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only, expected a writeable array")
    if overlaps_itself(out):
        raise ValueError(
            f"out of shape {out.shape} and strides {out.strides} overlaps itself: "
            "two of its elements share memory"
        )
    for name, given in inputs.items():
        if name in in_place and _is_same_memory(out, as_array(name, given)):
            continue
        if _shares_memory(out, name, given):
            itself = f"{name} itself or " if name in in_place else ""
            raise ValueError(f"out overlaps {name} in memory, expected {itself}an array of its own")
    return out


def _is_same_memory(out: Array, given: Array) -> bool:
    """Tell whether both have every element in the same place."""
    return given is out or (
        given.dtype == out.dtype
        and given.shape == out.shape
        and given.__array_interface__["data"][0] == out.__array_interface__["data"][0]
        and all(
            one == other or size == 1
            for one, other, size in zip(given.strides, out.strides, out.shape, strict=True)
        )
    )


def _shares_memory(out: Array, name: str, given: object) -> bool:
    if given is None or isinstance(given, (str, int, float)):
        return False
    array = as_array(name, given)
    if not np.may_share_memory(out, array):
        return False
    try:
        return np.shares_memory(out, array, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: Array) -> bool:
    """Tell whether two different indices of `array` reach the same byte."""
    if array.size < 2:
        return False
    axes = sorted(
        (abs(stride), size)
        for stride, size in zip(array.strides, array.shape, strict=True)
        if size > 1
    )
    reach = array.itemsize
    for stride, size in axes:
        if stride < reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    offsets = np.zeros(1, np.int64)
    for stride, size in axes:
        offsets = np.add.outer(offsets, stride * np.arange(size, dtype=np.int64)).reshape(-1)
    offsets.sort()
    return bool((np.diff(offsets) < array.itemsize).any())


def needs_a_detour(out: Array) -> bool:
    """Tell whether alignment or strides are too unusual for kernels to write here."""
    return not out.flags.aligned or math.gcd(out.itemsize, *out.strides) != out.itemsize
