"""``python -m fast_attention compare``: the native kernels against the NumPy fallback.

This process reads the options, lets a child measure (``_child``, ``_measure``) whose BLAS threads
are set before it loads NumPy, and shows what the child reports: progress on standard error, the
table on standard output, and files as asked for. Ctrl-C ends the child and shows what was measured
so far.
"""

import argparse
import dataclasses
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import IO, Any

from . import _backend, _report, _workloads
from ._child import measuring_process
from ._exit import FAILURE, INTERRUPTED, SUCCESS, USAGE, complain
from ._threads import get_num_threads

PLOT_SUFFIXES = (".png", ".svg", ".pdf")

DESCRIPTION = """\
Measure the native kernels against the NumPy fallback: the same arrays, one process, rounds that
alternate between the two, and the difference of the results in units of the error bound."""

EXAMPLES = """\
examples:
  python -m fast_attention compare
  python -m fast_attention compare --list
  python -m fast_attention compare --workloads tiny,gpt-prefill --threads 1
  python -m fast_attention compare --dtype float64 --json result.json --plot result.png

exit code: 0 when every result is within the error bound, 1 when not or when there is nothing to
compare, 2 for wrong usage, 130 after Ctrl-C"""


class ComparisonError(Exception):
    """A reason, for the user, why there is no (further) comparison."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare`` to `parser`."""
    add = parser.add_argument
    add("--list", action="store_true", help="list the workloads and stop")
    add("--workloads", metavar="NAME,NAME...", type=_names, help="which workloads (default: all)")
    add("--dtype", choices=_workloads.DTYPES, default="float32", help="dtype (default: float32)")
    add("--threads", metavar="N", type=_positive, help="threads of each side (default: as in info)")
    add("--rounds", metavar="N", type=_positive, help="rounds (default: as many as fit)")
    add(
        "--seconds",
        metavar="S",
        type=_seconds,
        default=3.0,
        help="time for the rounds of each workload (default: 3; at least three rounds are run)",
    )
    add("--json", metavar="FILE", type=Path, help="write facts, samples and results to FILE")
    add("--markdown", metavar="FILE", type=Path, help="write the table into FILE as Markdown")
    add("--plot", metavar="FILE.png", type=_plot_path, help="draw the speed-ups (needs matplotlib)")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in _workloads.BY_NAME]
    valid = ", ".join(_workloads.BY_NAME)
    if wrong or not names:
        what = f"unknown workload {', '.join(map(repr, wrong))}" if wrong else "no workload given"
        raise argparse.ArgumentTypeError(f"{what}; choose from {valid}")
    return list(dict.fromkeys(names))


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text!r}")
    return number


