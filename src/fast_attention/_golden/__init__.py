"""The published bits: named calls, and the digests of what they must give.

    streams.py      numbers that are the same on every platform
    cases.py        CASES: the calls, whose arguments are drawn from those numbers
    digests.py      digests of arrays, and the record of those that the specification gives
    version1.json   that record, for version 1 of the arithmetic, both classes
    results.py      what the backend in use gives, and what of it is not on record

``python -m fast_attention verify`` and the tests hold the kernels to it. The record of a version
stays as it is; a new case goes to the end of CASES.
"""

from .cases import CASES, Case, Reduction, arguments, without_bfloat16
from .digests import VERSION, digest_of_inputs, digests_of_results, read_record
from .results import compute, differing

__all__ = [
    "CASES",
    "VERSION",
    "Case",
    "Reduction",
    "arguments",
    "compute",
    "differing",
    "digest_of_inputs",
    "digests_of_results",
    "read_record",
    "without_bfloat16",
]
