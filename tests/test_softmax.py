"""softmax, log_softmax, logsumexp and softmax_vjp: results, types, layouts, places to write to.

FAST_ATTENTION_TEST_POINTS=10000000 tries so many elements in rows of every size instead of 30,000.
"""

import os

import numpy as np
import pytest
import softmax_oracle
import support
from softmax_oracle import SHAPES, check

from fast_attention import log_softmax, logsumexp, softmax, softmax_vjp

INTEGERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u2"]
INF, NAN = np.inf, np.nan
POINTS = int(os.environ.get("FAST_ATTENTION_TEST_POINTS", "30000"))
POINTS_AT_ONCE = 1_000_000
# row, softmax, log_softmax, logsumexp
ROWS = {
    "one": ([3.5], [1.0], [0.0], 3.5),
    "-inf and more": ([-INF, 0.0], [0.0, 1.0], [-INF, 0.0], 0.0),
    "only -inf": ([-INF, -INF], [0.0, 0.0], [-INF, -INF], -INF),
    "one -inf": ([-INF], [0.0], [-INF], -INF),
    "inf": ([INF, 1.0, -INF], [NAN, NAN, NAN], [NAN, NAN, NAN], INF),
    "one inf": ([INF], [NAN], [NAN], INF),
    "inf twice": ([INF, INF], [NAN, NAN], [NAN, NAN], INF),
    "nan": ([NAN, 1.0], [NAN, NAN], [NAN, NAN], NAN),
    "nan and inf": ([NAN, INF], [NAN, NAN], [NAN, NAN], NAN),
    "nan and -inf": ([-INF, NAN], [NAN, NAN], [NAN, NAN], NAN),
    "zeros of both signs": ([-0.0, 0.0], [0.5, 0.5], [-np.log(2.0)] * 2, np.log(2.0)),
}


def drawn(seed, shape, dtype="f4", size=4.0):
    return support.normal(np.random.default_rng(seed), *shape, dtype=dtype, size=size)


def name_of(dtype):
    return np.dtype(dtype).name


@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
@pytest.mark.parametrize(("shape", "axis"), SHAPES.values(), ids=SHAPES)
def test_results_are_within_the_bound(engine, shape, axis, dtype):
    x = drawn(1, shape, dtype)
    check(x, axis)
    where = np.random.default_rng(2).random(shape) < 0.6
    check(x, axis, where)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 100, 1000, 8193, 300_000])
def test_results_of_any_length_are_within_the_bound(engine, n, dtype):
    for x in (drawn(3, (2, n), dtype), drawn(4, (n, 3), dtype).T):
        softmax_values, _, _ = check(x)
        total = softmax_values.astype("f8").sum(axis=-1)
        np.testing.assert_allclose(total, 1, rtol=(n / 16 + 40) * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 30.0, 1e4, 1e30])
def test_results_of_any_size_are_within_the_bound(engine, size, dtype):
    check(drawn(5, (4, 50), dtype, size))
    check(drawn(5, (4, 50), dtype, size) + np.asarray(1000, dtype))


def rows_of_every_size(rng, n_row, n, dtype):
    """Rows from all but equal to wider than exp reaches, around numbers of any size; with ties."""
    decades = np.log10(np.finfo(dtype).max) - 2
    spread = 10.0 ** rng.uniform(-9, 3.5, (n_row, 1))
    middle = np.where(rng.random((n_row, 1)) < 0.3, 0, 10.0 ** rng.uniform(-9, decades, (n_row, 1)))
    x = spread * rng.standard_normal((n_row, n)) + middle * rng.choice([-1, 1], (n_row, 1))
    x[rng.random((n_row, n)) < 0.02] = -INF
    is_tied = rng.random(n_row) < 0.2
    x[is_tied, rng.integers(0, n)] = x[is_tied].max(axis=-1)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [2, 37, 512])
def test_rows_of_every_size_are_within_the_bound(engine, n, dtype):
    rng = np.random.default_rng(n)
    for start in range(0, POINTS, POINTS_AT_ONCE):
        n_row = min(POINTS_AT_ONCE, POINTS - start) // n
        check(rows_of_every_size(rng, n_row, n, dtype))


def assert_equal(actual, expected):
    """Compare numbers of any float type; NaN equals NaN."""
    np.testing.assert_array_equal(np.asarray(actual, "f8"), np.asarray(expected, "f8"))


