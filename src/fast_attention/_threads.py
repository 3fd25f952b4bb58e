"""How many threads the native backend uses, and where that number came from.

In order: the argument ``num_threads``, the innermost ``with threads(n)`` of this thread or task,
``set_num_threads``, the variable FAST_ATTENTION_NUM_THREADS, the variable OMP_NUM_THREADS, and last
the cores that this process may really use: those of its affinity mask, counted once per physical
core, and no more than the CPU quota of its control group. A container's quota shows neither in the
affinity nor in the core count, and threads above it only wait for one another.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_ENVIRONMENT = "FAST_ATTENTION_NUM_THREADS"
_MOST = 2**31 - 1  # a C int
_USUAL_MOUNTS = [(2, "/", "/sys/fs/cgroup"), (1, "/", "/sys/fs/cgroup/cpu")]


class ThreadCount(NamedTuple):
    """A number of threads and the place that it came from."""

    number: int
    source: str


_limits: ContextVar[tuple[int, ...]] = ContextVar("fast_attention_threads", default=())
_chosen: ThreadCount | None = None  # set_num_threads
_default: ThreadCount | None = None  # environment or machine, looked up when first needed


class threads(contextlib.ContextDecorator):  # noqa: N801  (reads as a statement: with threads(2))
    """Use `n` threads inside a ``with`` block, in this thread or asynchronous task only.

    Parameters
    ----------
    n : int
        Number of threads, at least 1.

    Raises
    ------
    TypeError, ValueError
        As ``set_num_threads``; None is no number here.

    See Also
    --------
    set_num_threads : the same for the whole process.

    Notes
    -----
    Blocks may be nested; the innermost counts. One object may be entered several times, also by
    several threads at once. The argument ``num_threads`` of a call wins over the block. The NumPy
    backend leaves its threads to the BLAS library and ignores this.

    Examples
    --------
    >>> from fast_attention import get_num_threads, threads
    >>> with threads(2):
    ...     get_num_threads()
    2
    """

    def __init__(self, n: int) -> None:
        self._count = check_count("n", n)

    def __enter__(self) -> threads:
        _limits.set((*_limits.get(), self._count))
        return self

    def __exit__(self, *exception: object) -> None:
        # Blocks in generators need not end in the order in which they began, nor in their context.
        entered = _limits.get()
        own = [i for i, count in enumerate(entered) if count == self._count]
        if own:
            _limits.set(entered[: own[-1]] + entered[own[-1] + 1 :])


def set_num_threads(n: int | None) -> None:
    """Set the number of threads for the whole process.

    Parameters
    ----------
    n : int or None
        Number of threads, at least 1; None goes back to the default.

    Raises
    ------
    TypeError
        If `n` is not an int.
    ValueError
        If `n` is below 1, or above ``2**31 - 1``.

    See Also
    --------
    threads : the same for a block of code, seen by one thread or task only.
    """
    global _chosen
    _chosen = None if n is None else ThreadCount(check_count("n", n), "set_num_threads")


def get_num_threads() -> int:
    """Return the number of threads that a call made here and now would use.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> from fast_attention import get_num_threads
    >>> get_num_threads() >= 1
    True
    """
    return resolve(None)


def resolve(num_threads: int | None) -> int:
    """Return the number of threads for one call, given its argument ``num_threads``."""
    if num_threads is not None:
        return check_count("num_threads", num_threads)
    limits = _limits.get()
    if limits:
        return limits[-1]
    return (_chosen or _default or _of_process()).number  # without a call, for the tiny ones


def current() -> ThreadCount:
    """Return the number of threads here and now, and where it came from."""
    limits = _limits.get()
    if limits:
        return ThreadCount(limits[-1], "with threads(n)")
    return _of_process()


def of_process() -> int:
    """Return the number of threads of calls outside of any ``with threads(n)``."""
    return _of_process().number


def set_number_of_process(n: int) -> None:
    """Set the number of threads; the default's own number goes back to the default."""
    set_num_threads(None if n == _default_of_process().number else n)


def _of_process() -> ThreadCount:
    return _chosen or _default_of_process()


def _default_of_process() -> ThreadCount:
    global _default
    if _default is None:
        _default = default_count(os.environ)
    return _default


def check_count(name: str, n: object) -> int:
    """Return `n` as an int from 1 up."""
    try:
        count = operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(n, bool):
        raise TypeError(f"{name} must be an int of at least 1, not {type(n).__name__} {n!r}")
    if not 1 <= count <= _MOST:
        raise ValueError(f"{name} must be at least 1 and at most {_MOST}, not {count}")
    return count


