"""Element types: widened exactly, rounded once, and NaN written in one way.

bfloat16 is known by its name and handled as the upper half of a float32, so that nothing depends on
the conversions of the package that provides the type.
"""

import numpy as np

_FORMATS = {  # precision in bits, least exponent of a normal number, canonical NaN
    "float16": (11, -14, 0x7E00),
    "bfloat16": (8, -126, 0x7FC0),
    "float32": (24, -126, 0x7FC00000),
    "float64": (53, -1022, 0x7FF8000000000000),
}


def widen(array, dtype):
    """Convert exactly to a type that holds every number of the array's type."""
    if array.dtype.name == "bfloat16":
        array = (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(dtype)


def saturated(array, dtype):
    """Convert to T with one rounding, where what is finite stays finite."""
    exact = widen(array, np.float64)
    rounded = exact.astype(dtype)
    overflowed = np.isinf(rounded) & np.isfinite(exact)
    return np.where(overflowed, np.copysign(np.finfo(dtype).max, rounded), rounded)


def result(x, dtype):
    """Round T to an element type once, to nearest even; no -0, and every NaN canonical."""
    dtype = np.dtype(dtype)
    precision, least_exponent, nan = _FORMATS[dtype.name]
    rounded = _rounded(x.astype(np.float64), precision, least_exponent)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    if dtype.name == "bfloat16":
        bits = (rounded.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(unsigned)
    else:
        bits = rounded.astype(dtype).view(unsigned)
    bits = np.where(rounded == 0, unsigned.type(0), bits)
    return np.where(np.isnan(rounded), unsigned.type(nan), bits).view(dtype)


def _rounded(x, precision, least_exponent):
    """Give float64 numbers the digits of a narrower format: round to multiples of its last."""
    if precision == 53:
        return x
    exponent = np.maximum(np.frexp(x)[1] - 1, least_exponent)  # x = 1.f * 2**exponent
    last_digit = exponent - (precision - 1)
    rounded = np.ldexp(np.rint(np.ldexp(x, -last_digit)), last_digit)
    largest = (2 - 2.0 ** (1 - precision)) * 2.0 ** (1 - least_exponent)
    return np.where(np.abs(rounded) > largest, np.copysign(np.inf, x), rounded)
