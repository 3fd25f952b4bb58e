"""What is masked does not exist: garbage behind a mask never changes a bit of any result."""

from itertools import product

import numpy as np
import oracle
import pytest
import support

from fast_attention import scaled_dot_product_attention

GARBAGE = {
    "nan": np.nan, "inf": np.inf, "-inf": -np.inf, "largest": 3e38, "negative nan": -np.nan,
}  # fmt: skip
K = oracle.KEY_BLOCK
LEAD, HEADS, KV_HEADS, N_QUERY, N_KEY, D = (2,), 4, 2, 70, 2 * K + 9, 8
SCORES = (*LEAD, HEADS, N_QUERY, N_KEY)


def _random(seed, density=0.6):
    return np.random.default_rng(seed).random(SCORES) < density


def _striped():
    """Whole blocks out of sight of some rows, and single keys of others."""
    mask = _random(1)
    mask[..., :30, :K] = False
    mask[..., 30:60, K : 2 * K] = False
    mask[..., 60, :] = False
    return mask


MASK = _striped()
LENGTHS = [N_KEY - 5, K + 3]
RULES = {
    "bool mask": {"attn_mask": MASK},
    "shared bool mask": {"attn_mask": MASK[0, 0]},
    "key mask": {"attn_mask": MASK[:, :1, :1]},
    "float mask": {"attn_mask": np.where(MASK, 0.5, -np.inf).astype("f4")},
    "float mask and sinks": {
        "attn_mask": np.where(MASK, 0.5, -np.inf).astype("f4"), "sinks": [0.5, -np.inf, 9.0, -3.0],
    },
    "nothing but sinks": {"bias": np.full((N_QUERY, N_KEY), -np.inf, "f4"), "sinks": 0.5},
    "bias": {"bias": np.where(MASK[0], 0.25, -np.inf).astype("f4")},
    "float16 bias": {"bias": np.where(MASK[0, :1], 0.25, -np.inf).astype("f2")},
    "causal": {"is_causal": True, "query_offset": 0},
    "causal end": {"is_causal": True, "query_offset": "end"},
    "window left": {"window": (20, None), "query_offset": 100},
    "window right": {"window": (None, 5), "query_offset": 50},
    "window": {"window": (7, 3), "query_offset": 90},
    "lengths": {"kv_lengths": LENGTHS},
    "no keys": {"kv_lengths": [0, N_KEY]},
    "causal and lengths": {"is_causal": True, "query_offset": "end", "kv_lengths": LENGTHS},
    "causal and mask": {"is_causal": True, "query_offset": 60, "attn_mask": MASK},
    "window, lengths, bias": {
        "window": (150, 8), "query_offset": 60, "kv_lengths": LENGTHS,
        "bias": np.where(MASK, 0.25, -np.inf).astype("f4"),
    },
    "mask, bias, softcap, alibi, sinks": {
        "attn_mask": MASK, "bias": np.full((1, N_KEY), 0.25, "f4"), "softcap": 3.0, "sinks": 0.5,
        "alibi_slopes": [0.1, 0.2, 0.3, 0.4], "query_offset": 40, "is_causal": True,
    },
}  # fmt: skip
BOOLEAN_RULES = {
    name: rule
    for name, rule in RULES.items()
    if "bias" not in rule and rule.get("attn_mask", MASK).dtype == bool
}
RESULTS = [{"return_lse": lse, "return_weights": w} for lse, w in product((False, True), repeat=2)]


def _inputs(dtype="f4", seed=2):
    shape = {"lead": LEAD, "heads": HEADS, "kv_heads": KV_HEADS, "n_query": N_QUERY}
    return support.qkv(seed, **shape, n_key=N_KEY, d=D, dtype=dtype)


def _visible(arrays, options):
    return oracle.attention(*arrays, **options).visible


