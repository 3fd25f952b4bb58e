"""Masks as arrays: True = attend, and the same result as the option of the same meaning."""

import numpy as np
import oracle
import pytest
import strategies
import support
from hypothesis import given
from hypothesis import strategies as st

from fast_attention import masks, scaled_dot_product_attention

LENGTHS = st.integers(0, 7)
OFFSETS = st.integers(-9, 9)
SIDES = st.one_of(st.none(), st.integers(-1, 8))


def assert_mask_is_option(engine, arrays, mask, **options):
    """Native: the same bits. NumPy: both within the bound, since BLAS sees other shapes."""
    wanted = {"return_lse": True, "return_weights": True}
    if engine[0] == "native":
        by_mask = scaled_dot_product_attention(*arrays, mask, **wanted)
        by_option = scaled_dot_product_attention(*arrays, **options, **wanted)
        support.assert_same_bits(tuple(by_mask), tuple(by_option))
    support.check(*arrays, mask, expected=oracle.attention(*arrays, **options))


@pytest.mark.parametrize("offset", [0, 3, -2, 40, "end"])
@pytest.mark.parametrize(("n_query", "n_key"), [(1, 1), (20, 110), (110, 20), (70, 97)])
def test_causal_mask_gives_the_result_of_is_causal(engine, n_query, n_key, offset):
    arrays = support.qkv(1, heads=2, n_query=n_query, n_key=n_key, d=8)
    mask = masks.causal(n_query, n_key, offset)
    assert mask.shape == (n_query, n_key)
    assert_mask_is_option(engine, arrays, mask, is_causal=True, query_offset=offset)


@pytest.mark.parametrize("sides", [(5, 0), (0, 3), (None, 2), (4, -1), (7, 7), (None, None)])
@pytest.mark.parametrize("offset", [0, 17, -4, "end"])
def test_window_mask_gives_the_result_of_window(engine, sides, offset):
    arrays = support.qkv(2, heads=2, n_query=40, n_key=110, d=8)
    mask = masks.window(40, 110, *sides, query_offset=offset)
    assert_mask_is_option(engine, arrays, mask, window=sides, query_offset=offset)


@pytest.mark.parametrize("lengths", [3, [0, 110], [[5], [97], [110]]], ids=str)
def test_padding_mask_gives_the_result_of_kv_lengths(engine, lengths):
    lead = np.shape(lengths)
    arrays = support.qkv(3, lead=lead, heads=2, n_query=9, n_key=110, d=8)
    mask = masks.padding(lengths, 110)
    assert mask.shape == ((*lead, 1, 1, 110) if lead else (1, 110))
    assert_mask_is_option(engine, arrays, mask, kv_lengths=lengths)


def test_offsets_of_a_batch_make_a_mask_for_each_sequence(engine):
    arrays = support.qkv(4, lead=(3,), heads=2, n_query=9, n_key=50, d=8)
    offsets = np.array([0, 41, -3])
    mask = masks.causal(9, 50, offsets)
    assert mask.shape == (3, 1, 9, 50)
    assert_mask_is_option(engine, arrays, mask, is_causal=True, query_offset=offsets)
    mask = masks.window(9, 50, 2, 1, offsets)
    assert mask.shape == (3, 1, 9, 50)
    assert_mask_is_option(engine, arrays, mask, window=(2, 1), query_offset=offsets)


def test_masks_intersect_by_and(engine):
    arrays = support.qkv(5, lead=(2,), heads=2, n_query=30, n_key=60, d=8)
    mask = (
        masks.window(30, 60, 9, None, 20) & masks.causal(30, 60, 20) & masks.padding([60, 33], 60)
    )
    options = {"is_causal": True, "window": (9, None), "query_offset": 20, "kv_lengths": [60, 33]}
    assert_mask_is_option(engine, arrays, mask, **options)


def test_packed_documents_give_the_result_of_one_document_at_a_time(engine):
    arrays = support.qkv(6, heads=2, n_query=30, n_key=30, d=8)
    ids = np.repeat([4, -1, 4000], [7, 3, 20])
    output = scaled_dot_product_attention(*arrays, masks.document(ids) & masks.causal(30, 30))
    for first, last in ((0, 7), (7, 10), (10, 30)):
        document = [x[:, first:last] for x in arrays]
        expected = oracle.attention(*document, is_causal=True)
        support.assert_output_near(output[:, first:last], expected)


def test_slopes_as_option_give_the_result_of_the_bias_they_stand_for(engine):
    arrays = support.qkv(7, heads=6, n_query=20, n_key=20, d=8)
    slopes = masks.alibi_slopes(6)
    assert slopes.shape == (6,)
    expected = oracle.attention(*arrays, alibi_slopes=slopes, is_causal=True)
    distance = np.abs(np.arange(20)[:, None] - np.arange(20))
    bias = -slopes.astype("f4")[:, None, None] * distance.astype("f4")
    by_bias = support.check(*arrays, masks.causal(20, 20), bias=bias, expected=expected)
    by_slope = support.check(*arrays, alibi_slopes=slopes, is_causal=True, expected=expected)
    if engine[0] == "native":
        support.assert_same_bits(by_bias, by_slope)


