"""The softmax family, step by step as in the text: softmax, log_softmax, logsumexp, softmax_vjp.

    x, g, y (rows, n) in T; exists (rows, n) bool; m, a, s (rows, 1)

``exp`` takes the fma of its class; ``log1p`` is float64 and rounds after every operation.
"""

from dataclasses import dataclass

import numpy as np

from . import formats
from .functions import FLOAT32, FLOAT64, horner
from .fused import CLASSES, fma_unfused

SOFTMAX, LOG_SOFTMAX, LOGSUMEXP, SOFTMAX_VJP = range(4)
PARTIAL_SUMS = 16


def reduction(call, arithmetic_class):
    """Compute a call of the class "fused" or "unfused", bit by bit.

    ``call`` is what ``describe_reduction`` returns; only its inputs are read.  Returns a new array
    in the shape and the order of axes of ``call.output``.
    """
    with np.errstate(all="ignore"):
        result = Rows(call, CLASSES[arithmetic_class]).result(call.kind)
    return formats.result(result, call.x.dtype).reshape(call.output.shape)


class Rows:
    """All rows of a call; elements are counted in C order over the reduced axes."""

    def __init__(self, call, fma):
        self.T, self.fma = call.compute_dtype.type, fma
        shape = (int(np.prod(call.x.shape[: call.n_outer])), -1)
        self.x = formats.widen(call.x, self.T).reshape(shape)
        self.y = None if call.y is None else formats.widen(call.y, self.T).reshape(shape)
        everything = np.ones(call.x.shape, bool)
        self.exists = (everything if call.where is None else call.where).reshape(shape)

    def result(self, kind):
        if kind == SOFTMAX_VJP:
            return np.where(self.exists, self.vjp(), self.T(0))
        self.find_maximum()
        if kind == LOGSUMEXP:
            return self.logsumexp()
        result, nothing = (
            (self.softmax(), self.T(0))
            if kind == SOFTMAX
            else (self.log_softmax(), self.T(-np.inf))
        )
        result = np.where(self.has_nan | (self.m == np.inf), self.T(np.nan), result)
        return np.where(self.exists & ~self.is_empty, result, nothing)

    def find_maximum(self):
        is_nan = np.isnan(self.x)
        counted = self.exists & ~is_nan
        self.m = np.where(counted, self.x, self.T(-np.inf)).max(axis=1, keepdims=True)
        self.has_nan = (self.exists & is_nan).any(axis=1, keepdims=True)
        self.is_empty = (self.m == -np.inf) & ~self.has_nan
        self.p = exp(self.x - self.m, self.fma)

    def sum(self, counted, add):
        """Sum over each row; ``add(i, s)`` adds elements i to partial sums s, (rows, up to 16)."""
        n_row, n = self.x.shape
        partial = np.zeros((n_row, PARTIAL_SUMS), self.T)
        for start in range(0, n, PARTIAL_SUMS):  # one element to each partial sum
            i = slice(start, min(start + PARTIAL_SUMS, n))
            s = partial[:, : i.stop - start]
            s[...] = np.where(counted[:, i], add(i, s), s)
        for h in (8, 4, 2, 1):
            for k in range(h):
                partial[:, k] = partial[:, k] + partial[:, k + h]
        return partial[:, :1]

    def softmax(self):
        return self.p / self.sum(self.exists, lambda i, s: s + self.p[:, i])

    def log1p_of_rest(self):
        is_greatest = self.exists & (self.x == self.m)
        rest = self.sum(self.exists & ~is_greatest, lambda i, s: s + self.p[:, i])
        c = is_greatest.sum(axis=1, keepdims=True)
        r = rest + (c - 1).astype(self.T)
        return log1p(r.astype(np.float64)).astype(self.T)

    def log_softmax(self):
        return (self.x - self.m) - self.log1p_of_rest()

    def logsumexp(self):
        result = self.m + self.log1p_of_rest()
        result = np.where(self.m == np.inf, self.T(np.inf), result)
        result = np.where(self.is_empty, self.T(-np.inf), result)
        return np.where(self.has_nan, self.T(np.nan), result)

    def vjp(self):
        g, y = self.x, self.y
        s = self.sum(self.exists, lambda i, s: self.fma(g[:, i], y[:, i], s))
        return y * (g - s)


