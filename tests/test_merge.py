"""merge_attention: the parts of a call, computed apart, make the whole again."""

from itertools import pairwise

import numpy as np
import oracle
import pytest
import strategies
import support
from hypothesis import given
from hypothesis import strategies as st

from fast_attention import merge_attention, scaled_dot_product_attention

K = oracle.KEY_BLOCK


def part_of(arrays, first, last, mask=None, **options):
    query, key, value = arrays
    mask = None if mask is None else mask[..., first:last]
    return scaled_dot_product_attention(
        query, key[..., first:last, :], value[..., first:last, :], mask, return_lse=True, **options
    )


def split(arrays, cuts, mask=None, **options):
    """Return outputs and log-sum-exps of the parts between the cuts."""
    edges = [0, *cuts, arrays[1].shape[-2]]
    parts = [part_of(arrays, first, last, mask, **options) for first, last in pairwise(edges)]
    return [part.output for part in parts], [part.lse for part in parts]


def assert_merged(merged, expected, extra=0.0):
    """Within the bound of the unsplit call; `extra` for parts that were rounded to 16 bits."""
    expected.output_bound = expected.output_bound + extra
    support.assert_output_near(merged.output, expected)
    support.assert_lse_near(merged.lse, expected)


SPLITS = {
    "one part": [],
    "halves": [100],
    "uneven": [1, 3, K, K + 1, 150],
    "empty parts": [0, 0, 77, 77, 200],
    "single keys": list(range(1, 200)),
}


