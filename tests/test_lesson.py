"""The lesson in code: attention_steps and self_attention."""

import numpy as np
import oracle
import pytest
import strategies
import support
from hypothesis import given

from fast_attention import (
    attention_steps,
    error_bound,
    scaled_dot_product_attention,
    self_attention,
)

RESULT_OPTIONS = ("return_lse", "return_weights", "num_threads", "out")
X = np.array([[1, 0], [0, 1], [1, 1]])
PROJECTED = 1e-5  # relative to the greatest number; products with matrices in float32


def softmax(scores):
    exponential = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


def assert_steps_near(steps, arrays, options):
    """Output and weights within the bound of the call; hidden keys hidden in biased."""
    expected = oracle.attention(*arrays, **options)
    shape = expected.visible.shape
    for stage in steps[:-1]:
        assert stage.shape == shape
        assert stage.dtype == steps.scores.dtype
    support.assert_output_near(steps.output, expected)
    hidden = ~expected.visible
    assert (steps.biased[hidden] == -np.inf).all()
    assert not (steps.biased[expected.visible] == -np.inf).any()
    assert (steps.weights[hidden] == 0).all()
    error = np.abs(np.nan_to_num(steps.weights - expected.weights))
    assert (error <= expected.weights_bound).all()


@strategies.repeatable(150)
@given(call=strategies.calls())
def test_steps_of_any_call_end_within_the_bound(call):
    arrays, options = call
    arrays = list(arrays.values())
    options = {name: x for name, x in options.items() if name not in RESULT_OPTIONS}
    assert_steps_near(attention_steps(*arrays, **options), arrays, options)


def test_steps_of_integers_can_be_followed_by_hand():
    query, key, value = [[1, 2]], [[3, 4], [5, -1]], [[10, 0, 1], [0, 10, 1]]
    steps = attention_steps(query, key, value, scale=0.5, softcap=2.0, bias=[[1.0, 0.0]])
    assert steps.scores.tolist() == [[11, 3]]
    assert steps.scaled.tolist() == [[5.5, 1.5]]
    capped = 2 * np.tanh([[2.75, 0.75]])
    np.testing.assert_allclose(steps.capped, capped, rtol=1e-15)
    np.testing.assert_allclose(steps.biased, capped + np.array([[1, 0]]), rtol=1e-15)
    np.testing.assert_allclose(steps.weights, softmax(steps.biased), rtol=1e-15)
    np.testing.assert_allclose(steps.output, steps.weights @ np.array(value), rtol=1e-15)
    assert steps._fields == ("scores", "scaled", "capped", "biased", "weights", "output")


def test_hidden_keys_are_minus_infinity_in_biased_and_only_there(engine):
    query, key, value = support.qkv(1, heads=2, n_query=4, n_key=4)
    mask = np.ones((4, 4), bool)
    mask[2] = False
    steps = attention_steps(query, key, value, mask, is_causal=True)
    assert np.isfinite(steps.capped).all()
    visible = np.tril(np.ones((4, 4), bool)) & mask
    for head in steps.biased:
        np.testing.assert_array_equal(np.isfinite(head), visible)
    np.testing.assert_array_equal(steps.biased[:, visible], steps.capped[:, visible])
    assert (steps.weights[:, 2] == 0).all()
    assert (steps.output[:, 2] == 0).all()


def test_alibi_is_shown_in_biased():
    steps = attention_steps(*(np.zeros((2, 3, 2)) for _ in range(3)), alibi_slopes=[1.0, 0.5])
    distance = np.abs(np.arange(3)[:, None] - np.arange(3))
    np.testing.assert_array_equal(steps.biased, [-1.0 * distance, -0.5 * distance])


def test_sink_takes_its_share_of_the_weights():
    steps = attention_steps(np.zeros((1, 2)), np.zeros((3, 2)), np.ones((3, 1)), sinks=0.0)
    np.testing.assert_allclose(steps.weights, [[0.25, 0.25, 0.25]], rtol=1e-15)
    np.testing.assert_allclose(steps.output, [[0.75]], rtol=1e-15)


@pytest.mark.parametrize("dtype", support.FLOATS)
def test_stages_have_the_dtype_of_the_arithmetic_and_the_output_that_of_the_query(dtype):
    steps = attention_steps(*support.qkv(2, dtype=dtype))
    arithmetic = np.float64 if dtype == np.float64 else np.float32
    assert [stage.dtype for stage in steps[:-1]] == [arithmetic] * 5
    assert steps.output.dtype == dtype


def test_stages_share_no_memory_and_inputs_are_not_written():
    arrays = [support.read_only(x) for x in support.qkv(3)]
    steps = attention_steps(*arrays)
    every = [*steps, *arrays]
    for n, one in enumerate(every):
        assert not any(np.shares_memory(one, other) for other in every[n + 1 :])


