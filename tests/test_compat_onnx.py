"""compat.onnx: the node tests that onnx generates, and the rules that those hardly touch."""

import tracemalloc
import warnings

import numpy as np
import oracle
import pytest
import support
from onnx_operator import assert_near, operator

from fast_attention import attention_steps
from fast_attention.compat.onnx import attention

ONNX = "1.23.2"  # the generator of the node tests has private names
INSTALL = f'needs onnx {ONNX}: pip install ".[conformance]"'
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
N_NODE_CASES = 93
HALF_PRECISION_ULPS = 2  # ONNX's own values are computed in 16 bits throughout
MODES = (None, 0, 1, 2, 3)


def node_cases():
    """Return the generated cases that are one Attention node, by name; none without onnx."""
    try:
        import onnx
    except ImportError:
        return {}
    if onnx.__version__ != ONNX:
        return {}
    from onnx.backend.test.case.node import collect_testcases

    state = np.random.get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases("Attention")
    np.random.set_state(state)
    alone = [c for c in cases if [n.op_type for n in c.model.graph.node] == ["Attention"]]
    return {case.name.removeprefix("test_attention_"): case for case in alone}


CASES = node_cases()
needs_onnx = pytest.mark.skipif(not CASES, reason=INSTALL)


def call_of(case):
    """Return inputs and attributes of a case, and its outputs, by name."""
    from onnx.helper import get_attribute_value

    node, (data,) = case.model.graph.node[0], case.data_sets
    named = [name for name, given in zip(INPUTS, node.input, strict=False) if given]
    outputs = [name for name, given in zip(OUTPUTS, node.output, strict=False) if given]
    call = dict(zip(named, data[0], strict=True))
    call |= {a.name: get_attribute_value(a) for a in node.attribute}
    if OUTPUTS[3] in outputs:
        call.setdefault("qk_matmul_output_mode", 0)
    return call, dict(zip(outputs, data[1], strict=True))


@needs_onnx
def test_no_node_case_is_missing():
    assert len(CASES) == N_NODE_CASES


@needs_onnx
@pytest.mark.parametrize("name", list(CASES))
def test_node_case_gives_onnx_values_and_keeps_the_bound(engine, name):
    case = CASES[name]
    call, outputs = call_of(case)
    result = attention(**call)
    for output, expected in outputs.items():
        actual = getattr(result, output)
        assert actual.dtype == expected.dtype, output
        assert actual.shape == expected.shape, output
        wide, expected_wide = actual.astype(np.float64), expected.astype(np.float64)
        if expected.dtype.itemsize == 2:
            ulp = 2 * oracle.half_ulp(np.abs(expected_wide), expected.dtype)
            assert (np.abs(wide - expected_wide) <= HALF_PRECISION_ULPS * ulp).all(), output
        else:
            np.testing.assert_allclose(wide, expected_wide, rtol=case.rtol, atol=case.atol)
    assert_near(result, **call)


def draw(seed, *, dtype="f4", n_past=0, batch=2, heads=4, kv_heads=2, n_query=5, n_key=9):
    """Draw Q, K and V, and a past if there is to be one."""
    options = {"lead": (batch,), "heads": heads, "kv_heads": kv_heads, "d": 6, "dv": 3}
    q, k, v = support.qkv(seed, **options, n_query=n_query, n_key=n_past + n_key, dtype=dtype)
    call = {"Q": q, "K": k[:, :, n_past:], "V": v[:, :, n_past:]}
    if n_past:
        call |= {"past_key": k[:, :, :n_past], "past_value": v[:, :, :n_past]}
    return call


def test_result_has_the_scores_only_if_they_are_asked_for(engine):
    call = draw(1)
    assert attention(**call)._fields == OUTPUTS[:3]
    assert attention(**call).qk_matmul_output is None
    for mode in range(4):
        result = attention(**call, qk_matmul_output_mode=mode)
        assert result._fields == OUTPUTS
        assert result.qk_matmul_output.shape == (2, 4, 5, 9)


