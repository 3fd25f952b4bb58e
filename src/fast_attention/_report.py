"""How ``python -m fast_attention compare`` shows its results: text, Markdown and a chart.

A result is what ``_measure`` reports of one workload; a summary is what ``summarise`` makes of all.
Output is plain ASCII, so that any console and any pipe can show it.
"""

import importlib
import math
import re
from pathlib import Path
from typing import Any

from ._workloads import BY_NAME, WORKLOADS

Facts = dict[str, Any]
Result = dict[str, Any]

MARKERS = ("<!-- compare:begin -->", "<!-- compare:end -->")

BUSY = 0.75  # load average per CPU from which on a result is not to be trusted

NARROW = 90  # columns; a terminal with fewer is not shown the shapes


def time_text(seconds: float) -> str:
    """Return `seconds` with three digits and a unit."""
    scales = (("s ", 1.0), ("ms", 1e-3), ("us", 1e-6))
    unit, size = next((pair for pair in scales if seconds >= 0.9995 * pair[1]), scales[-1])
    number = seconds / size
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


def spread(side: dict[str, Any]) -> float:
    """Return the interquartile range of one side's samples as a fraction of the median."""
    return float((side["third_quartile"] - side["first_quartile"]) / side["median"])


def speed_text(speed_up: float) -> str:
    """Return a ratio of times with about three digits."""
    return f"{speed_up:.{2 if speed_up < 99.5 else 0}f}x"


def summarise(results: list[Result]) -> dict[str, Any]:
    """Return the geometric mean, the slowest row and the largest difference of `results`."""
    measured = [result for result in results if "error" not in result]
    summary: dict[str, Any] = {
        "measured": len(measured),
        "failed": len(results) - len(measured),
        "within_bound": all(result["within_bound"] for result in measured),
    }
    if measured:
        logs = [math.log(result["speed_up"]) for result in measured]
        worst = min(measured, key=lambda result: float(result["speed_up"]))
        summary["geometric_mean"] = math.exp(sum(logs) / len(logs))
        summary["worst"] = {"name": worst["name"], "speed_up": worst["speed_up"]}
        summary["largest_difference_in_bounds"] = max(
            (result["difference_in_bounds"] for result in measured),
            key=lambda value: math.inf if math.isnan(value) else value,
        )
    return summary


def facts_text(facts: Facts) -> str:
    """Return the lines above the table: the machine and what is compared on it."""
    blas = facts["blas"]
    name = blas["name"] + (f" {blas['version']}" if blas["version"] != "unknown" else "")
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    rows = [
        ("CPU", f"{facts['cpu']}, {facts['logical_cpus']} logical CPUs; {threads} on each side"),
        ("native", f"fast_attention {facts['version']}, instruction set {facts['isa']}"),
        ("NumPy", f"{facts['numpy']} with {name}, running its kernel {blas['kernel']}"),
        ("system", f"{facts['system']}, Python {facts['python']}; {facts['dtype']} arrays"),
    ]
    load, cpus = facts["load_average"], facts["logical_cpus"]
    if load is not None and cpus is not None and load > BUSY * cpus:
        rows.append(("note", f"load average {load:.1f}: other processes disturb this measurement"))
    return "\n".join(f"{label:<7} {text}" for label, text in rows)


def heading_text(width: int) -> str:
    """Return the heading of the table for a terminal of `width` columns."""
    shape = f"{'shape':<27}  " if width >= NARROW else ""
    return f"{'workload':<18}  {shape}{'native':>13}  {'NumPy':>13}  {'speed-up':>8}  {'diff':>6}"


def row_text(result: Result, width: int) -> str:
    """Return one row of the table."""
    workload = BY_NAME[result["name"]]
    start = f"{workload.name:<18}  "
    if width >= NARROW:
        start += f"{workload.shape_text:<27}  "
    if "error" in result:
        return start + f"failed: {result['error']}"
    sides = "".join(f"{_side_text(result[side]):>13}  " for side in ("native", "numpy"))
    beyond = "" if result["within_bound"] else "  OUT OF BOUND"
    difference = result["difference_in_bounds"]
    return start + f"{sides}{speed_text(result['speed_up']):>8}  {difference:>6.3f}{beyond}"


def _side_text(side: dict[str, Any]) -> str:
    return f"{time_text(side['median'])} {100 * spread(side):3.0f}%"


