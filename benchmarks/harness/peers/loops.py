"""The loops of ``limits``, timed in the same rounds as the libraries."""

import numpy as np

from ..limits import Loops
from ..problems import Problem, SoftmaxProblem
from . import Candidate

_loops: Loops | None = None


def start(threads: int) -> None:
    """Compile the loops."""
    global _loops
    _loops = Loops(threads)


def version() -> str:
    """Return nothing: the loops have no version of their own."""
    return ""


def candidates(problem: Problem) -> list[Candidate]:
    """Return the loop that bounds the case."""
    assert _loops is not None
    limit = problem.case.limit
    if isinstance(problem, SoftmaxProblem):
        call, amount = _loops.copy(problem.matrix.nbytes)
    else:
        call, amount = _loops.fma() if limit == "fma" else _loops.read()
    return [Candidate(str(limit), call, np.asarray, amount)]