@pytest.mark.parametrize("n_seen", [0, 1, 4, 8, 9])
@pytest.mark.parametrize("lead", [(), (5,), (1, 5), (4, 1), (4, 5), (2, 1, 1), (2, 4, 5)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_mask_ends_early_at_any_length_and_rank(engine, n_seen, lead, kind):
    rng = np.random.default_rng(2)
    mask = rng.random((*lead, n_seen)) < 0.7
    if kind == "float":
        mask = np.where(mask, rng.standard_normal(mask.shape), -np.inf).astype("f4")
    call = draw(3, n_past=3, n_key=6) | {"attn_mask": mask}
    for mode in MODES:
        assert_near(attention(**call, qk_matmul_output_mode=mode), **call, **with_mode(mode))
    full = np.zeros((*lead, 9), bool) if kind == "bool" else np.full((*lead, 9), -np.inf, "f4")
    full[..., :n_seen] = mask
    padded = attention(**call | {"attn_mask": full}).Y
    bound = 2 * operator(**call)[0].output_bound
    assert (np.abs(padded - attention(**call).Y) <= bound).all()


def with_mode(mode):
    return {} if mode is None else {"qk_matmul_output_mode": mode}


@pytest.mark.thread_unsafe(reason="measures the memory of the whole process")
def test_short_mask_is_used_without_a_copy(native_engine):
    n_query, n_key = 1000, 2000
    call = draw(4, batch=1, heads=1, kv_heads=1, n_query=n_query, n_key=n_key)
    mask = np.ones((n_query, n_key - 1), bool)
    tracemalloc.start()
    try:
        attention(**call, attn_mask=mask)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < mask.nbytes / 4


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("n_mask", [None, 5, 9])
def test_keys_past_a_length_do_not_exist(engine, is_causal, n_mask):
    call = draw(5, batch=4) | {"is_causal": is_causal}
    lengths = np.array([0, 3, 7, 9])
    call["nonpad_kv_seqlen"] = lengths
    if n_mask is not None:
        call["attn_mask"] = np.random.default_rng(6).random((4, 1, 5, n_mask)) < 0.8
    for mode in MODES:
        assert_near(attention(**call, qk_matmul_output_mode=mode), **call, **with_mode(mode))
    clean = attention(**call, qk_matmul_output_mode=2)
    for name in ("K", "V"):
        call[name] = call[name].copy()
        for rows, length in zip(call[name], lengths, strict=True):
            rows[:, length:] = np.nan
    poisoned = attention(**call, qk_matmul_output_mode=2)
    support.assert_same_bits(poisoned.Y, clean.Y)
    support.assert_same_bits(poisoned.qk_matmul_output, clean.qk_matmul_output)


def test_causal_rows_before_the_first_valid_key_are_zero(engine):
    result = attention(**draw(7), nonpad_kv_seqlen=[2, 5], is_causal=1, qk_matmul_output_mode=3)
    assert (support.bits(result.Y[0, :, :3]) == 0).all()
    assert (support.bits(result.qk_matmul_output[0, :, :3]) == 0).all()
    assert (result.Y[0, :, 3:] != 0).all()
    assert (result.Y[1] != 0).all()


@pytest.mark.parametrize("window", [(-1, -1), (2, -1), (-1, 1), (3, 2), (0, 0)])
@pytest.mark.parametrize("cache", ["none", "past", "lengths"])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_windows_and_causal_follow_the_offset(engine, window, cache, is_causal):
    call = draw(8, n_past=4 if cache == "past" else 0)
    call |= {"is_causal": is_causal, "left_window_size": window[0], "right_window_size": window[1]}
    if cache == "lengths":
        call["nonpad_kv_seqlen"] = np.array([3, 8])
    for mode in MODES:
        assert_near(attention(**call, qk_matmul_output_mode=mode), **call, **with_mode(mode))


def test_chunks_after_a_past_give_the_rows_of_the_whole(engine):
    call = draw(9, n_query=9)
    whole = attention(**call, is_causal=1).Y
    bound = 2 * operator(**call, is_causal=1)[0].output_bound
    key = value = None
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        chunk = {name: x[:, :, start:stop] for name, x in call.items()}
        result = attention(**chunk, past_key=key, past_value=value, is_causal=1)
        rows = slice(start, stop)
        assert (np.abs(result.Y - whole[:, :, rows]) <= bound[:, :, rows]).all()
        if engine[0] == "native":
            support.assert_same_bits(result.Y, whole[:, :, rows].copy())
        key, value = result.present_key, result.present_value
    support.assert_same_bits((key, value), (call["K"], call["V"]))


@pytest.mark.parametrize("dtype", support.FLOATS[:2] + support.FLOATS[3:])
@pytest.mark.parametrize("softcap", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_scores_of_every_mode(engine, dtype, softcap, kind):
    rng = np.random.default_rng(10)
    call = draw(11, dtype=dtype) | {"softcap": softcap, "scale": 0.6, "is_causal": 1}
    if kind != "none":
        mask = rng.random((2, 1, 5, 7)) < 0.7
        call["attn_mask"] = mask if kind == "bool" else np.where(mask, 0.5, -np.inf).astype(dtype)
    for mode in MODES:
        assert_near(attention(**call, qk_matmul_output_mode=mode), **call, **with_mode(mode))


def test_scores_of_masked_keys_show_what_is_there_until_they_are_masked(engine):
    call = draw(12)
    call["K"][:, :, 6] = np.nan
    call["V"][:, :, 6] = np.inf
    call["attn_mask"] = np.arange(9) != 6
    for mode in (0, 1):
        scores = attention(**call, softcap=2.0, qk_matmul_output_mode=mode).qk_matmul_output
        np.testing.assert_array_equal(
            np.isnan(scores), np.broadcast_to(np.arange(9) == 6, scores.shape)
        )
    assert_near(attention(**call, qk_matmul_output_mode=2), **call, qk_matmul_output_mode=2)
    assert np.isfinite(attention(**call).Y).all()


@pytest.mark.parametrize("great", [1e300, -1e300, 3e38, np.inf, np.nan])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_scores_are_those_of_attention_steps_where_they_leave_the_range(engine, great, softcap):
    call = draw(14)
    mask = np.where(np.arange(9) == 4, great, 0.5)
    call["Q"][0, 0, 2] = 3e38
    inputs = call["Q"], call["K"], call["V"], mask
    with pytest.warns(UserWarning, match="query_offset"):
        steps = attention_steps(*inputs, is_causal=True, softcap=softcap)
    for mode, expected in enumerate((steps.scaled, steps.capped, steps.biased)):
        result = attention(*inputs, is_causal=1, softcap=softcap, qk_matmul_output_mode=mode)
        np.testing.assert_array_equal(result.qk_matmul_output, expected)


def test_three_axes_give_the_bits_of_four(engine):
    call = draw(13, n_past=3)
    flat = call | {
        name: np.ascontiguousarray(call[name].swapaxes(1, 2)).reshape(2, call[name].shape[2], -1)
        for name in "QKV"
    }
    options = {"is_causal": 1, "softcap": 3.0, "qk_matmul_output_mode": 3}
    four = attention(**call, **options)
    three = attention(**flat, **options, q_num_heads=4, kv_num_heads=2)
    support.assert_same_bits(three[1:], four[1:])
    support.assert_same_bits(three.Y.reshape(2, 5, 4, 3), four.Y.swapaxes(1, 2).copy())
    assert three.Y.shape == (2, 5, 12)
    for result in (three, four):
        assert result.Y.flags.c_contiguous
        assert result.Y.flags.owndata


def test_present_copies_after_a_past_and_views_without(engine):
    call = draw(14, n_past=2)
    result = attention(**call)
    assert result.present_key.shape == (2, 2, 11, 6)
    assert not any(np.shares_memory(result.present_key, x) for x in call.values())
    call = draw(14)
    result = attention(**call)
    assert np.shares_memory(result.present_key, call["K"])
    assert np.shares_memory(result.present_value, call["V"])


def test_double_softmax_precision_computes_in_float64(engine):
    call = draw(15, n_past=2) | {"is_causal": 1}
    wide = {k: v.astype("f8") if hasattr(v, "dtype") else v for k, v in call.items()}
    for mode in MODES:
        double = attention(**call, softmax_precision=11, qk_matmul_output_mode=mode)
        expected = attention(**wide, qk_matmul_output_mode=mode)
        support.assert_same_bits(double.Y, expected.Y.astype("f4"))
        if mode is not None:
            scores = expected.qk_matmul_output.astype("f4")
            support.assert_same_bits(double.qk_matmul_output, scores)


@pytest.mark.parametrize("precision", [1, 10, 16])
def test_other_softmax_precisions_never_round_more(engine, precision):
    call = draw(16)
    support.assert_same_bits(attention(**call, softmax_precision=precision).Y, attention(**call).Y)


@pytest.mark.parametrize("shape", [(0, 2, 2, 3, 4), (2, 2, 1, 0, 4), (2, 2, 2, 3, 0)])
def test_empty_axes(engine, shape):
    batch, heads, kv_heads, n_query, n_key = shape
    call = draw(17, batch=batch, heads=heads, kv_heads=kv_heads, n_query=n_query, n_key=n_key)
    for mode in range(4):
        result = attention(**call, is_causal=1, qk_matmul_output_mode=mode)
        assert result.Y.shape == (batch, heads, n_query, 3)
        assert result.qk_matmul_output.shape == (batch, heads, n_query, n_key)
        assert not result.Y.any()


FLAT = {"Q": np.zeros((2, 5, 24)), "K": np.zeros((2, 9, 12)), "V": np.zeros((2, 9, 6))}
ERRORS = {
    "unknown": ({"causal": 1}, TypeError, r"no attribute causal; expected is_causal, kv_num_heads"),
    "causal": ({"is_causal": 2}, ValueError, "is_causal must be 0 or 1, given 2"),
    "not int": ({"is_causal": 0.5}, TypeError, "is_causal must be 0 or 1, not 0.5"),
    "mode": ({"qk_matmul_output_mode": 4}, ValueError, "must be 0, 1, 2 or 3, given 4"),
    "precision": ({"softmax_precision": 2}, ValueError, r"1 \(float32\), 10 \(float16\)"),
    "window": ({"left_window_size": -2}, ValueError, "left_window_size must be -1 .open. or above"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap must be above 0"),
    "scale": ({"scale": np.nan}, ValueError, "scale must be finite"),
    "heads": ({"q_num_heads": 3}, ValueError, r"q_num_heads is 3, but Q of shape \(2, 4, 5, 6\)"),
    "no heads": (FLAT, ValueError, r"Q of shape \(2, 5, 24\) has 3 axes, expected q_num_heads"),
    "indivisible": (FLAT | {"q_num_heads": 4, "kv_num_heads": 5}, ValueError, "kv_num_heads=5"),
    "ranks": ({"Q": FLAT["Q"], "q_num_heads": 4}, ValueError, "3 axes each, or 4 each"),
    "batch": ({"Q": np.zeros((3, 4, 5, 6))}, ValueError, "differ in batch size"),
    "dtype": ({"Q": np.zeros((2, 4, 5, 6), "i1")}, TypeError, "Q has dtype int8"),
    "past alone": ({"past_key": np.zeros((2, 2, 3, 6))}, ValueError, "without past_value"),
    "past shape": (
        {"past_key": np.zeros((2, 4, 3, 6), "f4"), "past_value": np.zeros((2, 2, 3, 3), "f4")},
        ValueError, r"past_key has shape \(2, 4, 3, 6\), expected \(2, 2, any length, 6\)",
    ),
    "past dtype": (
        {"past_key": np.zeros((2, 2, 3, 6)), "past_value": np.zeros((2, 2, 3, 3), "f4")},
        TypeError, "past_key has dtype float64, expected float32",
    ),
    "past lengths": (
        {"past_key": np.zeros((2, 2, 3, 6), "f4"), "past_value": np.zeros((2, 2, 4, 3), "f4")},
        ValueError, "differ in length",
    ),
    "both caches": (
        {"past_key": np.zeros((2, 2, 3, 6), "f4"), "past_value": np.zeros((2, 2, 3, 3), "f4"),
         "nonpad_kv_seqlen": [1, 1]},
        ValueError, "nonpad_kv_seqlen and past_key are both given",
    ),
    "lengths": ({"nonpad_kv_seqlen": [1, 10]}, ValueError, "must be from 0 to 9, given 10"),
    "one length": ({"nonpad_kv_seqlen": 4}, ValueError, r"has shape \(\), expected .* \(2,\)"),
    "long mask": ({"attn_mask": np.ones((5, 10), bool)}, ValueError, r"\(5, 10\), .* at most 9"),
    "mask": ({"attn_mask": np.ones((3, 9), bool)}, ValueError, "does not broadcast to the scores"),
    "no axis": ({"attn_mask": True}, ValueError, r"attn_mask has shape \(\)"),
    "int mask": ({"attn_mask": np.ones((5, 9), int)}, TypeError, "could be read in two ways"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ERRORS))
def test_error_says_what_was_given_and_expected(name):
    change, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        attention(**draw(18) | change)
