"""Faults that other implementations of softmax and log-sum-exp had."""

import tempfile

import numpy as np
import pytest
import softmax_oracle
import support
from numpy.lib.stride_tricks import as_strided
from softmax_oracle import check
from support import normal

from fast_attention import (
    log_softmax,
    logsumexp,
    scaled_dot_product_attention,
    softmax,
    softmax_vjp,
)

INF, NAN = np.inf, np.nan
THREE = [softmax, log_softmax, logsumexp]
every_function = pytest.mark.parametrize("function", THREE, ids=lambda f: f.__name__)


def case(*arguments, id):
    return pytest.param(*arguments, id=id)


def rng(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("row", [case([0, INF], id="S01"), case([INF, 0, INF], id="S01-twice")])
def test_infinity_is_not_certainty_but_nan_in_softmax_and_log_softmax(engine, row):
    x = np.array(row, "f4")
    assert np.isnan(softmax(x)).all()
    assert np.isnan(log_softmax(x)).all()
    assert logsumexp(x) == INF


@pytest.mark.parametrize("dtype", [case(t, id=f"S01-{t}") for t in ("f4", "f8")])
def test_one_great_number_takes_everything(engine, dtype):
    np.testing.assert_array_equal(softmax(np.array([1, 1, 1e30], dtype)), [0, 0, 1])


@pytest.mark.parametrize("dtype", [case(t, id=f"S02-{t}") for t in ("f2", "f4", "f8")])
def test_row_of_minus_infinity_is_empty_and_leaves_the_others_alone(engine, dtype):
    row = np.full(2, -INF, dtype)
    x = np.stack([normal(rng(1), 2, dtype=dtype), row, normal(rng(2), 2, dtype=dtype)])
    with np.errstate(all="raise"):
        for function, nothing in ((softmax, 0), (log_softmax, -INF), (logsumexp, -INF)):
            assert (function(row) == nothing).all()
            result = function(x)
            assert (result[1] == nothing).all()
            support.assert_same_bits(np.asarray(result[[0, 2]]), function(x[[0, 2]]))


@pytest.mark.parametrize("shape", [case(s, id=f"S03-{s}") for s in ((0,), (3, 0), (0, 3), (0, 0))])
def test_empty_input_gives_an_empty_result(engine, shape):
    x = np.zeros(shape)
    assert softmax(x).shape == log_softmax(x).shape == softmax_vjp(x, x).shape == shape
    total = np.asarray(logsumexp(x))
    assert total.shape == shape[:-1]
    assert (total == -INF).all()


@pytest.mark.parametrize("c", [case(c, id=f"S05-{c:g}") for c in (1, 1e4, 1e8, 1e20, -1e8)])
def test_log_softmax_of_two_equal_logits_is_log_of_one_half(engine, c):
    x = np.array([[c, c]], "f4")
    expected = np.float32(-0.6931472)
    assert (log_softmax(x) == expected).all()
    assert (log_softmax(x.T, axis=0) == expected).all()
    assert (log_softmax(np.repeat(x, 9, 0).T, axis=0) == expected).all()


@pytest.mark.parametrize("axis", [case(-1, id="S06-last"), case(0, id="S06-first")])
def test_log_softmax_of_the_winner_is_not_rounded_to_zero(engine, axis):
    x = np.array([0, -20], "f4")
    winner = log_softmax(x if axis == -1 else x[:, None], axis).ravel()[0]
    assert abs(winner + 2.0611536e-9) < 2e-7 * 2.1e-9
    assert abs(logsumexp(x) - 2.0611536e-9) < 2e-7 * 2.1e-9


@pytest.mark.parametrize("dtype", [case(t, id=f"S07-{np.dtype(t)}") for t in support.FLOATS])
def test_sum_of_a_long_row_does_not_stall(engine, dtype):
    y = softmax(np.zeros((1, 5000), dtype))
    assert (y == np.array(1 / 5000).astype(dtype)).all()
    if dtype is np.float16:
        assert abs(y.astype("f8").sum() - 1) < 3e-4
    query, key = np.zeros((1, 1, 8), dtype), np.zeros((1, 5000, 8), dtype)
    output = scaled_dot_product_attention(query, key, np.ones((1, 5000, 3), dtype))
    assert (output == 1).all()


@pytest.mark.parametrize("axis", [case(a, id=f"S09-{a}") for a in (0, 1, (0, 1))])
def test_out_with_gaps_is_filled_and_the_gaps_are_left_alone(engine, axis):
    x = normal(rng(3), 2, 3)
    for function in (softmax, log_softmax):
        memory = np.full((4, 8), 7, "f4")
        out = memory[::2, ::3]
        function(x, axis, out=out)
        support.assert_same_bits(out, function(x, axis))
        out[...] = 7
        assert (memory == 7).all()
    with pytest.raises(ValueError, match="shape"):
        softmax(x, out=np.zeros((3, 2), "f4"))
    with pytest.raises(TypeError, match="dtype"):
        softmax(x, out=np.zeros((2, 3), "f8"))


@pytest.mark.parametrize(
    "view",
    [
        case(lambda: np.arange(12.0).reshape(3, 4).T, id="S10-transposed"),
        case(lambda: np.arange(24.0).reshape(4, 6)[:, ::2], id="S10-gaps"),
        case(lambda: np.arange(12.0).reshape(4, 3)[::-1], id="S10-reversed"),
        case(lambda: np.broadcast_to(np.arange(3.0), (4, 3)), id="S10-broadcast"),
        case(lambda: np.broadcast_to(np.arange(4.0)[:, None], (4, 3)), id="S10-columns"),
        case(lambda: normal(rng(4), 4, 20)[1:3, 5:9], id="S24"),
    ],
)
@every_function
def test_view_gives_what_its_copy_gives(engine, view, function):
    x = view()
    check(x, 1)
    for axis in (0, 1):
        if engine[0] == "native":
            support.assert_same_bits(function(x, axis), function(x.copy(), axis))
        np.testing.assert_allclose(function(x, axis), function(x.copy(), axis), rtol=1e-6)


@pytest.mark.parametrize("frozen", [case(False, id="S12"), case(True, id="R18")])
def test_inputs_are_read_only_to_us(engine, frozen):
    x, y = normal(rng(5), 6, 7), np.abs(normal(rng(6), 6, 7))
    where = rng(7).random((6, 7)) < 0.5
    arrays = x, y, where
    kept = [a.copy() for a in arrays]
    for a in arrays:
        a.setflags(write=not frozen)
    for function in THREE:
        function(x)
        function(x, 0, where=where)
    softmax_vjp(x, y)
    for a, before in zip(arrays, kept, strict=True):
        np.testing.assert_array_equal(a, before)


@pytest.mark.parametrize("mode", [case("r", id="R18-memmap")])
@every_function
def test_memory_mapped_files_are_read(engine, mode, function):
    x = normal(rng(8), 50, 40)
    with tempfile.TemporaryFile() as file:
        x.tofile(file)
        file.flush()
        mapped = np.memmap(file, "f4", mode, shape=x.shape)
        support.assert_same_bits(function(mapped), function(x))


@pytest.mark.parametrize("end", [case(0, id="S14-first"), case(-1, id="S14-last")])
def test_rows_of_any_width_have_no_nan(engine, end):
    for n in range(1, 131):
        x = normal(rng(n), 2, n)
        x[:, end] = -INF
        results = [*check(x), *check(np.ascontiguousarray(x.T), 0)]
        assert not any(np.isnan(result).any() for result in results)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        case(np.array([0, 800, -800]), [0, 1, 0], id="S16"),
        case([True, False], [0.7310586, 0.2689414], id="S16-bool"),
        case(np.array([0, 255], np.uint8), [0, 1], id="S16-uint8"),
        case(np.array([-128, 127], np.int8), [0, 1], id="S16-int8"),
        case(np.array([0, 2**63], np.uint64), [0, 1], id="S16-uint64"),
    ],
)
def test_integers_are_computed_in_float64(engine, x, expected):
    y = softmax(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, expected, atol=1e-7)


