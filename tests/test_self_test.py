"""A kernel set that computes something else is found when it is chosen, and another one is used."""

import os
from pathlib import Path

import faulty_kernels
import numpy as np
import pytest
import support
from spec import CLASSES, attention
from spec.softmax import reduction

from fast_attention import _backend, _self_test, scaled_dot_product_attention, show_config
from fast_attention._descriptor import AttentionDescriptor

needs_native = pytest.mark.skipif(support.native() is None, reason="pure installation")

MODULE = """
import sys
sys.path.append({tests!r})
import faulty_kernels
module = faulty_kernels.load({path!r}, {names!r})
names = [name for name in dir(module._native) + dir(module) if not name.startswith("_")]
globals().update({{name: getattr(module, name) for name in names}})
"""
# Prints the instruction set in use, the warnings of its choice and of everything after it.
CHILD = """
import threading, warnings
import numpy as np
caught = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *rest: caught.append((category, message))
import fast_attention as f
from fast_attention import _backend, _native
tested = dict(_native.module.calls)
x = np.linspace(-1, 1, 400, dtype="f4").reshape(5, 10, 8)
results = []
def call():
    results.append(f.scaled_dot_product_attention(x, x, x))
    f.softmax(x)
call()
thread = threading.Thread(target=call)
thread.start()
thread.join()
with _backend.using("native"):
    call()
isa = f.show_config()["isa"]
right = _native.module._native.plain_attention(
    x, x, x, False, None, 1, "scalar" if isa == "scalar" else _native.module.best
)
print(isa, all((result == right).all() for result in results), sorted(tested))
print(f.show_config()["self_test"])
print(len(caught), *(category.__name__ for category, _ in caught))
print(*(message for _, message in caught))
"""


def results_of(call, compute):
    """Results of a call that `compute` fills."""
    compute(call)
    if isinstance(call, AttentionDescriptor):
        return tuple(result for result in call.results() if result is not None)
    return (call.result(),)


def specified(call, kind):
    """Fill a call with what the specification gives."""
    if isinstance(call, AttentionDescriptor):
        output, lse, _ = attention(call, kind)
        call.output[...] = output
        if call.lse is not None:
            call.lse[...] = lse
    else:
        call.output[...] = reduction(call, kind)


@pytest.mark.parametrize("kind", list(CLASSES))
def test_checksum_is_that_of_the_specification(kind):
    results = [results_of(call, lambda call: specified(call, kind)) for call in _self_test.calls()]
    assert _self_test.checksum(results) == _self_test.CHECKSUMS[kind]


def test_kernels_of_this_machine_pass(native_engine):
    kind = {name: kind for name, _, kind in support.native().isa_table()}[native_engine[1]]
    assert _self_test.failure(support.native(), native_engine[1], kind) is None


