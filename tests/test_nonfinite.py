"""NaN, infinities and the most negative numbers: what they do to their row, and to no other."""

import numpy as np
import pytest
import support

from fast_attention import scaled_dot_product_attention

INF, NAN = np.inf, np.nan
ALL = {"return_lse": True, "return_weights": True}
pytestmark = pytest.mark.parametrize("n_query", [1, 5, 70])


def scored(scores, n_query, dtype="f4", dv=2, seed=1):
    """Query, key, value whose scores, at scale 1, are ``scores`` for every query."""
    scores = np.asarray(scores, dtype)
    query = np.ones((1, n_query, 1), dtype)
    value = support.normal(np.random.default_rng(seed), 1, len(scores), dv, dtype=dtype)
    return query, scores.reshape(1, -1, 1), value


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_score_of_plus_infinity_makes_a_nan_row(engine, n_query, dtype):
    result = scaled_dot_product_attention(*scored([0, INF, 1], n_query, dtype), scale=1.0, **ALL)
    for x in result:
        assert np.isnan(x).all()
    support.check(*scored([0, INF, 1], n_query, dtype), scale=1.0)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_score_of_minus_infinity_is_not_visible(engine, n_query, dtype):
    query, key, value = scored([0, -INF, 1], n_query, dtype)
    support.check(query, key, value, scale=1.0)
    value[:, 1] = NAN
    result = scaled_dot_product_attention(query, key, value, scale=1.0, **ALL)
    assert np.isfinite(result.output).all()
    assert (support.bits(result.weights[..., 1]) == 0).all()


def test_row_of_minus_infinities_sees_no_key(engine, n_query):
    query, key, value = scored([-INF, -INF], n_query)
    result = scaled_dot_product_attention(query, key, value, scale=1.0, **ALL)
    assert (support.bits(result.output) == 0).all()
    assert (result.lse == -INF).all()
    support.check(query, key, value, scale=1.0, sinks=2.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_overflowing_dot_product_counts_as_infinite(engine, n_query, sign):
    query, key, value = scored([0, sign * 3e38, 1], n_query)
    support.check(query * np.float32(2), key, value, scale=1.0)


def test_plus_infinity_behind_a_mask_does_not_exist(engine, n_query):
    query, key, value = scored([0, INF, 1, -INF], n_query)
    mask = np.array([True, False, True, True])
    support.check(query, key, value, mask, scale=1.0)
    support.check(query, key, value, np.where(mask, 0, -INF), scale=1.0)


@pytest.mark.parametrize("where", [0, 1, 2, 100, 199])
@pytest.mark.parametrize("name", ["query", "key"])
def test_nan_in_query_or_visible_key_makes_a_nan_row(engine, n_query, name, where):
    query, key, value = support.qkv(2, n_query=n_query, n_key=200)
    if name == "query":
        query[0, min(where, n_query - 1)] = NAN
    else:
        key[0, where] = NAN
    support.check(query, key, value, is_causal=True, query_offset="end")
    support.check(query, key, value)


def test_nan_key_with_softcap_makes_a_nan_row(engine, n_query):
    query, key, value = support.qkv(3, n_query=n_query, n_key=30)
    key[0, 7, 1] = NAN
    support.check(query, key, value, softcap=2.0)


@pytest.mark.parametrize("garbage", [NAN, INF])
def test_nan_or_plus_infinity_in_bias_makes_a_nan_row(engine, n_query, garbage):
    query, key, value = support.qkv(4, n_query=n_query, n_key=200)
    bias = np.zeros((n_query, 200), "f4")
    bias[0, 130] = garbage
    support.check(query, key, value, bias=bias)
    support.check(query, key, value, bias)


@pytest.mark.parametrize("sink", [NAN, INF])
def test_nan_or_plus_infinity_as_sink_makes_nan_rows_of_its_head(engine, n_query, sink):
    query, key, value = support.qkv(5, heads=2, n_query=n_query, n_key=200)
    support.check(query, key, value, sinks=[sink, 0.5])


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_nan_scale_of_a_visible_key_is_not_hidden(engine, n_query, name):
    rng = np.random.default_rng(6)
    query = support.normal(rng, 1, n_query, 4)
    key, k_scale = support.quantised(rng, 1, 200, 4)
    value, v_scale = support.quantised(rng, 1, 200, 4)
    options = {"k_scale": k_scale, "v_scale": v_scale}
    options[name][0, 110] = NAN
    support.check(query, key, value, **options)


@pytest.mark.parametrize("garbage", [NAN, INF, -INF])
def test_visible_non_finite_value_makes_its_column_non_finite(engine, n_query, garbage):
    query, key, value = support.qkv(7, n_query=n_query, n_key=200, d=6)
    value[0, 150, 3] = garbage
    support.check(query, key, value)
    value[0, 20, 3] = -garbage
    value[0, 20, 4] = garbage
    support.check(query, key, value, is_causal=True, query_offset="end")


def test_non_finite_value_of_a_key_with_underflowed_weight_still_shows(engine, n_query):
    query, key, value = scored([0, -500, 1], n_query)
    value[0, 1, 0] = NAN
    support.check(query, key, value, scale=1.0)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_most_negative_number_in_a_whole_row_gives_the_plain_mean(engine, n_query, dtype):
    query, key, value = support.qkv(8, n_query=n_query, n_key=3, dtype="f4")
    value[:] = np.array([0, 3, 6], "f4").reshape(1, 3, 1)
    mask = np.full((1, 3), np.finfo(dtype).min, dtype)
    output = scaled_dot_product_attention(0.01 * query, key, value, mask)
    tolerance = 0 if dtype != "f2" else 0.2
    np.testing.assert_allclose(output, 3, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_most_negative_number_beside_zeros_removes_its_key(engine, n_query, dtype):
    query, key, value = support.qkv(9, n_query=n_query, n_key=200)
    keep = np.random.default_rng(10).random((n_query, 200)) < 0.5
    keep[:, 3] = True
    lowest = np.where(keep, 0, np.finfo(dtype).min).astype(dtype)
    support.assert_output_near(
        scaled_dot_product_attention(query, key, value, lowest),
        support.oracle.attention(query, key, value, keep),
    )


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"alibi_slopes": [0.5]}])
def test_most_negative_numbers_never_give_nan(engine, n_query, options):
    query, key, value = support.qkv(11, n_query=n_query, n_key=200)
    mask = np.full((1, 200), np.finfo("f4").min)
    result = scaled_dot_product_attention(
        -query, key, value, mask, query_offset="end", **options, **ALL
    )
    for x in result:
        assert np.isfinite(x).all()
    np.testing.assert_allclose(result.weights.sum(-1), 1, rtol=1e-5)