@pytest.mark.parametrize("axis", [case(a, id=f"S17-{a}") for a in ((0, 2), (2, 0), (-1, 0))])
def test_axes_that_are_not_neighbours_belong_to_one_row(engine, axis):
    y = softmax(np.arange(8.0).reshape(2, 2, 2), axis)
    np.testing.assert_allclose(y.sum(axis=(0, 2)), 1, rtol=1e-15)
    assert abs(y[0, 0, 0] - 0.00483724) < 1e-8


@pytest.mark.parametrize("axis", [case(a, id=f"S18-{a}") for a in range(-3, 3)])
@every_function
def test_negative_axis_counts_from_the_end(engine, axis, function):
    x = normal(rng(9), 2, 3, 4)
    support.assert_same_bits(function(x, axis), function(x, axis % 3))
    assert np.shape(function(x, None)) == (() if function is logsumexp else x.shape)
    support.assert_same_bits(np.asarray(function(x, None)), np.asarray(function(x, (0, 1, 2))))


@pytest.mark.parametrize(
    ("axis", "error"),
    [
        case(3, np.exceptions.AxisError, id="S18-3"),
        case(-4, np.exceptions.AxisError, id="S18--4"),
        case(1.0, TypeError, id="S18-float"),
        case(True, TypeError, id="S18-bool"),
    ],
)
@every_function
def test_axis_that_is_none_is_an_error(engine, axis, error, function):
    with pytest.raises(error, match="axis"):
        function(normal(rng(10), 2, 3, 4), axis)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        case(np.array([800, 1, 1], "f8"), [1, 0, 0], id="S19-f8"),
        case(np.array([378, -460, -249], "f4"), [1, 0, 0], id="S19-f4"),
        case(np.array([1e30, -1e30], "f4"), [1, 0], id="S19-huge"),
        case(np.array([3e38, -3e38], "f4"), [1, 0], id="S19-largest"),
        case(np.array([60000, -60000], "f2"), [1, 0], id="S19-f2"),
    ],
)
def test_large_logits_neither_overflow_nor_warn(engine, row, expected):
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_array_equal(softmax(row), expected)
        assert logsumexp(row) == row[0]
        assert log_softmax(row)[0] == 0


