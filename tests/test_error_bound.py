"""error_bound: never less than an error, never less than the formula, and not much more."""

import numpy as np
import oracle
import pytest
import strategies
import support
from hypothesis import given

from fast_attention import error_bound, scaled_dot_product_attention

RESULT_OPTIONS = ("return_lse", "return_weights", "num_threads", "out")
FORMULA_IN_LONGER_PRECISION = 1e-9  # relative; both sides are computed in float64
TIGHT = 1e-4  # relative; what is added for underflow and for the rounding of the bound itself


def score_options(options):
    return {name: x for name, x in options.items() if name not in RESULT_OPTIONS}


def errors(arrays, options, expected):
    """Return |output - exact| of every row, its greatest over the columns."""
    output = scaled_dot_product_attention(*arrays, **options)
    wide = expected.output.dtype
    return np.abs(output.astype(wide) - expected.output).max(axis=-1, initial=0)


def assert_bounds(arrays, options):
    bound = error_bound(*arrays, **options)
    expected = oracle.attention(*arrays, **options)
    assert bound.dtype == np.float64
    assert bound.shape == expected.output.shape[:-1]
    assert (errors(arrays, options, expected) <= bound).all()
    return bound, expected


@strategies.repeatable(150)
@given(call=strategies.calls())
def test_no_error_of_any_call_exceeds_the_bound(engine, call):
    arrays, options = call
    options = score_options(options)
    bound, expected = assert_bounds(list(arrays.values()), options)
    documented = expected.output_bound.max(axis=-1, initial=0)
    assert (bound >= documented * (1 - FORMULA_IN_LONGER_PRECISION)).all()


CALLS = {
    "plain": {},
    "scale": {"scale": -0.3},
    "causal": {"is_causal": True, "query_offset": "end", "kv_lengths": [150, 40]},
    "window": {"window": (20, 3), "query_offset": [5, 100]},
    "mask and bias": {"attn_mask": "bool", "bias": "float"},
    "float mask": {"attn_mask": "float"},
    "alibi, softcap, sink": {
        "alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "softcap": 5.0, "query_offset": 9, "sinks": 1.0,
    },
}  # fmt: skip


def make_call(options, dtype):
    arrays = support.qkv(1, lead=(2,), heads=4, kv_heads=2, n_query=9, n_key=150, dtype=dtype)
    rng = np.random.default_rng(2)
    drawn = {"bool": rng.random((9, 150)) < 0.3, "float": support.normal(rng, 4, 9, 150)}
    options = {
        name: drawn[x] if isinstance(x, str) and x in drawn else x for name, x in options.items()
    }
    return arrays, options


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_bound_is_the_documented_formula_with_the_greatest_visible_value(engine, options, dtype):
    arrays, options = make_call(options, dtype)
    bound, _ = assert_bounds(arrays, options)
    wide = "f8" if dtype == "f8" else "f4"
    expected = oracle.attention(arrays[0].astype(wide), *arrays[1:], **options)
    half = oracle.half_ulp(np.abs(expected.output), wide)
    documented = (expected.output_bound - half).max(axis=-1, initial=0)
    values = np.abs(np.repeat(arrays[2].astype("f8"), 2, axis=1)).max(axis=-1)
    greatest = np.where(expected.visible, values[..., None, :], 0).max(axis=-1)
    rounding = oracle.half_ulp(greatest + documented, dtype)
    np.testing.assert_allclose(bound, documented + rounding, rtol=TIGHT)


def test_bound_of_one_key_can_be_worked_out_by_hand():
    query, key, value = np.array([[2.0, -1]]), np.array([[3.0, 4]]), np.array([[-5.0, 1]])
    arrays = [x.astype("f4") for x in (query, key, value)]
    bound = error_bound(*arrays, scale=-0.5, bias=np.array([[7]], "f4"))
    a, b, v, k = 0.5 * (6 + 4), 7, 5, oracle.KEY_BLOCK
    bracket = (2 * 2 + 12) * a + 6 * b + 2 * k + 4 / k + 32
    assert bound.shape == (1,)
    half_ulp = 2.0**-22
    np.testing.assert_allclose(bound, 2.0**-24 * bracket * v + half_ulp, rtol=1e-12)