def test_float64_mask_beyond_float32_is_finite(engine, n_query):
    query, key, value = support.qkv(12, n_query=n_query, n_key=4)
    for mask in ([0, -1e300, 0, 0], [-1e300] * 4):
        result = scaled_dot_product_attention(query, key, value, np.array(mask), **ALL)
        assert np.isfinite(result.output).all()
        assert np.isfinite(result.lse).all()
    np.testing.assert_array_equal(result.weights, 0.25)


def test_two_most_negative_numbers_added_are_a_mask(engine, n_query):
    query, key, value = support.qkv(13, n_query=n_query, n_key=4)
    with np.errstate(over="ignore"):
        mask = np.full((1, 4), np.finfo("f2").min, "f2") * np.float16(2)
    result = scaled_dot_product_attention(query, key, value, mask, **ALL)
    assert (support.bits(result.output) == 0).all()
    assert (result.lse == -INF).all()


@pytest.mark.parametrize("empty", ["mask", "lengths", "causal", "bias", "window"])
def test_empty_row_is_zero_even_if_everything_is_nan(engine, n_query, empty):
    query, key, value = (np.full_like(x, NAN) for x in support.qkv(14, n_query=n_query, n_key=200))
    options = {
        "mask": {"attn_mask": np.zeros((1, 200), bool)}, "lengths": {"kv_lengths": 0},
        "causal": {"is_causal": True, "query_offset": -500},
        "bias": {"bias": np.full((1, 200), -INF, "f4")},
        "window": {"window": 3, "query_offset": 900},
    }[empty]  # fmt: skip
    result = scaled_dot_product_attention(query, key, value, **options, **ALL)
    assert (support.bits(result.output) == 0).all()
    assert (result.lse == -INF).all()
    assert (support.bits(result.weights) == 0).all()
    with_sink = scaled_dot_product_attention(query, key, value, **options, sinks=1.5, **ALL)
    assert (support.bits(with_sink.output) == 0).all()
    np.testing.assert_allclose(with_sink.lse, 1.5, rtol=1e-6)