@dataclass(frozen=True)
class Exponential:
    """Constants of ``exp`` in one T."""

    log2e: np.floating
    exp_min: np.floating
    ln2_hi: np.floating
    ln2_lo: np.floating
    coefficients: tuple


def _numbers(dtype, text):
    return tuple(dtype(float.fromhex(word)) for word in text.split())


EXPONENTIALS = {
    np.float32: Exponential(
        FLOAT32.log2e,
        np.float32(-104),
        *_numbers(np.float32, "0x1.62e4p-1 0x1.7f7d1cp-20"),
        _numbers(
            np.float32, "0x1p+0 0x1p-1 0x1.5554dcp-3 0x1.555518p-5 0x1.120bdep-7 0x1.6d117ap-10"
        ),
    ),
    np.float64: Exponential(
        FLOAT64.log2e,
        np.float64(-746),
        *_numbers(np.float64, "0x1.62e42fefa3p-1 0x1.3de6af278ece6p-42"),
        _numbers(
            np.float64,
            "0x1p+0 0x1.0000000000001p-1 0x1.5555555555556p-3 0x1.5555555553d38p-5 "
            "0x1.11111111109a6p-7 0x1.6c16c1789caa1p-10 0x1.a01a01a7ce75dp-13 "
            "0x1.a019b8cbe6585p-16 0x1.71de0d863c737p-19 0x1.2891d2ecb3ed9p-22 "
            "0x1.af39091a8441ap-26",
        ),
    ),
}
LOG1P_COEFFICIENTS = _numbers(
    np.float64,
    "0x1.5555555555558p-1 0x1.9999999995276p-2 0x1.2492492dfd3d3p-2 0x1.c71c62d643033p-3 "
    "0x1.7462b900e4b3ep-3 0x1.39fdd060a2a56p-3 0x1.2b5f3df0a9a78p-3",
)
LOG1P_DIRECT = np.float64(float.fromhex("0x1.a8p-2"))


def exp(d, fma):
    """e**d for d <= 0; 0 below ``exp_min``, and NaN of NaN."""
    d = np.asarray(d)
    real = d.dtype.type
    k = EXPONENTIALS[real]
    small = d < k.exp_min
    d = np.where(small, real(0), d)
    n = np.rint(d * k.log2e)
    r = fma(-n, k.ln2_hi, d)
    r = fma(-n, k.ln2_lo, r)
    e = fma(horner(k.coefficients, r, fma), r, real(1))
    h = np.rint(n / real(2))
    e = e * _power_of_two(h)
    return np.where(small, real(0), e * _power_of_two(n - h))


def _power_of_two(n):
    exponent = np.where(np.isnan(n), 0, n).astype(np.int32)
    return np.ldexp(n.dtype.type(1), exponent)


def log1p(t):
    """Return log(1 + t) for t >= 0, float64."""
    k = EXPONENTIALS[np.float64]
    direct = t < LOG1P_DIRECT
    u = np.float64(1) + t
    b = u.view(np.int64)
    power = (b - FLOAT64.root_half) >> FLOAT64.fraction_bits
    z = (b - (power << FLOAT64.fraction_bits)).view(np.float64)
    s = np.where(direct, t / (2 + t), (z - 1) / (z + 1))
    c = np.where(direct, 0, (t - (u - 1)) / u)
    n = np.where(direct, 0, power).astype(np.float64)
    w = s * s
    g = horner(LOG1P_COEFFICIENTS, w, fma_unfused)
    return n * k.ln2_hi + (s * (2 + w * g) + (n * k.ln2_lo + c))
