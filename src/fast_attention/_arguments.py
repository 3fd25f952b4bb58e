"""Reading single arguments: numbers, ranges and windows, with errors that say what was given."""

from __future__ import annotations

import math
import operator
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

from ._dtypes import FLOAT64, Array

FARTHEST_OFFSET = 2**61  # with windows of at most 2**62, no position overflows 64 bits
_WIDEST_WINDOW = 2**62
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")


def read_scale(scale: SupportsFloat | None, d_head: int, dtype: np.dtype[Any]) -> float:
    """Return the scale, its default being 1/sqrt(D); it stays finite in the base-2 arithmetic."""
    if scale is None:
        return 1.0 / math.sqrt(d_head) if d_head else 1.0
    number = _real("scale", scale)
    if not (_is_finite_in(number, dtype) and _is_finite_in(number * _LOG2_E, dtype)):
        raise ValueError(
            f"scale must be finite in {dtype}, and scale * log2(e) too, given {scale!r}"
        )
    return number


def read_softcap(softcap: SupportsFloat, dtype: np.dtype[Any]) -> float:
    """Return the cap, which is above 0 and, like its inverse, finite in the arithmetic."""
    number = _real("softcap", softcap)
    if not 0 < number < math.inf:
        raise ValueError(f"softcap must be above 0 and finite, or None, given {softcap!r}")
    with np.errstate(all="ignore"):
        inverse = float(np.divide(1, dtype.type(number), dtype=dtype))
    if not (_is_finite_in(number, dtype) and math.isfinite(inverse)):
        raise ValueError(f"softcap and 1 / softcap must be finite in {dtype}, given {softcap!r}")
    return number


def _real(name: str, x: Any) -> float:
    """Return a Python float from anything that is one real number; text and arrays are not."""
    if not hasattr(x, "__float__") or np.iscomplexobj(x) or getattr(x, "ndim", 0) > 0:
        raise TypeError(f"{name} must be a real number, not {type(x).__name__} {x!r}")
    try:
        return float(x)
    except OverflowError:  # an int beyond float64
        return math.inf


def _is_finite_in(number: float, dtype: np.dtype[Any]) -> bool:
    if dtype == FLOAT64:
        return math.isfinite(number)
    with np.errstate(all="ignore"):
        return bool(np.isfinite(dtype.type(number)))


def check_range(name: str, array: Array, low: int, high: int) -> None:
    """Refuse values outside low..high."""
    if not array.size:
        return
    least, greatest = int(array.min()), int(array.max())
    if least < low or greatest > high:
        worst = least if least < low else greatest
        raise ValueError(f"{name} must be from {low} to {high}, given {worst}")


def read_count(name: str, x: SupportsIndex, least: int = 0) -> int:
    """Return a number of things, an int that is not a bool."""
    try:
        count = operator.index(x)
    except TypeError:
        count = None
    if count is None or isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name} must be an int, not {type(x).__name__} {x!r}")
    if count < least:
        raise ValueError(f"{name} must be {least} or more, given {count}")
    return count


def read_window(window: object) -> tuple[int, int]:
    """Return (left, right) with -1 for an open side."""
    sides: tuple[object, ...]
    if isinstance(window, (tuple, list)) or getattr(window, "ndim", 0) == 1:
        sides = tuple(window)  # type: ignore[arg-type]
    else:
        sides = (window, window)
    if len(sides) != 2:
        raise ValueError(f"window must be an int or (left, right), given {window!r}")
    return _window_side(sides[0], window), _window_side(sides[1], window)


def _window_side(side: Any, window: object) -> int:
    if side is None:
        return -1
    try:
        width = operator.index(side)
    except TypeError:
        width = None
    if width is None or isinstance(side, bool):
        raise TypeError(f"window must be an int or (left, right) of ints or None, given {window!r}")
    if width < -1:
        raise ValueError(f"window must be -1 (open) or above on each side, given {window!r}")
    return min(width, _WIDEST_WINDOW)
