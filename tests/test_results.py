"""What comes back: named results, memory order, ownership, and ``out`` in every shape."""

from itertools import product

import numpy as np
import pytest
import support

from fast_attention import scaled_dot_product_attention

SHAPE = {"lead": (2,), "heads": 4, "kv_heads": 2, "n_query": 9, "n_key": 11, "d": 6, "dv": 5}
OUT_SHAPE = (2, 4, 9, 5)


@pytest.mark.parametrize(("lse", "weights"), list(product([False, True], repeat=2)))
def test_result_holds_exactly_what_was_asked_for(engine, lse, weights):
    arrays = support.qkv(1, **SHAPE)
    result = scaled_dot_product_attention(*arrays, return_lse=lse, return_weights=weights)
    if not lse and not weights:
        assert type(result) is np.ndarray
        return
    names = ("output",) + ("lse",) * lse + ("weights",) * weights
    assert isinstance(result, tuple)
    assert result._fields == names
    assert result.output is result[0]
    support.assert_output_near(result.output, support.oracle.attention(*arrays))
    if lse:
        assert result.lse.shape == OUT_SHAPE[:3]
    if weights:
        assert result.weights.shape == (2, 4, 9, 11)


@pytest.mark.parametrize("layout", list(support.LAYOUTS))
@pytest.mark.parametrize("is_causal", [False, True])
def test_results_are_c_ordered_and_own_their_memory(engine, layout, is_causal):
    arrays = [support.LAYOUTS[layout](x) for x in support.qkv(2, **SHAPE)]
    result = scaled_dot_product_attention(
        *arrays, is_causal=is_causal, query_offset=0, return_lse=True, return_weights=True
    )
    plain = scaled_dot_product_attention(*(x[..., :9, :] for x in arrays), is_causal=is_causal)
    for x in (*result, plain):
        assert type(x) is np.ndarray
        assert x.base is None
        assert x.flags.owndata
        assert x.flags.c_contiguous
        assert x.flags.writeable
        assert not any(np.shares_memory(x, array) for array in arrays)


@pytest.mark.parametrize("two_dimensional", [False, True])
def test_results_without_head_axis_own_their_memory_too(engine, two_dimensional):
    arrays = [x[0] if two_dimensional else x for x in support.qkv(3)]
    for x in scaled_dot_product_attention(*arrays, return_lse=True, return_weights=True):
        assert x.base is None
        assert x.flags.c_contiguous


def test_rows_of_weights_sum_to_one_less_the_sink(engine):
    arrays = support.qkv(4, **SHAPE)
    result = scaled_dot_product_attention(*arrays, return_weights=True)
    np.testing.assert_allclose(result.weights.sum(-1), 1, rtol=1e-6)
    result = scaled_dot_product_attention(*arrays, sinks=1.0, return_weights=True, return_lse=True)
    left = 1 - np.exp(1.0 - result.lse)
    np.testing.assert_allclose(result.weights.sum(-1), left, rtol=1e-5)


@pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("layout", [name for name in support.LAYOUTS if name != "read_only"])
def test_out_of_any_layout_is_filled_and_returned(engine, layout, dtype):
    arrays = support.qkv(5, **SHAPE, dtype=dtype)
    expected = scaled_dot_product_attention(*arrays)
    out = support.LAYOUTS[layout](np.full(OUT_SHAPE, 7, dtype))
    returned = scaled_dot_product_attention(*arrays, out=out)
    assert returned is out
    support.assert_same_bits(np.ascontiguousarray(out), expected)


def test_out_with_gaps_leaves_the_gaps_alone(engine):
    arrays = support.qkv(6, **SHAPE)
    base = np.full((2, 4, 19, 17), 7, "f4")
    out = base[:, :, 1::2, 2::3]
    scaled_dot_product_attention(*arrays, out=out)
    support.assert_same_bits(np.ascontiguousarray(out), scaled_dot_product_attention(*arrays))
    out[...] = 7
    assert (base == 7).all()


