"""Calls whose types a checker must know; test_typing.py gives this file to mypy."""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import fast_attention as fa
from fast_attention._attention import OutputLse, OutputLseWeights, OutputWeights
from fast_attention.compat import jax, onnx, torch

Array = npt.NDArray[Any]
Either = Array | OutputLse | OutputWeights | OutputLseWeights
x = np.ones((2, 3, 4), np.float32)
flag = bool(x.any())

attend = fa.scaled_dot_product_attention
assert_type(attend(x, x, x, is_causal=True, window=(3, None), query_offset="end"), Array)
assert_type(attend([[1.0]], [[1]], [[1.0]], [[True]], scale=np.float32(1), sinks=0), Array)
assert_type(attend(x, x, x, return_lse=True), OutputLse)
assert_type(attend(x, x, x, return_lse=True).lse, Array)
assert_type(attend(x, x, x, return_weights=True), OutputWeights)
assert_type(attend(x, x, x, return_lse=True, return_weights=True), OutputLseWeights)
assert_type(attend(x, x, x, return_lse=flag, return_weights=flag), Either)


def misspelt() -> None:
    attend(x, x, x, is_casual=True)  # type: ignore[call-overload]


assert_type(fa.self_attention(x), Array)
assert_type(fa.self_attention(x, return_lse=True), OutputLse)
assert_type(fa.self_attention(x, return_weights=True), OutputWeights)
assert_type(fa.self_attention(x, return_lse=True, return_weights=True), OutputLseWeights)
assert_type(fa.self_attention(x, return_lse=flag), Either)


def without_int8() -> None:
    fa.self_attention(x, v_scale=1.0)  # type: ignore[call-overload]


assert_type(fa.attention_steps(x, x, x), fa.AttentionSteps)
assert_type(fa.explain(x, x, x, return_lse=True), fa.AttentionPlan)
assert_type(fa.error_bound(x, x, x), Array)
assert_type(fa.merge_attention([x], [x[..., 0]]), OutputLse)
assert_type(fa.softmax(x, axis=(0, 1), where=x > 0, out=x), Array)
assert_type(fa.log_softmax([1, 2], axis=None), Array)
assert_type(fa.logsumexp(x, keepdims=True), Array)
assert_type(fa.softmax_vjp(x, x), Array)
assert_type(fa.masks.causal(3, 4, query_offset="end"), Array)

assert_type(torch.scaled_dot_product_attention(x, x, x), Array)
assert_type(jax.dot_product_attention(x, x, x), Array)
assert_type(jax.dot_product_attention(x, x, x, return_residual=True), tuple[Array, Array])
y = x[None]  # ONNX has four axes
assert_type(onnx.attention(y, y, y), onnx.AttentionOutputs)
assert_type(onnx.attention(y, y, y, qk_matmul_output_mode=0), onnx.AttentionOutputsAndScores)