@pytest.mark.parametrize("where", ["query", "key", "value", "bias", "sinks"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_spread_as_in_attention(engine, where, number):
    names = ("query", "key", "value")
    call = dict(zip(names, support.qkv(4, heads=2, n_query=4, n_key=5), strict=True))
    call |= {"bias": np.zeros((2, 4, 5), "f4"), "sinks": np.zeros(2, "f4")}
    call[where][(0,) * call[where].ndim] = number
    mask = np.ones((4, 5), bool)
    mask[1:3, 0] = False
    mask[3] = False
    steps = attention_steps(**call, attn_mask=mask)
    result = scaled_dot_product_attention(**call, attn_mask=mask, return_weights=True)
    for ours, theirs in ((steps.output, result.output), (steps.weights, result.weights)):
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    bound = error_bound(**call, attn_mask=mask)
    finite = np.isfinite(bound)
    difference = np.abs(steps.output[finite] - result.output[finite])
    assert (difference <= 2 * bound[finite][:, None]).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_a_bias_hides_does_not_exist(engine, number):
    query, key, value = support.qkv(21, n_query=4, n_key=5)
    bias = np.zeros((4, 5), "f4")
    bias[1:, 2] = -np.inf
    clean = attention_steps(query, key, value, bias=bias)
    key[0, 2], value[0, 2] = number, number
    steps = attention_steps(query, key, value, bias=bias)
    np.testing.assert_array_equal(steps.output[0, 1:], clean.output[0, 1:])
    np.testing.assert_array_equal(steps.biased[0, 1:], clean.biased[0, 1:])
    assert np.isnan(steps.output[0, 0]).all()


def test_finite_masks_stay_numbers(engine):
    """finfo.min is a finite bias: the weights of a row of it are equal, not 0."""
    query, key, value = support.qkv(5, n_query=1, n_key=3)
    for bias in (np.full(3, np.finfo("f4").min), np.full(3, -1e300)):
        steps = attention_steps(query, key, value, bias=bias)
        np.testing.assert_allclose(steps.weights, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("shapes", [((0, 2), (5, 2)), ((3, 2), (0, 2)), ((0, 3, 2), (0, 5, 2))])
def test_steps_of_nothing_are_empty(shapes):
    query, key = (np.ones(shape, "f4") for shape in shapes)
    steps = attention_steps(query, key, key)
    assert steps.scores.shape == (*shapes[0][:-1], shapes[1][-2])
    assert steps.output.shape == shapes[0]
    assert (steps.output == 0).all()


def test_steps_have_the_checks_and_the_warning_of_attention():
    query, key, value = support.qkv(6)
    with pytest.raises(ValueError, match=r"\(1, 3, 4\).*\(1, 5, 3\)"):
        attention_steps(query, key[..., :3], value)
    with pytest.raises(TypeError, match="two ways"):
        attention_steps(query, key, value, np.ones((3, 5), int))
    with pytest.raises(TypeError, match=r"attention_steps\(\) has no option 'out'.*softcap"):
        attention_steps(query, key, value, out=query)
    with pytest.warns(UserWarning, match="query_offset") as caught:
        attention_steps(query, key, value, is_causal=True)
    assert caught[0].filename == __file__


def test_plain_form_is_the_softmax_of_dot_products(engine):
    weights = softmax(np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 2]]))
    result = self_attention(X, return_weights=True, return_lse=True)
    np.testing.assert_allclose(result.weights, weights, rtol=1e-14)
    np.testing.assert_allclose(result.output, weights @ X, rtol=1e-14)
    np.testing.assert_allclose(result.lse[0], np.log(2 * np.e + 1), rtol=1e-14)
    assert result.output.dtype == np.float64
    steps = attention_steps(X, X, X, scale=1.0)
    np.testing.assert_allclose(result.output, steps.output, rtol=1e-14)


@pytest.mark.parametrize("dtype", support.FLOATS)
def test_plain_form_of_any_dtype_is_one_call_of_attention(engine, dtype):
    x = support.normal(np.random.default_rng(7), 2, 5, 8, dtype=dtype)
    heads = x[:, None]
    expected = scaled_dot_product_attention(
        heads, heads, heads, scale=1.0, is_causal=True, return_lse=True, return_weights=True
    )
    result = self_attention(x, is_causal=True, return_lse=True, return_weights=True)
    support.assert_same_bits(result.output, expected.output[:, 0])
    support.assert_same_bits(tuple(result[1:]), tuple(expected[1:]))


