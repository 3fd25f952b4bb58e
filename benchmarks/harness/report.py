"""The table of the results as text and as Markdown, and the plot over the sequence length."""

import importlib
import statistics
from pathlib import Path
from typing import Any

from fast_attention._report import speed_text, time_text

from .cases import AT_MOST, BY_NAME, CASES, AttentionCase
from .judge import LIMITS, Result, count_text, in_rounds, ratios, verdicts

Facts = dict[str, Any]

MARKERS = ("<!-- benchmarks:begin -->", "<!-- benchmarks:end -->")

LABELS = {
    "numpy": "NumPy fallback",
    "torch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "jax": "JAX",
    "scipy": "SciPy",
}
# Of the long table in the short one; rows in which another library is faster are added.
SELECTED = (
    "forward-512-64", "forward-1024-64", "forward-1024-128", "forward-4096-64", "causal-1024-64",
    "causal-2048-128", "heads-12-64", "heads-12-32", "views-1024-64", "decode-32", "decode-32-8",
    "decode-32-float16", "decode-32-bfloat16", "decode-32-int8", "mask-bool", "bias-heads",
    "window", "alibi", "softcap", "mask-documents", "window-16", "tiny", "tiny-10000", "softmax-32",
    "softmax-512", "log-softmax-50000", "threads-forward-1024-64", "threads-decode-32",
    "threads-one-head",
)  # fmt: skip

SLOWER = 0.995  # what is shown as less than 1.00x

PANELS = (64, 128)  # d_head of the cases in the plot
COLOURS = {
    "native": "#b5302a",
    "numpy": "#888888",
    "torch": "#e08a1e",
    "onnxruntime": "#33658a",
    "openvino": "#5b8c5a",
    "jax": "#8e5ea2",
}


def list_text() -> str:
    """Return the cases with their shapes and targets, one a line."""
    return "\n".join(
        f"{case.name:<24} {case.shape_text:<28} "
        + ", ".join(f"{name} {bound:.3g}" for name, bound in case.targets.items())
        for case in CASES
    )


def row_text(result: Result) -> str:
    """Return one result as a line for a terminal."""
    if "native" not in result["sides"]:
        return f"{result['name']:<24} failed: {result['left_out']['native']}"
    found = ratios(result)
    times = time_text(result["sides"]["native"]["median"])
    measures = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
    notes = "".join(f"\n    {who}: {why}" for who, why in result["left_out"].items())
    return f"{result['name']:<24} {times:>8}  {measures}{notes}"


def is_slower(result: Result) -> bool:
    """Tell whether any library is faster than the native kernels."""
    return any(value < SLOWER for name, value in ratios(result).items() if name in LABELS)


def markdown_text(facts: Facts, results: list[Result], *, is_short: bool) -> str:
    """Return the table: our time, our share of the limit, and the times of others over ours.

    The long one has the quartiles of these too, and the targets that are missed.
    """
    chosen = [r for r in results if not is_short or r["name"] in SELECTED or is_slower(r)]
    columns = [n for n in LABELS if any(n in r["sides"] for r in chosen)]
    heads = [f"{LABELS[name]} {facts['versions'][name].split()[-1 if name == 'numpy' else 0]}"
             for name in columns]  # fmt: skip
    lines = [
        facts_text(facts),
        "",
        " | ".join(["| case", "shape", "time", "of the limit", *heads]) + " |",
        "|---|---|---:|---:|" + "---:|" * len(columns),
        *(_markdown_row(result, columns, with_spread=not is_short) for result in chosen),
    ]
    return "\n".join(lines if is_short else lines + _missed_lines(results))


def _missed_lines(results: list[Result]) -> list[str]:
    found = verdicts(results)
    missed: dict[str, list[str]] = {}
    for verdict in found:
        if verdict.is_met is False:
            relation = "<=" if verdict.measure in AT_MOST else ">="
            text = f"{verdict.measure} {verdict.value:.2f} ({relation} {verdict.bound:.2f})"
            missed.setdefault(verdict.case, []).append(text)
    rows = [f"| {case} | {', '.join(texts)} |" for case, texts in missed.items()]
    head = ["", count_text(found, len(results)) + ". Missed:", "", "| case | measured (target) |"]
    return [*head, "|---|---|", *rows]


