"""The executable specification is itself right: its fma, its functions, its attention."""

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import oracle
import pytest
import support
from spec import CLASSES, attention, formats, functions
from spec.calls import LONG, OPTIONS, SHAPES, TYPES_MIXED
from spec.fused import fma_fused, fma_unfused
from spec.hard_values import HARD

EXP2_ULPS = 1.2
TANH_EPS = 5
LOG2_EPS = 4  # the share of log2 in the bound of lse
P_EPS = {np.float32: 0.375, np.float64: 0.465}  # 0.37 and 0.46, rounded
DIGITS = 80

both_types = pytest.mark.parametrize("real", [np.float32, np.float64])
both_classes = pytest.mark.parametrize("kind", list(CLASSES))


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


# fma


def rounded(exact, real):
    """Round a Fraction to nearest even, by the definition of the format."""
    info = np.finfo(real)
    if exact == 0:
        return real(0)
    size, precision = abs(exact), info.nmant + 1
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    last_digit = Fraction(2) ** (max(exponent, info.minexp) - precision + 1)
    size = round(size / last_digit) * last_digit  # ties to even
    result = real(np.inf) if size > Fraction(float(info.max)) else real(float(size))
    return result if exact > 0 else -result


def assert_fma_exact(a, b, c, real):
    a, b, c = (np.asarray(x, real) for x in (a, b, c))
    actual = fma_fused(a, b, c)
    pairs = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    expected = [rounded(Fraction(x) * Fraction(y) + Fraction(z), real) for x, y, z in pairs]
    assert actual.dtype == real
    np.testing.assert_array_equal(actual, np.array(expected, real))


def random_numbers(rng, real, count, low, high):
    """Numbers of random sign, with exponents in [low, high) and few or many digits."""
    info = np.finfo(real)
    fraction = rng.integers(0, 2**info.nmant, count)
    few = rng.random(count) < 0.3
    fraction[few] &= 3 << (info.nmant - 2)
    one = rng.random(count) < 0.2
    fraction[one] = 1 << rng.integers(0, info.nmant, one.sum())
    size = np.ldexp(1 + fraction / 2**info.nmant, rng.integers(low, high, count))
    return (size * rng.choice([-1, 1], count)).astype(real)


@both_types
@pytest.mark.parametrize("spread", [2, 30, 60])
def test_fma_of_ordinary_numbers_is_rounded_once(real, spread):
    rng = np.random.default_rng(spread)
    a, b, c = (random_numbers(rng, real, 1000, -spread, spread) for _ in range(3))
    assert_fma_exact(a, b, c, real)


@both_types
def test_fma_that_cancels_is_rounded_once(real):
    rng = np.random.default_rng(1)
    a, b = (random_numbers(rng, real, 1000, -3, 3) for _ in range(2))
    product = -(a * b)
    for c in (product, np.nextafter(product, real(np.inf)), np.nextafter(product, real(-np.inf))):
        assert_fma_exact(a, b, c, real)


@both_types
def test_fma_next_to_a_tie_is_rounded_once(real):
    """1 + half an ulp, a little more and a little less, where two roundings go wrong."""
    half = np.finfo(real).eps / 2
    digits = np.finfo(real).nmant
    sizes = [1 + 2.0**-k for k in (1, 2, *range(digits - 9, digits + 1))]
    sizes += [1.0, 1.5, 2.0**-70, 2.0**70]
    signs = [1, -1]
    a, b, c, s, t = zip(*itertools.product(sizes, sizes, sizes[-6:], signs, signs), strict=True)
    a, b, c, s, t = (np.array(x, real) for x in (a, b, c, s, t))
    assert_fma_exact(a * s, b * half, c * t, real)
    assert_fma_exact(a * s, b, c * t * half * half, real)


@both_types
def test_fma_at_the_ends_of_the_range_is_rounded_once(real):
    info, rng = np.finfo(real), np.random.default_rng(2)
    low, high = info.minexp - info.nmant, info.maxexp
    for exponents in (low, low // 2), (low, high), (high // 2, high):
        a, b, c = (random_numbers(rng, real, 500, *exponents) for _ in range(3))
        assert_fma_exact(a, b, c, real)
    ends = [info.max, info.tiny, info.smallest_subnormal, 1.0, 0.5, 3 * info.smallest_subnormal]
    ends = np.array([sign * x for x in ends for sign in (1, -1)] + [0.0], real)
    assert_fma_exact(*np.array(list(itertools.product(ends, repeat=3)), real).T, real)


@both_types
def test_fma_of_infinities_nan_and_signed_zeros_follows_ieee(real):
    numbers = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.5, -2.0], real)
    a, b, c = np.array(list(itertools.product(numbers, repeat=3)), real).T
    support.assert_same_bits(
        formats.result(fma_fused(a, b, c), real), formats.result(a * b + c, real)
    )
    zero = fma_fused(a, b, c) == 0
    np.testing.assert_array_equal(np.signbit(fma_fused(a, b, c))[zero], np.signbit(a * b + c)[zero])
    huge = np.array([np.finfo(real).max, -np.finfo(real).max], real)
    assert np.isneginf(fma_fused(huge, huge, real(-np.inf))).all()  # the product is finite