def learned(x, matrices, n_head, n_kv_head, scale=None, mask=None):
    """Work it out head by head in float64; return output, lse and weights."""
    w_query, w_key, w_value, w_out = (m.astype("f8") for m in matrices)
    x = x.astype("f8")
    columns = [
        np.split(x @ w, n, axis=-1)
        for w, n in ((w_query, n_head), (w_key, n_kv_head), (w_value, n_kv_head))
    ]
    contexts, lses, weights = [], [], []
    for head in range(n_head):
        kv = head * n_kv_head // n_head
        query, key, value = columns[0][head], columns[1][kv], columns[2][kv]
        scores = query @ key.swapaxes(-1, -2) * (scale or query.shape[-1] ** -0.5)
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        weights.append(softmax(scores))
        lses.append(np.log(np.exp(scores).sum(axis=-1)))
        contexts.append(weights[-1] @ value)
    output = np.concatenate(contexts, axis=-1) @ w_out
    return output, np.stack(lses, axis=-2), np.stack(weights, axis=-3)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("n_head", "n_kv_head"), [(1, 1), (4, 4), (4, 2), (3, 1)])
def test_learned_form_agrees_with_every_head_worked_out_alone(engine, lead, n_head, n_kv_head):
    rng = np.random.default_rng(8)
    d_e, d_k, d_v, d_out = 10, 3, 5, 7
    x = support.normal(rng, *lead, 6, d_e)
    matrices = [
        support.normal(rng, *shape, size=0.3)
        for shape in (
            (d_e, n_head * d_k), (d_e, n_kv_head * d_k), (d_e, n_kv_head * d_v),
            (n_head * d_v, d_out),
        )
    ]  # fmt: skip
    mask = np.tril(np.ones((6, 6), bool))
    result = self_attention(
        x, *matrices, num_heads=n_head, num_kv_heads=n_kv_head, is_causal=True,
        return_lse=True, return_weights=True,
    )  # fmt: skip
    expected = learned(x, matrices, n_head, n_kv_head, mask=mask)
    if not lead and n_head == 1:
        expected = (expected[0], expected[1][0], expected[2][0])
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=PROJECTED * np.abs(theirs).max())


def test_without_an_output_matrix_the_contexts_of_the_heads_lie_side_by_side(engine):
    rng = np.random.default_rng(9)
    x = support.normal(rng, 2, 6, 8)
    w_query, w_key = support.normal(rng, 2, 8, 6)
    w_value = support.normal(rng, 8, 10)
    output = self_attention(x, w_query, w_key, w_value, num_heads=2)
    matrices = (w_query, w_key, w_value, np.eye(10))
    np.testing.assert_allclose(output, learned(x, matrices, 2, 2)[0], rtol=0, atol=1e-4)
    assert output.flags.c_contiguous
    assert output.flags.writeable


def test_matrix_that_is_not_given_is_the_identity(engine):
    rng = np.random.default_rng(10)
    x, w = support.normal(rng, 6, 8), support.normal(rng, 8, 8)
    eye = np.eye(8, dtype="f4")
    for given_matrices in ((w, None, None), (None, w, None), (w, w, None), (w, None, w)):
        matrices = [eye if matrix is None else matrix for matrix in given_matrices]
        ours = self_attention(x, *given_matrices, num_heads=2)
        support.assert_same_bits(ours, self_attention(x, *matrices, num_heads=2))
    values_only = self_attention(x, None, None, w)
    support.assert_same_bits(values_only, self_attention(x, eye, eye, w, scale=1.0))


def test_heads_of_the_plain_form_are_parts_of_the_embedding(engine):
    x = support.normal(np.random.default_rng(11), 3, 6, 8)
    output = self_attention(x, num_heads=2)
    for part in (slice(0, 4), slice(4, 8)):
        np.testing.assert_allclose(output[..., part], self_attention(x[..., part]), atol=1e-5)


def test_options_reach_attention(engine):
    x = support.normal(np.random.default_rng(12), 2, 6, 8)
    mask = np.random.default_rng(13).random((2, 1, 6, 6)) < 0.7
    options = {
        "attn_mask": mask, "bias": np.ones((6, 6), "f4"), "window": (3, 1), "kv_lengths": [6, 4],
        "softcap": 3.0, "sinks": 0.5, "alibi_slopes": [0.25], "scale": 0.7, "num_threads": 1,
    }  # fmt: skip
    output = self_attention(x, **options)
    heads = x[:, None]
    expected = scaled_dot_product_attention(heads, heads, heads, **options)
    np.testing.assert_allclose(output, expected[:, 0], rtol=0, atol=1e-6)


