"""Times a case on every library in turn: A B C A B C ..., so that a change of clock meets all.

Each library has a worker process, for each number of threads, that lives as long as the run.
"""

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fast_attention
from fast_attention._child import child_environment
from fast_attention._measure import statistics

from .cases import PEERS, Case, SoftmaxCase

BENCHMARKS = Path(__file__).parents[1]
PACKAGE = Path(fast_attention.__file__).parents[1]
LEAST_ROUNDS, MOST_ROUNDS = 9, 301
POLL_SECONDS = 1.0


class WorkerError(Exception):
    """A worker could not do what it was asked for."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One of those that take turns: a library on a case, by the name of its measure."""

    name: str
    peer: str
    threads: int
    case: str


@dataclasses.dataclass
class Settings:
    """How a run measures."""

    peers: tuple[str, ...]
    cpus: list[int]
    seconds: float = 2.0
    rounds: int | None = None
    pythons: dict[str, str] = dataclasses.field(default_factory=dict)


def sides_of(case: Case, peers: tuple[str, ...]) -> list[Side]:
    """Return who takes turns on `case`. The native kernels come first: the others are compared."""
    names = [name for name in ("native", "numpy", *PEERS) if name in peers]
    if isinstance(case, SoftmaxCase) and "scipy" in peers:
        names.append("scipy")
    sides = [Side(name, name, case.threads, case.name) for name in names]
    if case.base is not None:
        sides.append(Side("base", "native", case.threads, case.base))
    if case.threads > 1:
        sides.append(Side("one_thread", "native", 1, case.name))
    if case.limit is not None and "limits" in peers:
        sides.append(Side(case.limit, "limits", case.threads, case.name))
    return sides


class Child:
    """A worker process."""

    def __init__(self, peer: str, threads: int, settings: Settings) -> None:
        python = settings.pythons.get(peer, sys.executable)
        cpus = json.dumps(settings.cpus[-threads:])
        self.process = subprocess.Popen(
            [python, "-m", "harness.worker", peer, str(threads), cpus],
            env=_environment(peer, threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self.read()

    def read(self) -> dict[str, Any]:
        """Return the next answer; the first one comes unasked."""
        assert self.process.stdout is not None
        # A process that a library forked can hold the pipe open after a crash.
        while not select.select([self.process.stdout], [], [], POLL_SECONDS)[0]:
            if self.process.poll() is not None:
                raise self._ended()
        line = self.process.stdout.readline()
        if not line:
            raise self._ended()
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def _ended(self) -> WorkerError:
        return WorkerError(f"ended with code {self.process.wait()}")

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def _environment(peer: str, threads: int) -> dict[str, str]:
    """Return the environment of a worker, with its backend and the way to this package."""
    environment = child_environment(threads)
    for name in [name for name in environment if name.startswith("FAST_ATTENTION_")]:
        if name != "FAST_ATTENTION_ISA":
            del environment[name]
    backend = "numpy" if peer == "numpy" else "native" if peer == "native" else "auto"
    path = os.pathsep.join((str(BENCHMARKS), str(PACKAGE)))
    return {**environment, "PYTHONPATH": path, "FAST_ATTENTION_BACKEND": backend}


class Run:
    """All workers of a run; what is absent is noted once and left out."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.children: dict[tuple[str, int], Child] = {}
        self.absent: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.machine: dict[str, Any] = {}

    def child(self, peer: str, threads: int) -> Child | None:
        """Return the worker of `peer`, started if need be, or ``None`` if there is no such."""
        if peer in self.absent:
            return None
        if (peer, threads) not in self.children:
            child = self.children[peer, threads] = Child(peer, threads, self.settings)
            hello = child.read()
            if "absent" in hello:
                self.absent[peer] = hello["absent"]
                return None
            self.versions[peer] = hello["version"]
            self.machine.update(hello["facts"])
        return self.children[peer, threads]

    def close(self) -> None:
        """End all workers."""
        for child in self.children.values():
            child.close()

    def measure(self, case: Case) -> dict[str, Any]:
        """Return the result of `case`: statistics of each side, and who is left out and why."""
        left_out: dict[str, str] = {}
        ready: dict[Side, dict[str, Any]] = {}
        for side in sides_of(case, self.settings.peers):
            try:
                reply = self._prepare(side)
            except WorkerError as error:
                left_out[side.name] = str(error)
                self._discard(side)
                continue
            if "absent" in reply:
                left_out[side.name] = reply["absent"]
            else:
                ready[side] = reply
        samples = self._take_turns(list(ready), left_out)
        for key in {(side.peer, side.threads) for side in samples}:
            self.children[key].ask("forget")
        sides = {s.name: {**statistics(times), **ready[s]} for s, times in samples.items()}
        return {"name": case.name, "left_out": left_out, "sides": sides}

    def _prepare(self, side: Side) -> dict[str, Any]:
        child = self.child(side.peer, side.threads)
        if child is None:
            return {"absent": self.absent[side.peer]}
        expected = self.folder / f"{side.case}.npy"
        fields = {}
        if side.name in ("native", "base"):
            fields["save"] = str(expected)
        elif side.peer != "limits":
            fields["expected"] = str(expected)
        return child.ask("prepare", case=side.case, id=side.name, **fields)

    def _discard(self, side: Side) -> None:
        """Forget a worker that has ended, so that the next case starts another."""
        child = self.children[side.peer, side.threads]
        if child.process.poll() is not None:
            child.close()
            del self.children[side.peer, side.threads]

    def _take_turns(self, sides: list[Side], left_out: dict[str, str]) -> dict[Side, list[float]]:
        """Return the samples of each side; one that fails on the way joins `left_out`."""
        samples: dict[Side, list[float]] = {side: [] for side in sides}
        rounds = self.settings.rounds
        deadline = time.perf_counter() + self.settings.seconds
        for done in range(rounds or MOST_ROUNDS):
            if rounds is None and done >= LEAST_ROUNDS and time.perf_counter() > deadline:
                break
            for side in list(samples):
                child = self.children[side.peer, side.threads]
                try:
                    samples[side].append(child.ask("time", id=side.name)["seconds"])
                except WorkerError as error:
                    left_out[side.name] = str(error)
                    del samples[side]
                    self._discard(side)
        return samples


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[Run]:
    """Make a run and see to it that no worker is left over."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(settings, Path(folder))
        try:
            yield run
        finally:
            run.close()
