"""Ctrl-C in a long call (case R09): heeded within a second, and nothing is left behind."""

import os
import sys

import pytest
import support

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

COMMON = """
import ctypes, mmap, os, resource, signal, sys, threading, time
import numpy as np
import fast_attention as f

signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may have it ignored
x = np.random.default_rng(0).standard_normal((8, 300, 64), dtype="f4")
many = np.broadcast_to(x, (200, 8, 300, 64))
key = np.broadcast_to(x[:1, :1], (8, 20_000, 64))
long_key = np.broadcast_to(x[:1, :1], (8, 1_000_000_000, 64))
rows = np.broadcast_to(x[0, :1], (20_000_000, 64))
CALLS = {
    "attention": lambda n: f.scaled_dot_product_attention(many, key, key, num_threads=n),
    "options": lambda n: f.scaled_dot_product_attention(
        many, key, key, softcap=9.0, return_lse=True, num_threads=n),
    "decode": lambda n: f.scaled_dot_product_attention(
        np.broadcast_to(many[:, :, :1], (50, 200, 8, 1, 64)), key, key, num_threads=n),
    "one tile": lambda n: f.scaled_dot_product_attention(
        x[:1], long_key[:1], long_key[:1], softcap=9.0, num_threads=n),
    "one row": lambda n: f.scaled_dot_product_attention(
        x[:1, :1], long_key[:1], long_key[:1], softcap=9.0, num_threads=n),
    "a row for each thread": lambda n: f.scaled_dot_product_attention(
        x[:, :1], long_key, long_key, softcap=9.0, num_threads=n),
    "helper alone": lambda n: f.scaled_dot_product_attention(
        np.broadcast_to(x[:1, :64], (2, 1, 64, 64)), long_key[None, :1], long_key[None, :1],
        kv_lengths=[10, 1_000_000_000], num_threads=n),
    "softmax": lambda n: f.logsumexp(np.broadcast_to(rows, (30, *rows.shape)), axis=(0, -1)),
}

def long_row():  # 4e9 numbers that may be written, in 64 MB of memory, mapped again and again
    part, n_part = 1 << 26, 240
    file = os.memfd_create("part")
    os.truncate(file, part)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x10  # MAP_FIXED
    start = libc.mmap(None, n_part * part, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for i in range(n_part):
        at = start + i * part
        assert libc.mmap(at, part, protection, flags, file, 0) == at, ctypes.get_errno()
    return np.frombuffer((ctypes.c_char * (n_part * part)).from_address(start), "f4")

if "row of" in sys.argv[3] or "strip of" in sys.argv[3]:
    row = long_row()
    half, strip = row[::2], row.reshape(-1, 64)
    CALLS |= {
        "row of softmax": lambda n: f.softmax(row, out=row),
        "row of log_softmax": lambda n: f.log_softmax(row, out=row),
        "row of logsumexp": lambda n: f.logsumexp(row),
        "row of softmax, apart": lambda n: f.softmax(half, out=half),
        "row of softmax_vjp": lambda n: f.softmax_vjp(row, row, out=row),
        "strip of softmax": lambda n: f.softmax(strip, axis=0, out=strip),
        "strip of logsumexp": lambda n: f.logsumexp(strip, axis=0),
    }
f._backend.using(sys.argv[1], sys.argv[2] or None).__enter__()
long_call = CALLS[sys.argv[3]]
expected = f.scaled_dot_product_attention(x, x, x)

def interrupt(after=0.3):
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    sent = []
    threading.Timer(after, send).start()
    return sent

def check_interrupted(n_thread, error=KeyboardInterrupt):
    sent = interrupt()
    try:
        with f.threads(n_thread):
            long_call(n_thread)
    except error:
        late = time.monotonic() - sent[0]
    else:
        raise AssertionError("the call was not interrupted")
    assert late < 1, late
    assert (f.scaled_dot_product_attention(x, x, x, num_threads=3) == expected).all()
"""

RIGHT_AWAY = """
handler = signal.getsignal(signal.SIGINT)
for n in (1, 3):
    check_interrupted(n)
assert signal.getsignal(signal.SIGINT) is handler
time.sleep(0.1)
before = time.process_time()
time.sleep(0.3)
assert time.process_time() - before < 0.1, "threads are still at work"
"""


