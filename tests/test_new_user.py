"""What a new user tries: each call is right, or its error or warning says what to do instead.

The messages are tried out: what they propose is then done, and must give the right answer.
"""

import numpy as np
import oracle
import pytest
import support

import fast_attention
from fast_attention import masks, scaled_dot_product_attention, softmax

B, H, L, D = 2, 4, 6, 8  # batch, heads, length, width


def arrays(seed=1, n_key=L):
    return support.qkv(seed, lead=(B,), heads=H, n_query=L, n_key=n_key, d=D)


def message(error, *arguments, **options):
    with pytest.raises(error) as caught:
        scaled_dot_product_attention(*arguments, **options)
    return str(caught.value)


def causal(dtype):
    return np.tril(np.ones((L, L), dtype))


def assert_same_as_causal(output):
    support.assert_output_near(output, oracle.attention(*arrays(), is_causal=True))


@pytest.mark.parametrize("dtype", ["i8", "i4", "u1"])
def test_integer_mask_is_an_error_that_names_both_meanings(engine, dtype):
    text = message(TypeError, *arrays(), causal(dtype))
    assert "bool (True = attend)" in text
    assert "-inf = masked" in text
    assert_same_as_causal(scaled_dot_product_attention(*arrays(), causal(dtype).astype(bool)))


TWO = {
    "causal": causal("f4"),
    "causal in float64": causal("f8"),
    "True = masked": 1 - causal("f4"),
    "strictly lower": np.tril(np.ones((L, L), "f4"), -1),
    "padding": np.array([[1] * L, [1] * 3 + [0] * (L - 3)], "f2").reshape(B, 1, 1, L),
}


@pytest.mark.parametrize("mask", TWO.values(), ids=TWO)
def test_float_mask_of_ones_and_zeros_warns_that_it_is_added(engine, mask):
    with pytest.warns(UserWarning, match=r"attn_mask\.astype\(bool\)") as caught:
        added = scaled_dot_product_attention(*arrays(), mask)
    assert [w.filename for w in caught] == [__file__]
    right = oracle.attention(*arrays(), mask.astype("f4"))
    support.assert_output_near(added, right)
    support.assert_output_near(scaled_dot_product_attention(*arrays(), bias=mask), right)
    selected = scaled_dot_product_attention(*arrays(), mask.astype(bool))
    support.assert_output_near(selected, oracle.attention(*arrays(), mask.astype(bool)))


def test_self_attention_warns_of_such_a_mask_where_it_is_called():
    with pytest.warns(UserWarning, match="astype") as caught:
        fast_attention.self_attention(arrays()[0][:, 0], attn_mask=causal("f4"))
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("function", ["attention_steps", "error_bound"])
def test_other_functions_warn_of_such_a_mask_too(function):
    with pytest.warns(UserWarning, match="astype") as caught:
        getattr(fast_attention, function)(*arrays(), causal("f4"))
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("mask", [True, False, 0.5, 1.0])
def test_single_value_as_mask_warns_of_what_was_probably_meant(engine, mask):
    with pytest.warns(UserWarning, match=rf"attn_mask is {mask}.*is_causal=True.*scale=") as caught:
        output = scaled_dot_product_attention(*arrays(), mask)
    assert [w.filename for w in caught] == [__file__]
    support.assert_output_near(output, oracle.attention(*arrays(), np.full((L, L), mask)))
    support.check(*arrays(), np.array(mask))
    support.check(*arrays(), np.array(mask)[()])


ADDITIVE = {
    "zeros": np.zeros((L, L), "f4"),
    "ones": np.ones((L, L), "f4"),
    "no keys": np.zeros((1, 1, L, 0), "f4"),
    "-inf": np.where(causal(bool), 0, -np.inf).astype("f4"),
    "finfo.min": np.where(causal(bool), 0, np.finfo("f4").min).astype("f4"),
    "ones in the first row only": np.vstack([[1, 0] * 3, np.full((L - 1, L), 0.5)]),
}


@pytest.mark.parametrize("mask", ADDITIVE.values(), ids=ADDITIVE)
def test_other_float_masks_are_added_without_a_warning(engine, mask):
    support.check(*arrays(n_key=mask.shape[-1]), mask)


def test_mask_of_valid_tokens_per_sequence_is_told_where_its_axes_go(engine):
    valid = np.arange(L) < np.array([[L], [3]])  # (B, S), as tokenizers give it
    assert "mask[..., None, None, :]" in message(ValueError, *arrays(), valid)
    output = scaled_dot_product_attention(*arrays(), valid[..., None, None, :])
    by_length = oracle.attention(*arrays(), kv_lengths=[L, 3])
    support.assert_output_near(output, by_length)
    by_helper = scaled_dot_product_attention(*arrays(), masks.padding([L, 3], L))
    support.assert_output_near(by_helper, by_length)