@pytest.mark.parametrize("cuts", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_merged_parts_stay_within_the_bound_of_the_whole(engine, cuts, dtype):
    arrays = support.qkv(1, lead=(2,), heads=4, kv_heads=2, n_query=5, n_key=200, d=8, dtype=dtype)
    merged = merge_attention(*split(arrays, cuts))
    assert merged.output.dtype == dtype
    assert merged.lse.dtype == dtype
    assert_merged(merged, oracle.attention(*arrays))


@pytest.mark.parametrize("dtype", support.FLOATS[:1] + support.FLOATS[3:])
def test_merged_16_bit_parts_keep_their_dtype_and_half_an_ulp_more(engine, dtype):
    arrays = support.qkv(2, heads=2, n_query=5, n_key=200, d=8, dtype=dtype)
    outputs, lses = split(arrays, [60, 61])
    merged = merge_attention(outputs, lses)
    assert merged.output.dtype == dtype
    assert merged.lse.dtype == np.float32
    largest = np.max([np.abs(x.astype("f4")) for x in outputs], axis=0)
    expected = oracle.attention(*arrays)
    assert_merged(merged, expected, extra=oracle.half_ulp(largest, dtype))


@pytest.mark.parametrize("n_query", [1, 40])
def test_rows_that_a_part_hides_are_merged_from_the_others(engine, n_query):
    arrays = support.qkv(3, heads=2, n_query=n_query, n_key=200, d=8)
    mask = np.random.default_rng(4).random((2, n_query, 200)) < 0.6
    mask[:, ::2, :90] = False
    mask[0, 0] = False
    merged = merge_attention(*split(arrays, [90, 150], mask))
    assert_merged(merged, oracle.attention(*arrays, mask))
    assert (support.bits(merged.output[0, 0]) == 0).all()
    assert merged.lse[0, 0] == -np.inf


@strategies.repeatable(100)
@given(data=st.data())
def test_any_split_of_any_call_stays_within_the_bound(engine, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n_key = data.draw(st.integers(0, 12))
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    size = data.draw(st.sampled_from([0.01, 1.0, 20.0]))
    shapes = [(2, 3, 2, 4), (2, 1, n_key, 4), (2, 1, n_key, 3)]
    query, key, value = (support.normal(rng, *s, dtype=dtype, size=size) for s in shapes)
    mask = rng.random((2, 3, 2, n_key)) < data.draw(st.sampled_from([0, 0.3, 1.0]))
    cuts = sorted(data.draw(st.lists(st.integers(0, n_key), max_size=5)))
    sinks = data.draw(st.sampled_from([None, 0.5, [0.0, -np.inf, 3.0]]))
    merged = merge_attention(*split((query, key, value), cuts, mask), sinks=sinks)
    assert_merged(merged, oracle.attention(query, key, value, mask, sinks=sinks))


@pytest.mark.parametrize("sinks", [0.0, [1.0, -2.0], [-np.inf, 30.0]], ids=str)
def test_sinks_count_once_wherever_they_are_given(engine, sinks):
    arrays = support.qkv(5, lead=(3,), heads=2, n_query=4, n_key=120, d=8)
    expected = oracle.attention(*arrays, sinks=sinks)
    outputs, lses = split(arrays, [50])
    assert_merged(merge_attention(outputs, lses, sinks=sinks), expected)
    first = part_of(arrays, 0, 50, sinks=sinks)
    merged = merge_attention([first.output, outputs[1]], [first.lse, lses[1]])
    assert_merged(merged, oracle.attention(*arrays, sinks=sinks))


def test_sink_alone_is_the_lse_of_a_row_without_keys():
    merged = merge_attention([np.zeros((2, 1, 3), "f4")], [np.full((2, 1), -np.inf, "f4")], sinks=2)
    assert (support.bits(merged.output) == 0).all()
    assert (merged.lse == 2).all()


def test_far_apart_parts_do_not_overflow_in_either_order():
    """A50: log(1 + exp(200)) overflows in float32."""
    outputs = [np.full((1, 1, 2), 5, "f4"), np.full((1, 1, 2), 7, "f4")]
    lses = [np.zeros((1, 1), "f4"), np.full((1, 1), 200, "f4")]
    for order in (slice(None), slice(None, None, -1)):
        with np.errstate(all="raise"):
            merged = merge_attention(outputs[order], lses[order])
        assert (merged.lse == 200).all()
        assert (merged.output == 7).all()


@pytest.mark.parametrize("lse", [-3e38, -1e4, 1e4, 3e38])
def test_any_finite_lse_merges(lse):
    outputs = [np.full((1, 1, 1), x, "f4") for x in (1, 3)]
    merged = merge_attention(outputs, [np.full((1, 1), lse, "f4")] * 2)
    assert merged.output.item() == 2
    assert abs(merged.lse.item() / lse - 1) < 1e-4


def test_greatest_values_do_not_overflow():
    great = np.full((1, 1, 1), np.finfo("f4").max / 1.5, "f4")
    merged = merge_attention([great] * 8, [np.zeros((1, 1), "f4")] * 8)
    assert abs(merged.output.item() / great.item() - 1) < 1e-6


@pytest.mark.parametrize("dtype", support.FLOATS)
@pytest.mark.parametrize("garbage", [0.0, np.nan, np.inf])
def test_part_without_keys_changes_no_bit(dtype, garbage):
    """A48: (0, -inf) is neutral, first and last, and so is any other output with -inf."""
    rng = np.random.default_rng(6)
    output = support.normal(rng, 2, 3, 4, dtype=dtype)
    lse = support.normal(rng, 2, 3, dtype="f8" if dtype == np.float64 else "f4")
    neutral, nothing = np.full_like(output, garbage), np.full_like(lse, -np.inf)
    for outputs, lses in (
        ([output], [lse]),
        ([neutral, output], [nothing, lse]),
        ([neutral, output, neutral], [nothing, lse, nothing]),
    ):
        merged = merge_attention(outputs, lses)
        support.assert_same_bits(merged.output, output)
        support.assert_same_bits(merged.lse, lse)


def test_nothing_but_empty_parts_is_an_empty_part():
    neutral = np.full((2, 3, 4), np.nan, "f4"), np.full((2, 3), -np.inf, "f4")
    merged = merge_attention([neutral[0]] * 2, [neutral[1]] * 2)
    assert (support.bits(merged.output) == 0).all()
    assert (merged.lse == -np.inf).all()


def test_nan_stays_in_its_row_and_in_its_column():
    outputs = [np.ones((1, 4, 3), "f4"), np.ones((1, 4, 3), "f4")]
    lses = [np.zeros((1, 4), "f4"), np.zeros((1, 4), "f4")]
    lses[0][0, 0] = -np.nan  # the sign is not kept
    lses[1][0, 1] = np.inf
    outputs[1][0, 2, 1] = np.inf
    merged = merge_attention(outputs, lses)
    finite = [[False] * 3, [False] * 3, [True, False, True], [True] * 3]
    assert np.isfinite(merged.output[0]).tolist() == finite
    assert np.isnan(merged.output[0, :2]).all()
    assert np.isnan(merged.lse[0]).tolist() == [True, True, False, False]
    nan_bits = support.bits(np.array([np.nan], "f4"))[0]
    assert (support.bits(merged.output[0, :2]) == nan_bits).all()
    assert (support.bits(merged.lse[0, :2]) == nan_bits).all()


@pytest.mark.parametrize("sink", [np.nan, np.inf])
def test_sink_that_is_no_number_makes_its_head_nan(sink):
    outputs, lses = [np.ones((2, 2, 3), "f4")], [np.full((2, 2), -np.inf, "f4")]
    merged = merge_attention(outputs, lses, sinks=[sink, 0.0])
    assert np.isnan(merged.output[0]).all()
    assert np.isnan(merged.lse[0]).all()
    assert (merged.output[1] == 0).all()
    assert (merged.lse[1] == 0).all()


def test_non_finite_keys_and_values_end_as_in_the_whole_call(engine):
    query, key, value = support.qkv(7, heads=2, n_query=6, n_key=40, d=8)
    key[0, 33], value[1, 5, 2], query[1, 0] = np.nan, np.inf, np.nan
    mask = np.ones((6, 40), bool)
    mask[3:, 33] = False
    mask[5, 5] = False
    merged = merge_attention(*split((query, key, value), [20], mask))
    assert_merged(merged, oracle.attention(query, key, value, mask))


def test_result_of_a_merge_can_be_merged_again(engine):
    arrays = support.qkv(8, heads=2, n_query=4, n_key=120, d=8)
    outputs, lses = split(arrays, [30, 70])
    left = merge_attention(outputs[:2], lses[:2])
    merged = merge_attention([left.output, outputs[2]], [left.lse, lses[2]])
    assert_merged(merged, oracle.attention(*arrays))


def test_stacked_parts_and_one_head_without_an_axis_are_accepted(engine):
    query, key, value = (x[0] for x in support.qkv(9, n_query=4, n_key=30, d=8))
    outputs, lses = split((query, key, value), [11])
    expected = oracle.attention(query, key, value, sinks=0.5)
    merged = merge_attention(np.stack(outputs), np.stack(lses), sinks=0.5)
    assert merged.output.shape == (4, 8)
    assert_merged(merged, expected)
    for given_sinks in ([0.5], np.float64(0.5)):
        support.assert_same_bits(
            tuple(merge_attention(outputs, lses, sinks=given_sinks)), tuple(merged)
        )


@pytest.mark.parametrize("dtypes", ["f4 f8", "f2 f8"])
def test_a_single_float64_makes_the_arithmetic_float64(dtypes):
    kind, wide = dtypes.split()
    outputs = [np.full((1, 1, 1), x, kind) for x in (0, 1)]
    exact = np.log([[[2.0]], [[1.0]]])
    merged = merge_attention(outputs, exact.astype(wide))
    assert merged.output.dtype == kind
    assert merged.lse.dtype == np.float64
    np.testing.assert_allclose(merged.lse, np.log(3), rtol=4e-16)
    assert merged.output.item() == np.dtype(kind).type(1 / 3)


def test_lists_of_integers_are_taken_as_float64():
    merged = merge_attention([[[[1, 2]]], [[[3, 4]]]], [[[0]], [[0]]])
    assert merged.output.dtype == np.float64
    assert merged.output.tolist() == [[[2, 3]]]


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 3, 0), (0, 1, 0, 4)])
def test_empty_arrays_stay_empty(shape):
    merged = merge_attention([np.ones(shape, "f4")] * 2, [np.ones(shape[:-1], "f4")] * 2, sinks=0.0)
    assert merged.output.shape == shape
    assert merged.lse.shape == shape[:-1]


