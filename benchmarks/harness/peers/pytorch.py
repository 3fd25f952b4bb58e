"""PyTorch: ``F.scaled_dot_product_attention`` in inference mode, on tensors that share memory."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ..problems import Array, AttentionProblem, Problem, SoftmaxProblem, UnsupportedError
from . import Candidate

_inference = torch.inference_mode()


def start(threads: int) -> None:
    """Set the threads and switch gradients off for good."""
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    _inference.__enter__()


def version() -> str:
    """Return PyTorch's version and what it may use of the processor."""
    return f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"


def candidates(problem: Problem) -> list[Candidate]:
    """Return the call, with a bool mask also as the float mask that PyTorch makes of it."""
    if isinstance(problem, SoftmaxProblem):
        return [_softmax(problem)]
    return _attention(problem)


def _tensor(array: Array) -> Any:
    """Return `array` as a tensor without a copy; NumPy's bfloat16 has no name there."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_array(tensor: Any) -> Array:
    wide: Array = tensor.to(torch.float32).numpy()
    return wide


def _softmax(problem: SoftmaxProblem) -> Candidate:
    function = getattr(torch, problem.case.function)
    out = {} if problem.out is None else {"out": _tensor(problem.out)}
    call = partial(function, _tensor(problem.matrix), -1, **out)
    return Candidate(f"torch.{problem.case.function}", call, _to_array)


def _attention(problem: AttentionProblem) -> list[Candidate]:
    problem.refuse("softcap", why="no argument of PyTorch's function")
    if problem.case.cache_dtype == "int8":
        raise UnsupportedError("PyTorch's function takes no int8")
    tensors = [_tensor(array) for array in (problem.query, problem.key, problem.value)]
    options = {
        "is_causal": problem.is_causal,
        "enable_gqa": problem.key.shape[1] != problem.query.shape[1],
    }
    call = partial(functional.scaled_dot_product_attention, *tensors, **options)
    mask = problem.mask_or_bias()
    if mask is None:
        return [Candidate("scaled_dot_product_attention", call, _to_array)]
    given = {"mask": _tensor(mask)}
    if mask.dtype == np.bool_:
        given["float mask"] = _tensor(np.where(mask, np.float32(0), np.float32(-np.inf)))
    return [Candidate(name, partial(call, attn_mask=m), _to_array) for name, m in given.items()]