def test_mask_per_sequence_is_told_where_the_axis_of_heads_goes(engine):
    mask = np.random.default_rng(2).random((B, L, L)) < 0.7
    assert "mask[..., None, :, :]" in message(ValueError, *arrays(), mask)
    assert "mask[..., None, :, :]" in message(ValueError, *arrays(), bias=mask.astype("f4"))
    support.check(*arrays(), mask[..., None, :, :])


@pytest.mark.parametrize("n_key", [L + 1, L + 5])
def test_arrays_with_heads_last_are_told_to_be_transposed(engine, n_key):
    turned = [x.transpose(0, 2, 1, 3) for x in arrays(3, n_key)]  # (B, L, H, D)
    text = message(ValueError, *turned)
    assert "x.transpose(0, 2, 1, 3)" in text
    output = scaled_dot_product_attention(*(x.transpose(0, 2, 1, 3) for x in turned))
    support.assert_output_near(output, oracle.attention(*arrays(3, n_key)))


def test_arrays_with_heads_last_and_a_mask_are_an_error(engine):
    turned = [x.transpose(0, 2, 1, 3) for x in arrays()]
    text = message(ValueError, *turned, causal(bool))
    assert "(6, 6)" in text
    assert "x.transpose(0, 2, 1, 3)" in text


def test_transposed_key_is_told_not_to_be(engine):
    query, key, value = arrays()
    assert "(..., S, D), not transposed" in message(ValueError, query, key.swapaxes(-1, -2), value)


def test_transposed_value_is_told_not_to_be(engine):
    query, key, value = arrays(n_key=L + 1)
    text = message(ValueError, query, key, value.swapaxes(-1, -2))
    assert "(..., S, Dv), not transposed" in text
    assert "transposed" not in message(ValueError, query, key, value[..., 1:, :])


@pytest.mark.parametrize("lead", [(), (H,), (1, 1), (B, H)])
def test_transposed_mask_is_told_to_be_turned(engine, lead):
    operands = arrays(5, n_key=L + 1)
    mask = np.random.default_rng(5).random((*lead, L + 1, L)) < 0.7
    for name in ("attn_mask", "bias"):
        given = {name: mask if name == "attn_mask" else mask.astype("f4")}
        assert "mask.swapaxes(-1, -2)" in message(ValueError, *operands, **given)
        support.check(*operands, **{name: given[name].swapaxes(-1, -2)})
    assert "swapaxes" not in message(ValueError, *operands, mask[..., 1:, :])


def one_head_per_sequence():
    return tuple(x[:, 0] for x in arrays(6, n_key=L + 1))  # (B, L, D), as for one head


def test_lengths_of_arrays_without_heads_are_told_where_the_axis_of_heads_goes(engine):
    query, key, value = one_head_per_sequence()
    for name in ("kv_lengths", "query_offset"):
        options = {name: [3, 2], "window": (2, 0)}
        with pytest.raises(ValueError, match=rf"{name}.*x\[:, None\]"):
            scaled_dot_product_attention(query, key, value, **{"query_offset": 0} | options)
        with_heads = (query[:, None], key[:, None], value[:, None])
        support.check(*with_heads, **{"query_offset": 0} | options)
    assert "None" not in message(ValueError, query, key, value, kv_lengths=[1, 2, 3])


def test_mask_of_valid_tokens_of_arrays_without_heads_is_told_where_its_axis_goes(engine):
    mask = np.random.default_rng(7).random((B, L + 1)) < 0.7
    assert "mask[:, None, :]" in message(ValueError, *one_head_per_sequence(), mask)
    support.check(*one_head_per_sequence(), mask[:, None, :])


ONES = {
    "lengths": ("kv_lengths", np.array([[3], [5]]), "kv_lengths[..., 0]"),
    "offsets": ("query_offset", np.array([[[3]], [[5]]]), "query_offset[..., 0, 0]"),
    "slopes": ("alibi_slopes", np.ones((H, 1, 1), "f4"), "alibi_slopes[..., 0, 0]"),
    "sinks": ("sinks", np.ones((1, H, 1, 1), "f4"), "sinks[0, ..., 0, 0]"),
    "bias": ("bias", np.ones((1, B, H, L, L), "f4"), "bias[0, ...]"),
}


@pytest.mark.parametrize(("name", "given", "cure"), ONES.values(), ids=ONES)
def test_outer_axes_of_length_one_are_told_to_be_left_out(engine, name, given, cure):
    assert cure in message(ValueError, *arrays(), **{name: given})
    support.check(*arrays(), **{name: eval(cure, {name: given})})


