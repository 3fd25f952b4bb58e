"""threadpoolctl sees the compiled kernels and limits their threads, process-wide."""

import pytest
import support

import fast_attention
from fast_attention import _backend, get_num_threads, set_num_threads, threads

threadpoolctl = pytest.importorskip("threadpoolctl")
pytestmark = pytest.mark.skipif(
    _backend.DEFAULT.choice[0] != "native", reason="the kernels are not in use"
)


@pytest.fixture(autouse=True)
def default_setting():
    yield
    set_num_threads(None)


def ours():
    return [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "fast_attention"]


def test_library_is_listed_once_with_its_version_and_threads():
    set_num_threads(5)
    (info,) = ours()
    assert info["num_threads"] == 5
    assert info["version"] == fast_attention.__version__
    assert info["filepath"] == support.native().__file__


def test_limits_hold_inside_the_block_and_end_with_it():
    set_num_threads(6)
    with threadpoolctl.threadpool_limits(limits=2):
        assert get_num_threads() == 2
        with threadpoolctl.threadpool_limits(limits=1, user_api="fast_attention"):
            assert get_num_threads() == 1
        assert get_num_threads() == 2
    assert get_num_threads() == 6


def test_default_is_a_default_again_after_the_block():
    source = fast_attention.show_config()["num_threads_source"]
    assert source != "set_num_threads"
    with threadpoolctl.threadpool_limits(limits=get_num_threads() + 1):
        assert fast_attention.show_config()["num_threads_source"] == "set_num_threads"
    assert fast_attention.show_config()["num_threads_source"] == source


def test_limits_of_other_libraries_are_not_ours():
    set_num_threads(6)
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        assert get_num_threads() == 6


def test_block_of_one_thread_does_not_leak_into_the_process():
    set_num_threads(6)
    with threads(3):
        with threadpoolctl.threadpool_limits(limits=2):
            assert get_num_threads() == 3
        assert get_num_threads() == 3
    assert get_num_threads() == 6


WITHOUT = """
import sys, types
class Broken(types.ModuleType):
    LibController = object
    def register(self, controller): raise AttributeError("of another version")
sys.modules["threadpoolctl"] = {"absent": None, "old": types.ModuleType("threadpoolctl"),
                                "broken": Broken("threadpoolctl")}[sys.argv[1]]
import fast_attention
print(fast_attention.backend())
"""


@pytest.mark.parametrize("state", ["absent", "old", "broken"])
def test_absence_is_no_error(state):
    child = support.run_python(WITHOUT, state)
    assert child.stdout.strip() == fast_attention.backend(), child.stderr


ORDER = """
import importlib, sys
first, second = map(importlib.import_module, sys.argv[1:3])
import fast_attention as f
import threadpoolctl
f.set_num_threads(6)
with threadpoolctl.threadpool_limits(2):
    print(f.get_num_threads(), [i["num_threads"] for i in threadpoolctl.threadpool_info()
                                if i["user_api"] == "fast_attention"])
print(f.get_num_threads())
"""


@pytest.mark.parametrize("backend", ["native", "numpy"])
@pytest.mark.parametrize("names", [("threadpoolctl", "fast_attention"),
                                   ("fast_attention", "threadpoolctl")])  # fmt: skip
def test_limits_hold_whichever_is_imported_first(names, backend):
    """On the NumPy backend there is nothing of this package to limit: its threads are of BLAS."""
    child = support.run_python(ORDER, *names, FAST_ATTENTION_BACKEND=backend)
    expected = "2 [2]\n6\n" if backend == "native" else "6 []\n6\n"
    assert child.stdout == expected, child.stderr
