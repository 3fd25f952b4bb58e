"""Compiles ``limits.c`` with the system's compiler and runs its loops on a number of threads."""

import concurrent.futures
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .problems import UnsupportedError

SOURCE = Path(__file__).with_name("limits.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-shared", "-fPIC")
# Of these loops alone, which are compiled where they run: the package is built for any machine.
THIS_MACHINE = ("-march=native", "-mcpu=native")  # the second where the first is not known
# Kernels that are forced to an instruction set are held to what it can do.
FORCED = {"avx2": ("-march=haswell",), "sse2": ("-march=x86-64",)}

READ_BYTES = 2**28
FMA_TURNS = 2_000_000  # some 4 ms


def compile_loops() -> ctypes.CDLL:
    """Return the loops, or raise ``UnsupportedError`` where nothing compiles them."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None or os.name == "nt":
        raise UnsupportedError("no C compiler of the kind of GCC: the limits are not measured")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "limits.so")
        for machine in FORCED.get(os.environ.get("FAST_ATTENTION_ISA", ""), THIS_MACHINE):
            command = [*compiler.split(), *FLAGS, machine, "-o", str(library), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return _declared(ctypes.CDLL(str(library)))
    raise UnsupportedError(f"{compiler} does not compile the loops: {done.stderr.strip()[-200:]}")


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    n, pointer = ctypes.c_int64, ctypes.c_void_p
    library.fma_flops_per_turn.restype = n
    library.fma_loop.argtypes = (n, ctypes.c_float, ctypes.c_float)
    library.read_loop.argtypes = (pointer, n)
    library.fma_loop.restype = library.read_loop.restype = ctypes.c_float
    library.copy_loop.argtypes = (pointer, pointer, n)
    library.copy_loop.restype = None
    return library


class Loops:
    """The three loops on `threads` threads; each method returns a call and what it amounts to."""

    def __init__(self, threads: int) -> None:
        self.library = compile_loops()
        self.threads = threads
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)

    def fma(self) -> tuple[Callable[[], object], float]:
        """Return a loop of fused multiply-adds and its floating-point operations."""
        amount = FMA_TURNS * self.library.fma_flops_per_turn() * self.threads
        return self._on_all(lambda part: self.library.fma_loop(FMA_TURNS, 0.5, 1.0)), amount

    def read(self) -> tuple[Callable[[], object], float]:
        """Return a loop that reads far more than any cache holds, and its bytes."""
        array = np.ones(READ_BYTES // 4, np.float32)
        count = array.size // self.threads

        def part(index: int) -> float:
            start = array.ctypes.data + 4 * count * index
            return float(self.library.read_loop(start, count))

        return self._on_all(part), 4.0 * count * self.threads

    def copy(self, n_bytes: int) -> tuple[Callable[[], object], float]:
        """Return a loop that copies an array of `n_bytes` into another, and the bytes."""
        source = np.ones(n_bytes // 4, np.float32)
        target = np.ones_like(source)
        count = source.size // self.threads

        def part(index: int) -> None:
            start = 4 * count * index
            self.library.copy_loop(target.ctypes.data + start, source.ctypes.data + start, count)

        return self._on_all(part), 4.0 * count * self.threads

    def _on_all(self, part: Callable[[int], object]) -> Callable[[], object]:
        if self.threads == 1:
            return lambda: part(0)
        return lambda: list(self.pool.map(part, range(self.threads)))
