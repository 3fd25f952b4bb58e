"""Which backend and instruction set: chosen once at import, and runs a described call on them.

The environment only sets the default: FAST_ATTENTION_BACKEND=auto|native|numpy, and
FAST_ATTENTION_ISA= one of the instruction sets that show_config() lists. using(backend, isa) sets
both for a block of code, in one thread or task, so that tests and comparisons can run every backend
in one process.

The compiled module may be absent (a pure install: said by ``show_config()`` alone), or present and
unable to load: that is one RuntimeWarning with the reason, and the NumPy backend.

An instruction set is tested when it is chosen for the first time in a process (``_self_test``): at
import, for the default, so that calls pay nothing and a forked child need not repeat it. One that
fails gives way to the next, with one RuntimeWarning; one that was asked for by name is kept, with
one RuntimeWarning as well. The lowest is not tested: nothing could take its place.
"""

from __future__ import annotations

import importlib
import itertools
import os
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _numpy, _self_test

if TYPE_CHECKING:
    from types import ModuleType

    from ._descriptor import AttentionDescriptor
    from ._dtypes import Array
    from ._reduction import ReductionDescriptor

Choice = tuple[str, str | None]  # backend, instruction set (None for NumPy)

_PACKAGE = __name__.rpartition(".")[0]
_BACKENDS = ("auto", "native", "numpy")
_NATIVE_SUFFIXES = (".so", ".pyd", ".dll", ".dylib")


class Native(NamedTuple):
    """The compiled module if it is there and works, else the reason why not."""

    module: ModuleType | None
    reason: str
    table: tuple[tuple[str, bool, str], ...] = ()
    is_broken: bool = False  # it is there, and does not load

    @property
    def isas(self) -> tuple[str, ...]:
        """The instruction sets that this CPU and operating system allow, best last."""
        return tuple(name for name, available, _ in self.table if available)


class Default(NamedTuple):
    """What is used where nobody says otherwise, and why."""

    choice: Choice
    reason: str
    forced_isa: str | None


_native: Native | None = None
_entry: Any = None  # the compiled module, once it is loaded
_best: str | None = None  # the instruction set that is used where none is named, once it is known
_failures: dict[str, str | None] = {}  # what is wrong with each instruction set that was tested


def native() -> Native:
    """Load the compiled module, the first time that it is asked for."""
    global _native, _entry
    if _native is None:
        _native = load_native(f"{_PACKAGE}._native")
        _entry = _native.module
    return _native


def load_native(name: str) -> Native:
    """Import the extension module `name` and ask it for its instruction sets."""
    files = _extension_files(name)
    try:
        module = importlib.import_module(name)
        loaded = Native(module, "the compiled module is present", tuple(module.isa_table()))
        if loaded.isas:
            return loaded
        reason = "it offers no instruction set that this CPU has"
    except ModuleNotFoundError as error:
        if error.name == name and not files:
            return Native(None, "this is a pure install, without the compiled module")
        reason = "it was built for another Python or platform" if error.name == name else str(error)
    except Exception as error:  # whatever a broken binary raises, the fallback still works
        reason = f"{type(error).__name__}: {error}"
    where = ", ".join(files) or name
    reason = f"the compiled module is present ({where}) but does not load: {reason}"
    return Native(None, reason, is_broken=True)


def _extension_files(name: str) -> list[str]:
    """Names of the native files in the package that could only be meant as module `name`."""
    package, _, stem = name.rpartition(".")
    folders = getattr(importlib.import_module(package), "__path__", ())
    found = []
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:  # a zip file, say
            continue
        found += [n for n in names if n.startswith(stem + ".") and n.endswith(_NATIVE_SUFFIXES)]
    return sorted(found)


def choose(environment: Mapping[str, str]) -> Default:
    """Choose the default, from the environment and from what is there."""
    wanted = environment.get("FAST_ATTENTION_BACKEND", "").strip() or "auto"
    isa = environment.get("FAST_ATTENTION_ISA", "").strip() or None
    if wanted not in _BACKENDS:
        raise ValueError(
            f"FAST_ATTENTION_BACKEND={wanted!r} is not valid: "
            f"expected one of {', '.join(_BACKENDS)}"
        )
    if wanted == "numpy":
        return Default(("numpy", None), "FAST_ATTENTION_BACKEND=numpy", isa)
    if wanted == "native" or isa is not None:
        asked = (
            "FAST_ATTENTION_BACKEND=native" if wanted == "native" else f"FAST_ATTENTION_ISA={isa}"
        )
        return Default(check_choice("native", isa, asked), asked, isa)
    if native().is_broken:
        message = f"{_PACKAGE} falls back to NumPy: {native().reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    if native().module is None:
        return Default(("numpy", None), native().reason, None)
    return Default(check_choice("native", None, "auto"), native().reason, None)


def check_choice(backend: str, isa: str | None, asked: str) -> Choice:
    """Return a complete choice, or say what there is to choose from; `asked` names who chose."""
    if backend not in _BACKENDS[1:]:
        raise ValueError(f"unknown backend {backend!r}: expected one of {', '.join(_BACKENDS[1:])}")
    if backend == "numpy":
        if isa is not None:
            raise ValueError(
                f"the numpy backend has no instruction sets to choose from, given {isa!r}"
            )
        return "numpy", None
    loaded = native()
    if loaded.module is None:
        raise ImportError(f"{asked} needs the native backend, but {loaded.reason}")
    if isa is None:
        return "native", _best_isa(loaded)
    if isa not in loaded.isas:
        known = any(isa == name for name, _, _ in loaded.table)
        what = "not available on this CPU" if known else "unknown"
        raise ValueError(
            f"{asked}: instruction set {isa!r} is {what}; expected one of {', '.join(loaded.isas)}"
        )
    _test_named_isa(isa, asked)
    return "native", isa


