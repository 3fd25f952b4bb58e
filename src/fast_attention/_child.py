"""Starts the measuring process of ``compare`` and sees to its end.

It is a process of its own because BLAS libraries read their number of threads when they are loaded.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

BLAS_THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
# These make OpenBLAS run the kernels of another processor, or with its block sizes.
BLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@contextlib.contextmanager
def measuring_process(request: dict[str, Any], threads: int) -> Iterator[subprocess.Popen[str]]:
    """Start ``_measure`` and see to it that it has ended afterwards, whatever happens."""
    command = [sys.executable, "-m", f"{__package__}._measure", json.dumps(request)]
    with _start(command, child_environment(threads)) as process:
        try:
            yield process
        finally:
            process.kill()  # it has nothing to clean up; nothing happens if it has ended


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start `command` in a process group of its own, which Ctrl-C does not reach."""
    if sys.platform == "win32":
        group = subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, creationflags=group
        )
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, process_group=0
    )


def child_environment(threads: int) -> dict[str, str]:
    """Return this environment with BLAS on `threads` threads and on its own choice of kernel."""
    kept = {name: value for name, value in os.environ.items() if name not in BLAS_OVERRIDES}
    return {**kept, **dict.fromkeys(BLAS_THREADS, str(threads))}
