"""show_config(): what is in use here, and why."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from . import _backend, _threads
from ._version import __version__

UNKNOWN = "unknown"
_NUMPY_PROMISES = "row invariance and num_threads hold for the native backend only"


class Config(dict[str, Any]):
    """A dict that prints as a table."""

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:<{width}}  {_text(entry)}" for name, entry in self.items())

    __str__ = __repr__


def _text(entry: object) -> str:
    if entry is None:
        return "-"
    return ", ".join(map(str, entry)) or "-" if isinstance(entry, tuple) else str(entry)


def show_config() -> Config:
    """Return the versions, backend, instruction set and threads in use, and where they came from.

    Returns
    -------
    Config
        A dict that prints as a table. Keys: ``version``, ``backend``, ``backend_reason``, ``isa``,
        ``isa_available`` and ``isa_forced`` (names for FAST_ATTENTION_ISA), ``self_test`` (of the
        instruction sets chosen so far), ``arithmetic``, ``promises``, ``num_threads``,
        ``num_threads_source``, ``compiler``, ``python``, ``numpy``, ``blas``, ``platform``. Entries
        that do not apply are None.

    Examples
    --------
    >>> from fast_attention import show_config
    >>> show_config()["backend"] in ("native", "numpy")
    True
    """
    backend, isa = _backend.current()
    native = _backend.native()
    threads = _threads.current()
    return Config(
        version=__version__,
        backend=backend,
        backend_reason=_reason(backend, isa),
        isa=isa,
        isa_available=native.isas,
        isa_forced=_backend.DEFAULT.forced_isa,
        self_test=_backend.self_test(),
        arithmetic=_arithmetic(isa),
        promises=_NUMPY_PROMISES if isa is None else "row invariance, num_threads",
        num_threads=threads.number,
        num_threads_source=threads.source,
        compiler=None if native.module is None else native.module.compiler(),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        numpy=np.__version__,
        blas=_blas(),
        platform=platform.platform(),
    )


def _reason(backend: str, isa: str | None) -> str:
    if (backend, isa) == _backend.DEFAULT.choice:
        return _backend.DEFAULT.reason
    return "chosen in the program"


def _arithmetic(isa: str | None) -> str:
    native = _backend.native()
    if isa is None or native.module is None:
        return "whatever order BLAS sums in, within the error bound"
    classes = {name: arithmetic for name, _, arithmetic in native.table}
    return f"{classes[isa]}, version {native.module.ARITHMETIC_VERSION}"


def _blas() -> str:
    """Name and version of the BLAS behind NumPy, which the fallback's speed comes from."""
    name, version = blas_of_build()
    return name if version == UNKNOWN else f"{name} {version}"


def blas_of_build() -> tuple[str, str]:
    """Return name and version of the BLAS that NumPy was built with, as NumPy tells them."""
    try:
        config: Any = np.show_config(mode="dicts")  # type: ignore[call-overload, unused-ignore]
        built = dict(config["Build Dependencies"]["blas"])
    except (KeyError, TypeError, ValueError):
        built = {}
    return str(built.get("name") or UNKNOWN), str(built.get("version") or UNKNOWN)