def test_true_means_attend(engine):
    """A14: a mask of the other meaning would let every query see the future."""
    query, key, value = support.qkv(8, n_query=4, n_key=4)
    triangle = np.tril(np.ones((4, 4), bool))
    np.testing.assert_array_equal(masks.causal(4, 4), triangle)
    output = scaled_dot_product_attention(query, key, value, triangle)
    support.assert_output_near(output, oracle.attention(query, key, value, is_causal=True))
    for function in (masks.causal, masks.window, masks.padding, masks.document):
        assert "True = attend" in function.__doc__.splitlines()[0]
    assert "True = attend" in masks.__doc__.splitlines()[0] + masks.__doc__.splitlines()[2]


def test_both_alignments_of_causal_have_a_name(engine):
    """A16: one query on four keys sees the first one or all of them, by what is asked for."""
    query, key = np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 4, 2))
    value = np.arange(4.0).reshape(1, 1, 4, 1)
    for offset, mean in ((0, 0.0), ("end", 1.5)):
        mask = masks.causal(1, 4, query_offset=offset)
        assert scaled_dot_product_attention(query, key, value, mask).item() == mean
        assert masks.window(1, 4, None, 0, query_offset=offset).tolist() == mask.tolist()


@strategies.repeatable(100)
@given(LENGTHS, LENGTHS, OFFSETS, SIDES, SIDES)
def test_every_element_follows_its_formula(n_query, n_key, offset, left, right):
    causal = masks.causal(n_query, n_key, offset)
    window = masks.window(n_query, n_key, left, right, offset)
    for array in (causal, window):
        assert array.shape == (n_query, n_key)
        assert array.dtype == bool
        assert array.flags.writeable
        assert array.flags.c_contiguous
    for i, j in np.ndindex(n_query, n_key):
        p = i + offset
        assert causal[i, j] == (j <= p)
        assert window[i, j] == (
            (left in (None, -1) or j >= p - left) and (right in (None, -1) or j <= p + right)
        )


@strategies.repeatable(50)
@given(st.lists(st.integers(-2, 2), max_size=6), st.lists(st.integers(-2, 2), max_size=6))
def test_documents_compare_ids(ids_q, ids_k):
    same = masks.document(np.array(ids_q, int), np.array(ids_k, int))
    assert same.tolist() == [[q == k for k in ids_k] for q in ids_q]


def test_documents_of_a_batch_have_an_axis_for_the_heads():
    ids = np.array([[0, 0, 1], [2, 3, 3]])
    mask = masks.document(ids)
    assert mask.shape == (2, 1, 3, 3)
    for sequence, row in zip(mask, ids, strict=True):
        np.testing.assert_array_equal(sequence[0], masks.document(row))
    shared = masks.document(ids, [0, 3])
    assert shared.shape == (2, 1, 3, 2)
    assert shared[:, 0].tolist() == [
        [[True, False], [True, False], [False, False]],
        [[False, False], [False, True], [False, True]],
    ]


def test_widest_windows_and_offsets_do_not_overflow():
    assert masks.window(2, 3, 2**70, 2**70, 2**61).all()
    assert masks.causal(2, 3, 2**61).all()
    assert not masks.causal(2, 3, -(2**61)).any()
    assert masks.window(2, 3, 2**61, 0, 2**61).tolist() == [[True] * 3, [False] + [True] * 2]


PAPER = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    8: [2**-h for h in range(1, 9)],
    3: [2**-4, 2**-8, 2**-2],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    12: [2**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    0: [],
}


@pytest.mark.parametrize("heads", PAPER)
def test_alibi_slopes_are_those_of_the_paper(heads):
    slopes = masks.alibi_slopes(heads)
    assert slopes.dtype == np.float64
    assert slopes.shape == (heads,)
    np.testing.assert_allclose(slopes, np.array(PAPER[heads], float), rtol=4e-16)


@pytest.mark.parametrize("heads", range(1, 70))
def test_alibi_slopes_of_any_number_of_heads_are_distinct_and_between_0_and_1(heads):
    slopes = masks.alibi_slopes(np.int64(heads))
    assert len(set(slopes)) == heads
    assert ((slopes > 0) & (slopes < 1)).all()


def info(dtype):
    if np.dtype(dtype).kind == "f":
        return np.finfo(dtype)
    return pytest.importorskip("ml_dtypes").finfo(dtype)


@pytest.mark.parametrize("dtype", support.FLOATS)
def test_finite_stand_ins_for_minus_infinity_become_masked(dtype):
    least = float(info(dtype).min)
    half = dtype(least / 2)
    above = dtype(least / 2 * (1 - 4 * float(info(dtype).eps)))
    values = [0.0, least, half, above, -np.inf, -1e4 if least < -1e5 else -1e3, 3.0]
    mask = masks.from_additive(np.array(values, dtype))
    assert mask.dtype == bool
    assert mask.tolist() == [True, False, False, True, False, True, True]


