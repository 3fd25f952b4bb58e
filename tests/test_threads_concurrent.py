"""Many Python threads calling at once: they share the cores, and nothing grows."""

import sys

import pytest
import support

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux reports of a process")

COMMON = """
import os, resource, sys, threading, time
import numpy as np
import fast_attention as f
ENGINE = sys.argv[1], sys.argv[2] or None

def attend(heads=4, n=300, n_thread=3, d=32):
    with f._backend.using(*ENGINE):
        x = np.ones((heads, n, d), "f4")
        return f.scaled_dot_product_attention(x, x, x, num_threads=n_thread)

def count_threads():
    return len(os.listdir("/proc/self/task"))

def count_helpers():
    return f._native.pool_thread_count() if ENGINE[1] else 0

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def at_once(n, work):
    threads = [threading.Thread(target=work) for _ in range(n)]
    for t in threads: t.start()
    for t in threads: t.join()
"""

MANY = """
N = 3
before = count_threads()
most = []
def work():
    for _ in range(15):
        attend(n_thread=N)
        most.append(count_threads())
at_once(8, work)
assert max(most) <= before + 8 + N - 1, (before, max(most))
assert count_helpers() == N - 1
"""

GROWTH = """
def calls(n):
    for i in range(n):
        attend(1, 4)
        attend(1 + i % 5, 100 + 60 * (i % 4), 1 + i % 4, 16 << i % 3)
        with f._backend.using(*ENGINE):
            f.softmax(np.ones((300, 400 + i % 7), "f4"), axis=i % 2)
        if i % 5 == 0:
            at_once(3, attend)

calls(40)
n_helper, before = count_helpers(), resident()
calls(160)
assert count_helpers() == n_helper
assert resident() - before < 3 << 20, (resident() - before) >> 10
"""

SHARE = """
def work():
    start.wait()
    end = time.monotonic() + 1.5
    n = 0
    while time.monotonic() < end:
        attend(4, 200, 2)
        n += 1
    done.append(n)

attend()
done, start = [], threading.Barrier(2)
at_once(2, work)
assert min(done) > 0.25 * max(done), done
"""

LIMITS = """
def seen(limit):
    with f.threads(limit), f._backend.using(*ENGINE):
        start.wait()
        found.append((limit, f.get_num_threads(), f.explain(x, x, x).threads))

x = np.ones((64, 500, 32), "f4")
found, start = [], threading.Barrier(8)
threads = [threading.Thread(target=seen, args=(n,)) for n in range(1, 9)]
for t in threads: t.start()
for t in threads: t.join()
assert all(limit == number == planned for limit, number, planned in found), found

import asyncio
async def task(n):
    with f.threads(n):
        await asyncio.sleep(0.01)
        return f.get_num_threads()
async def gather():
    return await asyncio.gather(*map(task, range(1, 9)))
assert asyncio.run(gather()) == list(range(1, 9))
"""


def run(code, engine):
    child = support.run_python(COMMON + code, engine[0], engine[1] or "", OPENBLAS_NUM_THREADS="1")
    assert child.returncode == 0, child.stderr


@linux
@pytest.mark.parametrize("code", [pytest.param(MANY, id="P08")])
def test_many_callers_share_the_threads_of_one(native_engine, code):
    run(code, native_engine)


@linux
@pytest.mark.parametrize("code", [pytest.param(GROWTH, id="P08-growth")])
def test_calls_of_all_sizes_make_neither_threads_nor_memory_grow(engine, code):
    run(code, engine)


def test_two_threads_calling_at_once_share_the_cores_fairly(native_engine):
    run(SHARE, native_engine)


def test_limits_belong_to_their_thread_and_task(native_engine):
    run(LIMITS, native_engine)