@pytest.mark.parametrize("call", ["attention", "options", "decode", "softmax"])
def test_long_call_is_interrupted_within_a_second(engine, call):
    child = support.run_python(COMMON + RIGHT_AWAY, engine[0], engine[1] or "", call)
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("call", ["one tile", "one row", "a row for each thread", "helper alone"])
def test_long_task_is_interrupted_within_a_second(native_engine, call):
    child = support.run_python(COMMON + RIGHT_AWAY, *native_engine, call)
    assert child.returncode == 0, child.stderr


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory mapped repeatedly")
@pytest.mark.parametrize(
    "call",
    [
        "row of softmax",
        "row of log_softmax",
        "row of logsumexp",
        "row of softmax, apart",
        "row of softmax_vjp",
        "strip of softmax",
        "strip of logsumexp",
    ],
)
def test_long_row_of_the_softmax_family_is_interrupted_within_a_second(native_engine, call):
    child = support.run_python(COMMON + RIGHT_AWAY, *native_engine, call)
    assert child.returncode == 0, child.stderr


OTHER_HANDLERS = """
class Wake(Exception):
    pass

def handler(number, frame):
    raise Wake

signal.signal(signal.SIGINT, handler)
check_interrupted(3, Wake)
assert signal.getsignal(signal.SIGINT) is handler

signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
seen = []
wide = np.tile(x, (1, 4, 1))
right = f.scaled_dot_product_attention(wide, wide, wide, num_threads=2)
deadline = time.monotonic() + 60
while not seen:
    interrupt(0.005)
    result = f.scaled_dot_product_attention(wide, wide, wide, num_threads=2)
    assert (result == right).all()
    assert time.monotonic() < deadline
"""


def test_handlers_of_the_program_decide_what_a_signal_does(native_engine):
    child = support.run_python(COMMON + OTHER_HANDLERS, *native_engine, "attention")
    assert child.returncode == 0, child.stderr


CALLING = """
def handler(number, frame):
    if inside:
        inner.append((f.scaled_dot_product_attention(x, x, x, num_threads=3) == expected).all())
        f.softmax(x)

inside, inner = False, []
wide = np.tile(x, (1, 12, 1))
right = f.scaled_dot_product_attention(wide, wide, wide, num_threads=2)
signal.signal(signal.SIGALRM, handler)
deadline = time.monotonic() + 60
while len(inner) < 3:
    inside = True
    signal.setitimer(signal.ITIMER_REAL, 0.02)  # once: a slow handler is not itself interrupted
    result = f.scaled_dot_product_attention(wide, wide, wide, num_threads=2)
    inside = False
    assert (result == right).all()
    assert time.monotonic() < deadline
assert all(inner)
"""


def test_handler_that_makes_a_call_itself_disturbs_neither(native_engine):
    child = support.run_python(COMMON + CALLING, *native_engine, "attention")
    assert child.returncode == 0, child.stderr


REPEATED = """
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def interrupted_calls(n):
    for _ in range(n):
        interrupt(0.02)
        try:
            long_call(3)
        except KeyboardInterrupt:
            pass

interrupted_calls(4)
n_thread, before = f._native.pool_thread_count(), resident()
interrupted_calls(25)
assert f._native.pool_thread_count() == n_thread
assert resident() - before < 2 << 20, "scratch is lost"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory as Linux reports it")
def test_interrupted_calls_lose_neither_memory_nor_threads(native_engine):
    child = support.run_python(COMMON + REPEATED, *native_engine, "attention")
    assert child.returncode == 0, child.stderr


IN_A_THREAD = """
def work():
    with f._backend.using(sys.argv[1], sys.argv[2]):
        done.append(f.scaled_dot_product_attention(wide, wide, wide, num_threads=2))

done = []
wide = np.tile(x, (1, 6, 1))
thread = threading.Thread(target=work)
thread.start()
sent = interrupt(0.05)
try:
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    late = time.monotonic() - sent[0]
assert late < 1, late
thread.join()
assert (done[0][:, :1] == f.scaled_dot_product_attention(wide[:, :1], wide, wide)).all()
"""


def test_interrupt_reaches_the_main_thread_while_another_computes(native_engine):
    """The call of the other thread completes: Python handles signals in the main thread only."""
    child = support.run_python(COMMON + IN_A_THREAD, *native_engine, "attention")
    assert child.returncode == 0, child.stderr
