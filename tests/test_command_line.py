"""The command line: ``info``, and ``compare`` with budgets of a few milliseconds.

Most tests run it as a user would, in a child process.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import support

import fast_attention
from fast_attention import __main__ as command_line
from fast_attention import _backend, _child, _machine, _workloads

README = Path(__file__).parents[1] / "README.md"

FAST = ("--rounds", "1", "--seconds", "0")
NAMES = [workload.name for workload in _workloads.WORKLOADS]

needs_native = pytest.mark.skipif(not support.NATIVE_ENGINES, reason="a pure installation")


def run(*arguments, **environment):
    """Run ``python -m fast_attention`` in a child process."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "fast_attention", *arguments],
        env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def refused(capsys, *arguments):
    """Run ``compare`` with wrong usage and return what it says."""
    with pytest.raises(SystemExit) as exit_info:
        command_line.main(["compare", *arguments])
    assert exit_info.value.code == 2
    return capsys.readouterr().err


def test_info_prints_the_configuration():
    done = run("info")
    assert done.returncode == 0, done.stderr
    here = str(fast_attention.show_config()).splitlines()
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [line.split()[0] for line in here]
    own = "self_test"  # of what each process has chosen so far
    assert [line for line in lines if own not in line] == [line for line in here if own not in line]
    assert fast_attention.__version__ in done.stdout


def test_version_is_printed():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"fast_attention {fast_attention.__version__}\n")


def test_help_names_the_commands_and_gives_examples():
    done = run("--help")
    assert done.returncode == 0
    for text in ("compare", "verify", "info", "examples:", "python -m fast_attention compare"):
        assert text in done.stdout


def test_no_command_is_refused_with_the_commands():
    done = run()
    assert done.returncode == 2
    assert "{compare,verify,info}" in done.stderr


def test_list_names_every_workload_in_100_columns():
    done = run("compare", "--list")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert max(map(len, lines)) <= 100
    assert all(len(workload.shape_text) <= 27 for workload in _workloads.WORKLOADS)


def test_unknown_workload_is_refused_with_the_valid_names(capsys):
    message = refused(capsys, "--workloads", "tiny,enormous")
    assert "unknown workload 'enormous'" in message
    assert ", ".join(NAMES) in message


def test_empty_workload_list_is_refused(capsys):
    assert "no workload given" in refused(capsys, "--workloads", ",")


def test_unknown_dtype_is_refused_with_the_valid_names(capsys):
    message = refused(capsys, "--dtype", "float8")
    assert all(name in message for name in ("float8", *_workloads.DTYPES))


@pytest.mark.parametrize("option", ["--threads", "--rounds"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_count_below_one_is_refused(capsys, option, value):
    assert f"expected an integer of at least 1, got '{value}'" in refused(capsys, option, value)


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "long"])
def test_seconds_that_are_no_duration_are_refused(capsys, value):
    message = refused(capsys, "--seconds", value)
    assert f"expected a number of seconds, got '{value}'" in message


def test_plot_of_unknown_format_is_refused(capsys):
    assert ".png" in refused(capsys, "--plot", "chart.xyz")


def test_without_native_there_is_nothing_to_compare(monkeypatch, capsys):
    monkeypatch.setattr(_backend, "available", lambda: [("numpy", None)])
    assert command_line.main(["compare"]) == 1
    message = capsys.readouterr().err
    assert "nothing to compare" in message
    assert "pip install" in message


@pytest.mark.skipif(bool(support.NATIVE_ENGINES), reason="the native backend is here")
def test_pure_installation_says_that_there_is_nothing_to_compare():
    done = run("compare")
    assert done.returncode == 1
    assert "nothing to compare" in done.stderr
    assert "Traceback" not in done.stderr


@needs_native
def test_compare_every_workload_agrees_within_the_bound(tmp_path):
    path = tmp_path / "result.json"
    done = run("compare", *FAST, "--threads", "1", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    for name in NAMES:
        assert re.search(rf"^{name} .*x ", done.stdout, re.MULTILINE), name
    for text in ("geometric mean", "lowest", "CPU", "OpenBLAS" if _kernel() else "NumPy"):
        assert text.lower() in done.stdout.lower()
    assert [entry["name"] for entry in json.loads(path.read_text())["results"]] == NAMES


def _kernel():
    kernel = _machine.blas_facts()["kernel"]
    return None if kernel == "unknown" else kernel


@needs_native
@pytest.mark.parametrize("dtype", _workloads.DTYPES)
def test_compare_json_holds_facts_samples_and_summary(tmp_path, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    path = tmp_path / "result.json"
    chosen = ("--workloads", "sentence-encoder,tiny", "--rounds", "3", "--threads", "1")
    done = run("compare", *chosen, "--dtype", dtype, "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    facts, results = document["facts"], document["results"]
    assert (facts["threads"], facts["dtype"]) == (1, dtype)
    assert facts["version"] == fast_attention.__version__
    assert facts["cpu"]
    assert facts["blas"]["threads"] in (1, None)
    assert [entry["name"] for entry in results] == ["sentence-encoder", "tiny"]
    for entry in results:
        for side in ("native", "numpy"):
            assert len(entry[side]["samples"]) == 3
            assert entry[side]["median"] == sorted(entry[side]["samples"])[1] > 0
        assert entry["speed_up"] == entry["numpy"]["median"] / entry["native"]["median"]
        assert 0 <= entry["difference_in_bounds"] <= 2
    assert document["summary"]["complete"]
    ratios = [entry["speed_up"] for entry in results]
    assert math.isclose(document["summary"]["geometric_mean"], math.sqrt(ratios[0] * ratios[1]))
    assert document["summary"]["worst"]["speed_up"] == min(ratios)


@needs_native
def test_forced_openblas_kernel_does_not_reach_the_measurement(tmp_path):
    path = tmp_path / "result.json"
    forced = {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "7"}
    run("compare", *FAST, "--workloads", "tiny", "--threads", "2", "--json", str(path), **forced)
    blas = json.loads(path.read_text())["facts"]["blas"]
    assert blas["kernel"] != "Prescott"
    assert blas["threads"] in (2, None)


@pytest.fixture
def heeded_interrupts():
    """Let children heed SIGINT, even where a shell's background job inherited it as ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@needs_native
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.usefixtures("heeded_interrupts")
def test_interrupt_shows_what_was_measured_so_far(tmp_path):
    path = tmp_path / "result.json"
    command = [sys.executable, "-m", "fast_attention", "compare", "--workloads"]
    options = ["tiny,encoder-512", "--rounds", "400", "--threads", "1", "--json", str(path)]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("tiny "):
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "geometric mean of 1" in out
    assert "interrupted after 1 of 2 workloads" in err
    assert "Traceback" not in err
    assert not json.loads(path.read_text())["summary"]["complete"]


def test_child_environment_sets_blas_threads_and_drops_overrides(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setenv("OPENBLAS_L2_SIZE", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "9")
    environment = _child.child_environment(3)
    assert all(environment[name] == "3" for name in _child.BLAS_THREADS)
    assert not set(environment) & {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}
    assert os.environ["MKL_NUM_THREADS"] == "9"


def test_readme_code_runs():
    if not README.exists():
        pytest.skip("no README beside these tests")
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    threads = fast_attention.get_num_threads()
    try:
        exec(compile("\n".join(blocks), str(README), "exec"), {})
    finally:
        fast_attention.set_num_threads(threads)
