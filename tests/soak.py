"""Soak: random calls from many threads and forked children for a given time, memory watched.

``python tests/soak.py --seconds 600`` checks every result against the first one of its kind, bit
for bit, and prints a line of counts each interval. At the end the memory that the process keeps
must be what it was after the first two tenths of the time, and the pool must hold no more threads
than it was asked for. Needs the native backend and a system with fork and /proc.
"""

import argparse
import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter

import numpy as np

import fast_attention as f

MOST_GROWTH = 2 << 20  # bytes; arenas of the allocator are never quite empty
MOST_THREADS = 4
N_KIND = 60
CHILD_SECONDS = 120


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
        self.wrong = []
        self.stop = threading.Event()
        self.at_work = [threading.Lock() for _ in range(n_caller)]  # each held during a call
        with f._backend.using(*engine):
            self.expected = [call(kind, 1) for kind in range(N_KIND)]

    def check(self, rng):
        """Make one random call and compare it."""
        kind, n_thread = int(rng.integers(N_KIND)), int(rng.integers(1, MOST_THREADS + 1))
        if call(kind, n_thread) != self.expected[kind]:
            self.wrong.append((kind, n_thread))
        self.done["calls"] += 1

    def keep_calling(self, seed, at_work):
        """Call until told to stop, starting a short-lived thread now and then."""
        rng = np.random.default_rng(seed)
        with f._backend.using(*self.engine):
            while not self.stop.is_set():
                with at_work:
                    self.check(rng)
                if rng.random() < 0.02:
                    thread = threading.Thread(target=self.call_once, args=(int(rng.integers(9e9)),))
                    thread.start()
                    thread.join()
                    self.done["threads"] += 1

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

    def fork(self, seed):
        """Fork; the child makes three calls and must end with 0."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(CHILD_SECONDS)
                self.wrong = []
                for i in range(3):
                    self.call_once(seed + i)
                code = int(bool(self.wrong))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            self.wrong.append(("fork", seed))
        self.done["forks"] += 1


def resident():
    """Return the bytes of memory that the process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def report(soak, start, memory):
    """Print one line of counts."""
    counts = ", ".join(f"{n:,} {what}" for what, n in sorted(soak.done.items()))
    print(
        f"{time.monotonic() - start:6.0f} s: {counts}, {len(soak.wrong)} wrong, "
        f"{memory / 2**20:.1f} MiB, {len(os.listdir('/proc/self/task'))} threads, "
        f"{time.process_time():.0f} s of CPU",
        flush=True,
    )


def run(engine, seconds, n_caller):
    """Soak one engine; tell whether all was well."""
    print("engine", *filter(None, engine), flush=True)
    soak = Soak(engine, n_caller)
    start = time.monotonic()
    callers = [
        threading.Thread(target=soak.keep_calling, args=(i, lock))
        for i, lock in enumerate(soak.at_work)
    ]
    for thread in callers:
        thread.start()
    memory = []
    while time.monotonic() - start < seconds and not soak.wrong:
        end = time.monotonic() + seconds / 10
        while time.monotonic() < end:
            soak.fork(len(memory))
            time.sleep(0.2)
        memory.append(soak.kept_memory())
        report(soak, start, memory[-1])
    soak.stop.set()
    for thread in callers:
        thread.join()
    growth = memory[-1] - max(memory[:2])
    helpers = f._native.pool_thread_count()
    print(f"growth {growth / 2**20:.2f} MiB, {helpers} threads in the pool; wrong: {soak.wrong}")
    return not soak.wrong and growth <= MOST_GROWTH and helpers < MOST_THREADS


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
