"""Plugin for pytest: the threads of pytest-run-parallel start in the context of the test.

Before Python 3.14 a new thread starts in an empty context, in which a backend chosen by a fixture
(``fast_attention._backend.using``) is not seen.
"""

import contextvars
import threading
from types import SimpleNamespace

import pytest_run_parallel.plugin


class _Thread(threading.Thread):
    def start(self):
        self._started_in = contextvars.copy_context()
        super().start()

    def run(self):
        self._started_in.run(super().run)


def pytest_configure():
    """Replace the threads of that plugin, and of no other module."""
    pytest_run_parallel.plugin.threading = SimpleNamespace(**vars(threading) | {"Thread": _Thread})
