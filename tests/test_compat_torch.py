"""compat.torch: PyTorch's rules, and its own sample inputs where it is installed."""

import inspect
import warnings

import numpy as np
import oracle
import pytest
import support

from fast_attention.compat.torch import scaled_dot_product_attention

INSTALL = "needs PyTorch and its test tools: pip install torch expecttest hypothesis"
OPERATOR = "nn.functional.scaled_dot_product_attention"
N_SAMPLES = {"without dropout": 13, "with dropout": 12}  # PyTorch 2.13
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


@pytest.fixture(scope="module")
def torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torch", reason=INSTALL)
        pytest.importorskip("expecttest", reason=INSTALL)
    return module


@pytest.fixture(scope="module")
def samples(torch):
    """PyTorch's sample inputs, by the name of their dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        (operator,) = [op for op in op_db if op.name == OPERATOR]
        return {
            name: list(operator.sample_inputs("cpu", getattr(torch, name))) for name in ROUNDOFF
        }


def as_numpy(torch, x):
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.uint16).numpy().view(support.bfloat16)
    return x.numpy()


@pytest.mark.parametrize("name", list(ROUNDOFF))
def test_samples_of_pytorch_agree(engine, torch, samples, name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    counts = dict.fromkeys(N_SAMPLES, 0)
    for sample in samples[name]:
        arrays = [as_numpy(torch, x) for x in (sample.input, *sample.args)]
        options = {key: as_numpy(torch, x) for key, x in sample.kwargs.items()}
        if options["dropout_p"] > 0:
            counts["with dropout"] += 1
            with pytest.raises(ValueError, match="no randomness"):
                scaled_dot_product_attention(*arrays, **options)
            continue
        counts["without dropout"] += 1
        result = scaled_dot_product_attention(*arrays, **options)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            sample.input, *sample.args, **sample.kwargs
        )
        expected = reference(*arrays, **options)
        support.assert_output_near(result, expected)
        # PyTorch's 16-bit kernels round the weights before they meet the values.
        wide = as_numpy(torch, theirs).astype(np.float64)
        bound = 2 * expected.output_bound + ROUNDOFF[name] * np.abs(arrays[2].astype("f8")).max()
        assert (np.abs(result.astype(np.float64) - wide) <= bound).all()
    assert counts == N_SAMPLES


def reference(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    options.pop("enable_gqa", None)
    return oracle.attention(
        query, key, value, attn_mask, is_causal=is_causal, query_offset=0, **options
    )


def test_names_order_and_defaults_are_those_of_pytorch():
    parameters = inspect.signature(scaled_dot_product_attention).parameters.values()
    assert {p.name: p.default for p in parameters if p.default is not p.empty} == {
        "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False,
    }  # fmt: skip
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == ["scale", "enable_gqa"]
    assert [p.name for p in parameters][:4] == ["query", "key", "value", "attn_mask"]


@pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize(("n_query", "n_key"), [(5, 5), (3, 7), (7, 3)])
def test_causal_begins_at_the_top_left_without_a_warning(engine, dtype, n_query, n_key):
    arrays = support.qkv(1, lead=(2,), heads=3, n_query=n_query, n_key=n_key, dtype=dtype)
    result = scaled_dot_product_attention(*arrays, is_causal=True, scale=0.4)
    lower = np.tril(np.ones((n_query, n_key), bool))
    support.assert_output_near(result, oracle.attention(*arrays, lower, scale=0.4))
    assert result.dtype == dtype


@pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("kind", ["bool", "float32", "query"])
def test_mask_is_bool_or_float32_or_of_the_query(engine, dtype, kind):
    arrays = support.qkv(2, lead=(2,), heads=3, n_query=4, n_key=6, dtype=dtype)
    mask = np.random.default_rng(3).standard_normal((2, 1, 4, 6))
    mask = mask > 0 if kind == "bool" else mask.astype("f4" if kind == "float32" else dtype)
    mask[0, :, 1] = False if kind == "bool" else -np.inf
    result = scaled_dot_product_attention(*arrays, mask)
    support.assert_output_near(result, oracle.attention(*arrays, mask))
    assert (support.bits(result[0, :, 1]) == 0).all()


def test_grouped_heads_only_where_they_are_enabled(engine):
    arrays = support.qkv(4, lead=(2,), heads=6, kv_heads=2)
    result = scaled_dot_product_attention(*arrays, enable_gqa=True)
    support.assert_output_near(result, oracle.attention(*arrays))
    with pytest.raises(ValueError, match=r"enable_gqa=True.*\(2, 6, 3, 4\), key \(2, 2, 5, 4\)"):
        scaled_dot_product_attention(*arrays)


def test_leading_axes_broadcast_and_two_axes_mean_one_head(engine):
    query, key, value = support.qkv(5, lead=(2, 3), heads=2)
    call = query, key[:1], value[0, 0]
    support.assert_output_near(scaled_dot_product_attention(*call), oracle.attention(*call))
    call = query[0, 0, 0], key[0, 0, 0], value[0, 0, 0]
    support.assert_output_near(scaled_dot_product_attention(*call), oracle.attention(*call))


Q = np.zeros((2, 3, 4), "f4")
ERRORS = {
    "dropout": ({"dropout_p": 0.1}, ValueError, "no randomness here, given 0.1"),
    "nan dropout": ({"dropout_p": np.nan}, ValueError, "dropout_p must be 0"),
    "both": ({"attn_mask": np.ones((3, 5), bool), "is_causal": True}, ValueError, "are both given"),
    "dtypes": ({"key": np.zeros((2, 5, 4))}, TypeError, "float32, float64 and float32"),
    "int mask": ({"attn_mask": np.ones((3, 5), int)}, TypeError, "attn_mask has dtype int64"),
    "wide mask": ({"attn_mask": np.ones((3, 5))}, TypeError, "float64, expected bool"),
    "mask for float32": (
        {"attn_mask": np.ones((3, 5), "f2")}, TypeError, r"bool \(True = attend\) or float32$",
    ),
    "narrow mask": ({"attn_mask": np.ones((3, 5), "f2")}, TypeError, "attn_mask has dtype float16"),
    "mask": ({"attn_mask": np.ones((3, 4), bool)}, ValueError, "does not broadcast"),
    "larger mask": ({"attn_mask": np.ones((2, 2, 3, 5), bool)}, ValueError, "does not broadcast"),
    "one axis": ({"query": np.zeros(4, "f4")}, ValueError, "at least 2 axes"),
    "width": ({"query": np.zeros((2, 3, 5), "f4")}, ValueError, "differ in width"),
    "bool": ({"query": np.zeros((2, 3, 4), bool)}, TypeError, "query has dtype bool"),
    "indivisible": (
        {"query": np.zeros((3, 3, 4), "f4"), "enable_gqa": True}, ValueError, "multiple of the 2",
    ),
}  # fmt: skip


def test_float_mask_of_ones_and_zeros_is_added_without_a_warning_as_in_pytorch(engine):
    query, key, value = support.qkv(9)
    mask = np.tril(np.ones((3, 5), "f4"))
    expected = oracle.attention(query, key, value, mask)
    output = scaled_dot_product_attention(query, key, value, mask)
    support.assert_output_near(output, expected)


@pytest.mark.parametrize("name", list(ERRORS))
def test_error_says_what_was_given_and_expected(name):
    change, kind, message = ERRORS[name]
    call = {"query": Q, "key": np.zeros((2, 5, 4), "f4"), "value": np.zeros((2, 5, 4), "f4")}
    with pytest.raises(kind, match=message):
        scaled_dot_product_attention(**call | change)
