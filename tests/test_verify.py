"""``python -m fast_attention verify``: what it says where the bits are right, and where not."""

import importlib.util
import json
import re

import faulty_kernels
import numpy as np
import pytest
import support

from fast_attention import __main__ as command_line
from fast_attention import _backend, _golden

needs_native = pytest.mark.skipif(support.native() is None, reason="pure installation")
VERIFY = "import sys; from fast_attention.__main__ import main; sys.exit(main(sys.argv[1:]))"
KERNELS = ["float32  attention", "float64  attention", "float32  softmax", "float64  softmax"]


def verify(capsys, *arguments):
    """Run ``verify`` in this process and return its exit code and what it prints."""
    code = command_line.main(["verify", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def faulty(monkeypatch):
    """Kernel sets of which the best gives wrong bits."""
    if support.native() is None:
        pytest.skip("pure installation")
    module = faulty_kernels.Module(support.native(), ("scalar", "steady", "faulty"))
    native = _backend.Native(module, "a test", module.isa_table())
    monkeypatch.setattr(_backend, "_native", native)
    monkeypatch.setattr(_backend, "_entry", module)
    monkeypatch.setattr(_backend, "_failures", {})
    with _backend.using("native", "scalar"):  # whatever the environment says
        yield module


@needs_native
def test_every_instruction_set_of_this_machine_gives_the_published_bits(tmp_path):
    child = support.run_python(VERIFY, "verify")
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stderr == ""
    lines = child.stdout.splitlines()
    for _, isa in support.NATIVE_ENGINES:
        found = [line for line in lines if re.match(rf"{isa} .* (\d+) of +\1 identical$", line)]
        assert [line.split(maxsplit=1)[1].partition("   ")[0] for line in found] == KERNELS
    assert lines[-1].startswith("identical to the published bits (arithmetic version 1, ")
    assert max(map(len, lines)) <= 100


def test_one_instruction_set_is_judged_alone(capsys, native_engine, tmp_path):
    file = tmp_path / "verified.json"
    kinds = {name: kind for name, _, kind in support.native().isa_table()}
    code, out, _ = verify(capsys, "--isa", native_engine[1], "--json", str(file))
    verdict = out.splitlines()[-1]
    assert code == 0
    assert verdict == (
        f"identical to the published bits (arithmetic version 1, {kinds[native_engine[1]]})"
    )
    document = json.loads(file.read_text())
    assert (document["agrees"], document["verdict"]) == (True, verdict)
    assert {each["isa"] for each in document["compared"]} == {native_engine[1]}
    counted = sum(each["n_case"] for each in document["compared"])
    assert counted + len(document["left_out"]) == len(_golden.CASES)


def test_wrong_bits_are_named_with_case_result_and_instruction_set(capsys, faulty, tmp_path):
    file = tmp_path / "verified.json"
    code, out, err = verify(capsys, "--json", str(file))
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert "    plain: output, lse, weights" in lines
    assert "    logsumexp: result" in lines
    assert any(re.match(r"faulty +float64  attention +0 of", line) for line in lines)
    assert any(
        re.match(r"steady +float64  attention +(\d+) of +\1 identical", line) for line in lines
    )
    n_case = len(_golden.CASES if support.bfloat16 else _golden.without_bfloat16())
    assert lines[-2] == (
        f"NOT identical to the published bits (arithmetic version 1, {faulty.kind}): faulty "
        f"differs in {n_case} cases"
    )
    assert "report" in lines[-1]
    assert "FAST_ATTENTION_ISA=steady" in lines[-1]
    document = json.loads(file.read_text())
    assert not document["agrees"]
    wrong = [each for each in document["compared"] if each["differing"]]
    assert {each["isa"] for each in wrong} == {"faulty"}
    assert sum(len(each["differing"]) for each in wrong) == n_case


def test_one_wrong_result_of_one_case_is_found(capsys, faulty, monkeypatch):
    def attention(d, isa):
        faulty_kernels.Module.attention(faulty, d, isa)
        if isa == "steady" and d.n_query == 70:  # the case "plain" alone
            d.weights.view("u4").flat[12345] ^= 1

    monkeypatch.setattr(faulty, "attention", attention, raising=False)
    code, out, _ = verify(capsys, "--isa", "steady")
    assert code == 1
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("    ")] == ["    plain: weights"]
    assert lines[-2].endswith("steady differs in 1 case")
    assert "FAST_ATTENTION_ISA" not in lines[-1]


@needs_native
def test_other_inputs_than_those_on_record_are_not_taken_for_wrong_results(capsys, monkeypatch):
    right = _golden.arguments

    def arguments(name):
        given = right(name)
        if name == "softcap":
            given["query"][0, 0, 0] += 1
        return given

    monkeypatch.setattr(_golden, "arguments", arguments)
    code, out, _ = verify(capsys, "--isa", "scalar")
    assert code == 1
    assert [line for line in out.splitlines() if line.startswith("    ")] == ["    softcap: inputs"]


@needs_native
def test_module_of_another_arithmetic_is_refused(capsys, monkeypatch, faulty):
    faulty.ARITHMETIC_VERSION = 7
    code, out, _ = verify(capsys)
    assert code == 1
    assert "arithmetic version 7, the record of version 1" in out


def test_cases_without_ml_dtypes_are_named(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, out, _ = verify(capsys)
    assert code == 0
    left_out = next(line for line in out.splitlines() if line.startswith("left out"))
    assert "ml_dtypes" in left_out
    names = [name for name, case in _golden.CASES.items() if case.has_bfloat16]
    assert left_out.partition(": ")[2].split("; ") == names


def test_numpy_backend_is_held_to_its_bound_and_says_why():
    child = support.run_python(VERIFY, "verify", FAST_ATTENTION_BACKEND="numpy")
    assert child.returncode == 0, child.stdout + child.stderr
    counts = re.search(r"numpy +float32  attention +(\d+) of \1 within the error", child.stdout)
    assert int(counts[1]) >= 25
    assert "no published bits" in child.stdout
    assert "BLAS" in child.stdout
    assert "FAST_ATTENTION_BACKEND=numpy" in child.stdout
    assert "identical" not in child.stdout


def test_numpy_result_out_of_bound_is_found(capsys, monkeypatch):
    right = _backend._numpy.attention

    def attention(d):
        right(d)
        if d.softcap == 1.25 and d.compute_dtype == np.float32:
            d.output[..., -1, -1] *= np.float32(1.01)

    monkeypatch.setattr(_backend._numpy, "attention", attention)
    with _backend.using("numpy"):
        code, out, _ = verify(capsys)
    assert code == 1
    assert [line for line in out.splitlines() if line.startswith("    ")] == ["    softcap: output"]
    assert "NOT within the error bound" in out


def test_pure_installation_is_verified_as_numpy_and_refuses_a_name(tmp_path):
    path = support.copy_of_package(tmp_path)
    child = support.run_python(VERIFY, "verify", PYTHONPATH=path)
    assert child.returncode == 0, child.stdout + child.stderr
    assert "pure install" in child.stdout
    child = support.run_python(VERIFY, "verify", "--isa", "avx2", PYTHONPATH=path)
    assert child.returncode == 2
    assert "--isa avx2 needs the native backend, but this is a pure install" in child.stderr


def test_module_that_does_not_load_is_a_failure(tmp_path):
    path = support.copy_of_package(tmp_path, ".py", b"raise OSError('cannot map')")
    quiet = "import warnings; warnings.simplefilter('ignore'); " + VERIFY
    child = support.run_python(quiet, "verify", PYTHONPATH=path)
    assert child.returncode == 1, child.stdout
    assert "cannot map" in child.stdout


@needs_native
def test_unknown_instruction_set_is_refused_with_the_valid_ones(capsys):
    code, _, err = verify(capsys, "--isa", "avx1024")
    assert code == 2
    assert "'avx1024' is unknown" in err
    assert all(isa in err for _, isa in support.NATIVE_ENGINES)


def test_file_that_cannot_be_written_is_an_error(capsys, tmp_path):
    code, _, err = verify(capsys, "--json", str(tmp_path / "no" / "such.json"))
    assert code == 1
    assert "cannot write" in err