def summary_text(summary: dict[str, Any]) -> str:
    """Return the lines below the table."""
    if not summary["measured"]:
        return "nothing was measured"
    worst = summary["worst"]
    largest = summary["largest_difference_in_bounds"]
    verdict = "all within" if summary["within_bound"] else "NOT all within"
    lines = [
        f"geometric mean of {summary['measured']}: {speed_text(summary['geometric_mean'])}; "
        f"lowest: {speed_text(worst['speed_up'])} ({worst['name']})",
        f"largest difference: {largest:.3f} of the error bound; {verdict} the 2 that are allowed",
    ]
    if summary["failed"]:
        lines.append(f"failed: {summary['failed']}")
    return "\n".join(lines)


LEGEND = (
    "median time per call, with the interquartile range in % of it; speed-up = NumPy / native;\n"
    "diff = largest difference of the two results in units of the error bound of one of them"
)


def list_text() -> str:
    """Return the workloads with their shapes and descriptions, one a line."""
    return "\n".join(f"{w.name:<18}  {w.shape_text:<27}  {w.about}" for w in WORKLOADS)


def markdown_text(facts: Facts, results: list[Result]) -> str:
    """Return the table as Markdown, with the machine above it and the summary below."""
    blas = facts["blas"]
    threads = "one thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    summary = summarise(results)
    lines = [
        f"{facts['cpu']}, {threads}, {facts['dtype']}; fast_attention {facts['version']} on "
        f"{facts['isa']} against NumPy {facts['numpy']} on {blas['name']} {blas['version']} "
        f"(kernel {blas['kernel']}).",
        "",
        "| workload | shape | native | NumPy | speed-up | difference / bound |",
        "|---|---|---:|---:|---:|---:|",
        *(_markdown_row(result) for result in results),
    ]
    if summary["measured"]:
        worst = summary["worst"]
        lines += [
            "",
            f"Geometric mean {speed_text(summary['geometric_mean'])}, lowest "
            f"{speed_text(worst['speed_up'])} ({worst['name']}).",
        ]
    return "\n".join(lines)


def _markdown_row(result: Result) -> str:
    workload = BY_NAME[result["name"]]
    start = f"| {workload.name}: {workload.about} | {workload.shape_text} |"
    if "error" in result:
        return f"{start} failed: {result['error'].replace('|', '/')} | | | |"
    native, fallback = (time_text(result[side]["median"]).strip() for side in ("native", "numpy"))
    speed_up = speed_text(result["speed_up"])
    return f"{start} {native} | {fallback} | {speed_up} | {result['difference_in_bounds']:.3f} |"


def write_markdown(path: Path, text: str, markers: tuple[str, str] = MARKERS) -> None:
    """Write `text` between the markers of the file at `path`, or into a new file with markers."""
    begin, end = markers
    block = f"{begin}\n{text}\n{end}"
    if not path.exists():
        path.write_text(block + "\n", encoding="utf-8")
        return
    old = path.read_text(encoding="utf-8")
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    path.write_text(
        re.sub(pattern, lambda _: block, old, count=1, flags=re.DOTALL), encoding="utf-8"
    )


def write_plot(path: Path, facts: Facts, results: list[Result]) -> None:
    """Draw the speed-ups as horizontal bars. Needs matplotlib."""
    drawing = importlib.import_module("matplotlib.figure")
    measured = [result for result in results if "error" not in result][::-1]
    speed_ups = [result["speed_up"] for result in measured]
    figure = drawing.Figure(figsize=(8, 1.4 + 0.32 * max(1, len(measured))), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh([result["name"] for result in measured], speed_ups, color="#33658a")
    axes.bar_label(bars, [speed_text(value) for value in speed_ups], padding=3, fontsize=9)
    axes.axvline(1, color="#444444", linewidth=1, linestyle="--")
    axes.set_xlim(0, 1.12 * max([1.0, *speed_ups]))
    axes.set_xlabel("speed-up over the NumPy fallback (1 = same time)")
    axes.spines[["top", "right"]].set_visible(False)
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    axes.set_title(
        f"fast_attention ({facts['isa']}) against NumPy ({facts['blas']['name']})\n"
        f"{facts['cpu']}, {threads}, {facts['dtype']}",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)