@needs_native
def test_one_bit_of_any_result_changes_the_checksum():
    isa = support.NATIVE_ENGINES[-1][1]
    results = [
        tuple(np.array(result) for result in results_of(call, lambda call: fill(call, isa)))
        for call in _self_test.calls()
    ]
    right = _self_test.checksum(results)
    arrays = [array for call in results for array in call]
    assert {array.dtype.name for array in arrays} == {"float16", "float32", "float64"}
    for array in arrays:
        bits = array.view(f"u{array.itemsize}").reshape(-1)
        for place, bit in ((0, 0), (-1, 0), (bits.size // 2, 8 * array.itemsize - 1)):
            bits[place] ^= bits.dtype.type(1 << bit)
            assert _self_test.checksum(results) != right
            bits[place] ^= bits.dtype.type(1 << bit)
    assert _self_test.checksum(results) == right


def fill(call, isa):
    with _backend.using("native", isa):
        (_backend.attend if isinstance(call, AttentionDescriptor) else _backend.reduce)(call)


def test_calls_meet_both_types_many_rows_few_rows_and_both_directions():
    calls = _self_test.calls()
    attentions = [call for call in calls if isinstance(call, AttentionDescriptor)]
    for dtype in ("float32", "float64"):
        rows = {call.n_query for call in attentions if call.compute_dtype == dtype}
        assert min(rows) == 1
        assert max(rows) > 16
        strides = {
            call.x.strides[-1] // call.x.itemsize
            for call in calls
            if call not in attentions and call.compute_dtype == dtype
        }
        assert min(strides) == 1 < max(strides)
    assert all(call.num_threads == 1 for call in calls)


@pytest.fixture
def child(tmp_path):
    """Run code with kernel sets of the given names in place of the compiled ones."""
    if support.native() is None:
        pytest.skip("pure installation")
    tests = str(Path(__file__).parent)

    def run(code, *names, **environment):
        content = MODULE.format(tests=tests, path=support.native().__file__, names=names)
        path = support.copy_of_package(tmp_path, ".py", content.encode())
        done = support.run_python(code, PYTHONPATH=path, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_faulty_kernels_give_way_to_the_next_with_one_warning(child):
    first, found, warned, text = child(CHILD, "scalar", "steady", "faulty")
    assert first == "steady True ['faulty', 'steady']"
    assert found == ("faulty failed: its results differ from the published bits; steady passed")
    assert warned == "1 RuntimeWarning"
    for words in ("faulty", "uses steady", "report", "verify", "FAST_ATTENTION_ISA=steady"):
        assert words in text


def test_only_faulty_kernels_give_way_to_the_lowest_with_one_warning(child):
    first, _, warned, text = child(CHILD, "scalar", "faulty", "raising", "worse")
    assert first == "scalar True ['faulty', 'raising', 'worse']"
    assert warned == "1 RuntimeWarning"
    for words in ("worse: its", "raising: RuntimeError: no such", "faulty: its", "uses scalar"):
        assert words in text


@pytest.mark.parametrize(
    "environment", [{}, {"FAST_ATTENTION_BACKEND": "native"}, {"FAST_ATTENTION_ISA": "steady"}]
)
def test_right_kernels_are_tested_without_a_warning(child, environment):
    first, found, warned, *_ = child(CHILD, "scalar", "steady", **environment)
    assert first == "steady True ['steady']"
    assert (found, warned) == ("steady passed", "0")


def test_kernels_below_those_in_use_are_not_tested(child):
    first, found, warned, *_ = child(CHILD, "scalar", "faulty", "steady")
    assert first == "steady True ['steady']"
    assert (found, warned) == ("steady passed", "0")


def test_lowest_kernels_are_not_tested(child):
    first, found, warned, *_ = child(CHILD, "scalar", "steady", FAST_ATTENTION_ISA="scalar")
    assert first == "scalar True []"
    assert (found, warned) == ("None", "0")


def test_faulty_kernels_asked_for_by_name_are_kept_with_one_warning(child):
    first, found, warned, text = child(
        CHILD, "scalar", "steady", "faulty", FAST_ATTENTION_ISA="faulty"
    )
    assert first == "faulty False ['faulty']"
    assert "faulty failed" in found
    assert warned == "1 RuntimeWarning"
    for words in ("faulty", "FAST_ATTENTION_ISA=faulty", "may be wrong", "report", "verify"):
        assert words in text


FORK = """
import os
import numpy as np
from fast_attention import _native, softmax
before = dict(_native.module.calls)
child = os.fork()
if child == 0:
    softmax(np.array([1.0, 2.0]))
    os._exit(_native.module.calls["steady"] - before["steady"])
print(before["steady"] > 1, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_does_not_test_again(child):
    assert child(FORK, "scalar", "steady") == ["True 1"]


@needs_native
def test_set_named_in_the_program_warns_at_its_first_use_only(monkeypatch, recwarn):
    module = faulty_kernels.Module(support.native(), ("scalar", "steady", "faulty"))
    replace_native(monkeypatch, module)
    x = np.ones((3, 4), np.float32)
    for _ in range(2):
        with _backend.using("native", "faulty"):
            scaled_dot_product_attention(x, x, x)
            assert "faulty failed" in show_config()["self_test"]
    with _backend.using("native", "steady"):
        assert show_config()["self_test"].endswith("steady passed")
    assert [str(each.message).count("using('native')") for each in recwarn] == [1]


def replace_native(monkeypatch, module):
    """Put `module` in place of the compiled one, with nothing known of its kernel sets."""
    native = _backend.Native(module, "a test", module.isa_table())
    monkeypatch.setattr(_backend, "_native", native)
    monkeypatch.setattr(_backend, "_entry", module)
    monkeypatch.setattr(_backend, "_failures", {})
    monkeypatch.setattr(_backend, "_best", None)


LOADED = """
import sys
import numpy
sys.modules["threadpoolctl"] = None  # as if absent: what it loads is its own
before = set(sys.modules)
import fast_attention
print(fast_attention.show_config()["self_test"])
print({"hashlib", "json", "dataclasses", "fast_attention._golden"} & (set(sys.modules) - before))
"""


def test_import_loads_no_digests():
    child = support.run_python(LOADED)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[1] == "set()"
