"""Row invariance over many keys and queries, where rows are split over segments and threads."""

import numpy as np
import oracle
import pytest
import support

from fast_attention import explain, scaled_dot_product_attention

LONG = 20_000
MANY = 1_000
K = oracle.KEY_BLOCK


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_a_long_decode(native_engine, threads, dtype):
    arrays = support.qkv(1, heads=2, kv_heads=1, n_query=1, n_key=LONG, d=16, dtype=dtype)
    one = scaled_dot_product_attention(*arrays, num_threads=1, return_lse=True)
    many = scaled_dot_product_attention(*arrays, num_threads=threads, return_lse=True)
    support.assert_same_bits(many, one)


VERY_LONG = 60_000
SPLIT = {
    "plain": {},
    "softcap, sinks": {"softcap": 9.0, "sinks": np.array([0.5, -np.inf, 2.0, 30.0], "f4")},
    "window": {"window": (7_000, 100), "query_offset": 50_000},
    "lengths": {"kv_lengths": np.array([59_999, 0])},
    "masked": {"attn_mask": np.arange(VERY_LONG) % 3000 > 1},
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("options", SPLIT.values(), ids=SPLIT)
def test_keys_split_over_idle_threads_give_the_same_bits(native_engine, options, dtype):
    query, key, value = support.qkv(
        6, lead=(2,), heads=4, kv_heads=1, n_query=2, n_key=VERY_LONG, d=16, dtype=dtype
    )
    if "attn_mask" in options:
        key[..., ~options["attn_mask"], :] = np.nan
        value[..., ~options["attn_mask"], :] = np.inf  # asks for values selected by visibility
    returned = {"return_lse": True, "return_weights": True}
    one = scaled_dot_product_attention(query, key, value, num_threads=1, **options, **returned)
    assert np.isfinite(one.output).all()
    for threads in (3, 7):
        assert explain(query, key, value, num_threads=threads, **options).tasks > 2
        many = scaled_dot_product_attention(
            query, key, value, num_threads=threads, **options, **returned
        )
        support.assert_same_bits(many, one)


@pytest.mark.parametrize("n_key", [K, 16 * K, 16 * K + 1, 20 * K + 1, 32 * K, 40 * K + 7, LONG])
def test_decode_continues_a_prefill_at_every_segment_edge(native_engine, n_key):
    n_query = 70
    query, key, value = support.qkv(2, heads=2, n_query=n_query, n_key=n_key, d=16)
    whole = scaled_dot_product_attention(
        query, key, value, is_causal=True, query_offset="end", return_lse=True
    )
    for i in (0, 1, n_query - 2, n_query - 1):
        seen = n_key - n_query + i + 1
        for keys in (slice(0, seen), slice(None)):
            one = scaled_dot_product_attention(
                query[:, i : i + 1], key[:, keys], value[:, keys], is_causal=True,
                query_offset=n_key - n_query + i, return_lse=True,
            )  # fmt: skip
            support.assert_same_bits(one.output, whole.output[:, i : i + 1])
            support.assert_same_bits(one.lse, whole.lse[:, i : i + 1])


@pytest.mark.parametrize("options", [{}, {"window": (3000, 0)}], ids=["full", "window"])
def test_many_queries_over_many_keys_equal_their_single_rows(native_engine, options):
    arrays = support.qkv(3, n_query=MANY, n_key=LONG, d=8)
    options = options | {"is_causal": True, "return_lse": True}
    whole = scaled_dot_product_attention(*arrays, query_offset="end", **options)
    threaded = scaled_dot_product_attention(*arrays, query_offset="end", num_threads=3, **options)
    support.assert_same_bits(threaded, whole)
    for start, stop in ((0, 1), (1, 3), (500, 564), (900, 1000), (999, 1000)):
        part = scaled_dot_product_attention(
            arrays[0][:, start:stop], *arrays[1:], query_offset=LONG - MANY + start, **options
        )
        support.assert_same_bits(part.output, whole.output[:, start:stop])
        support.assert_same_bits(part.lse, whole.lse[:, start:stop])


def test_repeated_threaded_calls_give_the_same_bits(native_engine):
    query, key, value = support.qkv(4, heads=2, n_query=2, n_key=10_007, d=8)
    first = scaled_dot_product_attention(query, key, value, num_threads=1)
    for threads in (1, 2, 3, 8):
        for _ in range(30):
            again = scaled_dot_product_attention(query, key, value, num_threads=threads)
            support.assert_same_bits(again, first)


def test_rows_of_a_long_sequence_equal_the_short_one_under_right_padding(native_engine):
    query, key, value = support.qkv(5, heads=2, n_query=3, n_key=5_000, d=16)
    short = scaled_dot_product_attention(query, key, value, return_lse=True)
    widths = ((0, 0), (0, 15_000), (0, 0))
    key, value = (np.pad(x, widths, constant_values=np.nan) for x in (key, value))
    padded = scaled_dot_product_attention(query, key, value, kv_lengths=5_000, return_lse=True)
    support.assert_same_bits(padded, short)
    mask = np.arange(20_000) < 5_000
    masked = scaled_dot_product_attention(query, key, value, mask, return_lse=True)
    support.assert_same_bits(masked, short)
