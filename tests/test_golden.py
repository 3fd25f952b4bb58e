"""Kernels and specification still give the bits that are on record for this arithmetic."""

import pytest
import support
from make_golden import specified
from spec import CLASSES

import fast_attention
from fast_attention._golden import (
    CASES,
    VERSION,
    Reduction,
    arguments,
    digest_of_inputs,
    digests_of_results,
    read_record,
    without_bfloat16,
)

RECORD = read_record()
NAMES = list(CASES) if support.bfloat16 else without_bfloat16()
RECOMPUTED = ("plain coarse", "odd sizes float64", "softcap", "mixed types", "softmax", "logsumexp")


def test_record_holds_every_case_of_this_version():
    assert list(RECORD) == list(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_a_case_are_those_on_record(name):
    assert digest_of_inputs(arguments(name)) == RECORD[name]["inputs"]


@pytest.mark.parametrize("kind", list(CLASSES))
@pytest.mark.parametrize("name", [name for name in RECOMPUTED if name in NAMES])
def test_specification_gives_the_results_on_record(name, kind):
    assert specified(name, kind) == RECORD[name][kind]


def test_native_arithmetic_has_the_version_on_record():
    if support.native() is None:
        pytest.skip("this is a pure installation")
    assert support.native().ARITHMETIC_VERSION == VERSION


@pytest.mark.parametrize("name", NAMES)
def test_native_gives_the_results_on_record(name, native_engine):
    kind = {isa: kind for isa, _, kind in support.native().isa_table()}[native_engine[1]]
    assert digests_of_results(*computed(name)) == RECORD[name][kind]


def computed(name):
    """Results of the public function."""
    if isinstance(CASES[name], Reduction):
        return (getattr(fast_attention, CASES[name].function)(**arguments(name)),)
    return fast_attention.scaled_dot_product_attention(
        **arguments(name), return_lse=True, return_weights=True
    )
