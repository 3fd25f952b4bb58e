"""A row of the native softmax family has the same bits wherever it lies, whatever is around it."""

import numpy as np
import pytest
import support

from fast_attention import _backend, log_softmax, logsumexp, softmax, softmax_vjp, threads

FUNCTIONS = [softmax, log_softmax, logsumexp, softmax_vjp]
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
WRITING = [softmax, log_softmax, softmax_vjp]
every_writing_function = pytest.mark.parametrize("function", WRITING, ids=lambda f: f.__name__)
every_dtype = pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda t: np.dtype(t).name)
SHORT_DTYPES = [t for t in support.FLOATS if np.dtype(t).itemsize == 2]
LENGTHS = [1, 5, 16, 17, 33, 100, 9000]
ROWS = 13


def inputs(function, seed, shape, dtype):
    """x, or grad and y."""
    rng = np.random.default_rng(seed)
    x = support.normal(rng, *shape, dtype=dtype, size=4.0)
    return (x, np.abs(support.normal(rng, *shape, dtype=dtype))) if is_vjp(function) else (x,)


def is_vjp(function):
    return function is softmax_vjp


def rows_of(function, result, axis):
    """Results with the rows first."""
    return result if function is logsumexp else np.moveaxis(result, axis, -1)


@every_function
@every_dtype
@pytest.mark.parametrize("n", LENGTHS)
def test_position_of_the_axis_changes_no_bit(native_engine, function, dtype, n):
    arrays = inputs(function, n, (ROWS, n), dtype)
    expected = function(*arrays, -1)
    columns = [np.ascontiguousarray(a.T) for a in arrays]
    support.assert_same_bits(rows_of(function, function(*columns, 0), 0), expected)
    middle = [np.ascontiguousarray(a.reshape(1, ROWS, n).transpose(0, 2, 1)) for a in arrays]
    result = rows_of(function, function(*middle, 1), 1)[0]
    support.assert_same_bits(result, expected)


@every_function
@every_dtype
def test_several_axes_are_one_row_in_c_order(native_engine, function, dtype):
    arrays = inputs(function, 1, (4, 6, 5, 7), dtype)
    for axis in ((1, 3), (3, 1), (0, 2), (0, 1, 3), None):
        reduced = sorted(range(4) if axis is None else (a % 4 for a in axis))
        outer = [a for a in range(4) if a not in reduced]
        order = outer + reduced
        flat = [a.transpose(order).reshape(*(a.shape[i] for i in outer), -1) for a in arrays]
        expected = function(*flat, -1)
        result = np.asarray(function(*arrays, axis))
        if function is not logsumexp:
            result = result.transpose(order).reshape(expected.shape)
        support.assert_same_bits(result, np.asarray(expected))


@every_function
@every_dtype
@pytest.mark.parametrize("layout", support.LAYOUTS)
@pytest.mark.parametrize("n", [17, 100])
def test_strides_change_no_bit(native_engine, function, dtype, layout, n):
    arrays = inputs(function, 2, (3, ROWS, n), dtype)
    for axis in (0, 1, 2, (0, 2)):
        expected = function(*arrays, axis)
        result = function(*(support.LAYOUTS[layout](a) for a in arrays), axis)
        support.assert_same_bits(result, expected)


@every_function
@every_dtype
@pytest.mark.parametrize("n", LENGTHS)
def test_batch_around_a_row_changes_no_bit(native_engine, function, dtype, n):
    arrays = inputs(function, 3, (ROWS, n), dtype)
    whole = function(*arrays)
    for rows in (slice(0, 1), slice(4, 5), slice(3, 11), slice(0, None, 2), slice(None, None, -1)):
        support.assert_same_bits(function(*(a[rows] for a in arrays)), whole[rows])
    across = function(*(np.ascontiguousarray(a.T)[:, 2:5] for a in arrays), 0)
    support.assert_same_bits(rows_of(function, across, 0), whole[2:5])
    alone = function(*(a[6] for a in arrays))
    support.assert_same_bits(np.asarray(alone), np.asarray(whole[6]))


@every_function
@pytest.mark.parametrize("shape", [(700, 300), (3, 90_000)])
@pytest.mark.parametrize("axis", [0, 1])
def test_number_of_threads_changes_no_bit(native_engine, function, shape, axis):
    arrays = inputs(function, 4, shape, "f4")
    results = []
    for n in (1, 2, 3, 8):
        with threads(n):
            results.append(function(*arrays, axis))
    for result in results[1:]:
        support.assert_same_bits(result, results[0])


@every_function
@every_dtype
@pytest.mark.parametrize("n", LENGTHS)
def test_padding_that_does_not_exist_changes_no_bit(native_engine, function, dtype, n):
    """On the right, where it does not move the elements of the row."""
    if is_vjp(function):
        arrays = inputs(function, 5, (ROWS, n), dtype)
        padded = [np.pad(a, ((0, 0), (0, 21))) for a in arrays]
        result = function(*padded)[:, :n]
    else:
        arrays = inputs(function, 5, (ROWS, n), dtype)
        padded = np.pad(arrays[0], ((0, 0), (0, 21)), constant_values=np.nan)
        result = function(padded, where=np.arange(n + 21) < n)
        result = result if function is logsumexp else result[:, :n]
    support.assert_same_bits(result, function(*arrays))


@every_writing_function
@every_dtype
@pytest.mark.parametrize("axis", [0, 1])
def test_place_of_the_result_changes_no_bit(native_engine, function, dtype, axis):
    arrays = inputs(function, 6, (40, 37), dtype)
    expected = function(*arrays, axis)
    for place in range(len(arrays)):
        given = [a.copy() for a in arrays]
        function(*given, axis, out=given[place])
        support.assert_same_bits(given[place], expected)
    for layout in ("column_major", "gapped", "reversed", "misaligned"):
        out = support.LAYOUTS[layout](np.zeros_like(expected))
        function(*arrays, axis, out=out)
        support.assert_same_bits(out, expected)


@every_function
@pytest.mark.parametrize("dtype", SHORT_DTYPES, ids=lambda t: np.dtype(t).name)
def test_16_bit_results_are_the_rounded_float32_ones(native_engine, function, dtype):
    """The arithmetic is the same; only the last rounding is not."""
    arrays = inputs(function, 7, (ROWS, 50), dtype)
    wide = function(*(a.astype("f4") for a in arrays))
    with np.errstate(under="ignore"):
        rounded = wide.astype(dtype)
    support.assert_same_bits(function(*arrays), rounded + np.zeros((), dtype))


@every_function
def test_fused_instruction_sets_agree_in_every_bit(function):
    isas = support.fused_isas()
    if len(isas) < 2:
        pytest.skip("needs two instruction sets with fused multiply-add")
    arrays = inputs(function, 8, (ROWS, 333), "f4")
    results = []
    for isa in isas:
        with _backend.using("native", isa):
            results.append(function(*arrays))
    for result in results[1:]:
        support.assert_same_bits(result, results[0])