@both_types
def test_fma_unfused_rounds_twice(real):
    eps = np.finfo(real).eps
    a, c = real(1 + eps), real(-1 - 2 * eps)
    assert fma_unfused(a, a, c) == 0
    assert fma_fused(a, a, c) == eps * eps


@both_classes
def test_fma_of_two_types_is_refused(kind):
    with pytest.raises(TypeError, match="one type"):
        CLASSES[kind](np.float32(1), np.float64(1), np.float32(1))


# Functions


def relative_errors(actual, arguments, exact):
    """(error / exact value, error / ulp) of each result, against a function of a Decimal."""
    relative, ulps = [], []
    with localcontext() as context:
        context.prec = DIGITS
        for y, x in zip(actual, arguments, strict=True):
            truth = exact(Decimal(float(x)))
            error = abs(Decimal(float(y)) - truth)
            relative.append(float(error / abs(truth)))
            ulps.append(float(error / Decimal(float(np.spacing(np.abs(y.dtype.type(truth)))))))
    return np.array(relative), np.array(ulps)


def exact_exp2(x):
    return (x * Decimal(2).ln()).exp()


def exact_tanh(x):
    power = (2 * abs(x)).exp()
    return ((power - 1) / (power + 1)).copy_sign(x)


def exact_log2(x):
    return x.ln() / Decimal(2).ln()


def eps_of(real):
    return float(np.finfo(real).eps) / 2


@both_types
def test_power_polynomial_has_the_stated_error(real):
    f = np.linspace(-0.5, 0.5, 400).astype(real)
    coefficients = [Decimal(float(c)) for c in functions.constants(real).exp2_coefficients]
    with localcontext() as context:
        context.prec = DIGITS
        exact = [exact_exp2(Decimal(float(x))) - 1 for x in f]
        value = [
            sum(c * Decimal(float(x)) ** (i + 1) for i, c in enumerate(coefficients)) for x in f
        ]
        worst = max(abs(v / e - 1) for v, e in zip(value, exact, strict=True))
    assert float(worst) < P_EPS[real] * eps_of(real)


@both_types
@both_classes
def test_exp2_has_the_stated_error(real, kind):
    rng = np.random.default_rng(3)
    least = functions.constants(real).exp2_min
    x = [least * rng.random(300), -rng.random(300), -(10.0 ** rng.uniform(-20, 0, 200)), [least]]
    x = np.concatenate([*x, -0.5 - 1e-3 * rng.uniform(-1, 1, 200)]).astype(real)
    y = functions.exp2(x, CLASSES[kind])
    assert relative_errors(y, x, exact_exp2)[1].max() < EXP2_ULPS
    assert (y >= np.finfo(real).tiny).all()


@both_classes
def test_exp2_of_many_float32_numbers_has_the_stated_error(kind):
    x = -np.arange(0x3E000000, 0x3FC00000, 97, dtype=np.uint32).view(np.float32)
    exact = np.exp2(x.astype(np.float64))
    error = np.abs(functions.exp2(x, CLASSES[kind]) - exact)
    assert (error / np.spacing(exact.astype(np.float32))).max() < EXP2_ULPS


@both_types
@both_classes
def test_exp2_of_special_numbers_is_exact(real, kind):
    least = functions.constants(real).exp2_min
    x = [
        0.0,
        -0.0,
        -np.inf,
        np.nextafter(least, real(-np.inf)),
        -np.finfo(real).max,
        -5,
        least,
        np.nan,
    ]
    y = functions.exp2(np.array(x, real), CLASSES[kind])
    expected = [1, 1, 0, 0, 0, 1 / 32, np.finfo(real).tiny, np.nan]
    np.testing.assert_array_equal(y, np.array(expected, real))
    assert not np.signbit(y[:-1]).any()


@both_types
@both_classes
def test_tanh_has_the_stated_error(real, kind):
    rng = np.random.default_rng(4)
    x = [rng.uniform(-30, 30, 200), rng.uniform(-1, 1, 300), 10.0 ** rng.uniform(-30, 0, 200)]
    x = np.concatenate([*x, rng.uniform(-0.6, 0.6, 200)]).astype(real)
    y = functions.tanh(x, CLASSES[kind])
    assert relative_errors(y, x, exact_tanh)[0].max() < TANH_EPS * eps_of(real)


@both_types
@both_classes
def test_tanh_of_special_numbers_is_exact(real, kind):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.finfo(real).max, 100, -100, np.nan], real)
    y = functions.tanh(x, CLASSES[kind])
    np.testing.assert_array_equal(y, np.array([0, 0, 1, -1, 1, 1, -1, np.nan], real))
    assert np.signbit(y[:2]).tolist() == [False, True]


