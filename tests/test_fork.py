"""Forked children (case R01): right at once, whatever the parent was doing, and the parent too."""

import os

import pytest
import support

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

COMMON = """
import os, signal, sys, threading, time, traceback, warnings
import multiprocessing
import numpy as np
import fast_attention as f
warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of any fork beside threads
ENGINE = sys.argv[1], sys.argv[2] or None

rng = np.random.default_rng(0)
x = rng.standard_normal((6, 400, 32), dtype="f4")
rows = rng.standard_normal((500, 400), dtype="f4")

def compute(n_thread=3):
    with f._backend.using(*ENGINE), f.threads(n_thread):
        output = f.scaled_dot_product_attention(x, x, x, is_causal=True)
        return output.tobytes() + f.softmax(rows).tobytes()

def in_child(work):
    "Fork; the child does `work` and has 90 seconds for it."
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(90)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid

def check(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"child ended with status {status}"

def check_result():
    assert compute() == expected

def check_own_threads():
    "The right result, by threads that live in this process."
    check_result()
    if ENGINE[1] and os.path.isdir("/proc/self/task"):
        assert len(os.listdir("/proc/self/task")) == 3
"""

SCENES = {
    "after a call": """
expected = compute()
for _ in range(3):
    check(in_child(check_own_threads))
    check_result()
""",
    "before the first call": """
pid = in_child(compute)
expected = compute()
check(pid)
check(in_child(check_result))
""",
    "while other threads compute": """
expected = compute()
stop = threading.Event()
def keep_busy():
    while not stop.is_set():
        compute()
threads = [threading.Thread(target=keep_busy) for _ in range(3)]
for t in threads: t.start()
for _ in range(10):
    check(in_child(check_result))
    check_result()
stop.set()
for t in threads: t.join()
""",
    "many children at once": """
expected = compute()
for pid in [in_child(check_result) for _ in range(8)]:
    check(pid)
check_result()
""",
    "threads in the child": """
expected = compute()
def work():
    right = []
    threads = [threading.Thread(target=lambda: right.append(compute() == expected))
               for _ in range(6)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert right == [True] * 6
check(in_child(work))
check_result()
""",
    "children of children": """
expected = compute()
def child():
    check_result()
    check(in_child(lambda: (check_result(), check(in_child(check_result)), check_result())))
    check_result()
check(in_child(child))
check_result()
""",
    "from another thread": """
expected = compute()
failed = []
def fork():
    try:
        check(in_child(check_result))
    except BaseException as error:
        failed.append(error)
thread = threading.Thread(target=fork)
thread.start()
check_result()
thread.join()
assert not failed, failed
""",
    "settings": """
expected = compute()
f.set_num_threads(2)
def work():
    assert f.get_num_threads() == 2
    with f.threads(5):
        assert f.get_num_threads() == 5
    check_result()
with f.threads(4):
    check(in_child(lambda: [][f.get_num_threads() - 4:1]))
check(in_child(work))
""",
    "multiprocessing": """
expected = compute()
for _ in range(2):
    process = multiprocessing.get_context("fork").Process(target=check_result)
    process.start()
    process.join(90)
    assert process.exitcode == 0, process.exitcode
    check_result()
""",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_child_and_parent_compute_the_same_bits(native_engine, scene):
    child = support.run_python(COMMON + scene, native_engine[0], native_engine[1])
    assert child.returncode == 0, child.stderr


# On one thread of BLAS: whether its own threads survive a fork is not for this package to say.
@pytest.mark.parametrize("name", ["after a call", "many children at once", "multiprocessing"])
def test_child_of_the_fallback_computes_the_same_bits(name):
    child = support.run_python(COMMON + SCENES[name], "numpy", "", OPENBLAS_NUM_THREADS="1")
    assert child.returncode == 0, child.stderr


POOLS = """
import concurrent.futures, multiprocessing, sys, warnings
import numpy as np
import fast_attention as f
warnings.simplefilter("ignore", DeprecationWarning)
x = np.random.default_rng(0).standard_normal((6, 400, 32), dtype="f4")
expected = f.scaled_dot_product_attention(x, x, x, num_threads=3)
context = multiprocessing.get_context(sys.argv[1])
with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
    jobs = [pool.submit(f.scaled_dot_product_attention, x, x, x, num_threads=n) for n in (1, 3, 2)]
    rows = pool.submit(f.softmax, x)
    for job in jobs:
        assert (job.result(60) == expected).all()
    assert (rows.result(60) == f.softmax(x)).all()
with context.Pool(2) as pool:
    for result in pool.starmap(f.scaled_dot_product_attention, 4 * [(x, x, x)]):
        assert (result == expected).all()
assert (f.scaled_dot_product_attention(x, x, x, num_threads=3) == expected).all()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pools_of_every_start_method_compute_the_same_bits(method):
    environment = {} if support.NATIVE_ENGINES else {"OPENBLAS_NUM_THREADS": "1"}
    child = support.run_python(POOLS, method, **environment)
    assert child.returncode == 0, child.stderr