@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_special_rows_give_what_is_documented(engine, row, dtype):
    """Alone, among others, and down the columns; with and without elements that do not exist."""
    x, *expected = (np.array(values).astype(dtype) for values in row)
    other = drawn(6, x.shape, dtype)
    rows = np.stack([other, x, other])
    with np.errstate(all="raise"):
        for function, values in zip((softmax, log_softmax, logsumexp), expected, strict=True):
            plain = function(rows)
            assert_equal(function(x), values)
            assert_equal(plain[1], values)
            assert_equal(plain[0], function(other))
            assert_equal(function(rows.T, 0), plain.T)
            wide, where = np.array([7, *x]).astype(dtype), [False] + [True] * len(x)
            nothing = {softmax: [0], log_softmax: [-INF], logsumexp: []}[function]
            expected_wide = np.array([*nothing, *np.atleast_1d(values)]).reshape(-1)
            assert_equal(np.atleast_1d(function(wide, where=where)), expected_wide)


@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 60000.0])
@pytest.mark.parametrize(("shape", "axis"), SHAPES.values(), ids=SHAPES)
def test_what_does_not_exist_changes_no_bit(engine, shape, axis, garbage, dtype):
    x = drawn(7, shape, dtype)
    where = np.random.default_rng(8).random(shape) < 0.5
    poisoned = np.where(where, x, np.asarray(garbage, dtype)).astype(dtype)
    for function, hidden in ((softmax, 0.0), (log_softmax, -INF), (logsumexp, None)):
        result = np.asarray(function(poisoned, axis, where=where))
        support.assert_same_bits(result, np.asarray(function(x, axis, where=where)))
        if hidden is not None:
            assert (result[~where].astype("f8") == hidden).all()


@pytest.mark.parametrize("where", [True, np.True_, [True] * 4, [[True]] * 3], ids=repr)
def test_where_broadcasts_and_true_is_no_where(engine, where):
    x = drawn(9, (3, 4))
    for function in (softmax, log_softmax, logsumexp):
        support.assert_same_bits(function(x, where=where), function(x))
    for narrow in (np.array([True, False, True, True]), np.array([[True], [False], [True]])):
        full = np.broadcast_to(narrow, x.shape).copy()
        for function in (softmax, log_softmax, logsumexp):
            support.assert_same_bits(function(x, where=narrow), function(x, where=full))


def test_nothing_exists_where_where_is_false(engine):
    x = drawn(10, (3, 4))
    assert (support.bits(softmax(x, where=False)) == 0).all()
    assert (log_softmax(x, where=False) == -INF).all()
    assert (logsumexp(x, None, where=False)) == -INF


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_and_bools_are_taken_as_float64(engine, dtype):
    x = np.array([[0, 1, 3], [1, 0, 100]]).astype(dtype)
    for function in (softmax, log_softmax, logsumexp):
        result = function(x)
        assert result.dtype == np.float64
        support.assert_same_bits(result, function(x.astype("f8")))
    support.assert_same_bits(softmax_vjp(x, x), softmax_vjp(x.astype("f8"), x.astype("f8")))


@pytest.mark.parametrize("layout", ["contiguous", *support.LAYOUTS])
@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
def test_layout_does_not_matter_and_inputs_are_not_written(engine, layout, dtype):
    x, y = drawn(11, (3, 9, 20), dtype), np.abs(drawn(12, (3, 9, 20), dtype))
    where = np.random.default_rng(13).random(x.shape) < 0.5
    given = [support.LAYOUTS[layout](a) for a in (x, y)]
    where_given = np.ascontiguousarray(where.transpose(2, 0, 1)).transpose(1, 2, 0)
    for axis in (0, 1, 2, (0, 2), None):
        for function in (softmax, log_softmax, logsumexp):
            softmax_oracle.assert_near(
                function(given[0], axis, where=where_given),
                function(x, axis, where=where).astype("f8"),
                _twice(function, x, axis, where),
            )
        exact, bound = softmax_oracle.vjp(x, y, axis)
        softmax_oracle.assert_near(softmax_vjp(*given, axis), exact, bound)
    for a, kept in zip(given, (x, y), strict=True):
        support.assert_same_bits(a, kept)


