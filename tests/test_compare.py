"""What ``compare`` makes of the reports of its measuring process, and the bound that it judges by.

The measuring process is made up here, because what matters (a difference out of bound, a crash,
Ctrl-C in the middle) cannot be provoked in a real one. ``test_command_line.py`` runs real ones.
"""

import contextlib
import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
import support

from fast_attention import __main__ as command_line
from fast_attention import _backend, _bound, _compare, _descriptor, _report, _workloads

NAMES = [workload.name for workload in _workloads.WORKLOADS]


def result(name="tiny", *, native=1e-3, numpy=2e-3, difference=0.01, within=True):
    """One line of the report, as the measuring process writes it."""

    def side(median):
        samples = [0.9 * median, median, 1.1 * median]
        quartiles = {"first_quartile": 0.95 * median, "third_quartile": 1.05 * median}
        return {"median": median, **quartiles, "samples": samples, "inner": 1}

    return {
        "event": "result",
        "name": name,
        "speed_up": numpy / native,
        "largest_difference": 1e-7,
        "difference_in_bounds": difference,
        "within_bound": within,
        "native": side(native),
        "numpy": side(numpy),
    }


FACTS = {
    "event": "facts",
    "cpu": "A processor",
    "logical_cpus": 2,
    "load_average": 0.1,
    "system": "Linux x86_64",
    "version": "1.2.3",
    "isa": "avx2",
    "python": "3.11.0",
    "numpy": "2.0.0",
    "blas": {"name": "some-blas", "version": "1", "kernel": "Fast", "threads": 2},
    "commit": None,
}


class MadeUpProcess:
    """A measuring process that reports what it is told to, then ends with `code`."""

    def __init__(self, events, code):
        self.stdout = self._lines(events)
        self.code = code

    def _lines(self, events):
        for event in events:
            if event is KeyboardInterrupt:
                raise KeyboardInterrupt
            yield json.dumps(event) + "\n"

    def wait(self, timeout=None):
        return self.code


@pytest.fixture
def compare(monkeypatch, capsys):
    """Run ``compare`` in this process against a made-up measuring process."""

    def call(events, *arguments, code=0):
        @contextlib.contextmanager
        def measuring_process(request, threads):
            yield MadeUpProcess(events, code)

        monkeypatch.setattr(_compare, "measuring_process", measuring_process)
        monkeypatch.setattr(_backend, "available", lambda: [("numpy", None), ("native", "avx2")])
        status = command_line.main(["compare", *arguments])
        captured = capsys.readouterr()
        return SimpleNamespace(code=status, out=captured.out, err=captured.err)

    return call


@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_file_in_a_missing_folder_is_refused_before_measuring(compare, tmp_path, option):
    done = compare([], option, str(tmp_path / "absent" / "file"))
    assert done.code == 2
    assert "there is no folder" in done.err
    assert str(tmp_path / "absent") in done.err


def test_markdown_into_a_file_without_markers_is_refused(compare, tmp_path):
    path = tmp_path / "notes.md"
    path.write_text("precious")
    done = compare([FACTS, result(), {"event": "done"}], "--markdown", str(path))
    assert done.code == 2
    assert _report.MARKERS[0] in done.err
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("module", "arguments", "advice"),
    [
        ("matplotlib", ("--plot", "chart.png"), 'pip install "fast-attention[plot]"'),
        ("ml_dtypes", ("--dtype", "bfloat16"), "pip install ml_dtypes"),
    ],
)
def test_missing_package_is_named_with_its_remedy_in_one_line(
    compare, monkeypatch, module, arguments, advice
):
    monkeypatch.setitem(sys.modules, module, None)
    done = compare([], *arguments)
    assert done.code == 2
    assert advice in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_difference_out_of_bound_fails(compare, tmp_path):
    path = tmp_path / "result.json"
    bad = result("gpt-decode", difference=math.nan, within=False)
    done = compare([FACTS, result(), bad, {"event": "done"}], "--json", str(path))
    assert done.code == 1
    assert "OUT OF BOUND" in done.out
    assert "NOT all within" in done.out
    document = json.loads(path.read_text())
    assert document["results"][1]["difference_in_bounds"] is None
    assert not document["summary"]["within_bound"]


def test_failed_workload_is_shown_and_the_others_go_on(compare):
    failed = {"event": "failed", "name": "gpt-decode", "error": "MemoryError: no room"}
    done = compare([FACTS, failed, result(), {"event": "done"}])
    assert done.code == 1
    assert "failed: MemoryError: no room" in done.out
    assert "geometric mean of 1: 2.00x" in done.out


def test_crash_of_the_measuring_process_is_reported(compare):
    start = {"event": "start", "name": "gpt-decode"}
    done = compare([FACTS, result(), start], code=-11)
    assert done.code == 1
    assert "ended by signal 11 in the workload gpt-decode" in done.err
    assert "geometric mean of 1" in done.out


def test_interrupt_before_the_first_result_ends_cleanly(compare):
    done = compare([FACTS, KeyboardInterrupt], "--workloads", "tiny")
    assert done.code == 130
    assert "nothing was measured" in done.out
    assert "interrupted after 0 of 1 workloads" in done.err


