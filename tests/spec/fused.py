"""Classes: ``fma(a, b, c)``, as one rounding of a*b + c or as two, on float32 and float64 arrays.

No instruction of the machine is relied on but additions and products that round to nearest even.
float32 goes through float64, where the product is exact, the sum is rounded to odd, and the last
rounding to float32 is then direct.  float64 uses the same idea on unevaluated sums of two numbers
(Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
rounding to odd", 2008), and Python's integers where an intermediate could overflow or underflow.
"""

import numpy as np

_SPLITTER = np.float64(2**27 + 1)
_TAME_FACTOR = np.float64(2.0**400)
_TAME_ADDEND = np.float64(2.0**900)


def fma_fused(a, b, c):
    """Round a*b + c once."""
    a, b, c = _of_one_type(a, b, c)
    return _fma_float32(a, b, c) if a.dtype == np.float32 else _fma_float64(a, b, c)


def fma_unfused(a, b, c):
    """Round a*b, then the sum with c."""
    a, b, c = _of_one_type(a, b, c)
    return a * b + c


CLASSES = {"fused": fma_fused, "unfused": fma_unfused}


def _of_one_type(*arrays):
    arrays = [np.asarray(x) for x in arrays]
    dtype = arrays[0].dtype
    if dtype not in (np.float32, np.float64) or any(x.dtype != dtype for x in arrays):
        raise TypeError(f"expected one type, float32 or float64, given {[x.dtype for x in arrays]}")
    return arrays


def _two_sum(a, b):
    """Return the rounded sum and its error, which add up to a + b exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a, b):
    """Return the rounded product and its error, which add up to a*b exactly (Veltkamp, Dekker)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _split(a):
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def _odd_sum(a, b):
    """Return a + b rounded to odd: exact, or else the neighbour whose last bit is set (float64)."""
    total, error = _two_sum(a, b)
    bits = np.asarray(total).view(np.int64)
    wrong = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    neighbour = np.where((error > 0) == (total > 0), bits + 1, bits - 1)
    return np.where(wrong, neighbour, bits).view(np.float64)


def _fma_float32(a, b, c):
    product = a.astype(np.float64) * b.astype(np.float64)  # 48 bits: exact
    return _odd_sum(product, c.astype(np.float64)).astype(np.float32)


def _fma_float64(a, b, c):
    a, b, c = np.broadcast_arrays(a, b, c)
    product, product_error = _two_product(a, b)
    lower, lower_error = _two_sum(c, product_error)
    upper, upper_error = _two_sum(product, lower)
    result = np.asarray(upper + _odd_sum(lower_error, upper_error))
    exact = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b)
    result = np.where(exact, a * b + c, result)
    tame = _is_between(a, _TAME_FACTOR) & _is_between(b, _TAME_FACTOR)
    tame &= _is_between(c, _TAME_ADDEND) | (c == 0)
    for index in np.argwhere(~(exact | tame)):
        where = tuple(index)
        result[where] = _fma_of_integers(float(a[where]), float(b[where]), float(c[where]))
    return result


def _is_between(x, limit):
    size = np.abs(x)
    return (size >= 1 / limit) & (size <= limit)


def _fma_of_integers(a, b, c):
    """Compute with Python's integers, whose quotient is rounded once; a and b are finite, not 0."""
    if not np.isfinite(c):
        return c
    (a_top, a_bottom), (b_top, b_bottom) = a.as_integer_ratio(), b.as_integer_ratio()
    c_top, c_bottom = c.as_integer_ratio()
    top = a_top * b_top * c_bottom + c_top * a_bottom * b_bottom
    try:
        return top / (a_bottom * b_bottom * c_bottom)
    except OverflowError:
        return np.inf if top > 0 else -np.inf
