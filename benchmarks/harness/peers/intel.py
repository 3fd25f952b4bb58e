"""OpenVINO: the operation ScaledDotProductAttention of opset 13, compiled for latency."""

import importlib
import sys
from typing import Any

import numpy as np

from ..problems import Array, AttentionProblem, Problem, SoftmaxProblem, UnsupportedError
from . import Candidate

openvino: Any = None
opset13: Any = None
_core: Any = None
_config: dict[str, Any] = {}


def start(threads: int) -> None:
    """Import OpenVINO; set the threads, one stream, and float32 whatever the processor has."""
    global openvino, opset13, _core
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # it forks and calls home
    openvino = importlib.import_module("openvino")
    opset13 = importlib.import_module("openvino.opset13")
    _core = openvino.Core()
    _config.update(
        PERFORMANCE_HINT="LATENCY",
        INFERENCE_NUM_THREADS=threads,
        NUM_STREAMS=1,
        INFERENCE_PRECISION_HINT="f32",
        ENABLE_CPU_PINNING=False,
    )


def version() -> str:
    """Return OpenVINO's version."""
    return str(openvino.__version__).partition("-")[0]


def candidates(problem: Problem) -> list[Candidate]:
    """Return an inference on tensors that share memory with the arrays."""
    if isinstance(problem, SoftmaxProblem):
        return [_softmax(problem)]
    return [_attention(problem)]


def _inference(result: Any, parameters: list[Any], arrays: list[Array]) -> Any:
    model = openvino.Model([result], parameters)
    request = _core.compile_model(model, "CPU", _config).create_infer_request()
    tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
    for index, tensor in enumerate(tensors):
        request.set_input_tensor(index, tensor)

    def call(_kept: object = (arrays, tensors)) -> Array:  # a request does not keep them alive
        request.infer()
        output: Array = request.get_output_tensor(0).data
        return output

    return call


def _parameter(array: Array) -> Any:
    kind = openvino.Type.boolean if array.dtype == np.bool_ else openvino.Type.f32
    return opset13.parameter(list(array.shape), kind)


def _softmax(problem: SoftmaxProblem) -> Candidate:
    name = problem.case.function
    operation = opset13.softmax if name == "softmax" else opset13.log_softmax
    parameter = _parameter(problem.matrix)
    result = operation(parameter, -1)
    return Candidate(name, _inference(result, [parameter], [problem.matrix]), np.asarray)


def _attention(problem: AttentionProblem) -> Candidate:
    problem.refuse("softcap", why="no input of OpenVINO's operation")
    problem.refuse("cache_dtype", why="only float32 is compared with OpenVINO")
    inputs = (problem.query, problem.key, problem.value)
    arrays = [np.ascontiguousarray(array) for array in inputs]
    grouped = problem.key.shape[1] != problem.query.shape[1]
    if grouped:  # the axis of groups broadcasts
        batch, n_kv_head = problem.key.shape[:2]
        arrays = [x.reshape(batch, n_kv_head, -1, *x.shape[2:]) for x in arrays]
    if (mask := problem.mask_or_bias()) is not None:
        arrays.append(np.ascontiguousarray(mask))
    parameters = [_parameter(array) for array in arrays]
    causal = problem.is_causal
    try:
        result = opset13.scaled_dot_product_attention(*parameters, causal=causal)
        call = _inference(result, parameters, arrays)
    except RuntimeError as error:
        raise UnsupportedError(str(error).strip().splitlines()[-1]) from error
    shape = problem.query.shape
    return Candidate("SDPA", call, lambda result: np.asarray(result).reshape(shape))
