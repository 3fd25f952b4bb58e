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
import sys
sys.modules["threadpoolctl"] = None
import fast_attention
print(fast_attention.backend())
"""


def test_absence_is_no_error():
    child = support.run_python(WITHOUT)
    assert child.stdout.strip() == fast_attention.backend(), child.stderr
