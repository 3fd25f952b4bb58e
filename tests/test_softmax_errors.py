"""Every documented error of the softmax family: its type, what its message names."""

import numpy as np
import pytest
import support

from fast_attention import log_softmax, logsumexp, softmax, softmax_vjp

FUNCTIONS = [softmax, log_softmax, logsumexp, softmax_vjp]
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
WRITING = [softmax, log_softmax, softmax_vjp]
every_writing_function = pytest.mark.parametrize("function", WRITING, ids=lambda f: f.__name__)
OVERLAPPING = np.lib.stride_tricks.as_strided(np.zeros(8, "f4"), (3, 4), (8, 4), writeable=True)

DTYPES = ["c8", "c16", "M8[s]", "m8[s]", "O", "U1", "S1", "V2", [("a", "f4")]]
if np.dtype(np.longdouble) != np.float64:
    DTYPES.append(np.longdouble)


def f4(*shape):
    return np.zeros(shape, "f4")


def call(function, x, *arguments, **options):
    """Call with a second input where there is one."""
    return function(x, *((x,) if function is softmax_vjp else ()), *arguments, **options)


def assert_names(caught, *words):
    for word in words:
        assert str(word) in str(caught.value)


@every_function
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_dtypes_are_refused_by_name(engine, function, dtype):
    with pytest.raises(TypeError) as caught:
        call(function, np.zeros((3, 4), dtype))
    argument = "grad" if function is softmax_vjp else "x"
    assert_names(caught, f"{argument} has dtype {np.dtype(dtype)}", "float16", "float64")


def test_dtype_of_the_second_input_is_checked_too(engine):
    with pytest.raises(TypeError) as caught:
        softmax_vjp(f4(3), np.zeros(3, "c8"))
    assert_names(caught, "y has dtype complex64")


@every_function
@pytest.mark.parametrize("axis", [2, -3, (0, 2), (-3,), 10**30])
def test_axis_out_of_range_is_an_axis_error(engine, function, axis):
    with pytest.raises(np.exceptions.AxisError, match="dimension 2") as caught:
        call(function, f4(3, 4), axis)
    assert_names(caught, "grad" if function is softmax_vjp else "x", (3, 4))


@every_function
@pytest.mark.parametrize("axis", [1, -2, (0,), (-1,)])
def test_axis_of_a_scalar_is_as_in_numpy(engine, function, axis):
    with pytest.raises(np.exceptions.AxisError):
        np.sum(np.float32(1), axis=axis)
    with pytest.raises(np.exceptions.AxisError):
        call(function, np.float32(1), axis)


@every_function
@pytest.mark.parametrize(
    "axis", [1.0, True, False, np.True_, "0", [0, 1], (0, 1.0), (True,), (None,)]
)
def test_axis_that_is_no_int_is_a_type_error(engine, function, axis):
    with pytest.raises(TypeError) as caught:
        call(function, f4(3, 4), axis)
    assert_names(caught, "axis", "int")


@every_function
@pytest.mark.parametrize("axis", [(0, 0), (1, -1), (0, 1, -2)])
def test_axis_given_twice_is_a_value_error(engine, function, axis):
    with pytest.raises(ValueError, match="twice") as caught:
        call(function, f4(3, 4), axis)
    assert_names(caught, axis)


@pytest.mark.parametrize("function", [softmax, log_softmax, logsumexp], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 4), (3, 4, 1), (0,)])
def test_where_that_does_not_broadcast_names_both_shapes(engine, function, shape):
    with pytest.raises(ValueError, match="where") as caught:
        function(f4(3, 4), where=np.ones(shape, bool))
    assert_names(caught, shape, (3, 4))


def test_where_never_enlarges(engine):
    with pytest.raises(ValueError, match="where"):
        softmax(f4(1, 4), where=np.ones((3, 4), bool))
    with pytest.raises(ValueError, match="where"):
        softmax(f4(), where=np.ones(1, bool))


