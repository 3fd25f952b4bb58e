"""The process of one library: ``python -m harness.worker PEER THREADS CPUS``.

It reads requests as lines of JSON on standard input and answers each with one line on standard
output. A process each keeps the thread pools and OpenMP runtimes of the libraries apart; between
requests it sleeps, so that only one library runs at a time.

- ``prepare``: make the arrays of a case, find the fastest candidate, compare its result with the
  one that the native kernels stored (``expected``), or store it (``save``).
- ``time``: seconds per call, of one sample.
- ``forget``: drop what was prepared.
"""

import gc
import importlib
import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

from fast_attention import _machine
from fast_attention._measure import SHORT_CALL, repetitions, time_call

from .cases import BY_NAME, Case
from .peers import MODULES, Candidate
from .problems import UnsupportedError, make_problem

LEAST_SAMPLE = 2e-3  # seconds; another library has just emptied the caches
SETTLE, MOST_SETTLE = 2e-3, 0.5  # seconds
IDLE = 0.2  # share of a CPU that a process at rest uses at most, measuring itself included
TRIALS = 3  # of each candidate, to find the fastest
# Of the largest number of the result. float32 leaves 1e-5 where 200,000 values average to 1e-2;
# arithmetic in 16 bits behind a float32 call would leave 1e-3. Libraries may hold scores and
# weights of 16-bit inputs in 16 bits.
TOLERANCE = 1e-4
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2}


class DisagreementError(Exception):
    """A result is not what the native kernels compute."""


class Worker:
    """What is prepared, by an identifier that the parent chooses."""

    def __init__(self, peer: str, threads: int) -> None:
        self.peer = peer
        self.adapter: Any = importlib.import_module(f".peers.{MODULES[peer]}", __package__)
        self.adapter.start(threads)
        self.prepared: dict[str, tuple[Candidate, int, bool]] = {}

    def start(self) -> dict[str, Any]:
        """Return the version; our own workers, whose BLAS is NumPy's, tell the machine's facts."""
        facts = {}
        if self.peer in ("native", "numpy"):
            np.ones((2, 2)) @ np.ones((2, 2))  # BLAS chooses its kernel
            facts = _machine.machine_facts()
        return {"version": self.adapter.version(), "facts": facts}

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prepare a case and compare its result."""
        case = BY_NAME[request["case"]]
        found = self.adapter.candidates(make_problem(case))
        seconds = []
        for candidate in found:
            result = candidate.to_array(candidate.call())
            if "save" in request:
                np.save(request["save"], result.astype(np.float32))
            if "expected" in request:
                check_agreement(case, result, np.load(request["expected"]))
            seconds.append(min(time_call(candidate.call, 1) for _ in range(TRIALS)))
        best = found[int(np.argmin(seconds))]
        inner = repetitions(best.call, LEAST_SAMPLE)
        self.prepared[request["id"]] = best, inner, min(seconds) < SHORT_CALL
        gc.collect()
        gc.freeze()
        return {"candidate": best.name, "amount": best.amount, "inner": inner}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Warm up where that matters, time one sample, and leave the CPUs idle."""
        candidate, inner, is_short = self.prepared[request["id"]]
        if is_short:
            candidate.call()
        seconds = time_call(candidate.call, inner)
        wait_until_idle()
        return {"seconds": float(f"{seconds:.4g}")}

    def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """Drop what was prepared."""
        self.prepared.clear()
        gc.unfreeze()
        gc.collect()
        return {}


def wait_until_idle() -> None:
    """Wait until no thread of this process works: some spin, some give memory back after a call.

    Without it JAX halves the speed of whoever comes next.
    """
    deadline = time.perf_counter() + MOST_SETTLE
    while time.perf_counter() < deadline:
        wall, busy = time.perf_counter(), time.process_time()
        time.sleep(SETTLE)
        wall, busy = time.perf_counter() - wall, time.process_time() - busy
        if busy < IDLE * wall:
            return


def check_agreement(case: Case, result: Any, expected: Any) -> None:
    """Raise unless `result` is the expected one within the tolerance of the case."""
    if result.shape != expected.shape:
        raise DisagreementError(f"result of shape {result.shape}, expected {expected.shape}")
    tolerance = TOLERANCES.get(getattr(case, "cache_dtype", None) or "", TOLERANCE)
    largest = float(np.abs(expected).max())
    difference = float(np.abs(result.astype(np.float64) - expected).max())
    if not difference <= tolerance * largest:
        raise DisagreementError(
            f"differs by {difference:.2g}, more than {tolerance:g} of {largest:.2g}"
        )


def answer(worker: Worker, line: str) -> dict[str, Any]:
    """Do what one request asks for; an error is an answer too."""
    request = json.loads(line)
    try:
        done: dict[str, Any] = getattr(worker, request["do"])(request)
        return done
    except UnsupportedError as reason:
        return {"absent": str(reason)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    peer, threads, cpus = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    replies = _replies()
    try:
        worker = Worker(peer, threads)
        first = worker.start()
    except (ImportError, UnsupportedError) as reason:
        first = {"absent": str(reason)}
    _send(replies, first)
    for line in sys.stdin if "absent" not in first else ():
        _send(replies, answer(worker, line))


def _replies() -> TextIO:
    """Return standard output for answers alone: what a library prints goes to standard error."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream


def _send(stream: TextIO, reply: dict[str, Any]) -> None:
    stream.write(json.dumps(reply) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
