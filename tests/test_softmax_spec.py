"""The native softmax family has the bits of its specification, on every instruction set."""

from functools import cache

import numpy as np
import pytest
import support
from spec.softmax import reduction
from spec.softmax_calls import REDUCTIONS, Call

from fast_attention import _backend
from fast_attention._reduction import Kind

CANONICAL_NAN = {"f2": 0x7E00, "bf": 0x7FC0, "f4": 0x7FC00000, "f8": 0x7FF8000000000000}
PAIRS = 50_000


def class_of(engine):
    return {name: kind for name, _, kind in support.native().isa_table()}[engine[1]]


@cache
def specified(name, kind, arithmetic_class):
    return reduction(REDUCTIONS[name]().of(kind), arithmetic_class)


def computed(call):
    _backend.reduce(call)
    return np.array(call.output)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_native_results_have_the_bits_of_the_specification(name, native_engine):
    for kind in Kind:
        result = computed(REDUCTIONS[name]().of(kind))
        support.assert_same_bits(result, specified(name, kind, class_of(native_engine)), kind.name)


@pytest.mark.parametrize("name", [name for name in REDUCTIONS if "axis (" in name])
def test_native_results_in_place_on_two_threads_have_the_bits_of_the_specification(
    name, native_engine
):
    for kind in (Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.SOFTMAX_VJP):
        call = REDUCTIONS[name]()
        result = computed(call.of(kind, num_threads=2, out=call.x))
        support.assert_same_bits(result, specified(name, kind, class_of(native_engine)), kind.name)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("axis", [0, 1])
def test_native_large_call_on_two_threads_has_the_bits_of_the_specification(
    kind, axis, native_engine
):
    """Enough elements that the work is really split."""
    rng = np.random.default_rng(1)
    call = Call(support.normal(rng, 500, 601, size=3.0), axis, rng.random((500, 601), "f4"))
    expected = reduction(call.of(kind), class_of(native_engine))
    support.assert_same_bits(computed(call.of(kind, num_threads=2)), expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_native_exp_of_many_numbers_has_the_bits_of_the_specification(dtype, native_engine):
    """Softmax of two elements: the exponential of the lower one, over 1 more than that."""
    rng = np.random.default_rng(2)
    low = {"f4": -110, "f8": -760}[dtype]
    d = np.concatenate([low * rng.random(PAIRS // 2), -(10 ** rng.uniform(-9, 1.3, PAIRS // 2))])
    pairs = np.stack([np.zeros(PAIRS), d], axis=1).astype(dtype)
    call = Call(pairs).of(Kind.SOFTMAX)
    support.assert_same_bits(computed(call), reduction(call, class_of(native_engine)))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_native_log1p_of_many_numbers_has_the_bits_of_the_specification(dtype, native_engine):
    """Logsumexp of 0 and of one element, or of a few, below it."""
    rng = np.random.default_rng(3)
    for n, low in ((2, -40), (40, -5)):
        rows = np.zeros((4000, n))
        rows[:, 1:] = low * rng.random((4000, n - 1))
        call = Call(rows.astype(dtype)).of(Kind.LOGSUMEXP)
        support.assert_same_bits(computed(call), reduction(call, class_of(native_engine)))


@pytest.mark.parametrize("dtype", [t for t in CANONICAL_NAN if t != "bf" or support.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_native_nan_is_written_in_one_way(dtype, axis, native_engine):
    """Whatever sign and payload came in: sign 0, only the top fraction bit set."""
    x = np.zeros((20, 20), support.bfloat16 if dtype == "bf" else dtype)
    x.view(f"u{x.itemsize}")[3, 3] = {"f2": 0xFE55, "bf": 0xFFC5, "f4": 0xFFC12345}.get(
        dtype, 0xFFF8000000012345
    )
    for kind in Kind:
        result = computed(Call(x, axis, np.ones_like(x)).of(kind))
        found = set(support.bits(result[np.isnan(result)]).tolist())
        assert found == {CANONICAL_NAN[dtype]}, kind


def test_classes_differ_in_ordinary_calls():
    """Else one of them would be untested."""
    for kind in (Kind.SOFTMAX, Kind.SOFTMAX_VJP):
        fused, unfused = (
            specified("f4 size 30.0", kind, arithmetic_class)
            for arithmetic_class in ("fused", "unfused")
        )
        assert (support.bits(fused) != support.bits(unfused)).mean() > 0.05
