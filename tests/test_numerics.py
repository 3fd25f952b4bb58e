"""Accuracy where it is hard: long rows, extreme scores, subnormals, low precision."""

import numpy as np
import oracle
import pytest
import support

from fast_attention import scaled_dot_product_attention

LONG = 200_000
DTYPES = [np.float16, np.float32, np.float64]


def one_row(n_key, d=4, dtype="f4", seed=1, **options):
    return support.qkv(seed, n_query=1, n_key=n_key, d=d, dtype=dtype, **options)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_constant_value_survives_a_very_long_row(engine, dtype):
    query, key, value = one_row(LONG, dtype=dtype)
    value = np.full_like(value, 0.1)
    expected = oracle.attention(query, key, value)
    support.check(query, key, value, expected=expected, return_weights=False)
    support.check(
        query, key, value, expected=expected, return_weights=False, num_threads=2
    )  # fmt: skip


@pytest.mark.parametrize("n_query", [1, 40])
def test_constant_value_comes_back_almost_exactly_over_several_blocks(engine, n_query):
    query, key, value = support.qkv(2, n_query=n_query, n_key=4096, d=16)
    output = scaled_dot_product_attention(query, key, np.full_like(value, 0.1))
    few_ulps_per_block = 2e-6
    np.testing.assert_allclose(output, 0.1, rtol=few_ulps_per_block)


@pytest.mark.parametrize("n_query", [1, 3, 50])
@pytest.mark.parametrize("n_key", [1000, 5000])
def test_values_far_from_zero_keep_their_spread(engine, n_query, n_key):
    query, key, value = support.qkv(3, n_query=n_query, n_key=n_key, d=16)
    support.check(query, key, 100 + value)


def test_values_far_from_zero_over_a_very_long_row(engine):
    query, key, value = one_row(LONG)
    support.check(query, key, 100 + value, return_weights=False)


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e-3, 10, 1e3, 1e8, 1e15])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_small_and_large_scores_stay_within_the_bound(engine, size, dtype):
    query, key, value = support.qkv(4, n_query=20, n_key=150, d=8, dtype=dtype)
    query = (query * np.sqrt(size)).astype(dtype)
    key = (key * np.sqrt(size)).astype(dtype)
    support.check(query, key, value)
    support.check(query, key, value, is_causal=True, query_offset="end", bias=np.zeros(150, "f4"))


@pytest.mark.parametrize("shift", [-1e6, -300.0, -87.0, 88.0, 300.0, 1e6])
def test_shifted_scores_stay_within_the_bound(engine, shift):
    query, key, value = support.qkv(5, n_query=20, n_key=150, d=8)
    output = support.check(query, key, value, bias=np.full(150, shift, "f4"))
    assert np.isfinite(output).all()
    query[..., 0], key[..., 0] = shift, 1.0
    support.check(query, key, value, scale=1.0)


@pytest.mark.parametrize("top", [0.0, 50.0, -50.0])
def test_scores_spread_over_the_whole_range_of_exp_stay_within_the_bound(engine, top):
    scores = np.linspace(top - 130, top, 131, dtype="f4")
    key = scores.reshape(1, 131, 1)
    value = support.normal(np.random.default_rng(6), 1, 131, 3)
    query = np.ones((1, 2, 1), "f4")
    for order in (slice(None), slice(None, None, -1)):
        support.check(query, key[:, order], value[:, order], scale=1.0)


def test_subnormal_inputs_stay_within_the_bound(engine):
    query, key, value = support.qkv(7, n_query=20, n_key=150, d=8)
    tiny = np.float32(1e-41)
    for arrays in [
        (query * tiny, key, value), (query, key * tiny, value), (query, key, value * tiny),
        (query * tiny, key * np.float32(1e38), value), (query * tiny, key * tiny, value * tiny),
        (query, key, np.full_like(value, 1e-45)),
    ]:  # fmt: skip
        support.check(*arrays)


def test_subnormal_values_are_not_flushed_to_zero(engine):
    query, key, value = support.qkv(8, n_query=3, n_key=150, d=8)
    output = scaled_dot_product_attention(query, key, np.full_like(value, 1e-40))
    assert (output > 0.9e-40).all()


def test_float64_keeps_its_precision_in_every_option(engine):
    query, key, value = support.qkv(9, heads=2, n_query=9, n_key=120, d=8, dtype="f8")
    rng = np.random.default_rng(10)
    options = {
        "attn_mask": rng.random((9, 120)) < 0.7, "bias": rng.standard_normal((2, 9, 120)),
        "softcap": 2.1, "sinks": [0.3, 0.1], "alibi_slopes": [0.1, 0.7], "scale": 0.3,
        "query_offset": "end",
    }  # fmt: skip
    support.check(query, key, value, **options)
    for name, given in options.items():
        support.check(query, key, value, **({"query_offset": 0} | {name: given}))


