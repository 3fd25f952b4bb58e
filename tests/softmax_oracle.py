"""The softmax family the plain way, in a wider type, with the documented bound of each result.

float32 arithmetic is judged in float64, float64 arithmetic in ``numpy.longdouble``. With u the unit
roundoff of the arithmetic, n the length of a row, m its greatest element, and ``rest`` the sum of
exp(x - m) without the greatest:

    softmax       u * (n/16 + 32 + log(n) + |x - m|) * exact
    log_softmax,  2 * ulp(max(|exact|, |m|)) + u * (n/16 + 32 + max |x - m|) * rest / (1 + rest)
    logsumexp
    softmax_vjp   u * y * (3 |g - s| + (n/16 + 32) * sum |g y|)

plus half an ulp of the type of the result and the smallest subnormal number of the arithmetic.
"""

from dataclasses import dataclass

import numpy as np
from oracle import half_ulp

WIDE = {np.dtype("f4"): np.float64, np.dtype("f8"): np.longdouble}
LEAST_EXPONENT = {np.dtype("f4"): -104, np.dtype("f8"): -746}

SHAPES = {  # with the axes to reduce
    "row": ((37,), -1),
    "rows": ((5, 37), -1),
    "columns": ((37, 5), 0),
    "middle": ((3, 18, 7), 1),
    "first and last": ((3, 4, 5), (0, 2)),
    "last and first": ((3, 4, 5), (-1, 0)),
    "first two": ((3, 4, 5), (0, 1)),
    "all": ((3, 4, 5), None),
    "none": ((3, 4), ()),
    "one element": ((1, 1), -1),
    "scalar": ((), -1),
}


@dataclass
class Reference:
    """Exact results with their bounds; ``dtype`` is that of a result."""

    dtype: np.dtype
    softmax: np.ndarray
    softmax_bound: np.ndarray
    log_softmax: np.ndarray
    log_softmax_bound: np.ndarray
    logsumexp: np.ndarray  # reduced axes kept
    logsumexp_bound: np.ndarray


def types(x):
    """Return dtype of the result and of the arithmetic."""
    dtype = np.dtype("f8") if x.dtype.kind in "biu" else x.dtype.newbyteorder("=")
    return dtype, np.dtype("f8") if dtype == np.dtype("f8") else np.dtype("f4")


def reduced(axis, ndim):
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))) if ndim else ()


@np.errstate(all="ignore")
def reference(x, axis=-1, where=None):
    x = np.asarray(x)
    dtype, compute = types(x)
    axes = {"axis": reduced(axis, x.ndim), "keepdims": True}
    exists = np.broadcast_to(True if where is None else where, x.shape)
    wide = np.where(exists, x.astype(WIDE[compute]), -np.inf)
    m = wide.max(**axes, initial=-np.inf)
    nan = np.isnan(wide).any(**axes) | np.isnan(m)
    empty, infinite = (m == -np.inf) & ~nan, (m == np.inf) & ~nan
    d = np.where(wide == -np.inf, -np.inf, wide - np.where(np.isfinite(m), m, 0))
    p = np.exp(np.where(np.isfinite(m), d, -np.inf))
    rest = np.where(d == 0, 0, p).sum(**axes) + np.maximum((d == 0).sum(**axes) - 1, 0)
    a = np.log1p(rest)
    soft = np.where(empty, 0, np.where(nan | infinite, np.nan, p / (1 + rest)))
    logs = np.where(empty, -np.inf, np.where(nan | infinite, np.nan, d - a))
    total = np.where(nan, np.nan, np.where(empty | infinite, m, m + a))
    soft = np.where(exists, soft, 0)
    logs = np.where(exists, logs, -np.inf)

    n = int(np.prod([x.shape[i] for i in axes["axis"]]))
    u = np.finfo(compute).eps / 2
    summed = n / 16 + 32
    spread = np.where(d >= LEAST_EXPONENT[compute], -d, 0).max(**axes, initial=0)
    by_sum = u * (summed + spread) * rest / (1 + rest)
    return Reference(
        dtype,
        soft,
        u * (summed + np.log(max(n, 1)) + np.where(soft > 0, -d, 0)) * soft + _last(soft, dtype),
        logs,
        4 * half_ulp(_greater(logs, m), compute) + by_sum + _last(logs, dtype),
        total,
        4 * half_ulp(_greater(total, m), compute) + by_sum + _last(total, dtype),
    )


@np.errstate(all="ignore")
def vjp(grad, y, axis=-1):
    """Exact gradient and its bound."""
    dtype, compute = types(np.asarray(grad))
    axes = {"axis": reduced(axis, np.ndim(grad)), "keepdims": True}
    g, y = (np.asarray(a).astype(WIDE[compute]) for a in (grad, y))
    s = (g * y).sum(**axes)
    exact = y * (g - s)
    n = g.size // max(s.size, 1)
    bound = 3 * np.abs(g - s) + (n / 16 + 32) * np.abs(g * y).sum(**axes)
    return exact, np.finfo(compute).eps / 2 * np.abs(y) * bound + _last(exact, dtype)


def _greater(exact, m):
    size = np.maximum(np.abs(exact), np.abs(m))
    return np.where(np.isfinite(size), size, 0)


def _last(exact, dtype):
    """Half an ulp of the result, and the smallest subnormal number of the arithmetic."""
    tiny = 5e-324 if dtype == np.dtype("f8") else 2.0**-149
    return half_ulp(np.where(np.isfinite(exact), np.abs(exact), 0), dtype) + tiny


def assert_near(actual, exact, bound, name=""):
    """Within the bound; NaN and infinity, also of numbers too large for the type, in place."""
    actual = np.asarray(actual)
    assert actual.shape == exact.shape, name
    with np.errstate(over="ignore"):
        rounded = exact.astype(actual.dtype).astype(exact.dtype)
    wide = actual.astype(exact.dtype)
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(wide[special], rounded[special], name)
    error = np.abs(wide[~special] - exact[~special])
    ratio = error / np.broadcast_to(bound, exact.shape)[~special]
    assert ratio.max(initial=0) <= 1, f"{name} is {ratio.max():.3g} times its bound away"


def check(x, axis=-1, where=None):
    """Call the three functions and compare each with the reference; returns their results."""
    import fast_attention as fa

    expected = reference(x, axis, where)
    results = (
        fa.softmax(x, axis, where=where),
        fa.log_softmax(x, axis, where=where),
        fa.logsumexp(x, axis, where=where, keepdims=True),
    )
    for name, result in zip(("softmax", "log_softmax", "logsumexp"), results, strict=True):
        assert result.dtype == expected.dtype, name
        assert_near(result, getattr(expected, name), getattr(expected, f"{name}_bound"), name)
    return results
