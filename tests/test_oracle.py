"""The reference itself, against answers that can be worked out by hand, and the comparison."""

import numpy as np
import oracle
import pytest
import support
from numpy.testing import assert_allclose, assert_array_equal

ZERO_SCORES = {"query": np.zeros((1, 1, 2), "f4"), "key": np.zeros((1, 4, 2), "f4")}
COUNTING = np.arange(4.0, dtype="f4").reshape(1, 4, 1)
EXACT = 1e-15


def counting(n_query=1, **options):
    """Mean of the visible numbers 0..3, for every query row."""
    query = np.zeros((1, n_query, 2), "f4")
    return oracle.attention(query, ZERO_SCORES["key"], COUNTING, **options)


@pytest.mark.parametrize(
    ("options", "mean"),
    [
        ({}, 1.5),
        ({"is_causal": True}, 0.0),
        ({"is_causal": True, "query_offset": "end"}, 1.5),
        ({"is_causal": True, "query_offset": -1}, 0.0),
        ({"is_causal": True, "query_offset": 2}, 1.0),
        ({"kv_lengths": 3}, 1.0),
        ({"kv_lengths": 3, "query_offset": "end", "window": 0}, 2.0),
        ({"window": (1, 0), "query_offset": 3}, 2.5),
        ({"window": (None, 1)}, 0.5),
        ({"window": (1, -1), "query_offset": 2}, 2.0),
        ({"attn_mask": np.array([False, True, True, False])}, 1.5),
        ({"bias": np.array([0, -np.inf, -np.inf, 0])}, 1.5),
        ({"attn_mask": np.array([0, np.log(3.0), -np.inf, -np.inf])}, 0.75),
        ({"sinks": 0.0}, 6 / 5),
        ({"sinks": [np.log(4.0)]}, 6 / 8),
        ({"alibi_slopes": [np.log(2.0)], "kv_lengths": 2}, 1 / 3),
    ],
)
def test_oracle_knows_the_mean_of_what_is_visible(options, mean):
    assert_allclose(float(counting(**options).output[0, 0, 0]), mean, rtol=1e-6, atol=EXACT)


def test_oracle_of_a_row_without_keys_is_zero_or_the_sink():
    empty = counting(kv_lengths=0)
    assert (empty.output == 0).all()
    assert (empty.weights == 0).all()
    assert (empty.lse == -np.inf).all()
    with_sink = counting(kv_lengths=0, sinks=[2.5])
    assert (with_sink.output == 0).all()
    assert_allclose(with_sink.lse.astype(float), 2.5, rtol=EXACT)


def test_oracle_of_two_keys_follows_the_order_of_operations():
    query, key = np.array([[2.0]]), np.array([[3.0], [-1.0]])
    value = np.array([[1.0], [0.0]])
    options = {"scale": 0.5, "softcap": 2.0, "alibi_slopes": [0.25], "bias": [[0.1, 0.7]]}
    scores = 2 * np.tanh(np.array([3.0, -1.0]) / 2) - [0, 0.25] + [0.1, 0.7]
    expected = oracle.attention(query, key, value, **options)
    weight = 1 / (1 + np.exp(scores[1] - scores[0]))
    assert expected.output.shape == (1, 1)
    assert_allclose(float(expected.output[0, 0]), weight, rtol=1e-14)
    assert_allclose(float(expected.lse[0]), np.log(np.exp(scores).sum()), rtol=1e-14)
    assert_allclose(expected.weights.astype(float), [[weight, 1 - weight]], rtol=1e-14)


def test_oracle_repeats_grouped_heads_side_by_side():
    query, key = np.zeros((4, 1, 2), "f4"), np.zeros((2, 1, 2), "f4")
    value = np.array([10.0, 20.0], "f4").reshape(2, 1, 1)
    assert_array_equal(oracle.attention(query, key, value).output.ravel(), [10, 10, 20, 20])


def test_oracle_marks_what_non_finite_data_touches():
    value = np.ones((1, 4, 2), "f4")
    value[0, 2, 1] = np.inf
    query, key = np.zeros((1, 4, 2), "f4"), np.zeros((1, 4, 2), "f4")
    query[0, 0] = np.nan
    expected = oracle.attention(query, key, value, is_causal=True)
    finite = [[False, False], [True, True], [True, False], [True, False]]
    assert_array_equal(np.isfinite(expected.output[0]), finite)
    assert_array_equal(np.isnan(expected.lse[0]), [True, False, False, False])


def test_bound_follows_the_documented_formula():
    query, key = np.full((1, 1, 3), 2.0, "f4"), np.full((1, 4, 3), -1.0, "f4")
    value = np.array([1, -5, 2, 900], "f4").reshape(1, 4, 1)
    bias = np.array([0, 3, -7, 500])
    bound = oracle.error_bound(query, key, value, bias=bias, kv_lengths=3, scale=-0.5)
    eps, a, b, block = 2.0**-24, 3.0, 7.0, oracle.KEY_BLOCK
    bracket = (2 * 3 + 12) * a + 6 * b + 2 * block + 4 * 4 / block + 32
    assert bound.shape == (1, 1)
    assert_allclose(bound[0, 0], eps * bracket * 5, rtol=0.05)
    assert bound[0, 0] >= eps * bracket * 5


@pytest.mark.parametrize(
    ("dtype", "value", "half"),
    [("f4", 1.0, 2.0**-24), ("f4", 3.0, 2.0**-23), ("f2", 1.5, 2.0**-11), ("f2", 0.0, 2.0**-25)],
)
def test_half_ulp_is_half_the_spacing(dtype, value, half):
    assert oracle.half_ulp(value, dtype) == half


def test_comparison_rejects_what_lies_outside_the_bound():
    query, key, value = support.qkv(1, n_query=2, n_key=9)
    expected = oracle.attention(query, key, value, kv_lengths=8)
    exact = expected.output.astype("f4")
    support.assert_output_near(exact, expected)
    support.assert_weights_near(expected.weights.astype("f4"), expected)
    support.assert_lse_near(expected.lse.astype("f4"), expected)
    far = expected.output + 2 * expected.output_bound
    with pytest.raises(AssertionError, match="output is"):
        support.assert_output_near(far.astype("f4"), expected)
    with pytest.raises(AssertionError, match="lse is"):
        support.assert_lse_near((expected.lse + 3 * expected.lse_bound).astype("f4"), expected)
    weights = expected.weights.astype("f4")
    weights[..., 8] = 1e-30
    with pytest.raises(AssertionError, match="invisible"):
        support.assert_weights_near(weights, expected)


def test_comparison_rejects_nan_where_a_number_is_right():
    query, key, value = support.qkv(2)
    expected = oracle.attention(query, key, value)
    output = expected.output.astype("f4")
    output[0, 1, 2] = np.nan
    with pytest.raises(AssertionError, match="output is inf"):
        support.assert_output_near(output, expected)