def test_table_fits_100_columns_and_is_plain_ascii(compare):
    events = [result(name, numpy=0.25, native=0.0123) for name in NAMES]
    done = compare([FACTS, *events, {"event": "done"}])
    assert done.code == 0
    assert done.out.isascii()
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize(("load", "is_noted"), [(0.5, False), (5.0, True), (None, False)])
def test_busy_machine_is_noted(compare, load, is_noted):
    done = compare([{**FACTS, "load_average": load}, result(), {"event": "done"}])
    assert ("other processes disturb" in done.out) == is_noted


def test_progress_when_piped_is_one_line_for_each_workload(compare):
    start = {"event": "start", "name": "tiny"}
    rounds = [{"event": "round", "name": "tiny", "done": done} for done in range(5)]
    done = compare([FACTS, start, *rounds, result(), {"event": "done"}], "--workloads", "tiny")
    assert done.err == "[1/1] tiny\n"


def test_markdown_replaces_only_what_is_between_the_markers(compare, tmp_path):
    path = tmp_path / "README.md"
    begin, end = _report.MARKERS
    path.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    done = compare([FACTS, result(), {"event": "done"}], "--markdown", str(path))
    assert done.code == 0
    text = path.read_text()
    assert text.startswith(f"before\n{begin}\n")
    assert text.endswith(f"\n{end}\nafter\n")
    assert "old" not in text
    assert "| 1.00 ms | 2.00 ms | 2.00x | 0.010 |" in text


def test_markdown_creates_a_file_that_it_can_renew(compare, tmp_path):
    path = tmp_path / "table.md"
    for ratio in (2, 3):
        events = [FACTS, result(numpy=ratio * 1e-3), {"event": "done"}]
        assert compare(events, "--markdown", str(path)).code == 0
    assert "3.00x" in path.read_text()
    assert "2.00x" not in path.read_text()


@pytest.mark.parametrize("suffix", _compare.PLOT_SUFFIXES)
def test_plot_is_written(compare, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chart{suffix}"
    failed = {"event": "failed", "name": "alibi", "error": "MemoryError"}
    events = [FACTS, result(), failed, result("gpt-decode"), {"event": "done"}]
    compare(events, "--plot", str(path))
    assert path.stat().st_size > 1000
    assert suffix != ".png" or path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.21e-6, "3.21 us"),
        (9.996e-4, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.5, "500 ms"),
        (2, "2.00 s "),
    ],
)
def test_time_text_has_three_digits(seconds, text):
    assert _report.time_text(seconds) == text


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "query_offset": "end", "kv_lengths": [150, 40]},
        {"window": (20, 3), "query_offset": 5},
        {"attn_mask": "bool", "bias": "float", "scale": -0.3},
        {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "softcap": 5.0, "query_offset": 100},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_error_bound_is_that_of_the_oracle(dtype, options):
    arrays = support.qkv(7, lead=(2,), heads=4, kv_heads=2, n_query=9, n_key=150, dtype=dtype)
    rng = np.random.default_rng(8)
    drawn = {"bool": rng.random((9, 150)) < 0.3, "float": support.normal(rng, 4, 9, 150)}
    options = {
        name: drawn[value] if isinstance(value, str) and value in drawn else value
        for name, value in options.items()
    }
    described = _descriptor.describe_attention(*arrays, **options)
    expected = oracle.attention(*arrays, **options)
    bound = _bound.arithmetic_bound(described)
    rounding = oracle.half_ulp(np.abs(expected.output) + bound[..., None], arrays[0].dtype)
    np.testing.assert_allclose(bound[..., None] + rounding, expected.output_bound, rtol=1e-4)


def test_difference_is_counted_in_bounds_and_half_ulps():
    first = np.full((2, 3), 1.0, np.float32)
    second = first.copy()
    bound = np.array([1e-6, 1e-6])
    assert _bound.difference_in_bounds(first, second, bound) == 0
    second[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    ulp = float(np.finfo(np.float32).eps)
    expected = ulp / (1e-6 + ulp / 2)
    assert math.isclose(_bound.difference_in_bounds(first, second, bound), expected)
    second[0, 0] = np.nan
    assert math.isnan(_bound.difference_in_bounds(first, second, bound))


@pytest.mark.parametrize("dtype", support.FLOATS)
def test_difference_of_what_is_not_finite_is_zero_if_it_is_the_same_else_nan(dtype):
    odd = np.array([[np.inf, -np.inf, np.nan, 1.0, 0.0]], dtype)
    for bound in (1e-3, np.inf):
        rows = np.full(1, bound)
        assert _bound.difference_in_bounds(odd, odd.copy(), rows) == 0
        for column in range(5):
            for instead in (np.inf, -np.inf, np.nan):
                other = odd.copy()
                other[0, column] = instead
                difference = _bound.difference_in_bounds(odd, other, rows)
                same = np.array_equal(odd.astype("f8"), other.astype("f8"), equal_nan=True)
                assert difference == 0 if same else math.isnan(difference)