def test_out_comes_back_inside_the_named_results(engine):
    arrays = support.qkv(7, **SHAPE)
    out = np.empty(OUT_SHAPE, "f4")
    result = scaled_dot_product_attention(*arrays, out=out, return_lse=True)
    assert result.output is out


def test_out_for_two_dimensional_arrays_has_no_head_axis(engine):
    arrays = [x[0] for x in support.qkv(8)]
    out = np.empty((3, 4), "f4")
    result = scaled_dot_product_attention(*arrays, out=out, return_lse=True, return_weights=True)
    assert result.output is out
    assert (result.lse.shape, result.weights.shape) == ((3,), (3, 5))
    support.assert_output_near(out, support.oracle.attention(*arrays))


def test_out_is_overwritten_whatever_it_held(engine):
    arrays = support.qkv(9, **SHAPE)
    lengths = [0, 11]
    out = np.full(OUT_SHAPE, np.nan, "f4")
    scaled_dot_product_attention(*arrays, kv_lengths=lengths, out=out)
    support.assert_same_bits(out, scaled_dot_product_attention(*arrays, kv_lengths=lengths))
    assert (support.bits(out[0]) == 0).all()


@pytest.mark.parametrize("n_key", [0, 11])
@pytest.mark.parametrize("layout", ["contiguous", "gapped", "column_major"])
def test_out_without_a_visible_key_becomes_zero(engine, n_key, layout):
    arrays = support.qkv(10, **SHAPE | {"n_key": n_key})
    out = support.LAYOUTS[layout](np.full(OUT_SHAPE, np.nan, "f4"))
    result = scaled_dot_product_attention(*arrays, kv_lengths=0, out=out, return_lse=True)
    assert (support.bits(out) == 0).all()
    assert (result.lse == -np.inf).all()


def test_out_of_size_zero_is_returned(engine):
    query, key, value = support.qkv(11, n_query=0)
    out = np.empty((1, 0, 4), "f4")
    assert scaled_dot_product_attention(query, key, value, out=out) is out


@pytest.mark.parametrize("where", ["before", "after"])
def test_out_beside_an_input_in_the_same_memory_is_accepted(engine, where):
    memory = np.zeros(32, "f4")
    query, key, value = support.qkv(12, n_query=4, n_key=4)
    inside = memory[16:] if where == "before" else memory[:16]
    out = (memory[:16] if where == "before" else memory[16:]).reshape(1, 4, 4)
    inside[:] = query.ravel()
    returned = scaled_dot_product_attention(inside.reshape(1, 4, 4), key, value, out=out)
    support.assert_same_bits(returned, scaled_dot_product_attention(query, key, value))


def test_out_interleaved_with_an_input_without_sharing_an_element_is_accepted(engine):
    memory = np.zeros((1, 4, 8), "f4")
    query, key, value = support.qkv(13, n_query=4, n_key=4)
    memory[..., ::2] = query
    out = memory[..., 1::2]
    scaled_dot_product_attention(memory[..., ::2], key, value, out=out)
    expected = scaled_dot_product_attention(query, key, value)
    support.assert_same_bits(np.ascontiguousarray(out), expected)
    support.assert_same_bits(np.ascontiguousarray(memory[..., ::2]), query)


def test_results_of_two_calls_are_independent(engine):
    arrays = support.qkv(14, **SHAPE)
    first = scaled_dot_product_attention(*arrays)
    kept = first.copy()
    second = scaled_dot_product_attention(*(x + 1 for x in arrays))
    assert not np.shares_memory(first, second)
    support.assert_same_bits(first, kept)


def test_random_state_is_left_alone_and_calls_repeat(engine):
    arrays = support.qkv(15, **SHAPE)
    before = np.random.get_state()
    first = scaled_dot_product_attention(*arrays)
    support.assert_same_bits(scaled_dot_product_attention(*arrays), first)
    after = np.random.get_state()
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])
    assert before[2:] == after[2:]
