"""Arrays that begin or end at an unreadable page: one element too far ends the process.

The calls run in a child process, so that a fault is one failed test.
"""

import ctypes
import itertools
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import support

from fast_attention import _backend, scaled_dot_product_attention

PAGE = mmap.PAGESIZE
TAILS = range(1, 18)
TYPES = ["f4", "f8", "f2", "i1", "bf"]
OPTIONS = ["none", "bool", "bool keys", "float", "float16", "bias", "bias queries", "alibi", "all"]


class Fence:
    """Copies of arrays, each with an unreadable page before and behind it."""

    def __init__(self):
        self._libc = ctypes.CDLL(None)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            *[ctypes.c_int] * 3,
            ctypes.c_long,
        ]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._maps = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for address, size in self._maps:
            self._libc.munmap(address, size)

    def _pages(self, size):
        total = (-(-size // PAGE) + 2) * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._libc.mmap(None, total, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        assert address not in (None, ctypes.c_void_p(-1).value), "no memory"
        for guard in (address, address + total - PAGE):
            assert self._libc.mprotect(guard, PAGE, 0) == 0
        self._maps.append((address, total))
        return address + PAGE, total - 2 * PAGE

    def copy(self, array, at_end, order):
        """Copy with the axes laid out in ``order``, at the end or the beginning of the memory."""
        laid = array.transpose(order)
        start, room = self._pages(max(array.nbytes, 1))
        start += room - array.nbytes if at_end else 0
        memory = (ctypes.c_char * array.nbytes).from_address(start)
        fenced = np.frombuffer(memory, np.uint8).view(array.dtype).reshape(laid.shape)
        fenced[...] = laid
        return fenced.transpose(np.argsort(order))


def array(rng, kind, *shape):
    if kind == "i1":
        return support.quantised(rng, *shape)[0]
    return support.normal(rng, *shape, dtype=support.bfloat16 if kind == "bf" else kind)


def options(rng, kind, shape, is_int8):
    heads, n_query, n_key = shape
    mask = rng.random(shape) < 0.7
    bias = support.normal(rng, *shape)
    given = {
        "none": {}, "bool": {"attn_mask": mask}, "bool keys": {"attn_mask": mask[0, 0]},
        "float": {"attn_mask": bias}, "float16": {"attn_mask": bias.astype("f2")},
        "bias": {"bias": bias, "is_causal": True}, "bias queries": {"bias": bias[:, :, :1].copy()},
        "alibi": {"alibi_slopes": np.ones(heads, "f4"), "sinks": np.ones(heads, "f4")},
        "all": {"attn_mask": mask, "bias": bias.astype("f8"), "window": (9, 9), "softcap": 2.0,
                "kv_lengths": n_key - 1},
    }[kind]  # fmt: skip
    scales = {"k_scale": np.full(n_key, 0.01, "f4"), "v_scale": np.full((heads, n_key), 0.01, "f4")}
    return given | {"query_offset": n_key - n_query} | (scales if is_int8 else {})


def orders(ndim, which):
    """Axis orders of the memory: C, heads beside each other, columns first."""
    plain = list(range(ndim))
    if ndim == 3:
        return [plain, [1, 0, 2], [0, 2, 1]][which]
    return plain if which < 2 else plain[::-1]


def calls():
    """Sizes with every tail, in turn with every type, option, placement and memory order."""
    sizes = [
        (n_query, n_key, d, dv)
        for n_query in (1, 2, 5, 17)
        for n_key, d, dv in [
            *((t, 8, 8) for t in TAILS), *((9, t, 4) for t in TAILS), *((9, 4, t) for t in TAILS),
            *((95 + t, 3, 5) for t in TAILS), (64, 64, 64), (97, 16, 16),
        ]
    ]  # fmt: skip
    sizes += [(t + 63, 20, 6, 7) for t in TAILS]
    kinds = itertools.cycle(itertools.product(TYPES, OPTIONS))
    for size in sizes:
        for at_end, order in itertools.product((True, False), range(3)):
            yield size, next(kinds), at_end, order


def run(backend, isa):
    rng = np.random.default_rng(1)
    with _backend.using(backend, isa):
        for (n_query, n_key, d, dv), (dtype, kind), at_end, order in calls():
            if dtype == "bf" and support.bfloat16 is None:
                continue
            query = array(rng, "f4" if dtype == "i1" else dtype, 2, n_query, d)
            arrays = (query, array(rng, dtype, 2, n_key, d), array(rng, dtype, 2, n_key, dv))
            given = options(rng, kind, (2, n_query, n_key), dtype == "i1")
            with Fence() as fence:
                _compare(fence, arrays, given, at_end, order, exact=backend == "native")


def _compare(fence, arrays, given, at_end, order, exact):
    def fenced(x):
        return fence.copy(x, at_end, orders(x.ndim, order)) if isinstance(x, np.ndarray) else x

    close = [fenced(x) for x in arrays]
    out = fenced(np.zeros((*arrays[0].shape[:2], arrays[2].shape[2]), arrays[0].dtype))
    near = {name: fenced(x) for name, x in given.items()}
    expected = scaled_dot_product_attention(*arrays, **given)
    scaled_dot_product_attention(*close, **near, out=out)
    if exact:
        support.assert_same_bits(np.ascontiguousarray(out), expected)
    else:
        out, expected = out.astype("f8"), expected.astype("f8")
        np.testing.assert_allclose(out, expected, rtol=0.02, atol=0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mmap and mprotect of Linux")
def test_arrays_at_unreadable_pages_are_read_to_their_end_and_no_further(engine):
    path = os.pathsep.join(filter(None, sys.path))
    child = subprocess.run(
        [sys.executable, "-W", "error", __file__, engine[0], engine[1] or ""],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="needs mmap and mprotect of Linux")
def test_fence_really_stops_a_read_past_the_end():
    code = (
        "import ctypes, numpy as np, test_guard_pages as t\n"
        "x = t.Fence().copy(np.ones(3, 'f4'), True, [0])\n"
        "ctypes.string_at(x.ctypes.data, 13)\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    child = support.run_python(code, PYTHONPATH=path)
    assert child.returncode < 0


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2] or None)
