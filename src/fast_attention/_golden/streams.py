"""Numbers that are the same on every platform, in streams that are numbered.

Number ``i`` of a stream is a hash of both, so that any language can repeat it in a few lines: all
operations are on unsigned 64-bit integers, and the results are exact in the types that hold them.

    hash(stream, i):  x = (stream * 2**32 + i + 1) * 0x9E3779B97F4A7C15
                      x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9
                      x = (x ^ x >> 27) * 0x94D049BB133111EB
                      x ^ x >> 31

    coarse     (x >> 59) / 8 - 2, whose products and sums are often exact
    mantissas  a number of [1, 2) with the fraction x >> 12, cut to the digits of the type,
               times 2**(x % 4 - 3), negative if x & 4

The types are named f2, bf (bfloat16), f4 and f8.
"""

from __future__ import annotations

import math

import numpy as np

from .._dtypes import Array

_DIGITS = {"f2": 11, "bf": 8, "f4": 24, "f8": 53}


def hashed(stream: int, *shape: int) -> Array:
    """Return the first hashes of a stream, uint64, in C order."""
    x: Array = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) + np.uint64(stream << 32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31))).reshape(shape)


def coarse(x: Array, name: str) -> Array:
    """Return multiples of 1/8 from -2 up to 2, float64; they fit in every type `name`."""
    del name
    return np.asarray((x >> np.uint64(59)).astype(np.float64) / 8 - 2)


def mantissas(x: Array, name: str) -> Array:
    """Return numbers of 1/8 to 2 and their negatives with all digits of type `name`, float64."""
    cut = np.uint64(53 - _DIGITS[name])
    fraction = (x >> np.uint64(12)) >> cut << cut
    exponent = (x & np.uint64(3)).astype(int) - 3
    size = np.ldexp(1 + np.ldexp(fraction.astype(np.float64), -52), exponent)
    return np.asarray(np.where(x & np.uint64(4), -size, size))