def test_inputs_are_not_written_and_results_are_no_views():
    output, lse = support.read_only(np.ones((1, 2, 3), "f4")), np.ones((1, 2), "f4")
    lse = support.read_only(lse)
    merged = merge_attention([output], [lse])
    for result, given_array in zip(merged, (output, lse), strict=True):
        assert not np.shares_memory(result, given_array)
        assert result.flags.writeable
        assert result.flags.c_contiguous


@pytest.mark.parametrize("layout", support.LAYOUTS)
def test_any_memory_layout_gives_the_same_bits(layout):
    rng = np.random.default_rng(10)
    outputs, lses = support.normal(rng, 3, 2, 4, 5), support.normal(rng, 3, 2, 4)
    expected = merge_attention(outputs, lses)
    spread = [support.LAYOUTS[layout](x) for x in outputs]
    merged = merge_attention(spread, [support.LAYOUTS[layout](x) for x in lses])
    support.assert_same_bits(tuple(merged), tuple(expected))


def test_underflow_makes_no_negative_zero():
    output = np.full((1, 1, 1), -6e-8, "f2")
    merged = merge_attention([output, 0 * output], [np.zeros((1, 1), "f4")] * 2)
    assert (support.bits(merged.output) == 0).all()


ONE = np.ones((2, 3, 4), "f4")
LOG = np.ones((2, 3), "f4")
ERRORS = {
    "outputs are nothing": (TypeError, (None, [LOG]), {}, ["outputs", "sequence", "NoneType"]),
    "lses are a number": (TypeError, ([ONE], np.float32(0)), {}, ["lses", "sequence", "float32"]),
    "no part": (ValueError, ([], []), {}, ["outputs is empty"]),
    "counts differ": (ValueError, ([ONE, ONE], [LOG]), {}, ["2 outputs", "1 lses"]),
    "shapes differ": (
        ValueError, ([ONE, ONE[:1]], [LOG, LOG[:1]]), {}, ["outputs[1]", "(1, 3, 4)", "(2, 3, 4)"],
    ),
    "lse has another shape": (
        ValueError, ([ONE, ONE], [LOG, LOG[:, :2]]), {}, ["lses[1]", "(2, 2)", "(2, 3)"],
    ),
    "output is a vector": (ValueError, ([ONE[0, 0]], [LOG[0, 0]]), {}, ["outputs[0]", "(4,)"]),
    "dtypes differ": (
        TypeError, ([ONE, ONE.astype("f8")], [LOG, LOG]), {}, ["outputs[1]", "float64", "float32"],
    ),
    "complex output": (TypeError, ([ONE.astype("c8")], [LOG]), {}, ["outputs[0]", "complex64"]),
    "bool lse": (TypeError, ([ONE], [LOG > 0]), {}, ["lses[0]", "bool"]),
    "sinks do not fit": (
        ValueError, ([ONE], [LOG]), {"sinks": [0.0] * 3}, ["sinks", "(3,)", "(2,)"],
    ),
    "sinks are text": (TypeError, ([ONE], [LOG]), {"sinks": "none"}, ["sinks"]),
}  # fmt: skip


@pytest.mark.parametrize(("error", "arguments", "options", "words"), ERRORS.values(), ids=ERRORS)
def test_error_says_what_was_given_and_what_was_expected(error, arguments, options, words):
    with pytest.raises(error) as caught:
        merge_attention(*arguments, **options)
    for word in words:
        assert word in str(caught.value)
