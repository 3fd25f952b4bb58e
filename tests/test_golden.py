"""Kernels and specification still give the bits that are on record for this arithmetic."""

import numpy as np
import pytest
import support
from make_golden import specified
from spec import CLASSES

from fast_attention._golden import (
    CASES,
    VERSION,
    arguments,
    compute,
    differing,
    digest_of_inputs,
    digests_of_results,
    read_record,
    without_bfloat16,
)

RECORD = read_record()
NAMES = list(CASES) if support.bfloat16 else without_bfloat16()
needs_native = pytest.mark.skipif(support.native() is None, reason="pure installation")
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


@needs_native
def test_native_arithmetic_has_the_version_on_record():
    assert support.native().ARITHMETIC_VERSION == VERSION


@pytest.mark.parametrize("name", NAMES)
def test_native_gives_the_results_on_record(name, native_engine):
    kind = {isa: kind for isa, _, kind in support.native().isa_table()}[native_engine[1]]
    assert differing(name, arguments(name), RECORD[name][kind]) == []


@needs_native
@pytest.mark.parametrize("name", ["plain", "log_softmax float64"])
def test_result_with_one_other_bit_is_named(name):
    on_record = RECORD[name]["fused"]
    altered = [np.array(result) for result in compute(name, arguments(name))]
    assert differing(name, arguments(name), digests_of_results(*altered)) == []
    last = support.bits(altered[-1]).reshape(-1)
    last[-1] ^= last.dtype.type(1)
    assert differing(name, arguments(name), digests_of_results(*altered)) == [list(on_record)[-1]]