def _unseen_keys(visible):
    """(B, Hkv, S): keys that no query head of their group sees."""
    grouped = visible.reshape(*LEAD, KV_HEADS, HEADS // KV_HEADS, N_QUERY, N_KEY)
    return ~grouped.any(axis=(2, 3))


def _poisoned(array, where, garbage):
    """Copy with ``garbage`` in the rows that ``where`` selects."""
    copy = array.copy()
    with np.errstate(over="ignore"):
        copy[where] = np.array(garbage).astype(array.dtype)
    return copy


def _results(garbage):
    """Every combination of results for NaN, all at once for other garbage."""
    return RESULTS if np.isnan(garbage) else RESULTS[-1:]


def _assert_untouched(clean, poisoned, options, garbage=np.nan):
    for results in _results(garbage):
        support.assert_same_bits(
            scaled_dot_product_attention(*poisoned, **options, **results),
            scaled_dot_product_attention(*clean, **options, **results),
        )


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_keys_that_no_row_sees_do_not_exist(engine, options, garbage):
    query, key, value = _inputs()
    unseen = _unseen_keys(_visible((query, key, value), options))
    bad_key, bad_value = (_poisoned(x, unseen, garbage) for x in (key, value))
    _assert_untouched((query, key, value), (query, bad_key, bad_value), options, garbage)


@pytest.mark.parametrize("position", [0, 5, 40, 69, K - 1, K, 2 * K - 1, 2 * K, N_KEY - 1])
@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_rows_that_do_not_see_a_key_keep_their_bits(engine, options, position):
    query, key, value = _inputs()
    visible = _visible((query, key, value), options)[..., position]
    options = options | {"return_lse": True, "return_weights": True}
    clean = scaled_dot_product_attention(query, key, value, **options)
    for name, garbage in product(("key", "value"), (np.nan, -np.inf)):
        arrays = {"query": query, "key": key.copy(), "value": value.copy()}
        arrays[name][..., position, :] = garbage
        poisoned = scaled_dot_product_attention(**arrays, **options)
        for one, other in zip(poisoned, clean, strict=True):
            support.assert_same_bits(one[~visible], other[~visible], name)
        if name == "value":
            assert not np.isfinite(poisoned.output[visible]).any()


@pytest.mark.parametrize("row", [0, 1, 33, 63, 64, 69])
@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_nan_query_touches_its_own_row_only(engine, options, row):
    query, key, value = _inputs()
    options = options | {"return_lse": True, "return_weights": True}
    clean = scaled_dot_product_attention(query, key, value, **options)
    sees = _visible((query, key, value), options)[..., row, :].any(-1)
    query[..., row, 3] = np.nan
    poisoned = scaled_dot_product_attention(query, key, value, **options)
    for one, other in zip(poisoned, clean, strict=True):
        axis = 2
        rest = np.delete(one, row, axis), np.delete(other, row, axis)
        support.assert_same_bits(*rest)
    assert np.isnan(poisoned.output[..., row, :][sees]).all()
    assert np.isnan(poisoned.lse[..., row][sees]).all()
    assert (support.bits(poisoned.output[..., row, :][~sees]) == 0).all()


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("options", BOOLEAN_RULES.values(), ids=BOOLEAN_RULES)
def test_bias_of_invisible_keys_does_not_exist(engine, options, garbage):
    arrays = _inputs()
    bias = support.normal(np.random.default_rng(3), *SCORES)
    visible = _visible(arrays, options | {"bias": bias})
    bad = _poisoned(bias, ~visible, garbage)
    for results in _results(garbage):
        support.assert_same_bits(
            scaled_dot_product_attention(*arrays, bias=bad, **options, **results),
            scaled_dot_product_attention(*arrays, bias=bias, **options, **results),
        )


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_int8_scales_of_unseen_keys_do_not_exist(engine, options, garbage):
    rng = np.random.default_rng(4)
    query = _inputs()[0]
    key, k_scale = support.quantised(rng, *LEAD, KV_HEADS, N_KEY, D)
    value, v_scale = support.quantised(rng, *LEAD, KV_HEADS, N_KEY, D)
    clean = options | {"k_scale": k_scale, "v_scale": v_scale}
    unseen = _unseen_keys(_visible((query, key, value), clean))
    bad = {name: _poisoned(clean[name], unseen, garbage) for name in ("k_scale", "v_scale")}
    for results in _results(garbage):
        support.assert_same_bits(
            scaled_dot_product_attention(query, key, value, **(clean | bad), **results),
            scaled_dot_product_attention(query, key, value, **clean, **results),
        )


@pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("n_query", [1, 2, 7, 65])
def test_poison_behind_lengths_is_invisible_to_few_and_many_queries(engine, n_query, dtype):
    query, key, value = (x[..., :n_query, :] if i == 0 else x for i, x in enumerate(_inputs(dtype)))
    for length in (1, 3, K - 1, K, K + 1, 2 * K, N_KEY - 1):
        bad_key, bad_value = key.copy(), value.copy()
        bad_key[..., length:, :] = bad_value[..., length:, :] = np.nan
        _assert_untouched((query, key, value), (query, bad_key, bad_value), {"kv_lengths": length})


@pytest.mark.parametrize("is_causal", [False, True])
def test_one_visible_non_finite_value_makes_one_column_non_finite(engine, is_causal):
    query, key, value = _inputs()
    options = {"is_causal": is_causal, "query_offset": 100, "return_lse": True}
    for position, garbage in product((0, 110, N_KEY - 1), (np.nan, np.inf, -np.inf)):
        bad = value.copy()
        bad[0, 1, position, 5] = garbage
        support.check(query, key, bad, **options)
        if engine[0] == "numpy":
            continue
        clean = scaled_dot_product_attention(query, key, value, **options)
        poisoned = scaled_dot_product_attention(query, key, bad, **options)
        support.assert_same_bits(poisoned.lse, clean.lse)
        others = np.arange(D) != 5
        support.assert_same_bits(poisoned.output[..., others], clean.output[..., others])


def test_masked_garbage_raises_no_floating_point_exception(engine):
    query, key, value = _inputs()
    for options in RULES.values():
        unseen = _unseen_keys(_visible((query, key, value), options))
        bad_key, bad_value = (_poisoned(x, unseen, np.nan) for x in (key, value))
        with np.errstate(all="raise"):
            scaled_dot_product_attention(query, bad_key, bad_value, **options)
