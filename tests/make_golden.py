"""Write the digests of the results that the specification gives: ``python tests/make_golden.py``.

They change only with the version of the arithmetic, or where cases are added: what is on record for
a version stays.
"""

import json
from pathlib import Path

from spec import CLASSES, attention
from spec.softmax import reduction

from fast_attention import _golden
from fast_attention._descriptor import describe_attention
from fast_attention._golden import (
    CASES,
    VERSION,
    Reduction,
    arguments,
    digest_of_inputs,
    digests_of_results,
)
from fast_attention._reduction import Kind, describe_reduction

FILE = Path(_golden.__file__).parent / f"version{VERSION}.json"


def specified(name, kind):
    """Digests of a case, computed by the specification."""
    if isinstance(CASES[name], Reduction):
        return digests_of_results(specified_reduction(CASES[name].function, arguments(name), kind))
    call = describe_attention(**arguments(name))
    return digests_of_results(*attention(call, kind))


def specified_reduction(function, given, kind):
    """Compute a function of the softmax family, in the shape that its caller gets."""
    first = given.pop("grad" if function == "softmax_vjp" else "x")
    call = describe_reduction(Kind[function.upper()], first, **given)
    call.output[...] = reduction(call, kind)
    return call.result()


def record():
    """Everything that the file holds."""
    cases = {
        name: {
            "inputs": digest_of_inputs(arguments(name)),
            **{kind: specified(name, kind) for kind in CLASSES},
        }
        for name in CASES
    }
    return {"arithmetic": VERSION, "hash": "sha256", "cases": cases}


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), indent=1) + "\n")
