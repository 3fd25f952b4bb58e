"""SciPy: softmax and log_softmax; one thread always."""

from functools import partial

import numpy as np
import scipy
import scipy.special

from ..problems import Problem, SoftmaxProblem, UnsupportedError
from . import Candidate


def start(threads: int) -> None:
    """Do nothing: SciPy has no threads here."""


def version() -> str:
    """Return SciPy's version."""
    return str(scipy.__version__)


def candidates(problem: Problem) -> list[Candidate]:
    """Return SciPy's function of the same name."""
    if not isinstance(problem, SoftmaxProblem):
        raise UnsupportedError("SciPy has no attention")
    function = getattr(scipy.special, problem.case.function)
    return [Candidate(function.__name__, partial(function, problem.matrix, axis=-1), np.asarray)]
