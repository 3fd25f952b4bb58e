"""ONNX Runtime: the standard operator Attention and its own MultiHeadAttention, on one model each.

Inputs and outputs are values of the runtime, so that no call copies an array.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from ..problems import Array, AttentionProblem, Problem, SoftmaxProblem
from . import Candidate

IR_VERSION, OPSET = 10, 23

_options = onnxruntime.SessionOptions()


def start(threads: int) -> None:
    """Set the threads of a session."""
    _options.intra_op_num_threads = threads
    _options.inter_op_num_threads = 1


def version() -> str:
    """Return ONNX Runtime's version."""
    return str(onnxruntime.__version__)


def candidates(problem: Problem) -> list[Candidate]:
    """Return a run of each operator that computes the problem."""
    if isinstance(problem, SoftmaxProblem):
        name = "Softmax" if problem.case.function == "softmax" else "LogSoftmax"
        call = _session_call(helper.make_node(name, ["x"], ["y"], axis=-1), {"x": problem.matrix})
        return [Candidate(name, call, _to_array)]
    problem.refuse("cache_dtype", why="only float32 is compared with ONNX Runtime")
    grouped = problem.key.shape[1] != problem.query.shape[1]
    mask = problem.mask_or_bias()
    with_heads = not grouped and not problem.case.softcap
    return [_standard(problem, mask), *([_multi_head(problem, mask)] if with_heads else [])]


def _to_array(values: Any) -> Array:
    array: Array = values[0].numpy()
    return array


def _session_call(node: Any, arrays: dict[str, Array]) -> Any:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in arrays.items()
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), _options, providers=["CPUExecutionProvider"]
    )
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in arrays.items()}
    return partial(session.run_with_ort_values, ["y"], values)


def _standard(problem: AttentionProblem, mask: Array | None) -> Candidate:
    """Return the operator of the ONNX standard, heads before positions."""
    arrays = {"q": problem.query, "k": problem.key, "v": problem.value}
    if mask is not None:
        arrays["mask"] = mask
    arrays = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    attributes: dict[str, Any] = {"is_causal": int(problem.is_causal)}
    if problem.case.softcap:
        attributes["softcap"] = problem.case.softcap
    node = helper.make_node("Attention", list(arrays), ["y"], **attributes)
    return Candidate("Attention", _session_call(node, arrays), _to_array)


def _multi_head(problem: AttentionProblem, mask: Array | None) -> Candidate:
    """Return the runtime's own operator, heads after positions and packed into one axis."""
    batch, n_head, n_query, d_head = problem.query.shape
    inputs = {"q": problem.query, "k": problem.key, "v": problem.value}
    arrays = {
        name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, x.shape[2], -1)
        for name, x in inputs.items()
    }
    names = ["q", "k", "v"]
    if mask is not None:
        if mask.dtype == np.bool_:
            mask = np.where(mask, np.float32(0), np.float32(-np.inf))
        arrays["bias"] = np.ascontiguousarray(mask)
        names += ["", "", "bias"]
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        ["y"],
        domain="com.microsoft",
        num_heads=n_head,
        scale=1 / math.sqrt(d_head),
        unidirectional=int(problem.is_causal),
    )

    def unpacked(values: Any) -> Array:
        heads = _to_array(values).reshape(batch, n_query, n_head, d_head)
        return heads.transpose(0, 2, 1, 3)

    return Candidate("MultiHeadAttention", _session_call(node, arrays), unpacked)