def facts_text(facts: Facts) -> str:
    """Return a line about the machine."""
    blas = facts["blas"]
    return (
        f"{facts['cpu']}, {facts['cores'] or 'unknown'} cores, {facts['logical_cpus']} logical "
        f"CPUs, caches {', '.join(facts['caches']) or 'unknown'}; {facts['system']}, "
        f"fast_attention {facts['versions']['native']}, {facts['compiler']}, Python "
        f"{facts['python']}, NumPy on "
        f"{blas['name']} {blas['version']} (kernel {blas['kernel']})."
    )


def _markdown_row(result: Result, columns: list[str], *, with_spread: bool) -> str:
    case, found, sides = BY_NAME[result["name"]], ratios(result), result["sides"]
    start = f"| {case.name}: {case.about} | {case.shape_text} |"
    if "native" not in sides:
        return f"{start} failed |" + " |" * (1 + len(columns))
    limit = next((name for name in LIMITS if name in found), None)

    def cell(name: str, text: str, unit: float) -> str:
        return text + (_spread(in_rounds(result, name), unit) if with_spread else "")

    share = cell(limit, f"{100 * found[limit]:.0f} % {limit}", 100) if limit else ""
    times = [cell(n, _times(found[n]), 1) if n in found else "" for n in columns]
    cells = [time_text(sides["native"]["median"]).strip(), share, *times]
    return f"{start} {' | '.join(cells)} |"


def _times(value: float) -> str:
    text = speed_text(value)
    return f"**{text}**" if value < SLOWER else text


def _spread(values: list[float], unit: float) -> str:
    if len(values) < 2:
        return ""
    first, _, third = statistics.quantiles(values, n=4)
    return f" ({unit * first:.3g} to {unit * third:.3g})"


def write_plot(path: Path, facts: Facts, results: list[Result]) -> None:
    """Draw time and share of the limit over the length, one row for each width of a head."""
    drawing = importlib.import_module("matplotlib.figure")
    figure = drawing.Figure(figsize=(9, 6.4), layout="constrained")
    grid = figure.subplots(len(PANELS), 2, squeeze=False)
    for d_head, (times, shares) in zip(PANELS, grid, strict=True):
        for name, colour in COLOURS.items():
            points = _points(results, d_head, name)
            if points:
                style = {"color": colour, "marker": "o", "markersize": 3.5}
                style["linewidth"] = 2.2 if name == "native" else 1.2
                lengths, seconds, share = zip(*points, strict=True)
                label = "fast_attention" if name == "native" else LABELS[name]
                times.plot(lengths, seconds, label=label, **style)
                shares.plot(lengths, share, **style)
        _finish(times, shares, d_head)
    grid[0][0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"Attention, L = S, float32, one thread, {facts['cpu']}", fontsize=10)
    figure.savefig(path, dpi=90)


def _points(results: list[Result], d_head: int, side: str) -> list[tuple[int, float, float]]:
    """Return (length, milliseconds per head, percent of the limit) of a library."""
    points = []
    for result in results:
        case = BY_NAME[result["name"]]
        if not isinstance(case, AttentionCase) or case.group != "forward":
            continue
        if case.d_head == d_head and side in result["sides"] and "fma" in result["sides"]:
            found = ratios(result)
            over = 1.0 if side == "native" else found[side]
            seconds = result["sides"][side]["median"]
            points.append((case.n_query, 1e3 * seconds / case.n_head, 100 * found["fma"] / over))
    return sorted(points)


def _finish(times: Any, shares: Any, d_head: int) -> None:
    for axes in (times, shares):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("sequence length")
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    times.set_yscale("log")
    times.set_ylabel(f"D = {d_head}: milliseconds per head")
    shares.set_ylim(0, 100)
    shares.set_ylabel("% of a fused-multiply-add loop")
