"""From the type of the arithmetic to the type of the output: one rounding, and no negative zero."""

from __future__ import annotations

import numpy as np

from .._dtypes import Array, round_to

_NEGATIVE_ZERO = 0x8000  # of float16 and of bfloat16


def store(result: Array, target: Array, rows: tuple[int, ...]) -> None:
    """Write `result` into `target` (*rows, width), rounded directly to its type."""
    result = result.reshape(*rows, target.shape[-1])
    if target.dtype == result.dtype:
        np.add(result, 0.0, out=target)
        return
    rounded = round_to(result, target.dtype)
    if rounded.itemsize == 2:
        bits = rounded.view(np.uint16)
        bits[bits == _NEGATIVE_ZERO] = 0
    else:
        rounded += 0.0
    target[...] = rounded
