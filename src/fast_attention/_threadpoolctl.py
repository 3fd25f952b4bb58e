"""Lets threadpoolctl, where it is installed, see and limit the threads of the compiled kernels.

threadpoolctl finds libraries among those that the process has loaded; the one it may take for ours
is the file of the compiled module. It is imported here, with the package, because it has no way to
be told later, and registering starts nothing and changes no number.
"""

from __future__ import annotations

import os
from typing import Any

from . import _backend, _threads


def register_controller() -> None:
    """Register with threadpoolctl if there is one, and if there is something to control."""
    file = getattr(_backend.native().module, "__file__", None) if _is_native() else None
    if file is None:
        return
    try:
        from threadpoolctl import LibController, register

        register(_controller(LibController, file))
    except Exception:  # absent, older than 3.3, or broken: no reason not to compute
        return


def _is_native() -> bool:
    return _backend.DEFAULT.choice[0] == "native"


def _controller(base: Any, file: str) -> Any:
    stem = os.path.basename(file).partition(".")[0]

    class FastAttentionController(base):  # type: ignore[misc]
        """Threads of ``set_num_threads``: of the whole process, as the other libraries'."""

        user_api = "fast_attention"
        internal_api = "fast_attention"
        filename_prefixes = (stem,)
        check_symbols = (f"PyInit_{stem}",)

        def __init__(self, *, filepath: str, **arguments: Any) -> None:
            super().__init__(filepath=filepath, **arguments)
            if not os.path.samefile(filepath, file):  # the module of another package
                self.dynlib = None

        def get_num_threads(self) -> int:
            return _threads.of_process()

        def set_num_threads(self, num_threads: int) -> None:
            _threads.set_number_of_process(num_threads)  # it restores what it has read

        def get_version(self) -> str:
            from ._version import __version__

            return __version__

    return FastAttentionController
