"""Times into ratios, and ratios against the targets of their cases."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

from .cases import AT_MOST, BY_NAME, AttentionCase

Result = dict[str, Any]
LIMITS = ("fma", "read", "copy")


def ratios(result: Result) -> dict[str, float]:
    """Return every measure that the sides of `result` allow, by the names of ``cases``."""
    sides = result["sides"]
    if "native" not in sides:
        return {}
    found = {name: _median(in_rounds(result, name)) for name in sides if name != "native"}
    if "fma" in sides and "numpy" in sides:
        found["numpy_fma"] = _median(_shares(result, "fma", "numpy"))
    if BY_NAME[result["name"]].limit is None:
        found["microseconds"] = 1e6 * sides["native"]["median"]
    return found


def in_rounds(result: Result, name: str) -> list[float]:
    """Return the measure that the side `name` stands for, of each round."""
    if name in LIMITS:
        return _shares(result, name, "native")
    return _pairs(result, "native", name) if name == "base" else _pairs(result, name, "native")


def _median(values: list[float]) -> float:
    return float(statistics.median(values))


def _pairs(result: Result, above: str, below: str) -> list[float]:
    """Return the ratios of two times of the same round."""
    samples = (result["sides"][name]["samples"] for name in (above, below))
    return [x / y for x, y in zip(*samples, strict=True)]


def _shares(result: Result, limit: str, side: str) -> list[float]:
    """Return how much of the rate of the loop `limit` a side reaches."""
    case = BY_NAME[result["name"]]
    work = case.flops if limit == "fma" and isinstance(case, AttentionCase) else case.bytes
    amount: float = result["sides"][limit]["amount"]
    return [work / amount * pair for pair in _pairs(result, limit, side)]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One target, and what was measured of it; ``value`` is ``None`` where nothing was."""

    case: str
    measure: str
    bound: float
    value: float | None
    reason: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; ``None`` where it was not measured."""
        if self.value is None:
            return None
        at_most = self.measure in AT_MOST
        return self.value <= self.bound if at_most else self.value >= self.bound

    @property
    def text(self) -> str:
        """The verdict in a line."""
        relation = "at most" if self.measure in AT_MOST else "at least"
        start = f"{self.case:<24} {self.measure:<12} {relation} {self.bound:6.3f}"
        if self.value is None:
            return f"{start}, not measured: {self.reason}"
        return f"{start}, measured {self.value:7.3f}{'' if self.is_met else '  MISSED'}"


def verdicts(results: list[Result]) -> list[Verdict]:
    """Return one verdict for each target of each case in `results`."""
    found = []
    for result in results:
        case, measured = BY_NAME[result["name"]], ratios(result)
        for measure, bound in case.targets.items():
            reason = result["left_out"].get(measure, "left out of this run")
            if measure not in measured and "native" in result["left_out"]:
                reason = f"native: {result['left_out']['native']}"
            verdict = Verdict(case.name, measure, bound, measured.get(measure), reason)
            found.append(verdict)
    return found


def count_text(all_verdicts: list[Verdict], n_case: int) -> str:
    """Say how many of the targets of `n_case` cases are met."""
    measured = [verdict for verdict in all_verdicts if verdict.value is not None]
    n_met = sum(verdict.is_met is True for verdict in measured)
    return (
        f"{n_met} of {len(measured)} targets met in {n_case} of {len(BY_NAME)} cases; "
        f"{len(all_verdicts) - len(measured)} not measured"
    )


def check(results: list[Result], say: Callable[[str], None]) -> bool:
    """Say how the targets fared and return whether all that was measured is met.

    Where our own kernels gave no time, or nothing was measured at all, nothing is met.
    """
    all_verdicts = verdicts(results)
    measured = [verdict for verdict in all_verdicts if verdict.value is not None]
    missed = [verdict for verdict in measured if not verdict.is_met]
    broken = [result["name"] for result in results if "native" not in result["sides"]]
    for verdict in all_verdicts:
        if not verdict.is_met:
            say(verdict.text)
    for name in broken:
        say(f"{name:<24} has no time of the native kernels  MISSED")
    say(count_text(all_verdicts, len(results)))
    return bool(measured) and not missed and not broken