def _twice(function, x, axis, where):
    expected = softmax_oracle.reference(x, axis, where)
    bound = 2 * getattr(expected, f"{function.__name__}_bound").astype("f8")
    if function is logsumexp:
        bound = bound.squeeze(axis)
    return bound


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_big_endian_arrays_give_native_results(engine, dtype):
    x, y = drawn(14, (4, 9), dtype), np.abs(drawn(15, (4, 9), dtype))
    swapped = support.byte_swapped(x)
    for function in (softmax, log_softmax, logsumexp):
        result = function(swapped)
        assert result.dtype.isnative
        support.assert_same_bits(result, function(x))
    support.assert_same_bits(softmax_vjp(swapped, support.byte_swapped(y)), softmax_vjp(x, y))


class OnlyDLPack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [OnlyDLPack, memoryview, np.recarray.view, np.ma.asarray])
def test_array_likes_are_read_and_plain_arrays_come_back(engine, wrap):
    x = drawn(16, (3, 5))
    given = x.view(np.recarray) if wrap is np.recarray.view else wrap(x)
    for function in (softmax, log_softmax, logsumexp):
        result = function(given)
        assert type(result) is np.ndarray
        support.assert_same_bits(result, function(x))


def test_lists_are_taken_as_float64(engine):
    assert softmax([0, 0]).tolist() == [0.5, 0.5]
    assert logsumexp([[1.0], [2.0]]).tolist() == [1.0, 2.0]
    assert log_softmax([7]).dtype == np.float64


@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
def test_result_without_axes_is_a_scalar_as_in_numpy(engine, dtype):
    x = np.asarray(2.5, dtype)
    for axis in (-1, 0, None, ()):
        for function, expected in ((softmax, 1.0), (log_softmax, 0.0), (logsumexp, 2.5)):
            result = function(x, axis)
            assert type(result) is np.dtype(dtype).type
            assert result == expected
    assert type(logsumexp(drawn(17, (3, 4), dtype), None)) is np.dtype(dtype).type
    assert type(softmax_vjp(x, x)) is np.dtype(dtype).type


@pytest.mark.parametrize(("shape", "axis"), SHAPES.values(), ids=SHAPES)
def test_keepdims_keeps_the_reduced_axes_with_length_one(engine, shape, axis):
    x = drawn(18, shape)
    kept = logsumexp(x, axis, keepdims=True)
    assert np.shape(kept) == np.sum(x, axis=axis, keepdims=True).shape
    flat = logsumexp(x, axis)
    assert np.shape(flat) == np.sum(x, axis=axis).shape
    np.testing.assert_array_equal(np.ravel(kept), np.ravel(flat))


def test_axes_of_length_zero(engine):
    x = np.zeros((3, 0, 2), "f4")
    for axis in (0, 1, 2, (0, 1), None):
        for function in (softmax, log_softmax):
            assert function(x, axis).shape == (3, 0, 2)
        assert softmax_vjp(x, x, axis).shape == (3, 0, 2)
        total = np.asarray(logsumexp(x, axis))
        assert total.shape == np.sum(x, axis=axis).shape
        assert (total == -INF).all()
        assert total.dtype == np.float32
    assert softmax([]).dtype == np.float64
    out = np.zeros((3, 0, 2), "f4")
    assert softmax(x, out=out) is out


def test_result_is_c_ordered_and_owns_its_memory(engine):
    x = np.asfortranarray(drawn(19, (4, 5, 6)))
    for axis in (0, 1, 2, (0, 2)):
        for result in (softmax(x, axis), log_softmax(x, axis), softmax_vjp(x, x, axis)):
            assert result.flags.c_contiguous
            assert result.flags.owndata
            assert not np.shares_memory(result, x)


# out


@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
@pytest.mark.parametrize("layout", support.LAYOUTS)
@pytest.mark.parametrize(("shape", "axis"), [((5, 37), -1), ((37, 5), 0), ((3, 4, 5), (0, 2))])
def test_out_of_any_layout_is_filled_and_returned(engine, shape, axis, layout, dtype):
    if layout == "read_only":
        return
    x, y = drawn(20, shape, dtype), np.abs(drawn(21, shape, dtype))
    calls = [(softmax, (x, axis)), (log_softmax, (x, axis)), (softmax_vjp, (x, y, axis))]
    for function, arguments in calls:
        out = support.LAYOUTS[layout](np.full(shape, 7, dtype))
        assert function(*arguments, out=out) is out
        support.assert_same_bits(out, function(*arguments))


