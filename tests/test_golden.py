"""Kernels and specification still give the bits that are on record for this arithmetic."""

import json

import pytest
import support
from golden_cases import CASES, Reduction, arguments, digest_of_inputs, digests_of_results
from make_golden import FILE, VERSION, specified
from spec import CLASSES

import fast_attention

RECORD = json.loads(FILE.read_text())
NAMES = [
    name
    for name, case in CASES.items()
    if support.bfloat16 or not ("bf" in case.types or "bf" in case.bias_type)
]
RECOMPUTED = ("plain coarse", "odd sizes float64", "softcap", "mixed types", "softmax", "logsumexp")


def test_record_holds_every_case_of_this_version():
    assert RECORD["arithmetic"] == VERSION
    assert list(RECORD["cases"]) == list(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_a_case_are_those_on_record(name):
    assert digest_of_inputs(name) == RECORD["cases"][name]["inputs"]


@pytest.mark.parametrize("kind", list(CLASSES))
@pytest.mark.parametrize("name", [name for name in RECOMPUTED if name in NAMES])
def test_specification_gives_the_results_on_record(name, kind):
    assert specified(name, kind) == RECORD["cases"][name][kind]


def test_native_arithmetic_has_the_version_on_record():
    if support.native() is None:
        pytest.skip("this is a pure installation")
    assert support.native().ARITHMETIC_VERSION == VERSION


@pytest.mark.parametrize("name", NAMES)
def test_native_gives_the_results_on_record(name, native_engine):
    kind = {isa: kind for isa, _, kind in support.native().isa_table()}[native_engine[1]]
    assert digests_of_results(*computed(name)) == RECORD["cases"][name][kind]


def computed(name):
    """Results of the public function."""
    if isinstance(CASES[name], Reduction):
        return (getattr(fast_attention, CASES[name].function)(**arguments(name)),)
    return fast_attention.scaled_dot_product_attention(
        **arguments(name), return_lse=True, return_weights=True
    )