@pytest.mark.parametrize("softcap", [1e-3, 0.5, 30.0, 1e4, 1e30])
def test_softcap_of_any_size_stays_within_the_bound(engine, softcap):
    for size in (1e-4, 1.0, 100.0):
        query, key, value = support.qkv(11, n_query=9, n_key=120, d=8)
        support.check(query * np.float32(size), key, value, softcap=softcap)


@pytest.mark.parametrize("scale", [0.0, -1.0, -0.25, 1e-20, 1e4, -1e4])
def test_scale_of_any_size_and_sign_stays_within_the_bound(engine, scale):
    support.check(*support.qkv(12, n_query=9, n_key=120, d=8), scale=scale)


@pytest.mark.parametrize("sink", [-1e30, -100.0, 0.0, 100.0, 1e30])
def test_sink_of_any_size_stays_within_the_bound(engine, sink):
    support.check(*support.qkv(13, heads=2, n_query=9, n_key=120), sinks=[sink, 0.0])


@pytest.mark.parametrize("dtype", support.FLOATS[:1] + support.FLOATS[3:])
@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("masked", [False, True])
def test_low_precision_is_right_to_half_an_ulp_of_its_own_inputs(engine, dtype, size, masked):
    arrays = support.qkv(14, lead=(1,), heads=2, n_query=64, n_key=150, d=32)
    query, key, value = ((size * x).astype(dtype) for x in arrays)
    mask = np.random.default_rng(15).random((64, 150)) < 0.7 if masked else None
    support.check(query, key, value, mask)


@pytest.mark.parametrize("dtype", ["f2", "bfloat16"])
def test_16_bit_output_of_float64_arithmetic_is_rounded_once(engine, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    # One key: the output is its value. Halfway plus a little: rounding by way of float32 ties.
    eps = float(oracle.half_ulp(1.0, dtype)) * 2
    exact = np.array([1 + eps / 2 + 2.0**-40, 1 + 3 * eps / 2 - 2.0**-40, 1 + eps / 2, -1.25])
    query, key = np.ones((1, 1, 2), dtype), np.ones((1, 1, 2), "f8")
    output = scaled_dot_product_attention(query, key, exact.reshape(1, 1, 4))
    right = np.array([1 + eps, 1 + eps, 1, -1.25])
    np.testing.assert_array_equal(output.astype("f8").ravel(), right)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_key_returns_its_value_exactly(engine, dtype):
    query, key, value = support.qkv(16, n_query=9, n_key=1, d=16, dtype=dtype)
    output = scaled_dot_product_attention(query, key, value, bias=np.full((1, 1), -3.0, "f4"))
    support.assert_same_bits(output, np.repeat(value, 9, axis=1))


@pytest.mark.parametrize("n_key", [1, 2, 3, 96, 97, 200])
def test_equal_scores_and_equal_values_return_the_value_exactly(engine, n_key):
    query, key, value = support.qkv(17, n_query=5, n_key=n_key, d=8)
    value[:] = 0.75
    output = scaled_dot_product_attention(0 * query, key, value)
    assert (output == 0.75).all()


def test_underflow_and_common_ranges_raise_no_floating_point_exception(engine):
    rng = np.random.default_rng(18)
    for dtype in ("f2", "f4", "f8"):
        query, key, value = support.qkv(19, heads=2, n_query=70, n_key=200, d=8, dtype=dtype)
        mask = rng.random((70, 200)) < 0.5
        mask[3] = False
        with np.errstate(all="raise"):
            scaled_dot_product_attention(50 * query, 50 * key, value, mask)
            scaled_dot_product_attention(query, key, value, sinks=-1e30, return_lse=True)
            scaled_dot_product_attention(
                query, key, value, is_causal=True, query_offset=-5, return_weights=True,
                softcap=3.0, bias=np.where(mask, 0, -np.inf).astype("f4"),
            )  # fmt: skip
            scaled_dot_product_attention(
                query, key, value, kv_lengths=0, alibi_slopes=[0.5, 1e-40], query_offset="end"
            )


def test_tiny_weights_and_tiny_values_raise_no_floating_point_exception(engine):
    query, key, value = support.qkv(20, n_query=70, n_key=200, d=8)
    tiny = np.full_like(value, 1e-40)
    with np.errstate(all="raise"):
        scaled_dot_product_attention(query, key, tiny)
        scaled_dot_product_attention(query, key, value, alibi_slopes=[1.0], query_offset="end")
