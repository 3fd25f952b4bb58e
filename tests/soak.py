"""Soak: random calls from many threads and processes for a given time, memory watched.

``python tests/soak.py --seconds 600`` checks every result against the first one of its kind, bit
for bit, and prints a line of counts each interval. Beside the threads that call, in turn: a forked
child calls, a child is interrupted inside a call, a process ends while its threads are inside
calls. At the end the memory that the process keeps must be what it was after the first two tenths
of the time, and the pool must hold no more threads than it was asked for. Needs the native backend
and a system with fork and /proc.
"""

import argparse
import contextlib
import ctypes
import itertools
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter

import numpy as np

import fast_attention as f

MOST_GROWTH = 2 << 20  # bytes; arenas of the allocator are never quite empty,
SHORT, MOST_SHORT_GROWTH = 300, 16 << 20  # and still fill in a run of fewer seconds
MOST_THREADS = 4
N_KIND = 60
N_CHILD_CALL = 3
LOOK_SECONDS = 0.05
MOST_LOOKS = 2400  # of a child that does not end

ENDING = """
import sys, threading, time
import numpy as np
import fast_attention as f
x = np.ones((8, 500, 64), "f4")
long_key = np.broadcast_to(x[:1, :1], (8, 1_000_000_000, 64))

def forever(key):
    with f._backend.using(*sys.argv[1:3]):
        while True:
            f.scaled_dot_product_attention(x, key, key, num_threads=3)

for key in (x, x, long_key):
    threading.Thread(target=forever, args=(key,), daemon=True).start()
time.sleep(float(sys.argv[3]))
"""


def call(kind, n_thread):
    """Compute call number `kind`; the same bytes whatever n_thread is."""
    rng = np.random.default_rng(kind)
    heads, n_query, n_key, d = (int(n) for n in rng.integers(1, (5, 150, 400, 70)))
    dtype = ("f4", "f8", "f2")[kind % 3]
    query, key, value = (
        rng.standard_normal((heads, n, d)).astype(dtype) for n in (n_query, n_key, n_key)
    )
    options = [
        {"is_causal": True, "query_offset": "end"},
        {"attn_mask": rng.random((n_query, n_key)) < 0.7, "return_lse": True},
        {"softcap": 5.0, "sinks": 0.0},
        {"bias": rng.standard_normal((n_query, n_key)), "return_weights": True},
        {},
    ][kind % 5]
    found = f.scaled_dot_product_attention(query, key, value, num_threads=n_thread, **options)
    results = found if isinstance(found, tuple) else (found,)
    with f.threads(n_thread):
        results = (*results, f.softmax(key, axis=kind % 3), f.logsumexp(value, axis=-1))
    return b"".join(x.tobytes() for x in results)


