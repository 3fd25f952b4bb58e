"""JAX: ``jax.nn.dot_product_attention``, compiled, on arrays in its own layout (B, L, H, D)."""

import os
from functools import partial
from typing import Any

import numpy as np

from ..problems import Array, AttentionProblem, Problem, SoftmaxProblem, UnsupportedError
from . import Candidate

jax: Any = None


def start(threads: int) -> None:
    """Set the flags, then import JAX: its threads are those of the CPUs of this process."""
    global jax
    os.environ["JAX_PLATFORMS"] = "cpu"
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import jax as module

    jax = module


def version() -> str:
    """Return JAX's version."""
    return str(jax.__version__)


def candidates(problem: Problem) -> list[Candidate]:
    """Return the compiled call, waited for."""
    if isinstance(problem, SoftmaxProblem):
        function = jax.jit(partial(getattr(jax.nn, problem.case.function), axis=-1))
        return [Candidate("jit", _waited(function, problem.matrix), np.asarray)]
    return [_attention(problem)]


def _waited(function: Any, *arrays: Array) -> Any:
    device_arrays = [jax.device_put(array) for array in arrays]
    return lambda: function(*device_arrays).block_until_ready()


def _heads_after_positions(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3))


def _to_array(result: Any) -> Array:
    return np.asarray(result).astype(np.float32).transpose(0, 2, 1, 3)


def _attention(problem: AttentionProblem) -> Candidate:
    problem.refuse("softcap", why="no argument of JAX's function")
    case = problem.case
    if case.cache_dtype == "int8":
        raise UnsupportedError("JAX's function takes no int8")
    options: dict[str, Any] = {"is_causal": case.is_causal}
    arrays = [_heads_after_positions(x) for x in (problem.query, problem.key, problem.value)]
    given: tuple[str, ...] = ()
    if case.window is not None:
        options["local_window_size"] = (case.window - 1, 0)
    elif case.band is not None:
        options["local_window_size"] = (case.band, case.band)
    elif (mask := problem.mask_or_bias()) is not None:
        given = ("mask" if mask.dtype == np.bool_ else "bias",)
        arrays.append(mask)

    def function(query: Any, key: Any, value: Any, *more: Any) -> Any:
        named = dict(zip(given, more, strict=True))
        return jax.nn.dot_product_attention(query, key, value, **named, **options)

    return Candidate("jit", _waited(jax.jit(function), *arrays), _to_array)
