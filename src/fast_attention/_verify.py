"""``python -m fast_attention verify``: whether the kernels give the published bits here.

Every golden case runs on every instruction set of this machine, and the digests of its results are
compared with those that the specification gave. Where NumPy is the backend there are no bits to
compare, because BLAS chooses the order of its sums: there, float32 results are held to the error
bound, with the same calls in float64 for the exact ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import _backend, _golden, _machine
from ._attention import scaled_dot_product_attention
from ._bound import error_bound
from ._dtypes import FLOAT32, Array, is_float
from ._exit import FAILURE, SUCCESS, USAGE, complain
from ._version import __version__

DESCRIPTION = """\
Compute the golden cases on every instruction set of this machine and compare the bits of their
results with the published ones. The NumPy backend has no published bits: there, float32 results are
compared with float64, within the error bound."""

EXAMPLES = """\
examples:
  python -m fast_attention verify
  python -m fast_attention verify --isa avx2 --json verified.json

exit code: 0 when all that was compared agrees (on the NumPy backend: within the error bound; to
insist on bits, give --isa), 1 when something differs or the compiled module does not load, 2 for
wrong usage"""

_KERNELS = [(kind, dtype) for kind in ("attention", "softmax") for dtype in ("float32", "float64")]


@dataclass
class Comparison:
    """What came out of the cases of one kernel on one instruction set."""

    isa: str
    kernel: str
    dtype: str
    n_case: int = 0
    differing: dict[str, list[str]] = field(default_factory=dict)  # case -> which results

    def add(self, name: str, wrong: list[str]) -> None:
        """Count a case, of which the results named `wrong` differ."""
        self.n_case += 1
        if wrong:
            self.differing[name] = wrong

    def text(self, agreement: str) -> str:
        """Return a line for the kernel, and one for each case that differs."""
        counts = f"{self.n_case - len(self.differing):>3} of {self.n_case:>2} {agreement}"
        cases = (f"\n    {name}: {', '.join(wrong)}" for name, wrong in self.differing.items())
        return f"{self.isa:<8} {self.dtype}  {self.kernel:<9}  {counts}" + "".join(cases)


class Outcome(NamedTuple):
    """What was compared, and what to say of it."""

    compared: list[Comparison]
    verdict: str
    agrees: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``verify`` to `parser`."""
    add = parser.add_argument
    add("--isa", metavar="NAME", help="only this instruction set (default: all that `info` lists)")
    add("--json", metavar="FILE", type=Path, help="write what was compared to FILE")


