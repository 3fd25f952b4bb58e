"""Measures attention and softmax against other libraries and against the limits of the machine.

    python benchmarks/run.py                                everything, some 15 minutes
    python benchmarks/run.py --cases 'decode*,tiny' --peers native,numpy,torch
    python benchmarks/run.py --json result.json --check
    python benchmarks/run.py --from result.json --markdown README.md --plot plot.png

``README.md`` beside this file says how to install the libraries and how it is measured.
"""

import argparse
import fnmatch
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from harness import judge, report
from harness.cases import BY_NAME, GROUPS
from harness.peers import MODULES
from harness.rounds import Run, Settings, running

from fast_attention import _machine
from fast_attention._report import write_markdown
from fast_attention._threads import affinity

SUCCESS, MISSED, USAGE, INTERRUPTED = 0, 1, 2, 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", action="store_true", help="list the cases with their targets and stop")
    add("--cases", metavar="PATTERN,...", help=f"names, patterns or groups: {', '.join(GROUPS)}")
    add("--peers", metavar="NAME,...", type=_peers, default=tuple(MODULES),
        help=f"of {', '.join(MODULES)} (default: all that are installed)")  # fmt: skip
    add("--python", metavar="PEER=FILE", type=_python, action="append", default=[],
        help="the Python that a library is installed in, if not in this one")  # fmt: skip
    add("--cpus", metavar="N,...", type=_cpus, help="CPUs to run on (default: all; the last first)")
    add("--seconds", metavar="S", type=float, default=2.0, help="for the rounds of a case (2)")
    add("--rounds", metavar="N", type=int, help="rounds of a case (default: as many as fit)")
    add("--from", metavar="FILE", type=Path, nargs="+", dest="sources",
        help="show results of earlier runs instead; the last of a case counts")  # fmt: skip
    add("--json", metavar="FILE", type=Path, help="write facts, samples and ratios to FILE")
    add("--markdown", metavar="FILE", type=Path, help="write the short table into FILE")
    add("--full", metavar="FILE", type=Path, help="write the whole table into FILE")
    add("--plot", metavar="FILE", type=Path, help="draw FILE.png, .svg or .pdf (needs matplotlib)")
    add("--check", action="store_true", help="exit with 1 if a target is missed, and say which")
    return parser


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    wrong = [name for name in names if name not in MODULES]
    if wrong:
        raise argparse.ArgumentTypeError(f"unknown {wrong}; choose from {', '.join(MODULES)}")
    return names


def _python(text: str) -> tuple[str, str]:
    peer, _, path = text.partition("=")
    if peer not in MODULES or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"expected PEER=FILE with a Python to run, got {text!r}")
    return peer, path


def _cpus(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers of CPUs, got {text!r}") from None


def chosen_cases(patterns: str | None) -> list[str]:
    """Return the names of the cases that `patterns` name, in their order."""
    if patterns is None:
        return list(BY_NAME)
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    for pattern in wanted:
        if pattern not in GROUPS and not fnmatch.filter(BY_NAME, pattern):
            raise ValueError(f"no case is called {pattern!r}; --list shows all")
    return [
        name
        for name, case in BY_NAME.items()
        if case.group in wanted or any(fnmatch.fnmatchcase(name, p) for p in wanted)
    ]


def measure(options: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """Measure the cases called `names`, as far as Ctrl-C lets it, and return the document."""
    settings = Settings(
        peers=options.peers,
        cpus=options.cpus or sorted(affinity()),
        seconds=options.seconds,
        rounds=options.rounds,
        pythons=dict(options.python),
    )
    results: list[dict[str, Any]] = []
    is_complete = False
    with running(settings) as run:
        try:
            for name in names:
                results.append(run.measure(BY_NAME[name]))
                print(report.row_text(results[-1]), flush=True)
            is_complete = True
        except KeyboardInterrupt:
            print(f"interrupted after {len(results)} of {len(names)} cases", file=sys.stderr)
        facts = _facts(run, settings)
    print(f"\n{report.facts_text(facts)}")
    return {"facts": facts, "complete": is_complete, "results": results}


def _facts(run: Run, settings: Settings) -> dict[str, Any]:
    facts = run.machine or _machine.machine_facts()
    return {
        **facts,
        "versions": {"native": "", **run.versions},
        "absent": run.absent,
        "cpus": settings.cpus,
        "seconds": settings.seconds,
        "date": time.strftime("%Y-%m-%d"),
    }


def read(paths: list[Path]) -> dict[str, Any]:
    """Return the documents at `paths` as one; the last result of a case counts."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    by_name = {r["name"]: r for document in documents for r in document["results"]}
    unknown = sorted(set(by_name) - set(BY_NAME))
    if unknown:
        raise ValueError(f"results of cases that are not declared: {', '.join(unknown)}")
    versions: dict[str, str] = {}
    for document in documents:
        versions.update(document["facts"]["versions"])
    commits = dict.fromkeys(str(document["facts"].get("commit")) for document in documents)
    return {
        "facts": {**documents[-1]["facts"], "versions": versions, "commit": ", ".join(commits)},
        "complete": all(document["complete"] for document in documents),
        "results": [by_name[name] for name in BY_NAME if name in by_name],
    }


def json_text(document: dict[str, Any]) -> str:
    """Return `document` as JSON with its ratios, one result a line."""
    facts, is_complete = (json.dumps(document[name]) for name in ("facts", "complete"))
    rows = [json.dumps({**row, "ratios": judge.ratios(row)}) for row in document["results"]]
    lines = ",\n".join(rows)
    return f'{{"facts": {facts},\n"complete": {is_complete},\n"results": [\n{lines}\n]}}\n'


def write_files(options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Write what was asked for."""
    facts, results = document["facts"], document["results"]
    if options.json:
        options.json.write_text(json_text(document), encoding="utf-8")
    for path, is_short in ((options.markdown, True), (options.full, False)):
        if path:
            table = report.markdown_text(facts, results, is_short=is_short)
            write_markdown(path, table, report.MARKERS)
    if options.plot:
        report.write_plot(options.plot, facts, results)


def main(arguments: list[str] | None = None) -> int:
    """Run on `arguments` and return the exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.list:
        print(report.list_text())
        return SUCCESS
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error('--plot needs matplotlib: pip install "fast-attention[plot]"')
    try:
        names = chosen_cases(options.cases)
        document = read(options.sources) if options.sources else measure(options, names)
    except ValueError as problem:
        parser.error(str(problem))
    document["results"] = [r for r in document["results"] if r["name"] in names]
    write_files(options, document)
    if options.check and not judge.check(document["results"], print):
        return MISSED
    return SUCCESS if document["complete"] else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