@pytest.mark.parametrize("axis", [case(a, id=f"S21-{a}") for a in (-1, 0, None)])
def test_scalar_is_a_row_of_one(engine, axis):
    y = softmax(np.float32(2.0), axis)
    assert (y, y.dtype, y.shape) == (1, np.float32, ())
    with pytest.raises(np.exceptions.AxisError):
        softmax(np.float32(2.0), axis=1)


@pytest.mark.parametrize("shape", [case((1, 1), id="A08"), case((1, 3), id="A08-row")])
def test_strides_of_axes_of_length_one_mean_nothing(engine, shape):
    x = normal(rng(11), *shape)
    strange = as_strided(x, shape, (999, x.strides[1] if shape[1] > 1 else -77))
    for function in THREE:
        for axis in (0, 1):
            support.assert_same_bits(function(strange, axis), function(x, axis))


@pytest.mark.parametrize("dtype", [case(t, id=f"R20-{t}") for t in (">f2", ">f4", ">f8")])
@every_function
def test_byte_swapped_input_is_read_as_its_numbers(engine, dtype, function):
    x = normal(rng(12), 4, 9, dtype=dtype)
    support.assert_same_bits(function(x), function(x.astype(x.dtype.newbyteorder("="))))


@pytest.mark.parametrize("dtype", [case(t, id=f"A52-{np.dtype(t)}") for t in support.FLOATS])
def test_low_precision_is_judged_against_its_own_rounded_inputs(engine, dtype):
    x = normal(rng(13), 20, 64, dtype=dtype, size=5.0)
    check(x)
    check(x, 0)


@pytest.mark.parametrize("stride", [case(2**31 + 64, id="A26"), case(2**32 + 64, id="A26-32")])
def test_rows_beyond_two_gigabytes_are_read_where_they_are(engine, stride):
    with tempfile.TemporaryFile() as file:
        try:
            file.truncate(3 * stride)
            memory = np.memmap(file, np.float32, "r+", shape=(3 * stride // 4,))
        except OSError as error:
            pytest.skip(f"no sparse file of this size: {error}")
        far = as_strided(memory, (3, 4), (stride, 4))
    near = normal(rng(14), 3, 4)
    far[...] = near
    for axis in (0, 1, None):
        exact, bound = softmax_oracle.vjp(near, near, axis)
        softmax_oracle.assert_near(softmax_vjp(far, near, axis), exact, bound)
        for function in THREE:
            np.testing.assert_allclose(function(far, axis), function(near, axis), rtol=1e-6)
    softmax(far, 0, out=far)
    np.testing.assert_allclose(far, softmax(near, 0), rtol=1e-6)
