"""The NumPy fallback of the softmax family works in blocks: of any size, and in little memory."""

import tracemalloc

import numpy as np
import pytest
import softmax_oracle
import support
from softmax_oracle import SHAPES, check

from fast_attention import _backend, log_softmax, softmax, softmax_vjp
from fast_attention._numpy import _softmax as fallback

BLOCKS = 8  # of float32, with what rounding to 16 bits takes


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(("shape", "axis"), SHAPES.values(), ids=SHAPES)
def test_fallback_in_blocks_of_any_size_is_within_the_bound(monkeypatch, shape, axis, dtype, block):
    monkeypatch.setattr(fallback, "BLOCK", block)
    x = support.normal(np.random.default_rng(37), *shape, dtype=dtype, size=4.0)
    where = np.random.default_rng(38).random(shape) < 0.6
    with _backend.using("numpy"):
        check(x, axis)
        check(x, axis, where)
        exact, bound = softmax_oracle.vjp(x, np.abs(x), axis)
        softmax_oracle.assert_near(softmax_vjp(x, np.abs(x), axis), exact, bound)
        for function in (softmax, log_softmax):
            out, expected = np.array(x), function(x, axis, where=where)
            function(out, axis, where=where, out=out)
            support.assert_same_bits(out, np.asarray(expected))


@pytest.mark.thread_unsafe(reason="measures the memory of the whole process")
@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 2_000_000), -1), ((2_000_000, 2), 0), ((2000, 2000), -1)]
)
def test_fallback_takes_the_memory_of_a_few_blocks(dtype, shape, axis):
    x = np.ones(shape, dtype)
    out = np.empty_like(x)
    with _backend.using("numpy"):
        for function in (softmax, log_softmax):
            tracemalloc.start()
            function(x, axis, out=out)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < BLOCKS * 4 * fallback.BLOCK