def _best_isa(loaded: Native) -> str:
    """Choose the best instruction set that passes its self-test, or the lowest."""
    global _best
    if _best is None:
        failed = list(itertools.takewhile(_failure, reversed(loaded.isas[1:])))
        _best = loaded.isas[-1 - len(failed)]
        if failed:
            warnings.warn(
                f"{_failed_text(failed)}. {_PACKAGE} uses {_best} instead: results are right, but "
                f"slower. {_REPORT} FAST_ATTENTION_ISA={_best} asks for it without this warning",
                RuntimeWarning,
                stacklevel=2,
            )
    return _best


def _test_named_isa(isa: str, asked: str) -> None:
    """Warn once if an instruction set that was asked for by name fails its self-test."""
    if isa in _failures or isa == native().isas[0]:
        return
    if _failure(isa) is not None:
        warnings.warn(
            f"{_failed_text([isa])}. It is used all the same, because of {asked}: results may be "
            f"wrong. {_REPORT} Without a name {_PACKAGE} chooses an instruction set that passes",
            RuntimeWarning,
            stacklevel=2,
        )


def _failure(isa: str) -> str | None:
    """Return what is wrong with an instruction set, tested once in a process; None if nothing."""
    if isa not in _failures:
        loaded = native()
        arithmetic = {name: kind for name, _, kind in loaded.table}[isa]
        _failures[isa] = _self_test.failure(loaded.module, isa, arithmetic)
    return _failures[isa]


def _failed_text(isas: list[str]) -> str:
    what = "; ".join(f"{isa}: {_failures[isa]}" for isa in isas)
    return f"compiled kernels failed their self-test on this machine ({what})"


_REPORT = f"Please report it, with what `python -m {_PACKAGE} verify` prints."


def self_test() -> str | None:
    """Return what the self-tests of this process have found so far; None if there were none."""
    found = (f"{isa} failed: {why}" if why else f"{isa} passed" for isa, why in _failures.items())
    return "; ".join(found) or None


DEFAULT = choose(os.environ)
_choices: ContextVar[tuple[Choice, ...]] = ContextVar(
    "fast_attention_backend", default=(DEFAULT.choice,)
)


class using:  # noqa: N801  (reads as a statement: with using("numpy"))
    """Compute with this backend and instruction set inside the block, in this thread or task."""

    def __init__(self, backend: str, isa: str | None = None) -> None:
        if backend == "native" and isa is None:
            isa = DEFAULT.forced_isa
        self._choice = check_choice(backend, isa, f"using({backend!r})")

    def __enter__(self) -> using:
        _choices.set((*_choices.get(), self._choice))
        return self

    def __exit__(self, *exception: object) -> None:
        _choices.set(_choices.get()[:-1])


def available() -> list[Choice]:
    """Every backend with every instruction set that works here, the best last."""
    return [("numpy", None), *(("native", isa) for isa in native().isas)]


def current() -> Choice:
    """Backend and instruction set that a call made here and now would use."""
    return _choices.get()[-1]


def backend() -> str:
    """Return the name of the backend in use, ``"native"`` or ``"numpy"``.

    Returns
    -------
    str
        ``"native"`` for the compiled kernels, ``"numpy"`` for the fallback. ``show_config()`` says
        why.

    Examples
    --------
    >>> from fast_attention import backend
    >>> backend() in ("native", "numpy")
    True
    """
    return current()[0]


def attend_plain(
    query: object,
    key: object,
    value: object,
    is_causal: object,
    scale: object,
    num_threads: int,
) -> Array | None:
    """Try the compiled entry for plain calls; None if it declines, or if NumPy is in use."""
    isa = _choices.get()[-1][1]
    if isa is None:
        return None
    result: Array | None = _entry.plain_attention(
        query, key, value, is_causal, scale, num_threads, isa
    )
    return result


def attend(descriptor: AttentionDescriptor) -> None:
    """Fill the results of a described call on the backend in use."""
    if not descriptor.has_results():
        return
    isa = _choices.get()[-1][1]
    if isa is not None:
        _entry.attention(descriptor, isa)
    elif descriptor.n_key == 0:
        descriptor.fill_without_keys()
    else:
        _numpy.attention(descriptor)


def reduce_plain(kind: int, x: object, axis: object, out: object, num_threads: int) -> Array | None:
    """Try the compiled entry for plain calls of softmax and log_softmax, as `attend_plain`."""
    isa = _choices.get()[-1][1]
    if isa is None:
        return None
    result: Array | None = _entry.plain_reduction(kind, x, axis, out, num_threads, isa)
    return result


def reduce(descriptor: ReductionDescriptor) -> None:
    """Fill the result of a described reduction on the backend in use."""
    if descriptor.fill_without_elements():
        return
    isa = _choices.get()[-1][1]
    if isa is not None:
        _entry.reduce(descriptor, isa)
    else:
        _numpy.reduce(descriptor)