def run(options: argparse.Namespace) -> int:
    """Verify as `options` say and return the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the self-test: this says more
        try:
            isas = _chosen_isas(options.isa)
        except (ImportError, ValueError) as error:
            return complain("verify", str(error), USAGE)
        names = _golden.without_bfloat16()
        if importlib.util.find_spec("ml_dtypes") is not None:
            names = list(_golden.CASES)
        print(f"fast_attention {__version__} on {_machine.cpu_model()}")
        outcome = _verify_native(isas, names) if isas else _verify_numpy(names)
    left_out = [name for name in _golden.CASES if name not in names]
    if left_out:
        print(f"left out, because ml_dtypes is not installed: {'; '.join(left_out)}")
    print(outcome.verdict)
    if options.json is not None:
        try:
            options.json.write_text(_json_text(outcome, left_out), encoding="utf-8")
        except OSError as error:
            return complain("verify", f"cannot write {options.json}: {error.strerror}", FAILURE)
    return SUCCESS if outcome.agrees else FAILURE


def _chosen_isas(named: str | None) -> tuple[str, ...]:
    """Return the instruction sets to verify; none if NumPy is the backend."""
    if named is not None:
        _backend.check_choice("native", named, f"--isa {named}")
        return (named,)
    return () if _backend.backend() == "numpy" else _backend.native().isas


def _json_text(outcome: Outcome, left_out: list[str]) -> str:
    document = {
        "version": __version__,
        "arithmetic": _golden.VERSION,
        "cpu": _machine.cpu_model(),
        "agrees": outcome.agrees,
        "verdict": outcome.verdict,
        "left_out": left_out,
        "compared": [asdict(each) for each in outcome.compared],
    }
    return json.dumps(document, indent=1) + "\n"


def _verify_native(isas: tuple[str, ...], names: list[str]) -> Outcome:
    """Compare the bits of every case with the record, on every one of `isas`."""
    native = _backend.native()
    built = 0 if native.module is None else native.module.ARITHMETIC_VERSION
    if built != _golden.VERSION:
        text = f"the compiled module is of arithmetic version {built}, the record of version "
        return Outcome([], f"{text}{_golden.VERSION}: they are not of one installation", False)
    classes = {isa: kind for isa, _, kind in native.table if isa in isas}
    compared = _compare_bits(classes, names)
    return _judged(compared, classes)


def _compare_bits(classes: dict[str, str], names: list[str]) -> list[Comparison]:
    """Run the cases on each instruction set, and print what came out of it."""
    record = _golden.read_record()
    calls = {name: _golden.arguments(name) for name in names}
    altered = {
        name for name in names if _golden.digest_of_inputs(calls[name]) != record[name]["inputs"]
    }
    compared: list[Comparison] = []
    for isa, arithmetic in classes.items():
        kernels = {kernel: Comparison(isa, *kernel) for kernel in _KERNELS}
        with _backend.using("native", isa):
            for name, given in calls.items():
                wrong = _golden.differing(name, given, record[name][arithmetic])
                kernels[_kernel(name)].add(name, ["inputs"] if name in altered else wrong)
        print(*(kernel.text("identical") for kernel in kernels.values()), sep="\n", flush=True)
        compared += kernels.values()
    return compared


def _kernel(name: str) -> tuple[str, str]:
    case = _golden.CASES[name]
    kind = "softmax" if isinstance(case, _golden.Reduction) else "attention"
    return kind, case.compute_dtype.name


def _judged(compared: list[Comparison], classes: dict[str, str]) -> Outcome:
    bits = f"the published bits (arithmetic version {_golden.VERSION}, "
    n_wrong = dict.fromkeys(classes, 0)
    for each in compared:
        n_wrong[each.isa] += len(each.differing)
    wrong = {isa: n for isa, n in n_wrong.items() if n > 0}
    if not wrong:
        kinds = " and ".join(sorted(set(classes.values())))
        return Outcome(compared, f"identical to {bits}{kinds})", True)
    lines = [
        f"NOT identical to {bits}{classes[isa]}): {isa} differs in {n} "
        f"{'case' if n == 1 else 'cases'}"
        for isa, n in wrong.items()
    ]
    right = [isa for isa in classes if isa not in wrong]
    instead = f"; FAST_ATTENTION_ISA={right[-1]} gives the published bits" if right else ""
    lines.append(f"please report all of these lines{instead}")
    return Outcome(compared, "\n".join(lines), False)


def _verify_numpy(names: list[str]) -> Outcome:
    """Hold float32 attention in NumPy to its error bound."""
    reason = _backend.DEFAULT.reason
    compared = Comparison("numpy", "attention", "float32")
    for name in names:
        if _kernel(name) != ("attention", "float32"):
            continue
        given = _golden.arguments(name)
        bound = error_bound(**given)
        if np.isfinite(bound).any():
            compared.add(name, [] if _is_within(bound, given) else ["output"])
    print(compared.text("within the error bound of float64"))
    agrees = not compared.differing
    verdict = (
        f"no published bits: NumPy is the backend ({reason})\n"
        "BLAS chooses the order of its sums, so float32 attention was compared with float64: "
        f"{'within' if agrees else 'NOT within'} the error bound"
    )
    is_second_best = _backend.native().is_broken and reason == _backend.native().reason
    return Outcome([compared], verdict, agrees and not is_second_best)


def _is_within(bound: Array, arguments: dict[str, Any]) -> bool:
    """Compare a call in float32 with the same numbers in float64, in the rows that have a bound."""
    output = scaled_dot_product_attention(**arguments)
    exact = scaled_dot_product_attention(**{k: _widened(x) for k, x in arguments.items()})
    rows = np.isfinite(bound)
    difference = np.abs(output[rows].astype(np.float64) - exact[rows])
    return bool((difference <= bound[rows][..., None]).all())


def _widened(argument: Any) -> Any:
    """Return a float array in float64, rounded to float32 first as the arithmetic reads it."""
    if isinstance(argument, np.ndarray) and is_float(argument.dtype):
        return argument.astype(FLOAT32).astype(np.float64)
    return argument