def test_int8_scales_count(engine):
    rng = np.random.default_rng(3)
    query = support.normal(rng, 4, 9, 16)
    key, k_scale = support.quantised(rng, 2, 150, 16)
    value, v_scale = support.quantised(rng, 2, 150, 8)
    options = {"k_scale": k_scale, "v_scale": v_scale}
    bound, _ = assert_bounds([query, key, value], options)
    wide = [key * k_scale[..., None], value * v_scale[..., None]]
    np.testing.assert_allclose(bound, error_bound(query, *wide), rtol=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e3, 1e15])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_small_and_large_numbers_stay_within_their_bound(engine, size, dtype):
    arrays = support.qkv(4, n_query=20, n_key=150, d=8, dtype=dtype)
    query, key, value = ((x * size**0.5).astype(dtype) for x in arrays)
    bound, _ = assert_bounds((query, key, value), {})
    assert np.isfinite(bound).all()


@pytest.mark.parametrize("scale", [None, 0.0, 1e-40, -1e-30, 1e30, 2e38])
@pytest.mark.parametrize("sizes", [(1e-41, 1e38), (1e-41, 1e-41), (1e-25, 1e-20), (1e-41, 1)])
def test_products_that_underflow_stay_within_a_finite_bound(engine, scale, sizes):
    query, key, value = support.qkv(5, n_query=9, n_key=150, d=8)
    query, key = query * np.float32(sizes[0]), np.clip(key, -2, 2) * np.float32(sizes[1])
    exact = np.abs(query.astype("f8") @ key.astype("f8").swapaxes(-1, -2)).max() * (scale or 1)
    bound, _ = assert_bounds((query, key, value), {"scale": scale})
    assert np.isfinite(bound).all() == (exact < 2e37)


def half_and_half(n_column, size, dtype="f4"):
    """Keys of `size` and of `-size`, with values 1 and -1."""
    key = np.full((1, 10, n_column), size, dtype)
    key[0, ::2] *= -1
    value = np.ones((1, 10, 1), "f4")
    value[0, ::2] = -1
    return key, value


def test_products_that_round_up_as_subnormals_stay_within_the_bound(engine):
    key, value = half_and_half(1024, 0.6 * 2.0**-74)
    query = np.full((1, 1, 1024), 2.0**-75, "f4")  # every product is 0.6 subnormals
    assert_bounds((query, key, value), {"scale": 2e38})


@pytest.mark.parametrize("dtype", ["f4", "i1"])
def test_scaled_queries_that_round_as_subnormals_stay_within_the_bound(engine, dtype):
    key, value = half_and_half(1024, 1 if dtype == "i1" else 2.0**126, dtype)
    query = np.full((1, 1, 1024), 1.4 * 2.0**-139, "f4")  # 1.4 subnormals with the scale
    options = {"k_scale": 2.0**126} if dtype == "i1" else {}
    assert_bounds((query, key, value), {"scale": 2.0**-10, **options})


def test_what_is_hidden_counts_in_no_row():
    query, key, value = support.qkv(6, n_query=20, n_key=40)
    bound = error_bound(query, key, value, is_causal=True, query_offset=0, kv_lengths=30)
    key[0, 15:] = np.nan
    value[0, 15:] = 1e30
    poisoned = error_bound(query, key, value, is_causal=True, query_offset=0, kv_lengths=30)
    np.testing.assert_array_equal(poisoned[0, :15], bound[0, :15])
    assert (poisoned[0, 15:] == np.inf).all()