class Soak:
    """What all threads share."""

    def __init__(self, engine, n_caller):
        self.engine = engine
        self.done = Counter()
        self.counting = threading.Lock()
        self.wrong = []
        self.stop = threading.Event()
        self.at_work = [threading.Lock() for _ in range(n_caller)]  # each held during a call
        with f._backend.using(*engine):
            self.expected = [call(kind, 1) for kind in range(N_KIND)]

    def count(self, what, n=1):
        """Count what was done, from any thread."""
        with self.counting:
            self.done[what] += n

    def check(self, rng):
        """Make one random call and compare it."""
        kind, n_thread = int(rng.integers(N_KIND)), int(rng.integers(1, MOST_THREADS + 1))
        if call(kind, n_thread) != self.expected[kind]:
            self.wrong.append((kind, n_thread))
        self.count("calls")

    def keep_calling(self, seed, at_work):
        """Call until told to stop; an exception is a fault too."""
        try:
            self.call_until_stopped(np.random.default_rng(seed), at_work)
        except BaseException as error:
            traceback.print_exc()
            self.wrong.append(("thread", repr(error)))

    def call_until_stopped(self, rng, at_work):
        """Call, starting a short-lived thread now and then."""
        with f._backend.using(*self.engine):
            while not self.stop.is_set():
                with at_work:
                    self.check(rng)
                if rng.random() < 0.02:
                    thread = threading.Thread(target=self.call_once, args=(int(rng.integers(9e9)),))
                    thread.start()
                    thread.join()
                    self.count("threads")

    def call_once(self, seed):
        """Be a thread of one call."""
        with f._backend.using(*self.engine):
            self.check(np.random.default_rng(seed))

    def kept_memory(self):
        """Return what is in use between the calls, without what the allocator could give back."""
        with contextlib.ExitStack() as stack:
            for lock in self.at_work:
                stack.enter_context(lock)
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
            return resident()

    def child(self, work, after=lambda pid: None):
        """Fork; the child does `work` and must end with 0."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.counting, self.wrong = threading.Lock(), []
                work()
                code = int(bool(self.wrong))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        after(pid)
        status = await_end(lambda: status_of(pid))
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if status != 0:
            self.wrong.append((work.__name__, status))

    def fork(self, seed):
        """Let a forked child make a few calls."""

        def calls():
            for i in range(N_CHILD_CALL):
                self.call_once(N_CHILD_CALL * seed + i)

        self.child(calls)
        self.count("forks")
        self.count("calls", N_CHILD_CALL)

    def interrupt(self, seed):
        """Interrupt a child inside a call; its next call must be right."""
        ready, is_ready = os.pipe()

        def call_until_interrupted():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                os.write(is_ready, b"!")
                while True:
                    self.call_once(seed)
            except KeyboardInterrupt:
                self.call_once(seed)

        def send(pid):
            os.read(ready, 1)
            time.sleep(seed % 100 / 1000)
            os.kill(pid, signal.SIGINT)

        self.child(call_until_interrupted, send)
        os.close(ready)
        os.close(is_ready)
        self.count("interrupts")

    def end(self, seed):
        """Let a process end while threads of it are inside calls."""
        command = [sys.executable, "-c", ENDING, *self.engine, str(seed % 100 / 500)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            code = await_end(process.poll)
            if code is None:
                process.kill()
            message = process.communicate()[1]
        if code != 0 or message:
            self.wrong.append(("end", code, message))
        self.count("exits")


def status_of(pid):
    """Return the status of a child that has ended, else None."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return status if found else None


def await_end(look):
    """Return what `look` finds; None if it is None for long.

    Looks are counted, not seconds: all processes of a machine may be frozen for minutes.
    """
    for _ in range(MOST_LOOKS):
        found = look()
        if found is not None:
            return found
        time.sleep(LOOK_SECONDS)
    return None


def resident():
    """Return the bytes of memory that the process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def cpu_seconds():
    """Return the time of processors that this process and its children have used."""
    uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def report(soak, start, memory):
    """Print one line of counts."""
    counts = ", ".join(f"{n:,} {what}" for what, n in sorted(soak.done.items()))
    print(
        f"{time.monotonic() - start:6.0f} s: {counts}, {len(soak.wrong)} wrong; "
        f"RSS {memory / 2**20:.1f} MiB, {len(os.listdir('/proc/self/task'))} threads, "
        f"{cpu_seconds() / 3600:.3f} hours of CPU",
        flush=True,
    )


def run(engine, seconds, n_caller):
    """Soak one engine; tell whether all was well."""
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print("engine", *filter(None, engine), f"of {f.__version__} on {machine}", flush=True)
    soak = Soak(engine, n_caller)
    start = time.monotonic()
    callers = [
        threading.Thread(target=soak.keep_calling, args=(i, lock))
        for i, lock in enumerate(soak.at_work)
    ]
    for thread in callers:
        thread.start()
    memory = []
    seeds = itertools.count()
    while time.monotonic() - start < seconds and not soak.wrong:
        end = time.monotonic() + seconds / 10
        while time.monotonic() < end:
            for disturb in (soak.fork, soak.interrupt, soak.end):
                disturb(next(seeds))
            time.sleep(0.2)
        memory.append(soak.kept_memory())
        report(soak, start, memory[-1])
    soak.stop.set()
    for thread in callers:
        thread.join()
    growth = memory[-1] - max(memory[:2])
    allowed = MOST_SHORT_GROWTH if seconds < SHORT else MOST_GROWTH
    helpers = f._native.pool_thread_count()
    print(f"growth {growth / 2**20:.2f} MiB, {helpers} threads in the pool; wrong: {soak.wrong}")
    return not soak.wrong and growth <= allowed and helpers < MOST_THREADS


def main():
    """Soak one instruction set."""
    parser = argparse.ArgumentParser(description="random calls for a time, memory watched")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--callers", type=int, default=3, help="Python threads that call")
    parser.add_argument("--isa", help="instruction set; default: the best")
    arguments = parser.parse_args()
    isa = arguments.isa or f._backend.native().isas[-1]
    sys.exit(0 if run(("native", isa), arguments.seconds, arguments.callers) else 1)


if __name__ == "__main__":
    main()