def test_garbage_in_the_padding_changes_no_bit(engine):
    rng = np.random.default_rng(14)
    x, matrices = support.normal(rng, 6, 8), support.normal(rng, 4, 8, 8)
    clean = self_attention(x, *matrices, num_heads=2, kv_lengths=4)
    x[4:] = np.nan
    dirty = self_attention(x, *matrices, num_heads=2, kv_lengths=4)
    support.assert_same_bits(dirty[:4], clean[:4])
    assert np.isnan(dirty[4:]).all()


@pytest.mark.parametrize(
    ("dtypes", "arithmetic"),
    [("f2 f4", "f4"), ("f2 f2", "f4"), ("f4 f8", "f8"), ("f2 f8", "f8"), ("f8 f4", "f8")],
)
def test_output_has_the_dtype_of_x_and_is_rounded_once(engine, dtypes, arithmetic):
    kinds = dtypes.split()
    rng = np.random.default_rng(15)
    x = support.normal(rng, 5, 8, dtype=kinds[0])
    matrices = support.normal(rng, 4, 8, 8, dtype=kinds[1], size=0.3)
    result = self_attention(x, *matrices, num_heads=2, return_lse=True, return_weights=True)
    assert [array.dtype for array in result] == [kinds[0], arithmetic, kinds[0]]
    wide = self_attention(x.astype(arithmetic), *matrices.astype(arithmetic), num_heads=2)
    support.assert_same_bits(result.output, wide.astype(kinds[0]))
    some = (None, None, *matrices[2:])
    result = self_attention(x, *some, num_heads=2)
    wide = self_attention(x.astype(arithmetic), *some, num_heads=2)
    support.assert_same_bits(result, wide.astype(kinds[0]))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (0, 3, 8), (3, 0)])
def test_empty_sequences_and_embeddings_keep_their_shape(engine, shape):
    assert self_attention(np.ones(shape, "f4")).shape == shape
    matrix = np.ones((shape[-1], 4), "f4")
    assert self_attention(np.ones(shape, "f4"), *(matrix,) * 3, num_heads=2).shape == (
        *shape[:-1],
        4,
    )


def w(*shape):
    return np.ones(shape, "f4")


T = w(3, 8)
ERRORS = {
    "x is a vector": (ValueError, (w(8),), {}, ["x has shape (8,)", "(..., T, d_e)"]),
    "rows do not fit": (ValueError, (T, w(7, 4), w(8, 4)), {}, ["w_query", "(7, 4)", "(3, 8)"]),
    "matrix is a vector": (ValueError, (T, None, w(8)), {}, ["w_key", "(8,)", "(3, 8)"]),
    "widths differ": (ValueError, (T, w(8, 4), w(8, 6)), {}, ["(8, 4)", "(8, 6)", "4 and 6"]),
    "width is not that of x": (ValueError, (T, w(8, 4)), {}, ["(8, 4)", "(3, 8)", "4 and 8"]),
    "w_out does not fit": (
        ValueError, (T, w(8, 4), w(8, 4), w(8, 6), w(4, 8)), {}, ["w_out", "(4, 8)", "(8, 6)", "6"],
    ),
    "w_out does not fit x": (ValueError, (T, None, None, None, w(4, 8)), {}, ["(4, 8)", "(3, 8)"]),
    "columns are no multiple": (
        ValueError, (T, w(8, 4), w(8, 4)), {"num_heads": 3}, ["(8, 4)", "num_heads = 3"],
    ),
    "heads are no multiple": (
        ValueError, (T,), {"num_heads": 4, "num_kv_heads": 3}, ["num_heads is 4", "3"],
    ),
    "no heads": (ValueError, (T,), {"num_heads": 0}, ["num_heads", "0"]),
    "heads are a float": (TypeError, (T,), {"num_kv_heads": 1.0}, ["num_kv_heads", "1.0"]),
    "int8 embeddings": (TypeError, (T.astype("i1"),), {}, ["int8", "x.astype(np.float32)"]),
    "complex matrix": (TypeError, (T, w(8, 4).astype("c8")), {}, ["w_query", "complex64"]),
    "out": (TypeError, (T,), {"out": T}, ["self_attention() has no option 'out'", "attn_mask"]),
    "unknown option": (TypeError, (T,), {"dropout": 0.1}, ["dropout", "is_causal"]),
    "scale of int8": (TypeError, (T,), {"k_scale": 1.0}, ["no option 'k_scale'", "window"]),
    "mask does not fit": (
        ValueError, (T,), {"attn_mask": np.ones((2, 3), bool)}, ["(2, 3)", "(1, 3, 3)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("error", "arguments", "options", "words"), ERRORS.values(), ids=ERRORS)
def test_error_names_both_shapes(error, arguments, options, words):
    with pytest.raises(error) as caught:
        self_attention(*arguments, **options)
    for word in words:
        assert word in str(caught.value)
