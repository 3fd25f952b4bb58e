"""Arrays as they come: any layout, byte order, type and shape, in every function that takes arrays.

A call either raises an error that its docstring names, the same one on every engine, or returns
what it returns for the same numbers in plain arrays, on every engine.
"""

import numpy as np
import strategies
import support
from hypothesis import given
from hypothesis import strategies as st

from fast_attention import (
    _backend,
    attention_steps,
    log_softmax,
    logsumexp,
    merge_attention,
    scaled_dot_product_attention,
    softmax,
    softmax_vjp,
)

ENGINES = support.ENGINES
DOCUMENTED = (TypeError, ValueError, UserWarning)
GOOD = [np.dtype(kind) for kind in (*support.FLOATS, "i2", "i8")]
BAD = [np.dtype(kind) for kind in ("c8", "O", "U2", "M8[s]", "i1", "?", "g", "f4,i4")]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}


def swapped(array):
    """Equal values in the other byte order."""
    return array if array.dtype.kind in "VO" else support.byte_swapped(array)


def every_other(array):
    """Equal values with every stride twice as long, and what lies between of another size."""
    base = np.zeros(tuple(2 * n for n in array.shape), array.dtype)
    view = base[(slice(None, None, 2),) * array.ndim]
    view[...] = array
    return view


def in_a_record(array):
    """Equal values in the field of a packed record: no stride is a multiple of the size."""
    record = np.zeros(array.shape, [("odd", "u1"), ("x", array.dtype)])
    record["x"] = array
    return record["x"]


def misaligned(array):
    return array if array.dtype.hasobject or not array.size else support.misaligned(array)


class Subclass(np.ndarray):
    """Not an ndarray by name."""


SCALAR_LAYOUTS = [np.array, support.read_only, swapped, lambda x: x.view(Subclass)]
LAYOUTS = [
    *SCALAR_LAYOUTS, support.reversed_axes, every_other, in_a_record, misaligned, np.asfortranarray,
    lambda x: swapped(misaligned(x)), lambda x: support.reversed_axes(every_other(x)),
    lambda x: x.tolist(),
]  # fmt: skip


@st.composite
def odd(draw, shape, *, kinds=GOOD):
    """Draw an array of the shape: usually of one of the kinds; now and then of a wrong one."""
    dtype = draw(st.sampled_from([*kinds, *kinds, *kinds, draw(st.sampled_from(BAD))]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.integers(0, 30)) == 0 and shape:
        shape = draw(st.sampled_from([shape[1:], (*shape, 1), shape[::-1], (*shape[:-1], 0)]))
    whole = rng.integers(-3, 4, shape)
    array = np.zeros(shape, dtype) if dtype.kind in "VM" and dtype.names else None
    array = whole.astype(dtype) if array is None else array
    if dtype.kind == "f" or dtype.name == "bfloat16":
        array = (whole / 4).astype(dtype)
    layout = draw(st.sampled_from(LAYOUTS if array.ndim else SCALAR_LAYOUTS))
    if draw(st.integers(0, 5)) == 0 and array.ndim and array.size:
        return np.broadcast_to(layout(array[(slice(None, 1),) * array.ndim]), shape)
    return layout(array)


@st.composite
def odd_bools(draw, shape):
    kinds = [np.dtype(bool)]
    narrow = tuple(n if draw(st.booleans()) else 1 for n in shape)
    return draw(odd(narrow[draw(st.integers(0, len(shape))) :], kinds=kinds))


def result_kinds(x):
    """Return the type that an ``out`` beside `x` must have."""
    dtype = np.asarray(x).dtype
    return [dtype.newbyteorder("=") if dtype in support.FLOATS else np.dtype(np.float64)]


@st.composite
def attention_calls(draw):
    """Draw (function, arguments by name) of attention, step by step or not."""
    lead = draw(st.sampled_from([(), (2,), (2, 1)]))
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    n_query, n_key = draw(st.integers(0, 12)), draw(st.integers(0, 20))
    d, dv = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    heads = kv_heads * group
    scores = (*lead, heads, n_query, n_key)
    call = {
        "query": draw(odd((*lead, heads, n_query, d))),
        "key": draw(odd((*lead, kv_heads, n_key, d))),
        "value": draw(odd((*lead, kv_heads, n_key, dv))),
    }
    if draw(st.integers(0, 3)) == 0:
        for name in ("key", "value"):
            call[name] = draw(odd((*lead, kv_heads, n_key, d if name == "key" else dv),
                                  kinds=[np.dtype("i1")]))  # fmt: skip
            call[f"{name[0]}_scale"] = draw(odd((*lead, kv_heads, n_key)))
    integers = [np.dtype(kind) for kind in ("i2", "u4", "i8", "u8")]
    optional = {
        "attn_mask": odd_bools(scores), "bias": odd(scores, kinds=GOOD[:-2]),
        "kv_lengths": odd(lead, kinds=integers), "query_offset": odd(lead, kinds=integers),
        "sinks": odd((heads,)), "alibi_slopes": odd((*lead, heads)),
    }  # fmt: skip
    for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=2, unique=True)):
        call[name] = draw(optional[name])
    if draw(st.booleans()):
        call["is_causal"], call["query_offset"] = True, "end"
    if draw(st.integers(0, 4)) == 0:
        return attention_steps, call
    if draw(st.integers(0, 2)) == 0:
        call["out"] = draw(odd((*lead, heads, n_query, dv), kinds=result_kinds(call["query"])))
    return scaled_dot_product_attention, call


