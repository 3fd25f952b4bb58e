"""The benchmark: its cases, what it makes of results, and one real run of the smallest case.

Results of other libraries are made up, so that none has to be installed and none has to be slow.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import support

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
if not BENCHMARKS.exists():  # where a wheel is tested
    pytest.skip("the benchmarks are not beside the tests", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import run as benchmark  # noqa: E402
from harness import cases, judge, limits, problems, report, rounds, worker  # noqa: E402
from harness.peers import own  # noqa: E402

from fast_attention import log_softmax, scaled_dot_product_attention  # noqa: E402

NAMES = list(cases.BY_NAME)
MEASURES = {
    "fma",
    "read",
    "copy",
    "numpy_fma",
    "one_thread",
    "base",
    "microseconds",
    *report.LABELS,
}
HAS_NATIVE = bool(support.NATIVE_ENGINES)
# A mask that says what an option says gives other roundings, nothing more.
TOLERANCE = 2e-6


def small(name, **fields):
    """Return the case `name` with sizes that cost nothing."""
    return dataclasses.replace(
        cases.BY_NAME[name], n_head=2, d_head=8, n_query=48, n_key=48, **fields
    )


def side(seconds, amount=None):
    samples = [0.9 * seconds, seconds, 1.1 * seconds]
    return {"median": seconds, "samples": samples, "amount": amount, "candidate": "call"}


def result(name, native=1e-3, left_out=None, **others):
    """Return a result in which every other side takes `others` times as long as the native one.

    The amount of a loop makes our share of its rate what ``fma``, ``read`` or ``copy`` says.
    """
    case = cases.BY_NAME[name]
    sides = {"native": side(native)}
    for other, ratio in others.items():
        if other in judge.LIMITS:
            work = case.flops if other == "fma" else case.bytes
            sides[other] = side(native, work / ratio)
        else:
            sides[other] = side(native / ratio if other == "base" else native * ratio)
    return {"name": name, "left_out": left_out or {}, "sides": sides}


FACTS = {
    "cpu": "A processor",
    "cores": 1,
    "logical_cpus": 2,
    "caches": ["L1 32K"],
    "compiler": "some compiler",
    "system": "Linux x86_64",
    "python": "3.11.0",
    "blas": {"name": "some-blas", "version": "1", "kernel": "Fast", "threads": 1},
    "versions": {"native": "1.2.3 avx2", "numpy": "1.2.3 on NumPy 2.0.0", "torch": "9.9"},
}


@pytest.fixture
def stored(tmp_path):
    """Write results as a run does and return the path."""

    def store(*results):
        path = tmp_path / "stored.json"
        document = {"facts": FACTS, "complete": True, "results": results}
        path.write_text(json.dumps(document))
        return str(path)

    return store


@pytest.mark.parametrize("name", NAMES)
def test_case_is_well_formed(name):
    case = cases.BY_NAME[name]
    assert set(case.targets) <= MEASURES
    assert all(bound > 0 for bound in case.targets.values())
    assert case.limit in (None, "fma", "read", "copy")
    for limit in judge.LIMITS:
        assert limit not in case.targets or case.limit == limit
    assert ("base" in case.targets) == (case.base is not None)
    assert "one_thread" not in case.targets or case.threads > 1
    assert "microseconds" not in case.targets or case.limit is None
    if case.base is not None:
        base = cases.BY_NAME[case.base]
        assert (base.n_head, base.n_query, base.n_key) == (case.n_head, case.n_query, case.n_key)
        assert base.threads == case.threads


def test_names_are_unique_and_selected_rows_exist():
    assert len(cases.BY_NAME) == len(cases.CASES)
    assert set(report.SELECTED) <= set(cases.BY_NAME)


def test_every_target_has_a_side_that_measures_it():
    for case in cases.CASES:
        sides = {side.name for side in rounds.sides_of(case, tuple(benchmark.MODULES))}
        assert set(case.targets) - {"numpy_fma", "microseconds"} <= sides
        assert "numpy_fma" not in case.targets or {"numpy", "fma"} <= sides


@pytest.mark.parametrize(
    "case",
    [
        small("forward-128-64"),
        small("causal-512-64"),
        small("window"),
        small("window", band=5),
        small("window-16", window=4),
        small("mask-triangle"),
        small("mask-all"),
        small("mask-documents"),
    ],
    ids=lambda case: f"{case.name}-{case.band or case.window}",
)
def test_visible_pairs_are_those_with_weight(case):
    problem = problems.make_problem(case)
    inputs = (problem.query, problem.key, problem.value)
    weights = scaled_dot_product_attention(*inputs, **problem.options, return_weights=True).weights
    assert (weights[0, 0] > 0).sum() == case.visible_pairs


@pytest.mark.parametrize(
    "name",
    [
        "mask-bool",
        "bias-shared",
        "mask-bias",
        "bias-heads",
        "window",
        "alibi",
        "window-16",
        "mask-documents",
    ],
)
def test_mask_given_to_other_libraries_means_the_same_as_our_options(name):
    fields = {"window": 4} if name == "window-16" else {"band": 5} if name == "window" else {}
    problem = problems.make_problem(small(name, **fields))
    inputs = (problem.query, problem.key, problem.value)
    ours = scaled_dot_product_attention(*inputs, **problem.options)
    theirs = scaled_dot_product_attention(*inputs, attn_mask=problem.mask_or_bias())
    plain = scaled_dot_product_attention(*inputs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    assert not np.allclose(ours, plain, rtol=0, atol=1e-3)


def test_strided_case_holds_the_numbers_of_the_plain_one_in_another_order():
    strided = problems.make_problem(small("views-512-64"))
    plain = problems.make_problem(small("views-512-64", strided=False))
    assert np.array_equal(strided.key, plain.key)
    assert strided.key.transpose(0, 2, 1, 3).flags.c_contiguous
    assert plain.key.flags.c_contiguous


def test_int8_case_approximates_the_float32_one():
    case = small("decode-32-int8", n_kv_head=2)
    exact = problems.make_problem(dataclasses.replace(case, cache_dtype=None))
    stored = problems.make_problem(case)
    assert stored.key.dtype == np.int8
    np.testing.assert_allclose(stored.key * stored.options["k_scale"], exact.key, atol=0.02)


def test_our_own_adapter_calls_what_the_case_says():
    attention = problems.make_problem(small("alibi"))
    inputs = (attention.query, attention.key, attention.value)
    (candidate,) = own.candidates(attention)
    expected = scaled_dot_product_attention(*inputs, **attention.options)
    assert np.array_equal(candidate.to_array(candidate.call()), expected)
    softmax = problems.make_problem(cases.BY_NAME["log-softmax-4096"])
    (candidate,) = own.candidates(softmax)
    assert candidate.call() is softmax.out
    assert np.array_equal(softmax.out, log_softmax(softmax.matrix))


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (np.ones((2, 3)), "shape"),
        (np.ones((3, 2)) + 1e-3, "differs"),
        (np.nan * np.ones((3, 2)), "differs"),
    ],
)
def test_result_that_disagrees_is_refused(expected, message):
    case = cases.BY_NAME["tiny"]
    worker.check_agreement(case, np.ones((3, 2), np.float32), np.ones((3, 2), np.float32))
    with pytest.raises(worker.DisagreementError, match=message):
        worker.check_agreement(case, np.ones((3, 2), np.float32), expected)


def test_loops_do_what_their_names_say():
    try:
        loops = limits.Loops(2)
    except problems.UnsupportedError as reason:
        pytest.skip(str(reason))
    source = np.arange(4096, dtype=np.float32)
    target = np.zeros_like(source)
    loops.library.copy_loop(target.ctypes.data, source.ctypes.data, source.size)
    assert np.array_equal(target, source)
    ones = np.ones(4096, np.float32)
    n_chain = round(loops.library.fma_loop(100, 0.5, 1.0)) // 2  # x * 0.5 + 1 tends to 2 in each
    assert n_chain in (12, 16)
    lanes = loops.library.fma_flops_per_turn() // (2 * n_chain)
    assert loops.library.read_loop(ones.ctypes.data, ones.size) == ones.size / lanes
    call, amount = loops.copy(4096)
    call()
    assert amount == 4096


def test_check_passes_when_every_target_is_met(stored, capsys):
    met = result("forward-512-64", numpy=1.4, torch=1.25, jax=1.0, fma=0.81)
    code = benchmark.main(["--from", stored(met), "--check"])
    out = capsys.readouterr().out
    assert code == 0
    assert "MISSED" not in out
    assert "4 of 4 targets met in 1 of" in out
    assert "openvino" in out  # a target, but not measured


@pytest.mark.parametrize(
    ("name", "missed", "sides"),
    [
        ("forward-512-64", "torch", {"torch": 1.2, "fma": 0.9}),
        ("forward-512-64", "fma", {"torch": 1.3, "fma": 0.79}),
        ("decode-32", "read", {"torch": 2.1, "read": 0.8}),
        ("softmax-4096", "copy", {"torch": 2.0, "copy": 0.6}),
        ("views-512-64", "base", {"torch": 2.0, "base": 1.2}),
        ("threads-forward-1024-64", "one_thread", {"torch": 2.0, "one_thread": 1.7}),
    ],
)
def test_check_fails_and_names_the_target_that_is_missed(stored, capsys, name, missed, sides):
    code = benchmark.main(["--from", stored(result(name, **sides)), "--check"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "MISSED" in line]
    assert code == 1
    assert len(lines) == 1
    assert lines[0].split()[:2] == [name, missed]


def test_check_judges_the_time_of_a_tiny_call(stored):
    assert benchmark.main(["--from", stored(result("tiny", native=2.9e-6)), "--check"]) == 0
    assert benchmark.main(["--from", stored(result("tiny", native=3.1e-6)), "--check"]) == 1


def test_check_fails_without_our_own_time(stored, capsys):
    broken = result("tiny", numpy=20.0, left_out={"native": "ended with code -11"})
    del broken["sides"]["native"]
    good = result("forward-512-64", torch=1.3)
    code = benchmark.main(["--from", stored(broken, good), "--check", "--cases", "tiny,forward"])
    assert code == 1
    assert "ended with code -11" in capsys.readouterr().out


def test_ratios_are_of_the_same_round():
    uneven = result("forward-512-64", torch=2.0)
    uneven["sides"]["native"]["samples"] = [1.0, 2.0, 10.0]
    uneven["sides"]["torch"]["samples"] = [3.0, 1.0, 30.0]
    assert judge.ratios(uneven)["torch"] == 3.0


def test_short_table_keeps_the_rows_where_another_library_is_faster(stored, tmp_path):
    slower, faster = result("causal-512-64", torch=0.8), result("causal-4096-64", torch=1.5)
    path = tmp_path / "README.md"
    path.write_text("before\n{}\nold\n{}\nafter\n".format(*report.MARKERS))
    assert benchmark.main(["--from", stored(slower, faster), "--markdown", str(path)]) == 0
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "causal-512-64" in text
    assert "**0.80x**" in text
    assert "causal-4096-64" not in text


def test_rows_of_the_table_have_the_columns_of_its_head(stored, tmp_path):
    path = tmp_path / "table.md"
    rows = result("tiny", numpy=10.0), result("decode-32", numpy=1.5, torch=2.0, read=0.7)
    assert benchmark.main(["--from", stored(*rows), "--full", str(path)]) == 0
    text, missed = path.read_text().split("Missed:")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert "70 % read" in table[2]  # in the order in which cases are declared
    assert "2.00x (2 to 2)" in table[2]
    assert "| decode-32 | read 0.70 (>= 0.85) |" in missed


def test_single_round_has_no_quartiles(stored, tmp_path):
    once = result("tiny", numpy=10.0)
    for measured in once["sides"].values():
        measured["samples"] = measured["samples"][:1]
    path = tmp_path / "table.md"
    assert benchmark.main(["--from", stored(once), "--full", str(path)]) == 0
    assert "| 10.00x |" in path.read_text()


def test_tables_of_the_repository_are_those_of_the_stored_run():
    results = BENCHMARKS / "results"
    document = benchmark.read([results / "attention.json"])
    facts, rows = document["facts"], document["results"]
    for path, is_short in ((BENCHMARKS.parent / "README.md", True), (results / "README.md", False)):
        table = report.markdown_text(facts, rows, is_short=is_short)
        assert table in path.read_text(encoding="utf-8")


def test_plot_is_written(stored, tmp_path):
    pytest.importorskip("matplotlib")
    names = [name for name in NAMES if name.startswith("forward")]
    path = tmp_path / "plot.png"
    results = [result(name, numpy=2.0, torch=1.3, fma=0.8) for name in names]
    assert benchmark.main(["--from", stored(*results), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_results_of_several_runs_are_one_and_the_last_counts(stored, tmp_path):
    first = stored(result("tiny", numpy=5.0), result("decode-32", torch=2.0))
    second = Path(first).rename(tmp_path / "first.json")
    first = stored(result("tiny", numpy=9.0))
    found = benchmark.read([second, Path(first)])["results"]
    assert [r["name"] for r in found] == ["decode-32", "tiny"]
    assert judge.ratios(found[1])["numpy"] == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "nothing*"], "no case is called 'nothing*'"),
        (["--peers", "native,tensorflow"], "tensorflow"),
        (["--python", "torch=/absent/python"], "expected PEER=FILE"),
        (["--cpus", "first"], "expected numbers of CPUs"),
    ],
)
def test_wrong_option_is_refused_before_anything_is_measured(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_real_run_of_the_smallest_case(tmp_path, capsys):
    path = tmp_path / "real.json"
    arguments = ["--cases", "tiny", "--peers", "native,numpy", "--rounds", "3"]
    code = benchmark.main([*arguments, "--json", str(path)])
    document = json.loads(path.read_text())
    assert code == 0
    assert document["complete"]
    assert document["facts"]["cpu"]
    (measured,) = document["results"]
    if not HAS_NATIVE:
        assert "native" in measured["left_out"]
        return
    assert measured["left_out"] == {}
    assert {len(s["samples"]) for s in measured["sides"].values()} == {3}
    assert measured["ratios"]["numpy"] > 0
    assert "tiny" in capsys.readouterr().out


@pytest.mark.skipif(not HAS_NATIVE, reason="a pure installation has no time of its own")
def test_library_that_does_not_start_is_left_out_and_the_others_go_on(tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    path = tmp_path / "real.json"
    arguments = ["--cases", "tiny", "--peers", "native,torch", "--rounds", "1"]
    python = ["--python", f"torch={program}"]
    assert benchmark.main([*arguments, *python, "--json", str(path)]) == 0
    (measured,) = json.loads(path.read_text())["results"]
    assert measured["left_out"] == {"torch": "ended with code 3"}
    assert set(measured["sides"]) == {"native"}
