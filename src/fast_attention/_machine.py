"""What this machine is: processor, BLAS and versions, for the head of a measurement.

Every fact is looked up with the standard library and NumPy alone, and is "unknown" where a platform
does not tell: a measurement never fails for want of a name.
"""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ._config import UNKNOWN, blas_of_build, show_config
from ._threads import physical_cores, read_text

# OpenBLAS exports its functions plainly, with a suffix for 64-bit integers, or (in NumPy's own
# wheels) with a prefix as well.
_OPENBLAS_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def cpu_model() -> str:
    """Return the processor's name as its vendor writes it."""
    for look in (_cpu_from_proc, _cpu_from_sysctl, _cpu_from_registry, platform.processor):
        name = look().strip()
        if name:
            return name
    return platform.machine() or UNKNOWN


def _cpu_from_proc() -> str:
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
        field, _, name = line.partition(":")
        if field.strip() in ("model name", "Model", "cpu model"):
            return name
    return ""


def _cpu_from_sysctl() -> str:
    if sys.platform != "darwin":
        return ""
    return _output_of("sysctl", "-n", "machdep.cpu.brand_string")


def _cpu_from_registry() -> str:
    if sys.platform != "win32":
        return ""
    import winreg

    path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as entry:
            return str(winreg.QueryValueEx(entry, "ProcessorNameString")[0])
    except OSError:
        return ""


def core_count() -> int | None:
    """Return how many cores there are, threads of one core counted once, where the system tells."""
    if sys.platform == "darwin":
        return int(_output_of("sysctl", "-n", "hw.physicalcpu") or 0) or None
    if sys.platform != "linux":
        return None
    return physical_cores(Path("/"), frozenset(range(os.cpu_count() or 1)))


def cache_sizes() -> list[str]:
    """Return the caches of the first CPU as the system names them, like "L2 2048K"."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index[0-9]*")):
        kind, level, size = (read_text(folder / name).strip() for name in ("type", "level", "size"))
        if kind != "Instruction" and level and size:
            found.append(f"L{level} {size}")
    return found


def _output_of(*command: str) -> str:
    """Return what `command` prints, or "" where it is absent or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str | None:
    """Return the commit of the working tree that this package runs from, if it runs from one."""
    folder = str(Path(__file__).parent)
    if not _output_of("git", "-C", folder, "ls-files", "--", Path(__file__).name):
        return None
    return _output_of("git", "-C", folder, "describe", "--always", "--dirty", "--exclude=*") or None


def blas_facts() -> dict[str, Any]:
    """Return name and version of NumPy's BLAS, and the kernel and threads it runs with.

    The name is from NumPy's build; kernel and threads are asked of the loaded OpenBLAS, because one
    library holds kernels for many processors and the environment can force a slow one.
    """
    name, version = blas_of_build()
    facts: dict[str, Any] = {"name": name, "version": version, "kernel": UNKNOWN, "threads": None}
    for path in _openblas_libraries():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        kernel = _ask(library, "get_corename", ctypes.c_char_p)
        if kernel is not None:
            facts["kernel"] = kernel.decode("ascii", "replace")
            facts["threads"] = _ask(library, "get_num_threads", ctypes.c_int)
            break
    return facts


def _openblas_libraries() -> list[str]:
    """Return the paths of OpenBLAS libraries: those loaded, else those in NumPy's wheel."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps.splitlines() if "/" in line}
    except OSError:
        package = Path(np.__file__).parent
        folders = (package.parent / "numpy.libs", package / ".dylibs", package / ".libs")
        loaded = {str(file) for folder in folders for file in folder.glob("*openblas*")}
    found = [path for path in loaded if "openblas" in Path(path).name.lower()]
    return sorted(found, key=lambda path: ("numpy" not in path, path))


def _ask(library: ctypes.CDLL, what: str, returns: Any) -> Any:
    """Call the OpenBLAS function `what`, which takes no argument, under whatever name it has."""
    for pattern in _OPENBLAS_NAMES:
        function = getattr(library, pattern.format(what), None)
        if function is not None:
            function.restype = returns
            function.argtypes = []
            return function()
    return None


def load_average() -> float | None:
    """Return how many processes wanted to run over the last minute, where the system tells."""
    if sys.platform == "win32":
        return None
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def machine_facts() -> dict[str, Any]:
    """Return processor, system and versions as a dictionary that JSON can hold."""
    return {
        "cpu": cpu_model(),
        "cores": core_count(),
        "logical_cpus": os.cpu_count(),
        "caches": cache_sizes(),
        "load_average": load_average(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "compiler": show_config()["compiler"],
        "blas": blas_facts(),
        "commit": commit(),
    }