@st.composite
def softmax_calls(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    function = draw(st.sampled_from([softmax, log_softmax, logsumexp, softmax_vjp]))
    axes = st.integers(-len(shape) - 1, len(shape))
    call = {"axis": draw(st.one_of(st.none(), axes, st.tuples(), st.tuples(axes, axes)))}
    if function is softmax_vjp:
        call["grad"], call["y"] = draw(odd(shape)), draw(odd(shape))
    else:
        call["x"] = draw(odd(shape))
        if draw(st.booleans()):
            call["where"] = draw(odd_bools(shape))
    if function is not logsumexp and draw(st.booleans()):
        like = call["y" if function is softmax_vjp else "x"]
        call["out"] = like if draw(st.booleans()) else draw(odd(shape, kinds=result_kinds(like)))
    return function, call


@st.composite
def merges(draw):
    n_part, heads, n_query, dv = (draw(st.integers(least, 4)) for least in (0, 1, 0, 0))
    kinds = [draw(st.sampled_from(GOOD))]
    call = {
        "outputs": [draw(odd((heads, n_query, dv), kinds=kinds)) for _ in range(n_part)],
        "lses": [draw(odd((heads, n_query))) for _ in range(n_part)],
    }
    if draw(st.booleans()):
        call["sinks"] = draw(odd((heads,)))
    return merge_attention, call


def plain(array):
    """Give the same elements in a C-ordered array of the native byte order."""
    copy = np.array(array, order="C", subok=False)
    return copy if copy.dtype.names else copy.astype(copy.dtype.newbyteorder("="), copy=False)


def same_layout(array):
    """Copy an array and the memory that it is a view of."""
    memory = array
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    if memory.size == 0 or memory.dtype.hasobject:
        return array.copy()
    at = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    copy = np.array(memory, order="K", subok=False)
    if copy.strides != memory.strides or at < 0:
        return array.copy()
    view = np.ndarray(array.shape, array.dtype, copy, at, array.strides).view(type(array))
    view.setflags(write=array.flags.writeable)
    return view


def copied(call, copy):
    """Copy the arrays of a call; two that are one stay one."""
    copies = {}

    def of(x):
        if isinstance(x, list):
            return [of(part) for part in x]
        if not isinstance(x, np.ndarray):
            return x
        return copies.setdefault(id(x), copy(x))

    return {name: of(x) for name, x in call.items()}


def outcome(engine, function, call):
    """Results as arrays, or the documented exception; anything else fails the test."""
    try:
        with _backend.using(*engine):
            result = function(**call)
    except DOCUMENTED as error:
        return error
    return [np.array(x, subok=False) for x in (result if isinstance(result, tuple) else (result,))]


def assert_near(results, expected):
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        tolerance = TOLERANCE[other.dtype.name]
        one, other = one.astype("f8"), other.astype("f8")
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def check(function, call):
    found = {engine: outcome(engine, function, copied(call, same_layout)) for engine in ENGINES}
    first = found[ENGINES[0]]
    for engine, result in found.items():
        if isinstance(first, Exception) or isinstance(result, Exception):
            assert type(result) is type(first)
            assert str(result) == str(first)
            continue
        assert_near(result, first)
        expected = outcome(engine, function, copied(call, plain))
        if engine[0] == "native":
            support.assert_same_bits(tuple(result), tuple(expected))
        else:
            assert_near(result, expected)
    return not isinstance(first, Exception)


@strategies.repeatable(500)
@given(call=attention_calls())
def test_attention_of_any_arrays(call):
    check(*call)


@strategies.repeatable(500)
@given(call=softmax_calls())
def test_softmax_of_any_arrays(call):
    check(*call)


@strategies.repeatable(150)
@given(call=merges())
def test_merge_of_any_arrays(call):
    check(*call)
