"""The floating-point mode of the process: never changed, and never able to change a result."""

import contextlib
import ctypes
import mmap
import os
import platform
import threading

import numpy as np
import pytest
import support

from fast_attention import (
    log_softmax,
    logsumexp,
    scaled_dot_product_attention,
    softmax,
    softmax_vjp,
)

FLUSH = 0x8040  # flush to zero and denormals are zero
CONTROL = 0xFFC0  # everything but the sticky exception flags
TOWARD_ZERO = 0x6000
STORE, LOAD = b"\x0f\xae\x1f\xc3", b"\x0f\xae\x17\xc3"  # stmxcsr [rdi]; ret   ldmxcsr [rdi]; ret


@pytest.fixture(scope="module")
def mxcsr():
    """(read, write) the control and status register of SSE in the calling thread."""
    if os.name != "posix" or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the mode is set by machine code for x86-64 with the System V convention")
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (OSError, PermissionError) as error:
        pytest.skip(f"no executable memory: {error}")
    code.write(STORE.ljust(16) + LOAD)
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))
    store, load = kind(start), kind(start + 16)

    def read():
        word = ctypes.c_uint32()
        store(ctypes.byref(word))
        return word.value

    def write(value):
        load(ctypes.byref(ctypes.c_uint32(value)))

    read.memory = code
    return read, write


@contextlib.contextmanager
def float_mode(mxcsr, bits):
    """Add bits to the mode; yields a function that tells whether they are all still there."""
    read, write = mxcsr
    before = read()
    write((before & CONTROL) | bits)
    wanted = read() & CONTROL
    try:
        yield lambda: read() & CONTROL == wanted
    finally:
        write(before)


CALLS = {
    "plain": ({}, {}), "causal": ({}, {"is_causal": True, "query_offset": "end"}),
    "few": ({"n_query": 2}, {}), "decode": ({"n_query": 1, "n_key": 5000}, {}),
    "long form": ({}, {"softcap": 3.0, "bias": np.full((1, 150), 1e-40, "f4"), "sinks": 0.5}),
    "float64": ({"dtype": "f8"}, {}), "float16": ({"dtype": "f2"}, {}),
    "threads": ({"heads": 4, "n_query": 200}, {"num_threads": 3}),
}  # fmt: skip


def subnormal_inputs(**shape):
    """Draw inputs whose products, scores and values reach far below the normal range."""
    query, key, value = support.qkv(1, **{"n_query": 70, "n_key": 150, "d": 8} | shape)
    tiny = {2: 1e-6, 4: 1e-41, 8: 1e-310}[value.itemsize]
    value[..., ::2, :] *= value.dtype.type(tiny)
    key[..., ::3, :] *= value.dtype.type(tiny)
    query[..., 1] *= value.dtype.type(tiny)
    value[..., 0] = tiny
    return query, key, value


@pytest.mark.parametrize("bits", [FLUSH, TOWARD_ZERO], ids=["flush to zero", "toward zero"])
@pytest.mark.parametrize(("shape", "options"), CALLS.values(), ids=CALLS)
def test_mode_of_the_caller_changes_no_bit_of_the_result(
    native_engine, mxcsr, shape, options, bits
):
    arrays = subnormal_inputs(**shape)
    options = {"return_lse": True, "return_weights": True} | options
    expected = scaled_dot_product_attention(*arrays, **options)
    with float_mode(mxcsr, bits) as is_intact:
        result = scaled_dot_product_attention(*arrays, **options)
        plain = scaled_dot_product_attention(*arrays) if not shape else None
        assert is_intact()
    support.assert_same_bits(tuple(result), tuple(expected))
    if plain is not None:
        support.assert_same_bits(plain, scaled_dot_product_attention(*arrays))


@pytest.mark.parametrize("bits", [FLUSH, TOWARD_ZERO], ids=["flush to zero", "toward zero"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(5, 40), (400, 300)])
def test_mode_of_the_caller_changes_no_bit_of_softmax(native_engine, mxcsr, shape, dtype, bits):
    low = {"f4": -103, "f8": -744}[dtype]  # whose exponentials are subnormal
    x = (low * np.random.default_rng(4).random(shape)).astype(dtype)
    x[:, 0] = 0
    y = softmax(x)
    for axis in (0, 1):
        for function in (softmax, log_softmax, logsumexp, lambda x, axis: softmax_vjp(x, y, axis)):
            expected = function(x, axis)
            with float_mode(mxcsr, bits) as is_intact:
                result = function(x, axis)
                assert is_intact()
            support.assert_same_bits(result, expected)


@pytest.mark.parametrize(("shape", "options"), CALLS.values(), ids=CALLS)
def test_mode_of_the_caller_is_the_same_afterwards(engine, mxcsr, shape, options):
    arrays = support.qkv(2, **{"n_query": 70, "n_key": 150, "d": 8} | shape)
    for bits in (FLUSH, TOWARD_ZERO, 0):
        with float_mode(mxcsr, bits) as is_intact:
            output = scaled_dot_product_attention(*arrays, **options)
            assert is_intact()
    support.check(*arrays, **options)
    assert np.isfinite(output).all()


def test_mode_of_the_caller_is_the_same_after_an_error(engine, mxcsr):
    query, key, value = support.qkv(3)
    with float_mode(mxcsr, FLUSH) as is_intact:
        with pytest.raises(ValueError, match="softcap"):
            scaled_dot_product_attention(query, key, value, softcap=-1.0)
        assert is_intact()


def test_caller_with_flush_to_zero_really_flushes(mxcsr):
    with float_mode(mxcsr, FLUSH):
        flushed = float("1e-310") * 0.5
    assert flushed == 0
    assert float("1e-310") * 0.5 != 0


IMPORT = """
import sys, threading
import numpy as np

def subnormals():
    tiny = np.array([1e-45], np.float32)
    found.append((5e-324 != 0, float("1e-310") * 0.5 != 0, bool((tiny != 0)[0]),
                  bool((tiny * np.float32(1))[0] != 0), float(np.finfo("f4").smallest_subnormal)))

def look():
    subnormals()
    thread = threading.Thread(target=subnormals)
    thread.start()
    thread.join()

found = []
look()
import fast_attention
from fast_attention import _backend
look()
x = np.ones((8, 300, 32), "f4")
with _backend.using(sys.argv[1], sys.argv[2] or None):
    fast_attention.scaled_dot_product_attention(x, x, x, num_threads=3)
look()
assert len(set(found)) == 1 and found[0][:4] == (True,) * 4, found
"""


def test_import_and_threaded_calls_leave_subnormals_alone(engine):
    """Case R13."""
    child = support.run_python(IMPORT, engine[0], engine[1] or "")
    assert child.returncode == 0, child.stderr


def test_call_from_another_thread_leaves_its_mode_alone(engine, mxcsr):
    arrays = support.qkv(4, n_query=70, n_key=150)
    found = []

    def work():
        with float_mode(mxcsr, FLUSH) as is_intact:
            scaled_dot_product_attention(*arrays)
            found.append(is_intact())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