def test_additive_mask_of_finfo_min_hides_once_it_is_converted(engine):
    query, key, value = np.zeros((1, 2), "f4"), np.zeros((3, 2), "f4"), np.eye(3, dtype="f4")
    additive = np.array([[0, 0, np.finfo("f4").min]], "f4")
    additive = np.concatenate([additive, np.full((1, 3), np.finfo("f4").min, "f4")])
    query = np.zeros((2, 2), "f4")
    assert scaled_dot_product_attention(query, key, value, additive)[1].all()
    output = scaled_dot_product_attention(query, key, value, masks.from_additive(additive))
    assert output.tolist() == [[0.5, 0.5, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", support.FLOATS)
def test_additive_mask_of_ones_and_zeros_warns_that_all_of_it_is_true(dtype):
    mask = np.tril(np.ones((3, 4), dtype))
    with pytest.warns(UserWarning, match=r"mask\.astype\(bool\)") as caught:
        assert masks.from_additive(mask).all()
    assert [w.filename for w in caught] == [__file__]
    for silent in (np.ones((3, 4), dtype), np.zeros((3, 4), dtype), -mask, mask / 2):
        assert masks.from_additive(silent).all()


def test_additive_mask_in_any_layout_is_read():
    rng = np.random.default_rng(9)
    additive = np.where(rng.random((3, 4, 5)) < 0.5, -np.inf, 0.0)
    expected = additive == 0
    for layout in support.LAYOUTS.values():
        np.testing.assert_array_equal(masks.from_additive(layout(additive)), expected)
    np.testing.assert_array_equal(masks.from_additive(support.byte_swapped(additive)), expected)
    assert masks.from_additive(np.float32(-np.inf)).shape == ()
    assert masks.from_additive(np.zeros((0, 3))).shape == (0, 3)


ERRORS = {
    "negative count": (ValueError, lambda: masks.causal(-1, 3), ["L", "-1"]),
    "count is a float": (TypeError, lambda: masks.causal(3, 2.0), ["S", "float", "2.0"]),
    "count is a bool": (TypeError, lambda: masks.window(True, 2, 1, 1), ["L", "bool"]),
    "side below -1": (ValueError, lambda: masks.window(2, 2, -2, 0), ["-2"]),
    "side is a float": (TypeError, lambda: masks.window(2, 2, 0.5, 0), ["0.5"]),
    "offset is a float": (TypeError, lambda: masks.causal(2, 2, 1.0), ["query_offset", "float"]),
    "offset is text": (ValueError, lambda: masks.causal(2, 2, "start"), ['"end"', "start"]),
    "offset too far": (ValueError, lambda: masks.causal(2, 2, 2**62), ["query_offset"]),
    "lengths are missing": (TypeError, lambda: masks.padding(None, 4), ["given a NoneType"]),
    "lengths are a mask": (TypeError, lambda: masks.padding([True], 4), ["mask.sum(axis=-1)"]),
    "length too great": (ValueError, lambda: masks.padding([2, 5], 4), ["lengths", "4", "5"]),
    "length negative": (ValueError, lambda: masks.padding(-1, 4), ["lengths", "-1"]),
    "lengths are floats": (TypeError, lambda: masks.padding([2.0], 4), ["lengths", "float64"]),
    "lengths are bools": (TypeError, lambda: masks.padding([True], 4), ["lengths", "bool"]),
    "ids are floats": (TypeError, lambda: masks.document([0.0]), ["ids_q", "float64"]),
    "ids are text": (TypeError, lambda: masks.document([0], ["a"]), ["ids_k"]),
    "one id": (ValueError, lambda: masks.document(3), ["ids_q", "()"]),
    "ids do not broadcast": (
        ValueError,
        lambda: masks.document(np.zeros((2, 4), int), np.zeros((3, 5), int)),
        ["(2, 4)", "(3, 5)"],
    ),
    "negative heads": (ValueError, lambda: masks.alibi_slopes(-1), ["heads", "-1"]),
    "heads are a float": (TypeError, lambda: masks.alibi_slopes(8.0), ["heads", "8.0"]),
    "additive mask of bools": (
        TypeError,
        lambda: masks.from_additive([True]),
        ["bool", "True = attend"],
    ),
    "additive mask of ints": (TypeError, lambda: masks.from_additive([0, 1]), ["int64", "floats"]),
    "additive NaN": (ValueError, lambda: masks.from_additive([[0, np.nan]]), ["nan", "(0, 1)"]),
    "additive +inf": (ValueError, lambda: masks.from_additive([np.inf]), ["inf", "(0,)"]),
}


@pytest.mark.parametrize(("error", "call", "words"), ERRORS.values(), ids=ERRORS)
def test_error_says_what_was_given_and_what_was_expected(error, call, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