def default_count(environment: Mapping[str, str], root: Path | str = "/") -> ThreadCount:
    """Ask the environment, else the machine: what holds when the program says nothing."""
    own = environment.get(_ENVIRONMENT, "").strip()
    if own:
        count = _positive(own)
        if count is None:
            raise ValueError(f"{_ENVIRONMENT}={own!r} is not valid: expected an integer from 1 up")
        return ThreadCount(count, _ENVIRONMENT)
    shared = _positive(environment.get("OMP_NUM_THREADS", "").split(",")[0].strip())
    if shared is not None:
        return ThreadCount(shared, "OMP_NUM_THREADS")
    return usable_cores(root)


def _positive(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return number if 1 <= number <= _MOST else None


def usable_cores(root: Path | str = "/", cpus: frozenset[int] | None = None) -> ThreadCount:
    """Physical cores within affinity (`cpus`, default: of this process) and control-group quota.

    `root` is where ``proc`` and ``sys`` are found; a test may fake them there.
    """
    root = Path(root)
    allowed = affinity() if cpus is None else cpus
    cores = physical_cores(root, allowed)
    quota = cpu_quota(root)
    if quota is not None and max(1, math.floor(quota)) < cores:
        return ThreadCount(max(1, math.floor(quota)), f"CPU quota of the control group ({quota:g})")
    if cores < len(allowed):
        return ThreadCount(cores, "physical cores")
    limited = len(allowed) < (os.cpu_count() or 1)
    return ThreadCount(cores, "CPU affinity" if limited else "CPU count")


def affinity() -> frozenset[int]:
    """Return the logical CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):
            return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(root: Path, cpus: frozenset[int]) -> int:
    """Count the cores behind `cpus`; a CPU of which nothing is known is one."""
    cores = set()
    for cpu in cpus:
        topology = root / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
        siblings, older_name = topology / "core_cpus_list", topology / "thread_siblings_list"
        cores.add((read_text(siblings) or read_text(older_name)).strip() or str(cpu))
    return max(1, len(cores))


def cpu_quota(root: Path) -> float | None:
    """Return how many CPUs' time the control group and its parents allow; None = no limit."""
    quotas = [
        quota
        for folder, read_quota in _control_groups(root)
        if (quota := read_quota(folder)) is not None
    ]
    return min(quotas, default=None)


def _control_groups(root: Path) -> Iterator[tuple[Path, Callable[[Path], float | None]]]:
    """List the folders from this process's group up to the mount point, with their readers."""
    paths = _group_paths(read_text(root / "proc/self/cgroup"))
    mounts = list(_mounts(read_text(root / "proc/self/mountinfo"))) or _USUAL_MOUNTS
    for version, mount_root, mount_point in mounts:
        if version not in paths:
            continue
        base = root / mount_point.lstrip("/")
        folder = base / _below(paths[version], mount_root)
        read_quota = _quota_v2 if version == 2 else _quota_v1
        while True:
            yield folder, read_quota
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent


def _group_paths(text: str) -> dict[int, str]:
    """Parse proc/self/cgroup: lines ``id:controllers:path``; version 2 is ``0::path``."""
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[2] = path
        elif "cpu" in controllers.split(","):
            paths[1] = path
    return paths


def _mounts(text: str) -> Iterator[tuple[int, str, str]]:
    """Parse proc/self/mountinfo: (version, root in the hierarchy, mount point) of each."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 1:
            continue
        if kind[0] == "cgroup2":
            yield 2, _unescaped(fields[3]), _unescaped(fields[4])
        elif kind[0] == "cgroup" and "cpu" in kind[-1].split(","):
            yield 1, _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(path: str) -> str:
    """Undo how mountinfo writes spaces and backslashes, as in names of systemd's units."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _below(path: str, mount_root: str) -> PurePosixPath:
    """Return `path` relative to what is mounted of the hierarchy; "." if it lies outside."""
    try:
        below = PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        return PurePosixPath()
    return PurePosixPath() if ".." in below.parts else below


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    return _ratio(quota, period or "100000")


def _quota_v1(folder: Path) -> float | None:
    return _ratio(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Divide, in CPUs; None for "max", -1 and whatever is not two positive numbers."""
    count, every = _positive(quota.strip()), _positive(period.strip())
    return None if count is None or every is None else count / every


def read_text(path: Path) -> str:
    """Return what a file of the system says, or "" where it is absent or not to be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # the latter for a NUL in the path
        return ""


def _forget() -> None:
    global _default
    _default = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # it may have fewer CPUs
