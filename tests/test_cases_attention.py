"""Faults that other attention implementations had: masks, rows without keys, alignment."""

from itertools import product

import numpy as np
import oracle
import pytest
import support
from support import check, normal, qkv

from fast_attention import scaled_dot_product_attention

K = oracle.KEY_BLOCK
INF = np.inf
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
ALL = {"return_lse": True, "return_weights": True}


def case(*arguments, id):
    return pytest.param(*arguments, id=id)


@pytest.mark.parametrize("dtype", [case("f4", id="A01-f4"), case("f2", id="A48-f2")])
@pytest.mark.parametrize("additive", [False, True])
def test_row_with_an_all_false_mask_is_zero_and_its_lse_is_minus_infinity(engine, dtype, additive):
    query, key, value = qkv(1, lead=(1,), dtype=dtype)
    mask = np.ones((3, 5), bool)
    mask[1] = False
    given = np.where(mask, 0, -INF).astype("f4") if additive else mask
    result = scaled_dot_product_attention(query, key, value, given, return_lse=True)
    assert (support.bits(result.output[..., 1, :]) == 0).all()
    assert (result.lse[..., 1] == -INF).all()
    assert result.lse.dtype == np.float32
    check(query, key, value, given)
    others = scaled_dot_product_attention(query[..., [0, 2], :], key, value, return_lse=True)
    np.testing.assert_allclose(result.output[..., [0, 2], :], others.output, **CLOSE)


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize(
    "n_key", [case(n, id=f"A02-{n}") for n in (2 * K + 1, 3 * K, 16 * K + 1, 33 * K)]
)
@pytest.mark.parametrize("n_query", [1, 3, 70])
def test_blocks_without_a_visible_key_before_the_first_visible_one(engine, n_query, n_key, boolean):
    query, key, value = qkv(2, lead=(1,), n_query=n_query, n_key=n_key, d=8)
    for position in (n_key - 1, n_key // 2, K, 0):
        bias = np.full((1, n_key), -INF, "f4")
        bias[0, position] = 0
        mask = bias == 0 if boolean else bias
        output = scaled_dot_product_attention(query, key, value, mask)
        expected = np.repeat(value[:, :, position : position + 1], n_query, axis=2)
        np.testing.assert_array_max_ulp(output, expected, maxulp=1)


@pytest.mark.parametrize("additive", [case(False, id="A03-bool"), case(True, id="A03-additive")])
def test_nan_or_inf_in_an_excluded_key_changes_no_bit(engine, additive):
    query, key, value = qkv(3, lead=(1,), n_key=4, d=8)
    keep = np.array([[True, True, False, True]])
    mask = np.where(keep, 0, -INF).astype("f4") if additive else keep
    clean = scaled_dot_product_attention(query, key, value, mask, **ALL)
    for garbage in (np.nan, INF, -INF):
        bad = key.copy()
        bad[0, 0, 2] = garbage
        poisoned = scaled_dot_product_attention(query, bad, value, mask, **ALL)
        support.assert_same_bits(tuple(poisoned), tuple(clean))


@pytest.mark.parametrize("options", [case({}, id="A05"), case({"kv_lengths": 4}, id="A05-lengths")])
def test_nan_in_a_query_is_not_swallowed(engine, options):
    query, key, value = qkv(4, lead=(1,), heads=2, n_query=3, d=8)
    query[0, 1, 2, 0] = np.nan
    output = check(query, key, value, **options)
    assert np.isnan(output[0, 1, 2]).all()
    assert np.isfinite(np.delete(output.reshape(6, 8), 5, axis=0)).all()


@pytest.mark.parametrize("entry", [case("mask", id="A12"), case("with bias", id="A12-bias")])
def test_boolean_mask_selects_and_is_never_added(engine, entry):
    query, key = np.zeros((1, 1, 1, 2), "f4"), np.zeros((1, 1, 2, 2), "f4")
    value = np.array([0, 1], "f4").reshape(1, 1, 2, 1)
    options = {"bias": np.zeros((1, 2), "f4")} if entry == "with bias" else {}
    output = scaled_dot_product_attention(query, key, value, [[False, True]], **options)
    assert output.item() == 1.0


@pytest.mark.parametrize("n_query", [case(n, id=f"A13-{n}") for n in (1, 7, 70)])
def test_all_true_mask_changes_no_bit_and_zeros_stay_within_the_bound(engine, n_query):
    arrays = qkv(5, lead=(2,), heads=2, n_query=n_query, n_key=150)
    plain = scaled_dot_product_attention(*arrays, **ALL)
    ones = np.ones((n_query, 150), bool)
    masked = scaled_dot_product_attention(*arrays, ones, **ALL)
    support.assert_same_bits(tuple(masked), tuple(plain))
    check(*arrays, np.zeros((n_query, 150), "f4"), expected=oracle.attention(*arrays))


@pytest.mark.parametrize("n", [case(4, id="A14-4"), case(150, id="A14-150")])
def test_lower_triangle_of_true_is_causal(engine, n):
    arrays = qkv(6, n_query=n, n_key=n)
    causal = scaled_dot_product_attention(*arrays, is_causal=True)
    triangle = scaled_dot_product_attention(*arrays, np.tril(np.ones((n, n), bool)))
    expected = oracle.attention(*arrays, is_causal=True)
    support.assert_output_near(causal, expected)
    support.assert_output_near(triangle, expected)


def test_documentation_says_that_true_means_attend():
    assert "True = attend" in scaled_dot_product_attention.__doc__


@pytest.mark.parametrize(
    ("offset", "mean"), [case(0, 0.0, id="A16-top-left"), case("end", 1.5, id="A16-bottom-right")]
)
def test_alignment_of_causal_is_an_explicit_argument(engine, offset, mean):
    query, key = np.zeros((1, 1, 1, 2), "f4"), np.zeros((1, 1, 4, 2), "f4")
    value = np.arange(4, dtype="f4").reshape(1, 1, 4, 1)
    options = {"is_causal": True, "query_offset": offset}
    for extra in ({}, {"return_lse": True}, {"return_weights": True}, {"num_threads": 2}):
        result = scaled_dot_product_attention(query, key, value, **options, **extra)
        assert getattr(result, "output", result).item() == mean


@pytest.mark.parametrize("kind", [case("f4", id="A19-float"), case(bool, id="A19-bool")])
def test_mask_and_causal_together_both_apply(engine, kind):
    arrays = qkv(7, n_query=70, n_key=70)
    mask = np.random.default_rng(8).random((70, 70)) < 0.5
    given = mask if kind is bool else np.where(mask, 0, -INF).astype(kind)
    check(*arrays, given, is_causal=True)


CAUSAL_PATHS = {
    "return_lse": {"return_lse": True}, "return_weights": {"return_weights": True},
    "out": {"out": True}, "float64": {"dtype": "f8"}, "float16": {"dtype": "f2"},
    "rank 2": {"lead": None}, "rank 3": {"lead": ()}, "rank 5": {"lead": (2, 1)},
    "softcap": {"softcap": 2.0}, "bias": {"bias": np.ones((1, 40), "f4")}, "sinks": {"sinks": 0.0},
    "mask": {"attn_mask": np.ones((1, 40), bool)}, "threads": {"num_threads": 3},
    "lengths": {"kv_lengths": 40}, "window": {"window": (40, 40)}, "alibi": {"alibi_slopes": [0.1]},
}  # fmt: skip


@pytest.mark.parametrize("path", [case(p, id=f"A20-{n}") for n, p in CAUSAL_PATHS.items()])
def test_causal_holds_on_every_path(engine, path):
    path = dict(path)
    lead, dtype = path.pop("lead", (1,)), path.pop("dtype", "f4")
    arrays = [x[0] for x in qkv(9, n_query=40, n_key=40)] if lead is None else qkv(
        9, lead=lead, n_query=40, n_key=40, dtype=dtype
    )  # fmt: skip
    for j in (39, 20, 1):
        changed = [x.copy() for x in arrays]
        changed[1][..., j:, :] += 3
        changed[2][..., j:, :] -= 5
        results = []
        for given in (arrays, changed):
            if "out" in path:
                path["out"] = np.zeros_like(arrays[0])
            result = scaled_dot_product_attention(*given, is_causal=True, **path)
            results.append(getattr(result, "output", result))
        support.assert_same_bits(results[1][..., :j, :], results[0][..., :j, :])
        assert (results[1][..., j:, :] != results[0][..., j:, :]).any()


PAIRS = {
    "kv_lengths": {"kv_lengths": 5}, "is_causal": {"is_causal": True, "query_offset": 2},
    "left": {"window": (2, None), "query_offset": 5},
    "right": {"window": (None, 2), "query_offset": 1},
    "mask": {"attn_mask": np.arange(9) < 6},
    "bias": {"bias": np.where(np.arange(9) < 6, 0.5, -INF)},
}  # fmt: skip


@pytest.mark.parametrize("options", [case(p, id=f"A44-{n}") for n, p in PAIRS.items()])
def test_argument_given_alone_is_honoured(engine, options):
    query, key, value = qkv(10, n_query=3, n_key=9)
    seen = oracle.attention(query, key, value, **options).visible
    assert not seen.all()
    clean = scaled_dot_product_attention(query, key, value, **options)
    for j in range(9):
        bad_key, bad_value = key.copy(), value.copy()
        bad_key[0, j], bad_value[0, j] = 100, 1000
        changed = scaled_dot_product_attention(query, bad_key, bad_value, **options)
        unseen = ~seen[0, :, j]
        support.assert_same_bits(changed[0][unseen], clean[0][unseen])


@pytest.mark.parametrize("value", [case(False, id="A36-f4"), case(True, id="A36-with-alibi")])
def test_row_of_the_most_negative_float_is_the_plain_mean(engine, value):
    query, key, _ = qkv(11, n_query=2, n_key=3)
    options = {"alibi_slopes": [0.5], "query_offset": 0} if value else {}
    mask = np.full((1, 3), np.finfo("f4").min)
    values = np.array([0, 3, 6], "f4").reshape(1, 3, 1)
    output = scaled_dot_product_attention(query, key, values, mask, **options)
    assert (output == 3).all()


@pytest.mark.parametrize("shape", [case(s, id=f"A09-{i}") for i, s in enumerate([
    (7, 1), (1, 70), (1, 1), (2, 1, 1, 70), (2, 1, 7, 1), (1, 3, 1, 1), (3, 7, 70), (), (70,),
    (1,), (2, 3, 7, 70), (2, 3, 1, 1), (1, 1, 1, 1), (3, 1, 70), (3, 7, 1),
])])  # fmt: skip
@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("kind", ["f4", "f2", "f8", bool])
def test_mask_of_every_broadcast_shape_equals_its_copy(engine, shape, kv_heads, kind):
    arrays = qkv(12, lead=(2,), heads=3, kv_heads=kv_heads, n_query=7, n_key=70)
    mask = normal(np.random.default_rng(13), *shape)
    mask = np.asarray(mask > 0 if kind is bool else mask.astype(kind))
    whole = np.broadcast_to(mask, (2, 3, 7, 70)).copy()
    support.assert_same_bits(
        scaled_dot_product_attention(*arrays, mask), scaled_dot_product_attention(*arrays, whole)
    )
    check(*arrays, mask)


@pytest.mark.parametrize("rank", [case(r, id=f"A10-rank{r}") for r in range(6)])
def test_masks_that_do_not_broadcast_are_refused_with_both_shapes(engine, rank):
    arrays = qkv(14, lead=(2,), heads=4, kv_heads=1, n_query=3, n_key=5)
    full = (1, 2, 4, 3, 5)[5 - rank :]
    if rank < 5:
        check(*arrays, normal(np.random.default_rng(15), *full))
    for axis, size in product(range(rank), (2, 6)):
        shape = (*full[:axis], full[axis] + size, *full[axis + 1 :])
        with pytest.raises(ValueError, match=r"\(2, 4, 3, 5\)") as caught:
            scaled_dot_product_attention(*arrays, np.zeros(shape, "f4"))
        assert str(shape) in str(caught.value)


LENGTHS = [1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 129]


@pytest.mark.parametrize("n_query", [case(n, id=f"A37-{n}") for n in LENGTHS])
def test_lengths_that_are_no_multiple_of_the_tile_work_with_every_mask(engine, n_query):
    rng = np.random.default_rng(16)
    for n_key in LENGTHS:
        arrays = qkv(17, n_query=n_query, n_key=n_key, d=8)
        bias, mask = normal(rng, n_query, n_key), rng.random((n_query, n_key)) > 0.5
        for given in (None, bias, mask):
            check(*arrays, given)
        check(*arrays, is_causal=True, query_offset=0)