def _plot_path(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in PLOT_SUFFIXES:
        wanted = ", ".join(PLOT_SUFFIXES)
        raise argparse.ArgumentTypeError(f"expected a name that ends in {wanted}, got {text!r}")
    return path


def run(options: argparse.Namespace) -> int:
    """Compare as `options` say and return the exit code."""
    if options.list:
        print(_report.list_text())
        return SUCCESS
    names = options.workloads or list(_workloads.BY_NAME)
    problem = _usage_problem(options, names)
    if problem is not None:
        return complain("compare", problem, USAGE)
    problem = _native_problem()
    if problem is not None:
        return complain("compare", problem, FAILURE)
    comparison = Comparison(options, names)
    code, message = _outcome(comparison)
    comparison.show_summary()
    if message is not None:
        complain("compare", message, code)
    try:
        comparison.write_files()
    except OSError as error:
        return complain("compare", f"cannot write {error.filename}: {error.strerror}", FAILURE)
    return code


def _outcome(comparison: "Comparison") -> tuple[int, str | None]:
    """Measure, and return the exit code and what there is to say about it."""
    try:
        comparison.run()
    except ComparisonError as error:
        return FAILURE, str(error)
    except KeyboardInterrupt:
        done, asked = len(comparison.results), len(comparison.names)
        return INTERRUPTED, f"interrupted after {done} of {asked} workloads"
    return comparison.exit_code(), None


def _usage_problem(options: argparse.Namespace, names: list[str]) -> str | None:
    """Return what stands in the way of the request, found before anything is measured."""
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        return '--plot needs matplotlib: pip install "fast-attention[plot]"'
    chosen = [_workloads.BY_NAME[name] for name in names]
    bfloat16 = _workloads.needs_bfloat16(chosen, options.dtype)
    if bfloat16 and importlib.util.find_spec("ml_dtypes") is None:
        return "bfloat16 arrays need ml_dtypes: pip install ml_dtypes"
    for path in (options.json, options.markdown, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            return f"cannot write {path}: there is no folder {path.absolute().parent}"
        if path is not None and path.is_dir():
            return f"cannot write {path}: it is a folder"
    if options.markdown and options.markdown.exists():
        begin, end = _report.MARKERS
        text = options.markdown.read_text(encoding="utf-8")
        if not 0 <= text.find(begin) < text.find(end):
            return f"cannot write into {options.markdown}: it has no lines {begin} and {end}"
    return None


def _native_problem() -> str | None:
    """Return why there is no native backend, or None where there is one."""
    if any(backend == "native" for backend, _ in _backend.available()):
        return None
    reason = _backend.native().reason
    return (
        f"there is nothing to compare, only the NumPy fallback is here: {reason}.\n"
        "`pip install .` in the repository builds the compiled kernels; it needs a C compiler."
    )


class Comparison:
    """One comparison: what is asked for, and what is known so far."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self.options = options
        self.names = names
        self.threads: int = options.threads or get_num_threads()
        self.facts: dict[str, Any] = {}
        self.results: list[dict[str, Any]] = []
        self.is_complete = False
        self.current: str | None = None
        self.progress = Progress(sys.stderr, len(names))
        to_terminal = sys.stdout.isatty()
        self.width = shutil.get_terminal_size().columns if to_terminal else _report.NARROW

    def run(self) -> None:
        """Follow the measuring process to its end."""
        with measuring_process(self._request(), self.threads) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._take(json.loads(line))
            code = process.wait()
        self.progress.clear()
        if not self.is_complete:
            where = f" in the workload {self.current}" if self.current else ""
            ended = f"by signal {-code}" if code < 0 else f"with code {code}"
            raise ComparisonError(f"the measuring process ended {ended}{where}")

    def _request(self) -> dict[str, Any]:
        return {
            "workloads": self.names,
            "dtype": self.options.dtype,
            "threads": self.threads,
            "rounds": self.options.rounds,
            "seconds": self.options.seconds,
        }

    def _take(self, report: dict[str, Any]) -> None:
        """Show and keep one line of the child's report."""
        event = report.pop("event")
        if event == "facts":
            self.facts = {**report, "threads": self.threads, "dtype": self.options.dtype}
            self._print(_report.facts_text(self.facts) + "\n")
            self._print(_report.heading_text(self.width))
        elif event == "start":
            self.current = report["name"]
            self.progress.start(report["name"], len(self.results) + 1)
        elif event == "round":
            self.progress.update(report["done"])
        elif event == "done":
            self.is_complete = True
        else:  # "result" or "failed"
            self.results.append(report)
            self.progress.clear()
            self._print(_report.row_text(report, self.width))

    def _print(self, text: str) -> None:
        print(text, flush=True)

    def show_summary(self) -> None:
        """Print the lines below the table."""
        self.progress.clear()
        if self.facts:
            summary = _report.summarise(self.results)
            self._print(f"\n{_report.summary_text(summary)}\n\n{_report.LEGEND}")

    def write_files(self) -> None:
        """Write what was measured into the files that were asked for."""
        if not self.facts:
            return
        if self.options.json:
            self._write_json()
        if self.options.markdown:
            text = _report.markdown_text(self.facts, self.results)
            _report.write_markdown(self.options.markdown, text)
        if self.options.plot:
            _report.write_plot(self.options.plot, self.facts, self.results)

    def _write_json(self) -> None:
        results = [
            {"name": r["name"], **dataclasses.asdict(_workloads.BY_NAME[r["name"]]), **r}
            for r in self.results
        ]
        document = {
            "facts": self.facts,
            "settings": {"rounds": self.options.rounds, "seconds": self.options.seconds},
            "results": results,
            "summary": {**_report.summarise(self.results), "complete": self.is_complete},
        }
        text = json.dumps(_finite(document), indent=2, allow_nan=False)
        self.options.json.write_text(text + "\n", encoding="utf-8")

    def exit_code(self) -> int:
        """Return 0 when everything was measured and lies within the bound, else 1."""
        summary = _report.summarise(self.results)
        return SUCCESS if summary["within_bound"] and not summary["failed"] else FAILURE


def _finite(value: Any) -> Any:
    """Return `value` with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    is_odd = isinstance(value, float) and not abs(value) < float("inf")
    return None if is_odd else value


class Progress:
    """One line on standard error for each workload, kept up to date where that is a terminal."""

    def __init__(self, stream: IO[str], total: int) -> None:
        self.stream = stream
        self.total = total
        self.is_terminal = stream.isatty()
        self.label = ""

    def start(self, name: str, number: int) -> None:
        """Say which workload begins."""
        self.label = f"[{number}/{self.total}] {name}"
        self._write("" if self.is_terminal else "\n", "preparing")

    def update(self, done: int) -> None:
        """Say how many rounds are done."""
        if self.is_terminal:
            self._write("", f"round {done + 1}")

    def clear(self) -> None:
        """Make room for a row of the table."""
        if self.is_terminal and self.label:
            self.stream.write("\r" + " " * 60 + "\r")
            self.stream.flush()
        self.label = ""

    def _write(self, end: str, what: str) -> None:
        text = f"\r{self.label}: {what:<20}" if self.is_terminal else self.label
        self.stream.write(text + end)
        self.stream.flush()