@both_types
@both_classes
def test_log2_has_the_error_that_lse_allows(real, kind):
    rng = np.random.default_rng(5)
    x = [1 + rng.random(300), 2.0 ** rng.uniform(0, 40, 200), 1 + 10.0 ** rng.uniform(-16, 0, 200)]
    x = np.concatenate(x).astype(real)
    x = x[x > 1]
    y = functions.log2(x, CLASSES[kind])
    assert relative_errors(y, x, exact_log2)[0].max() < LOG2_EPS * eps_of(real)
    powers = np.array([1, 2, 4, 2.0**60], real)
    np.testing.assert_array_equal(
        functions.log2(powers, CLASSES[kind]), np.array([0, 1, 2, 60], real)
    )


def test_max_and_min_with_nan_give_the_second():
    for word in (functions.maximum, functions.minimum):
        assert word(np.nan, 1.0) == 1.0
        assert np.isnan(word(1.0, np.nan))


# Formats


@pytest.mark.parametrize("name", ["f2", "f4"])
def test_rounding_to_an_element_type_agrees_with_numpy(name):
    rng = np.random.default_rng(6)
    x = np.concatenate(
        [random_numbers(rng, np.float64, 3000, -160, 135), [0.0, -0.0, np.inf, -np.inf, np.nan]]
    )
    expected = x.astype(name) + np.dtype(name).type(0)
    assert np.isnan(expected[-1])
    support.assert_same_bits(formats.result(x, name)[:-1], expected[:-1])


def test_rounding_to_bfloat16_is_direct():
    if support.bfloat16 is None:
        pytest.skip("ml_dtypes is not installed")
    just_above_a_tie = 1 + 2.0**-8 + 2.0**-40
    x = np.array(
        [1.0, 1 + 2.0**-8, just_above_a_tie, -(2.0**-134), 3.4e38, np.nan, -just_above_a_tie]
    )
    expected = [0x3F80, 0x3F80, 0x3F81, 0x0000, 0x7F80, 0x7FC0, 0xBF81]
    assert support.bits(formats.result(x, support.bfloat16)).tolist() == expected
    assert formats.widen(formats.result(x, support.bfloat16), np.float64)[2] == 1 + 2.0**-7


# Attention

ORDINARY = {
    **{name: call for i, (name, call) in enumerate(SHAPES.items()) if i % 9 == 0},
    **{name: call for i, (name, call) in enumerate(TYPES_MIXED.items()) if i % 4 == 0},
    **{name: call for name, call in OPTIONS.items() if not name.startswith("random")},
    **{f"random {i}": OPTIONS[f"random {i}"] for i in range(40)},
    **{name: call for name, call in LONG.items() if "1 rows" in name},
}


@both_classes
@pytest.mark.parametrize("name", ORDINARY)
def test_attention_is_within_the_bound_of_a_plain_one(name, kind):
    call = ORDINARY[name]()
    expected = oracle.attention(*call.arrays, **call.options)
    output, lse, weights = attention(call.describe(), kind)
    support.assert_output_near(output, expected)
    support.assert_lse_near(lse, expected)
    support.assert_weights_near(weights, expected)


@both_classes
@pytest.mark.parametrize("name", [name for name in HARD if name.startswith(("nan", "inf", "-inf"))])
def test_attention_is_finite_where_a_plain_one_is(name, kind):
    call = HARD[name]()
    expected = oracle.attention(*call.arrays, **call.options)
    output, lse, weights = attention(call.describe(), kind)
    support.assert_output_near(output, expected)
    support.assert_lse_near(lse, expected)
    support.assert_weights_near(weights, expected)


def test_attention_of_one_key_is_its_value():
    """By hand: one visible key has weight 1, and lse is its score."""
    q, v = np.array([[2.0]], "f4"), np.array([[3.0, -0.0]], "f4")
    call = SHAPES["f4 1x1 1:1"]()
    call.arrays = q, np.array([[0.25]], "f4"), v
    for kind in CLASSES:
        output, lse, weights = attention(call.describe(), kind)
        support.assert_same_bits(output, np.array([[[3.0, 0.0]]], "f4"))
        support.assert_same_bits(weights, np.array([[[1.0]]], "f4"))
        log2e, ln2 = functions.FLOAT32.log2e, functions.FLOAT32.ln2
        support.assert_same_bits(lse, (np.float32(0.5) * log2e * ln2).reshape(1, 1))


@both_classes
def test_attention_differs_between_the_classes(kind):
    """Ordinary numbers tell the classes apart; else one of them would be untested."""
    call = SHAPES[next(name for name in SHAPES if name.startswith("f4 9x193"))]()
    other = "unfused" if kind == "fused" else "fused"
    one, two = attention(call.describe(), kind), attention(call.describe(), other)
    assert (support.bits(one[0]) != support.bits(two[0])).mean() > 0.2