NO_BOUND = {
    "nan in the query": lambda q, k, v: q.__setitem__((0, 1, 0), np.nan),
    "nan in a key": lambda q, k, v: k.__setitem__((0, 1, 0), np.nan),
    "inf in a key": lambda q, k, v: k.__setitem__((0, 1, 0), -np.inf),
    "inf in a value": lambda q, k, v: v.__setitem__((0, 1, 0), np.inf),
    "score near the greatest": lambda q, k, v: k.__setitem__((0, 1, 0), 3e38),
    "values near the greatest": lambda q, k, v: v.__setitem__((0, 1, 0), 3e37),
}


@pytest.mark.parametrize("spoil", NO_BOUND.values(), ids=NO_BOUND)
def test_bound_is_inf_exactly_where_there_is_none(engine, spoil):
    query, key, value = (np.ones((1, 4, 2), "f4") for _ in range(3))
    spoil(query, key, value)
    mask = np.array([[1, 0, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 1, 1]], bool)
    bound = error_bound(query, key, value, mask, scale=1.0)
    assert np.isfinite(bound[0]).tolist() == [True, False, True, True]
    assert bound[0, 1] == np.inf


@pytest.mark.parametrize("sink", [np.nan, np.inf])
def test_head_whose_sink_is_no_number_has_no_bound(sink):
    bound = error_bound(*support.qkv(9, heads=2), sinks=[sink, -np.inf])
    assert (bound[0] == np.inf).all()
    assert np.isfinite(bound[1]).all()


def test_output_that_rounds_beyond_its_dtype_has_no_bound(engine):
    query, key = np.ones((1, 2), "f2"), np.ones((1, 2), "f4")
    for value, is_finite in ((6e4, True), (65519.5, False), (7e4, False)):
        bound = error_bound(query, key, np.full((1, 1), value, "f4"))
        assert np.isfinite(bound).all() == is_finite
    assert error_bound(query, key, np.full((1, 1), 6e4, "f4"))[0] >= 16


def test_finite_mask_of_finfo_min_has_no_bound():
    arrays = support.qkv(7)
    assert (error_bound(*arrays, np.full((3, 5), np.finfo("f4").min)) == np.inf).all()
    assert np.isfinite(error_bound(*arrays, np.full((3, 5), -np.inf, "f4"))).all()


def test_rows_in_several_blocks_are_those_of_one(monkeypatch):
    from fast_attention import _bound

    arrays, options = make_call(CALLS["window"], "f4")
    whole = error_bound(*arrays, **options)
    monkeypatch.setattr(_bound, "_BLOCK_SCORES", 320)
    np.testing.assert_allclose(error_bound(*arrays, **options), whole, rtol=1e-12)


@pytest.mark.parametrize("shapes", [((3, 2), (5, 2)), ((0, 2), (5, 2)), ((3, 2), (0, 2))])
def test_shape_is_that_of_the_rows(shapes):
    query, key = (np.ones(shape, "f4") for shape in shapes)
    assert error_bound(query, key, key).shape == shapes[0][:1]
    lead = np.ones((4, 1, 2, *shapes[0]), "f4"), np.ones((7, 1, *shapes[1]), "f4")
    assert error_bound(lead[0], lead[1], lead[1]).shape == (4, 7, 2, shapes[0][0])


def test_integers_are_float64():
    bound = error_bound([[1, 2]], [[3, 4]], [[5, 6]])
    assert bound.shape == (1,)
    assert 0 < bound[0] < 1e-12


def test_errors_and_warning_are_those_of_attention():
    query, key, value = support.qkv(8)
    with pytest.raises(ValueError, match=r"softcap"):
        error_bound(query, key, value, softcap=-1)
    with pytest.raises(ValueError, match=r"\(1, 3, 4\).*\(1, 5, 3\)"):
        error_bound(query, key[..., :3], value)
    with pytest.raises(TypeError, match=r"error_bound\(\) has no option 'return_lse'.*bias"):
        error_bound(query, key, value, return_lse=True)
    with pytest.warns(UserWarning, match="query_offset") as caught:
        error_bound(query, key, value, is_causal=True)
    assert caught[0].filename == __file__
