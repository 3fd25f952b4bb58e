"""The softmax family on arrays that begin or end at an unreadable page.

The calls run in a child process, so that a fault is one failed test.
"""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import support
from test_guard_pages import Fence

from fast_attention import _backend, log_softmax, logsumexp, softmax, softmax_vjp

LENGTHS = [*range(1, 19), 31, 32, 33, 47]
ROWS = [1, 2, 3, 5, 7, 8, 9, 17]


def calls():
    """Every length, in turn with every number of rows, memory order and reduced axis."""
    rows = itertools.cycle(ROWS)
    for n, order, axis in itertools.product(LENGTHS, itertools.permutations(range(3)), range(3)):
        shape = [next(rows), 2, 1]
        shape[axis] = n
        yield tuple(shape), order, axis


def run(backend, isa):
    rng = np.random.default_rng(1)
    with _backend.using(backend, isa):
        for (shape, order, axis), at_end in itertools.product(calls(), (True, False)):
            dtype = support.FLOATS[rng.integers(len(support.FLOATS))]
            x, y = (support.normal(rng, *shape, dtype=dtype) for _ in range(2))
            where = rng.random(shape) < 0.7
            with Fence() as fence:
                near = [fence.copy(a, at_end, list(order)) for a in (x, y, where)]
                out = fence.copy(np.zeros(shape, dtype), at_end, list(order))
                compare(near, (x, y, where), axis, out)


def compare(near, far, axis, out):
    for function in (softmax, log_softmax, logsumexp):
        for w in (None, 2):
            where = (None, None) if w is None else (near[w], far[w])
            result = function(near[0], axis, where=where[0])
            expected = function(far[0], axis, where=where[1])
            assert_equal(result, expected)
            if function is not logsumexp:
                function(near[0], axis, where=where[0], out=out)
                assert_equal(out, expected)
    softmax_vjp(*near[:2], axis, out=out)
    assert_equal(out, softmax_vjp(*far[:2], axis))


def assert_equal(actual, expected):
    """Equal, but for the order of sums in the fallback."""
    if _backend.backend() == "native":
        support.assert_same_bits(actual, expected)
    np.testing.assert_allclose(actual.astype("f8"), expected.astype("f8"), rtol=0.02, atol=0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mmap and mprotect of Linux")
def test_arrays_at_unreadable_pages_are_read_to_their_end_and_no_further(engine):
    path = os.pathsep.join(filter(None, sys.path))
    child = subprocess.run(
        [sys.executable, "-W", "error", __file__, engine[0], engine[1] or ""],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-2000:]


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2] or None)