@pytest.mark.parametrize("where", [1, [1, 0, 1, 1], np.ones(4, "u1"), np.ones(4), "yes", object()])
def test_where_that_is_not_bool_is_a_type_error(engine, where):
    with pytest.raises(TypeError, match="where has dtype"):
        softmax(f4(3, 4), where=where)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (1, 4), (3, 4, 1)])
def test_gradient_of_another_shape_names_both(engine, shape):
    with pytest.raises(ValueError, match="equal shapes") as caught:
        softmax_vjp(f4(3, 4), f4(*shape))
    assert_names(caught, shape, (3, 4))


# out


@every_writing_function
@pytest.mark.parametrize("shape", [(4,), (4, 3), (1, 3, 4), (3, 5)])
def test_out_of_another_shape_names_both(engine, function, shape):
    with pytest.raises(ValueError, match="out has shape") as caught:
        call(function, f4(3, 4), out=f4(*shape))
    assert_names(caught, shape, (3, 4))


@every_writing_function
@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", np.dtype("f4").newbyteorder("S").str, "c8"])
def test_out_of_another_dtype_names_both(engine, function, dtype):
    with pytest.raises(TypeError, match="out has dtype") as caught:
        call(function, f4(3, 4), out=np.zeros((3, 4), dtype))
    assert_names(caught, np.dtype(dtype), "float32")


@every_writing_function
def test_integers_are_not_overwritten(engine, function):
    x = np.ones((3, 4), int)
    with pytest.raises(TypeError, match="out has dtype int64, expected float64"):
        call(function, x, out=x)
    assert (x == 1).all()


@every_writing_function
@pytest.mark.parametrize("out", [[0.0], 3, "out", (f4(3, 4),), memoryview(f4(3, 4))])
def test_out_that_is_no_array_is_a_type_error(engine, function, out):
    with pytest.raises(TypeError, match=f"out must be .* not {type(out).__name__}"):
        call(function, f4(3, 4), out=out)


@every_writing_function
def test_out_that_is_read_only_or_overlaps_itself_is_refused(engine, function):
    with pytest.raises(ValueError, match="read-only"):
        call(function, f4(3, 4), out=support.read_only(f4(3, 4)))
    with pytest.raises(ValueError, match="overlaps itself"):
        call(function, f4(3, 4), out=OVERLAPPING)


def square_and_views():
    memory = np.arange(64, dtype="f4")
    x = memory[:16].reshape(4, 4)
    return x, {
        "transposed": x.T,
        "reversed": x[::-1],
        "one element on": memory[1:17].reshape(4, 4),
        "half a row on": memory[2:18].reshape(4, 4),
        "last element": memory[15:31].reshape(4, 4),
        "spread": memory[:64:4].reshape(4, 4),
    }


@every_writing_function
@pytest.mark.parametrize("name", square_and_views()[1])
def test_out_that_overlaps_partly_is_refused_and_left_alone(engine, function, name):
    x, views = square_and_views()
    kept = views[name].copy()
    for arguments in [(x,)] if function is not softmax_vjp else [(x, f4(4, 4)), (f4(4, 4), x)]:
        with pytest.raises(ValueError, match=r"out overlaps (x|grad|y) in memory"):
            function(*arguments, out=views[name])
    np.testing.assert_array_equal(views[name], kept)


def test_out_that_is_one_input_may_not_overlap_the_other(engine):
    memory = f4(20)
    grad, y = memory[:12].reshape(3, 4), memory[4:16].reshape(3, 4)
    for out in (grad, y):
        with pytest.raises(ValueError, match="out overlaps"):
            softmax_vjp(grad, y, out=out)


def test_out_may_not_overlap_where(engine):
    x = f4(3, 4)
    with pytest.raises(ValueError, match="out overlaps where in memory, expected an array of its"):
        softmax(f4(3, 4), where=x.view(bool)[:, :4], out=x)


def test_out_is_keyword_only_and_logsumexp_has_none(engine):
    with pytest.raises(TypeError):
        softmax(f4(3), -1, None, f4(3))
    with pytest.raises(TypeError):
        logsumexp(f4(3), out=f4(()))
