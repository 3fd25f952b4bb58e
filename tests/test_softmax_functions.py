"""exp and log1p of the softmax family as specified, and so as in the kernels, are accurate.

FAST_ATTENTION_TEST_POINTS=10000000 tries so many arguments of exp instead of 100,000.
"""

import os
from decimal import Decimal, localcontext

import numpy as np
import pytest
from spec import CLASSES
from spec.softmax import EXPONENTIALS, exp, log1p

EXP_ULPS = 2
LOG1P_ULPS = 3  # of float64, of which the bound of logsumexp leaves many
POINTS = int(os.environ.get("FAST_ATTENTION_TEST_POINTS", "100000"))
CHUNK = 1_000_000
DECIMAL_POINTS = 3000
HAS_WIDER_FLOAT = np.finfo(np.longdouble).nmant >= 63

both_types = pytest.mark.parametrize("real", [np.float32, np.float64])
both_classes = pytest.mark.parametrize("kind", list(CLASSES))


def exact(function, x):
    """Compute in the next wider type, or in decimal numbers where there is none."""
    if x.dtype == np.float32:
        return getattr(np, function)(x.astype(np.float64))
    if HAS_WIDER_FLOAT:
        return getattr(np, function)(x.astype(np.longdouble))
    with localcontext() as context:
        context.prec = 40
        numbers = [Decimal(float(d)) for d in x]
        return np.array([d.exp() if function == "exp" else (1 + d).ln() for d in numbers])


def ulps(actual, exact):
    """Errors in units of the last place of the exact numbers."""
    unit = np.spacing(exact.astype(actual.dtype))
    difference = actual.astype(exact.dtype) - exact
    return np.abs(difference / unit.astype(exact.dtype)).astype(np.float64)


def arguments_of_exp(rng, real, count):
    """Of all sizes: over the whole range, of few bits in common, and next to ties."""
    low = float(EXPONENTIALS[real].exp_min)
    third = count // 3
    ties = -(rng.integers(0, int(-low / np.log(2)), count - 2 * third) + 0.5) * np.log(2)
    parts = [low * rng.random(third), -(10.0 ** rng.uniform(-9, np.log10(-low), third))]
    return np.concatenate([*parts, ties * (1 + 1e-3 * rng.standard_normal(ties.size))]).astype(real)


@both_types
@both_classes
def test_exp_is_within_two_ulp(real, kind):
    rng = np.random.default_rng(1)
    many = POINTS if real == np.float32 or HAS_WIDER_FLOAT else min(POINTS, DECIMAL_POINTS)
    for start in range(0, many, CHUNK):
        d = arguments_of_exp(rng, real, min(CHUNK, many - start))
        with np.errstate(under="ignore"):
            y = exp(d, CLASSES[kind])
        assert ulps(y, exact("exp", d)).max() <= EXP_ULPS


@both_types
@both_classes
def test_exp_of_special_numbers_is_exact(real, kind):
    least = EXPONENTIALS[real].exp_min
    d = [0.0, -0.0, -np.inf, np.nextafter(least, real(-np.inf)), -np.finfo(real).max, np.nan]
    with np.errstate(all="ignore"):
        y = exp(np.array(d, real), CLASSES[kind])
    np.testing.assert_array_equal(y, np.array([1, 1, 0, 0, 0, np.nan], real))
    assert not np.signbit(y[:-1]).any()


@both_types
@both_classes
def test_exp_loses_its_digits_gradually(real, kind):
    """Down to half of the least subnormal number, and to 0 below it."""
    smallest = np.finfo(real).smallest_subnormal
    tiny = np.log(smallest.astype(np.longdouble)) + np.log(np.array([0.4, 0.6, 1.0, 2.0, 3.0]))
    with np.errstate(under="ignore"):
        y = exp(tiny.astype(real), CLASSES[kind])
    np.testing.assert_array_equal(y, smallest * np.array([0, 1, 1, 2, 3], real))


def test_log1p_is_within_three_ulp():
    rng = np.random.default_rng(2)
    many = POINTS // 2 if HAS_WIDER_FLOAT else DECIMAL_POINTS
    edge = float.fromhex("0x1.a8p-2") + 1e-3 * rng.standard_normal(many // 2)
    t = np.concatenate([10.0 ** rng.uniform(-300, 9, many // 2), 3 * rng.random(many // 2), edge])
    assert ulps(log1p(t), exact("log1p", t)).max() <= LOG1P_ULPS


def test_log1p_of_zero_and_of_tiny_numbers_is_exact():
    t = np.array([0.0, 1e-300, 2.0**-1022])
    np.testing.assert_array_equal(log1p(t), t)
