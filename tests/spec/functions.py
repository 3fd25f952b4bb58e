"""Words, Constants, Functions: each works on arrays of T, and takes the fma of its class."""

from dataclasses import dataclass

import numpy as np

KEY_BLOCK = 96  # keys
SEGMENT = 16  # blocks


def maximum(a, b):
    """Return ``a > b ? a : b``: with a NaN, the second."""
    return np.where(a > b, a, b)


def minimum(a, b):
    """Return ``a < b ? a : b``: with a NaN, the second."""
    return np.where(a < b, a, b)


@dataclass(frozen=True)
class Constants:
    """What the table of constants says about one T, and the coefficients of the functions."""

    dtype: type
    log2e: np.floating
    ln2: np.floating
    exp2_min: np.floating
    huge: np.floating
    tanh_clamp: np.floating
    fraction_bits: int
    root_half: np.integer  # the bit pattern of sqrt(1/2)
    exp2_coefficients: tuple
    log2_coefficients: tuple


def _numbers(dtype, text):
    return tuple(dtype(float.fromhex(word)) for word in text.split())


FLOAT32 = Constants(
    np.float32,
    *_numbers(np.float32, "0x1.715476p+0 0x1.62e43p-1"),
    exp2_min=np.float32(-126),
    huge=np.finfo(np.float32).max,
    tanh_clamp=np.float32(32),
    fraction_bits=23,
    root_half=np.int32(0x3F3504F3),
    exp2_coefficients=_numbers(
        np.float32,
        "0x1.62e430p-1 0x1.ebfbe0p-3 0x1.c6af6cp-5 0x1.3b2a54p-7 0x1.5f0890p-10 0x1.44138ap-13",
    ),
    log2_coefficients=_numbers(
        np.float32, "0x1.715476p+1 0x1.ec73eap-1 0x1.2631bep-1 0x1.eb9f16p-2"
    ),
)

FLOAT64 = Constants(
    np.float64,
    *_numbers(np.float64, "0x1.71547652b82fep+0 0x1.62e42fefa39efp-1"),
    exp2_min=np.float64(-1022),
    huge=np.finfo(np.float64).max,
    tanh_clamp=np.float64(64),
    fraction_bits=52,
    root_half=np.int64(0x3FE6A09E667F3BCD),
    exp2_coefficients=_numbers(
        np.float64,
        "0x1.62e42fefa39efp-1 0x1.ebfbdff82c598p-3 0x1.c6b08d704a0c2p-5 0x1.3b2ab6fba1ddap-7 "
        "0x1.5d87fe78a5276p-10 0x1.430913096fd9fp-13 0x1.ffcbfc670dcd4p-17 0x1.62bfd47773353p-20 "
        "0x1.b524fae627834p-24 0x1.e6063f7217bc6p-28 0x1.e9d3fe3952179p-32",
    ),
    log2_coefficients=_numbers(
        np.float64,
        "0x1.71547652b82fep+1 0x1.ec709dc3a08f8p-1 0x1.2776c50e48e57p-1 0x1.a61763d01bcb3p-2 "
        "0x1.484a9be37fb46p-2 0x1.0cb423dc3c4ffp-2 0x1.c0c841c78fc46p-3 0x1.d931ff3f8daa7p-3",
    ),
)


def constants(dtype):
    """Return the constants of T."""
    return {FLOAT32.dtype: FLOAT32, FLOAT64.dtype: FLOAT64}[np.dtype(dtype).type]


def horner(coefficients, x, fma):
    """Evaluate a polynomial by Horner's rule, from the highest coefficient down."""
    result = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def exp2(x, fma):
    """2**x for x <= 0; exactly 0 below ``exp2_min``."""
    x = np.asarray(x)
    k = constants(x.dtype)
    small = x < k.exp2_min
    x = np.where(small, k.dtype(0), x)
    n = np.rint(x)
    f = x - n
    r = fma(horner(k.exp2_coefficients, f, fma), f, k.dtype(1)) * _power_of_two(n)
    return np.where(small, k.dtype(0), r)


def tanh(x, fma):
    """Hyperbolic tangent, by ``(e**2x - 1) / (e**2x + 1)`` without cancellation near 0."""
    x = np.asarray(x)
    k = constants(x.dtype)
    y = minimum(k.tanh_clamp, np.abs(x) * (k.dtype(2) * k.log2e))
    n = np.rint(y)
    f = y - n
    power = _power_of_two(n)
    e = f * horner(k.exp2_coefficients, f, fma)
    u = fma(power, e, power - k.dtype(1))
    return np.copysign(u / (u + k.dtype(2)), x)


def log2(x, fma):
    """Logarithm to base 2 of x >= 1 and finite; anything comes out for other x."""
    x = np.asarray(x)
    k = constants(x.dtype)
    b = x.view(k.root_half.dtype)
    e = (b - k.root_half) >> k.fraction_bits
    z = (b - (e << k.fraction_bits)).view(k.dtype)
    s = (z - k.dtype(1)) / (z + k.dtype(1))
    u = s * s
    return fma(s, horner(k.log2_coefficients, u, fma), e.astype(k.dtype))


def _power_of_two(n):
    """2**n for integral n within the exponents of normal numbers; some number for other n."""
    exponent = np.clip(np.where(np.isnan(n), 0, n), -1022, 1023).astype(np.int32)
    return np.ldexp(n.dtype.type(1), exponent)
