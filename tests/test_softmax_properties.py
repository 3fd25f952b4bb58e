"""Properties of the softmax family that hold for any call."""

import numpy as np
import softmax_oracle
import strategies
import support
from hypothesis import given
from hypothesis import strategies as st
from spec.softmax import reduction
from spec.softmax_calls import Call

from fast_attention import _backend, log_softmax, logsumexp, softmax, softmax_vjp
from fast_attention._reduction import Kind

repeatable = strategies.repeatable(150)
INF, NAN = np.inf, np.nan
SIZES = st.one_of(st.integers(0, 3), st.integers(0, 20), st.sampled_from([31, 32, 33, 70]))
SPECIAL = st.sampled_from([[], [], [INF], [-INF], [NAN], [0.0, -0.0], [-INF, 60000.0], [1e-40]])
LAYOUTS = [name for name in support.LAYOUTS if name not in ("gapped", "transposed_heads")]


@st.composite
def calls(draw):
    """Draw an input of any shape, type and layout, axes of it, and perhaps what exists."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(draw(st.lists(SIZES, max_size=2))) + tuple(
        draw(st.lists(st.integers(1, 3), max_size=2))
    )
    shape = tuple(rng.permutation(shape).tolist())
    x = support.normal(rng, *shape, dtype=draw(st.sampled_from(support.FLOATS)), size=4.0)
    x = np.array(x)
    for number in draw(SPECIAL):
        x[rng.random(shape) < 0.2] = number
    layouts = LAYOUTS if x.ndim > 1 and x.size else ["contiguous", "read_only"]
    x = support.LAYOUTS[draw(st.sampled_from(layouts))](x)
    axis = None
    if x.ndim:
        axes = draw(st.permutations(range(x.ndim)))[: draw(st.integers(0, x.ndim))]
        axis = draw(st.sampled_from([None, axes[0] if axes else -1, tuple(axes)]))
    where = None
    if draw(st.booleans()):
        narrow = tuple(n if draw(st.booleans()) else 1 for n in shape)
        where = rng.random(narrow[draw(st.integers(0, len(shape))) :]) < draw(
            st.sampled_from([0.0, 0.3, 0.9, 1.0])
        )
    return x, axis, where


@repeatable
@given(call=calls())
def test_every_call_is_within_the_bound(engine, call):
    softmax_oracle.check(*call)


@repeatable
@given(call=calls())
def test_native_bits_are_those_of_the_specification(native_engine, call):
    x, axis, where = call
    kinds = {name: kind for name, _, kind in support.native().isa_table()}
    y = np.abs(np.roll(x, 1))
    for kind in Kind:
        described = Call(x, axis, y, {} if where is None else {"where": where}).of(kind)
        if described.x.size == 0:
            continue
        _backend.reduce(described)
        expected = reduction(described, kinds[native_engine[1]])
        support.assert_same_bits(np.array(described.output), expected, kind.name)


@repeatable
@given(call=calls(), garbage=st.sampled_from([NAN, INF, -INF, 6e4]))
def test_garbage_that_does_not_exist_changes_no_bit(engine, call, garbage):
    x, axis, where = call
    where = np.broadcast_to(True if where is None else where, x.shape)
    poisoned = np.array(x)
    poisoned[~where] = garbage
    for function in (softmax, log_softmax, logsumexp):
        clean, dirty = (np.asarray(function(a, axis, where=where)) for a in (x, poisoned))
        if engine[0] == "native":
            support.assert_same_bits(dirty, clean)
        np.testing.assert_allclose(dirty.astype("f8"), clean.astype("f8"), rtol=1e-2, atol=1e-30)


@repeatable
@given(call=calls())
def test_result_in_place_is_the_result(engine, call):
    x, axis, where = call
    for function in (softmax, log_softmax):
        out = np.array(x)
        expected = np.asarray(function(out, axis, where=where))
        assert function(out, axis, where=where, out=out) is out
        support.assert_same_bits(out, expected)


@repeatable
@given(call=calls())
def test_gradient_is_within_the_bound(engine, call):
    x, axis, where = call
    wide = x.astype("f8")
    y = softmax(np.where(np.isfinite(wide), wide, 0).astype(x.dtype), axis, where=where)
    grad = np.roll(np.nan_to_num(wide, posinf=3, neginf=-3), 1).astype(x.dtype)
    exact, bound = softmax_oracle.vjp(grad, np.asarray(y), axis)
    softmax_oracle.assert_near(softmax_vjp(grad, y, axis), exact, bound)
