"""The results of a golden case on the backend in use, and which of them are not those on record."""

from __future__ import annotations

from typing import Any

from .._attention import scaled_dot_product_attention
from .._dtypes import Array
from .._softmax import log_softmax, logsumexp, softmax, softmax_vjp
from .cases import CASES, Reduction
from .digests import digests_of_results

_REDUCTIONS = {each.__name__: each for each in (softmax, log_softmax, logsumexp, softmax_vjp)}


def compute(name: str, arguments: dict[str, Any]) -> tuple[Array, ...]:
    """Return output, lse and weights of a case; of a reduction, its one result."""
    case = CASES[name]
    if isinstance(case, Reduction):
        return (_REDUCTIONS[case.function](**arguments),)
    result = scaled_dot_product_attention(**arguments, return_lse=True, return_weights=True)
    return tuple(result)


def differing(name: str, arguments: dict[str, Any], on_record: dict[str, str]) -> list[str]:
    """Return the names of the results of a case whose digests are not those on record."""
    digests = digests_of_results(*compute(name, arguments))
    return [result for result, digest in digests.items() if digest != on_record[result]]