@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
@pytest.mark.parametrize("layout", [name for name in support.LAYOUTS if name != "read_only"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 37), -1), ((37, 5), 0), ((3, 4, 5), (0, 2))])
def test_input_itself_may_be_out(engine, shape, axis, layout, dtype):
    x, y = drawn(22, shape, dtype), np.abs(drawn(23, shape, dtype))
    where = np.random.default_rng(24).random(shape) < 0.7
    arranged = support.LAYOUTS[layout]
    for function in (softmax, log_softmax):
        for options in ({}, {"where": where}):
            out = arranged(x.copy())
            expected = function(arranged(x), axis, **options)
            assert function(out, axis, **options, out=out) is out
            support.assert_same_bits(out, expected)
    expected = softmax_vjp(arranged(x), arranged(y), axis)
    for place in (0, 1):
        given = [arranged(x.copy()), arranged(y.copy())]
        softmax_vjp(*given, axis, out=given[place])
        support.assert_same_bits(given[place], expected)


def test_another_view_of_the_same_elements_is_in_place(engine):
    memory = drawn(25, (4, 6))
    expected = softmax(memory.T, 0)
    softmax(memory.T, 0, out=memory.T)
    support.assert_same_bits(memory.T, expected)
    memory = drawn(26, (4, 6))
    frozen = memory[:]
    frozen.setflags(write=False)
    expected = softmax(memory)
    support.assert_same_bits(softmax(frozen, out=memory), expected)


def test_scalar_may_be_written_to_an_array_without_axes(engine):
    out = np.zeros((), "f4")
    assert softmax(np.float32(3), out=out) is out
    assert out == 1


# softmax_vjp


@pytest.mark.parametrize("dtype", support.FLOATS, ids=name_of)
@pytest.mark.parametrize(("shape", "axis"), SHAPES.values(), ids=SHAPES)
def test_gradient_is_within_the_bound(engine, shape, axis, dtype):
    y = softmax(drawn(27, shape, dtype), axis)
    grad = drawn(28, shape, dtype)
    exact, bound = softmax_oracle.vjp(grad, y, axis)
    softmax_oracle.assert_near(softmax_vjp(grad, y, axis), exact, bound)


def test_gradient_agrees_with_differences(engine):
    x, grad = drawn(29, (3, 4, 5), "f8", 1.0), drawn(30, (3, 4, 5), "f8", 1.0)
    for axis in (0, -1, (0, 2), None):
        gradient = softmax_vjp(grad, softmax(x, axis), axis)
        for index in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[index] = 1e-6
            change = softmax(x + step, axis) - softmax(x - step, axis)
            assert abs((grad * change).sum() / 2e-6 - gradient[index]) < 1e-8


def test_gradient_of_an_empty_row_is_zero(engine):
    x = np.array([[-INF, -INF], [0, 1]], "f4")
    gradient = softmax_vjp(np.array([[-3, 4], [-1, 1]], "f4"), softmax(x))
    assert (support.bits(gradient[0]) == 0).all()
    assert (gradient[1] != 0).all()


@pytest.mark.parametrize(
    "types", [("f2", "f4"), ("f4", "f2"), ("f4", "f8"), ("f2", "f8"), ("f8", "i4")]
)
def test_gradient_of_two_types_is_computed_in_the_wider_one(engine, types):
    grad, y = drawn(31, (3, 9), types[0]), np.abs(drawn(32, (3, 9), types[1]))
    result = softmax_vjp(grad, y)
    wide = np.result_type(*types)
    assert result.dtype == wide
    support.assert_same_bits(result, softmax_vjp(grad.astype(wide), y.astype(wide)))


def test_gradient_of_both_16_bit_types_is_float32(engine):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    grad, y = drawn(33, (3, 9), "f2"), np.abs(drawn(34, (3, 9), bfloat16))
    assert softmax_vjp(grad, y).dtype == np.float32


def test_gradient_that_is_not_finite_stays_in_its_row(engine):
    grad, y = drawn(35, (3, 9)), np.abs(drawn(36, (3, 9)))
    clean = softmax_vjp(grad, y)
    grad[0, 3], y[2, 4] = INF, NAN
    result = softmax_vjp(grad, y)
    assert not np.isfinite(result[0]).any()
    assert np.isnan(result[2]).all()
    support.assert_same_bits(result[1], clean[1])
