"""Every float16, bfloat16 and int8 number is read exactly, by vectors and one at a time."""

import numpy as np
import pytest
import support

from fast_attention import scaled_dot_product_attention

HALVES = [np.float16] + ([support.bfloat16] if support.bfloat16 else [])
ROWS = [1, 20]  # keys in the lanes, queries in the lanes


def every(dtype, *, finite):
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    return numbers[np.isfinite(widened(numbers, np.float64)) == finite]


def widened(numbers, wide):
    with np.errstate(invalid="ignore"):  # signalling NaN
        return numbers.astype(wide)


def attend_one_key(values, n_row, dtype, step=1, **options):
    """Attend to a single key, whose weight is 1: what comes out is the value, widened."""
    memory = np.zeros((1, values.size * step), values.dtype)
    memory[:, ::step] = values
    query, key = np.zeros((n_row, 1), dtype), np.zeros((1, 1), dtype)
    return scaled_dot_product_attention(query, key, memory[:, ::step], **options)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("n_row", ROWS)
@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("half", HALVES)
def test_every_half_as_value_is_exact(half, wide, n_row, step, native_engine):
    values = every(half, finite=True)
    expected = np.tile(widened(values, wide) + 0, (n_row, 1))  # no -0
    support.assert_same_bits(attend_one_key(values, n_row, wide, step), expected)


@pytest.mark.parametrize("n_row", ROWS)
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_every_int8_as_value_is_exact(wide, n_row, native_engine):
    values = np.arange(-128, 128).astype(np.int8)
    out = attend_one_key(values, n_row, wide, v_scale=np.ones((1,), wide))
    support.assert_same_bits(out, np.tile(values.astype(wide), (n_row, 1)))


@pytest.mark.parametrize("half", HALVES)
def test_not_finite_halves_stay_what_they_are(half, native_engine):
    values = every(half, finite=False)
    out = attend_one_key(values, 1, np.float32)[0]
    np.testing.assert_array_equal(out, widened(values, np.float32))
