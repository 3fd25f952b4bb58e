"""The end of the process (case R16): exit code as asked for, no message, no hang, whatever runs."""

import os
import platform
import signal
import subprocess
import sys

import pytest
import support

RUNS = 3  # of each scene; tests/soak.py ends a busy process many times
SECONDS = 60

COMMON = """
import atexit, os, sys, threading, time
early = []
atexit.register(lambda: [work() for work in early])  # runs after what the package has registered
import numpy as np
import fast_attention as f
x = np.random.default_rng(0).standard_normal((8, 500, 64), dtype="f4")
small = x[:3, :200]
using = f._backend.using(sys.argv[1], sys.argv[2] or None)
using.__enter__()

def attend(x=x, n=3):
    return f.scaled_dot_product_attention(x, x, x, num_threads=n)

def forever(n=3):
    with f._backend.using(sys.argv[1], sys.argv[2] or None):
        while True:
            attend(n=n)
            f.softmax(x)

def start(target, daemon=True):
    thread = threading.Thread(target=target, daemon=daemon)
    thread.start()
    return thread
"""

SCENES = {
    "after a call": ("attend()", 0),
    "import only": ("", 0),
    "daemon thread inside a call": ("start(forever); time.sleep(0.1)", 0),
    "several daemon threads inside calls": (
        "for n in (1, 2, 3): start(lambda: forever(n))\ntime.sleep(0.1)", 0,
    ),
    "daemon thread and a last call": ("start(forever); time.sleep(0.05); attend(small)", 0),
    "sys.exit while a thread is inside a call": (
        "start(lambda: [attend() for _ in range(2)], daemon=False)\nsys.exit(3)", 3,
    ),
    "sys.exit in a thread": ("start(sys.exit).join(); attend(small)", 0),
    "os._exit while busy": ("start(forever); time.sleep(0.1); os._exit(4)", 4),
    "call after the pool has ended": (
        "expected = attend(small).tobytes()\n"
        "early.append(lambda: os._exit(5 if attend(small).tobytes() == expected else 6))", 5,
    ),
    "object whose end makes a call": (
        "class Late:\n    def __del__(self, attend=attend, small=small): attend(small)\n"
        "late = Late(); attend(small)", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("scene", "code"), SCENES.values(), ids=SCENES)
def test_process_ends_as_it_was_told_to(engine, scene, code):
    for _ in range(RUNS):
        child = support.run_python(
            COMMON + scene, engine[0], engine[1] or "", timeout=SECONDS, OPENBLAS_NUM_THREADS="1"
        )
        assert child.returncode == code, child.stderr
        assert child.stderr == ""


ENDLESS = {
    "tiles": "lambda: f.scaled_dot_product_attention(x[:4], key, key, num_threads=4)",
    "rows": "lambda: f.scaled_dot_product_attention(x[:4, :1], key, key, num_threads=4)",
    "softmax": "lambda: f.logsumexp(np.broadcast_to(x[0, 0, :1], (4, 10_000_000_000)))",
    "softmax across the lanes": "lambda: f.logsumexp("
    "np.broadcast_to(x[0, 0, :64], (2, 2_000_000_000, 64)), axis=1)",
}


@pytest.mark.parametrize("call", ENDLESS.values(), ids=ENDLESS)
def test_process_does_not_wait_for_long_tasks_of_the_pool(native_engine, call):
    code = (
        "key = np.broadcast_to(x[0, 0, :64], (4, 1_000_000_000, 64)); f.set_num_threads(4)\n"
        f"call = {call}\nstart(lambda: using.__enter__() and call()); time.sleep(0.3)"
    )
    child = support.run_python(COMMON + code, *native_engine, timeout=SECONDS)
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""


AFTER_THE_INTERPRETER = """
import ctypes
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # gets the exit code: a second between the interpreter and the end
key = np.broadcast_to(x[0, 0, :64], (4, 1_000_000_000, 64))
go = threading.Event()

def attend_late(delay):
    with f._backend.using(sys.argv[1], sys.argv[2]):
        go.wait()
        time.sleep(delay)
        f.scaled_dot_product_attention(x[:4], key, key, num_threads=1)

for i in range(10):
    start(lambda i=i: attend_late(i * 0.004))
go.set()
time.sleep(0.05)
sys.exit(1)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_daemon_thread_that_looks_for_signals_after_the_end_of_the_interpreter(native_engine):
    for _ in range(RUNS):
        child = support.run_python(COMMON + AFTER_THE_INTERPRETER, *native_engine, timeout=SECONDS)
        assert child.returncode == 1, child.stderr
        assert child.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_process_can_be_ended_by_a_signal_while_busy(native_engine):
    code = COMMON + "start(forever); print('ready', flush=True); forever()"
    command = [sys.executable, "-c", code, native_engine[0], native_engine[1]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
