"""Our own functions, with the compiled kernels or with NumPy alone."""

from functools import partial
from typing import Any

import numpy as np

import fast_attention
from fast_attention import _backend

from ..problems import Problem, SoftmaxProblem
from . import Candidate


def start(threads: int) -> None:
    """Set the threads; BLAS has its own from the environment."""
    fast_attention.set_num_threads(threads)


def version() -> str:
    """Return the version and the instruction set, or NumPy's."""
    backend, isa = _backend.current()
    own = fast_attention.__version__
    return f"{own} {isa}" if backend == "native" else f"{own} on NumPy {np.__version__}"


def candidates(problem: Problem) -> list[Candidate]:
    """Return the plain call."""
    name: str
    call: Any
    if isinstance(problem, SoftmaxProblem):
        name = problem.case.function
        out = {} if problem.out is None else {"out": problem.out}
        call = partial(getattr(fast_attention, name), problem.matrix, **out)
    else:
        name = "scaled_dot_product_attention"
        inputs = (problem.query, problem.key, problem.value)
        call = partial(fast_attention.scaled_dot_product_attention, *inputs, **problem.options)
    return [Candidate(name, call, np.asarray)]