def test_scales_of_int8_that_kept_the_axis_of_width_are_told_to_drop_it(engine):
    query, key, value = (x.astype("i1") for x in arrays())
    steps = np.full((B, H, L, 1), 0.5, "f4")
    text = message(TypeError, query, key, value)
    assert "int8 is for key and value" in text
    query = query.astype("f4")
    text = message(ValueError, query, key, value, k_scale=steps, v_scale=steps[..., 0])
    assert "k_scale[..., 0]" in text
    support.check(query, key, value, k_scale=steps[..., 0], v_scale=steps[..., 0])


def test_mask_of_valid_tokens_as_lengths_is_told_to_be_summed(engine):
    valid = np.arange(L) < np.array([[L], [3]])
    assert "mask.sum(axis=-1)" in message(TypeError, *arrays(), kv_lengths=valid)
    support.check(*arrays(), kv_lengths=valid.sum(axis=-1))


def test_single_vector_is_told_to_be_a_row(engine):
    query, key, value = (x[0, 0] for x in arrays())
    assert "x[None]" in message(ValueError, query[0], key, value)
    assert scaled_dot_product_attention(query[:1], key, value).shape == (1, D)


def test_decode_loop_with_causal_warns_and_is_right_as_the_warning_says(engine):
    query, key, value = arrays(4)
    prefill = oracle.attention(query, key, value, is_causal=True)
    for n in range(2, L + 1):
        step = (query[..., n - 1 : n, :], key[..., :n, :], value[..., :n, :])
        with pytest.warns(UserWarning, match='query_offset="end"'):
            scaled_dot_product_attention(*step, is_causal=True)
        output = scaled_dot_product_attention(*step, is_causal=True, query_offset="end")
        expected = oracle.attention(*step, is_causal=True, query_offset="end")
        support.assert_output_near(output, expected)
        row = prefill.output[..., n - 1 : n, :]
        assert (np.abs(output - row) <= prefill.output_bound[..., n - 1 : n, :]).all()


def test_toy_arrays_of_integers_are_right(engine):
    query, key, value = np.array([[1, 0]]), np.array([[1, 0], [0, 1]]), np.array([[10, 0], [0, 10]])
    output = scaled_dot_product_attention(query, key, value)
    share = 1 / (1 + np.exp(-1 / np.sqrt(2)))
    np.testing.assert_allclose(output, [[10 * share, 10 - 10 * share]], rtol=1e-14)
    lists = scaled_dot_product_attention([[1, 0]], [[1, 0], [0, 1]], [[10, 0], [0, 10]])
    support.assert_same_bits(output, lists)


@pytest.mark.parametrize(
    ("dtype", "word"), [("i1", "k_scale"), ("u1", "float32"), ("?", "float32")]
)
def test_bytes_are_an_error_that_names_what_is_taken(engine, dtype, word):
    x = np.ones((3, 2), dtype)
    assert word in message(TypeError, x, x, x)


def test_ten_million_keys_need_no_memory_for_scores(engine):
    n_key = 10_000_000
    row = np.array([[1, 2]], "f4")
    key, value = (np.broadcast_to(x, (n_key, 2)) for x in (row, 3 * row))
    output = scaled_dot_product_attention(row, key, value, kv_lengths=n_key // 10)
    np.testing.assert_allclose(output, 3 * row, rtol=1e-4)


def test_weights_beyond_all_memory_are_a_memory_error_and_the_output_alone_is_not(engine):
    n = 3_000_000
    x = np.broadcast_to(np.ones(1, "f4"), (n, 1))
    options = {"window": (1, 0), "query_offset": 0}
    with pytest.raises(MemoryError):
        scaled_dot_product_attention(x, x, x, return_weights=True, **options)
    assert (scaled_dot_product_attention(x[:1000], x[:1000], x[:1000], **options) == 1).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"is_causal": "yes"}, ["is_causal", "bool"]),
        ({"scale": np.ones(4)}, ["scale", "real number"]),
        ({"window": (1, 2, 3)}, ["window", "(left, right)"]),
        ({"kv_lengths": np.ones((B, L), bool)}, ["kv_lengths", "bool", "ints"]),
        ({"query_offset": "bottom-right"}, ["query_offset", '"end"']),
        ({"num_threads": 0}, ["num_threads", "at least 1"]),
    ],
    ids=str,
)
def test_wrong_option_is_an_error_that_says_what_is_expected(engine, options, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        scaled_dot_product_attention(*arrays(), **options)
    for word in words:
        assert word in str(caught.value)


def test_softmax_of_a_list_along_a_missing_axis_says_which_there_are(engine):
    with pytest.raises(ValueError, match=r"axis.*2.*1"):
        softmax([1, 2, 3], axis=2)
    np.testing.assert_allclose(softmax([0, 0]), [0.5, 0.5])
