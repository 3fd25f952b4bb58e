"""Faults that other libraries had at run time: memory, stacks, locks, byte order, timing.

Forks are in test_fork.py, interrupts in test_interrupt.py, the end of the process in test_exit.py,
the floating-point mode (R13) in test_float_mode.py.
"""

import sys
import threading
import time

import numpy as np
import pytest
import support

from fast_attention import (
    log_softmax,
    logsumexp,
    scaled_dot_product_attention,
    softmax,
    softmax_vjp,
    threads,
)
from fast_attention._descriptor import describe_attention
from fast_attention._dtypes import as_numbers

ALL = {"return_lse": True, "return_weights": True}
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and counts as Linux has them")


def case(*arguments, id):
    return pytest.param(*arguments, id=id)


def run_child(code, engine, *arguments):
    child = support.run_python(code, engine[0], engine[1] or "", *map(str, arguments))
    assert child.returncode == 0, child.stderr
    return child.stdout


SMALL_STACK = """
import resource, sys, threading
import numpy as np
import fast_attention as f

stack, n_key, d = (int(word) for word in sys.argv[3:6])
x = np.random.default_rng(0).standard_normal((1, n_key, d), dtype="f4")

def work():
    with f._backend.using(sys.argv[1], sys.argv[2] or None):
        for n in (1, 3):
            for query in (x[:, :130], x[:, :1]):
                f.scaled_dot_product_attention(query, x, x, num_threads=n)
                f.scaled_dot_product_attention(query, x, x, softcap=5.0, sinks=0.5, kv_lengths=9,
                    bias=x[:, :1, 0], return_lse=True, return_weights=True, num_threads=n)
        for axis in (0, -1):
            f.softmax_vjp(x, f.softmax(x, axis), axis)
            f.log_softmax(x, axis)
    done.append(True)

done = []
resource.setrlimit(resource.RLIMIT_STACK, (stack << 10, resource.RLIM_INFINITY))
work()
threading.stack_size(stack << 10)
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert len(done) == 2
"""


@linux
@pytest.mark.parametrize(
    ("kib", "n_key", "d"), [case(128, 5000, 256, id="R07"), case(256, 3000, 128, id="R08")]
)
def test_threads_with_small_stacks_run_every_kernel(native_engine, kib, n_key, d):
    run_child(SMALL_STACK, native_engine, kib, n_key, d)


SHARED = """
import sys, threading
import numpy as np
import fast_attention as f

def call(seed):
    rng = np.random.default_rng(seed)
    heads, n_query, n_key, d = (int(rng.integers(*r)) for r in ((1, 4), (1, 90), (1, 260), (1, 40)))
    q, k, v = (rng.standard_normal((heads, n, d), dtype="f4") for n in (n_query, n_key, n_key))
    n = int(rng.integers(1, 4))
    parts = f.scaled_dot_product_attention(q, k, v, softcap=9.0 if seed % 3 == 0 else None,
        query_offset="end", is_causal=True, return_lse=True, num_threads=n)
    return b"".join(x.tobytes() for x in (*parts, f.softmax(k, axis=seed % 3), f.logsumexp(q)))

def work(seeds):
    with f._backend.using(sys.argv[1], sys.argv[2] or None):
        start.wait()
        for seed in seeds:
            if call(seed) != serial[seed]:
                wrong.append(seed)

n_thread, n_call, wrong = 16, int(sys.argv[3]), []
with f._backend.using(sys.argv[1], sys.argv[2] or None):
    serial = {seed: call(seed) for seed in range(n_thread * 10)}
start = threading.Barrier(n_thread)
threads = [threading.Thread(target=work, args=([10 * t + i % 10 for i in range(n_call)],))
           for t in range(n_thread)]
for t in threads: t.start()
for t in threads: t.join()
assert not wrong, wrong
"""


@pytest.mark.parametrize("n_call", [case(60, id="R11")])
def test_sixteen_threads_get_the_bits_of_serial_calls(engine, n_call):
    run_child(SHARED, engine, n_call)


STARVED = """
import resource, sys
import numpy as np
import fast_attention as f

def limit(more):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

def is_refused(call):
    try:
        call()
    except MemoryError as error:
        assert str(error), "an error without a message"
        return True
    return False

def attend(x, **options):
    return f.scaled_dot_product_attention(x, x, x, **options)

rng = np.random.default_rng(0)
small = rng.standard_normal((2, 100, 16), dtype="f4")
wide = np.zeros((1, 70, 500_000), "f4")  # the scratch of one tile takes as much again
long = np.zeros((1, 4_000_000), "f4")
out = np.full_like(wide, 7)
with f._backend.using(sys.argv[1], sys.argv[2] or None):
    expected, row = attend(small, num_threads=1), f.softmax(small)
    limit(12 << 20)
    assert is_refused(lambda: attend(wide, out=out, num_threads=1)), "scratch"
    assert is_refused(lambda: attend(wide)), "output"
    assert is_refused(lambda: attend(long.reshape(-1, 1), return_weights=True)), "weights"
    assert is_refused(lambda: f.softmax(long)), "softmax"
    assert is_refused(lambda: f.log_softmax(long.reshape(-1, 2), axis=0)), "softmax"
    for n in (1, 64):  # threads whose stacks are not to be had are done without
        assert (attend(small, num_threads=n) == expected).all()
    assert (f.softmax(small) == row).all()
"""


@linux
@pytest.mark.parametrize("place", [case("everywhere", id="R15")])
def test_memory_that_is_not_to_be_had_is_a_memory_error_and_the_next_call_is_right(engine, place):
    run_child(STARVED, engine)


N_LONG = 10_007


@pytest.mark.parametrize("n_thread", [case(n, id=f"R17-{n}") for n in (1, 2, 3, 8)])
def test_results_do_not_depend_on_threads_or_timing(native_engine, n_thread):
    query, key, value = support.qkv(1, heads=3, n_query=10, n_key=N_LONG, d=8)
    rows = np.ascontiguousarray(key.swapaxes(1, 2))
    expected = scaled_dot_product_attention(query, key, value, **ALL, num_threads=1)
    one = scaled_dot_product_attention(query[:, :1], key, value, num_threads=1)
    reduced = [function(rows, axis=axis) for axis in (0, 1, 2) for function in (softmax, logsumexp)]
    for _ in range(30):
        again = scaled_dot_product_attention(query, key, value, **ALL, num_threads=n_thread)
        support.assert_same_bits(tuple(again), tuple(expected))
        step = scaled_dot_product_attention(query[:, :1], key, value, num_threads=n_thread)
        support.assert_same_bits(step, one)
    for _ in range(10):
        with threads(n_thread):
            again = [f(rows, axis=axis) for axis in (0, 1, 2) for f in (softmax, logsumexp)]
        support.assert_same_bits(tuple(again), tuple(reduced))


def every_argument(byte_order="="):
    """Arguments of a call that gives each array option; int8 key and value."""
    rng = np.random.default_rng(2)
    key, k_scale = support.quantised(rng, 2, 2, 9, 8)
    value, v_scale = support.quantised(rng, 2, 2, 9, 5)
    arrays = {
        "query": support.normal(rng, 2, 4, 7, 8), "key": key, "value": value,
        "attn_mask": rng.random((2, 1, 7, 9)) < 0.7, "bias": support.normal(rng, 4, 7, 9),
        "query_offset": np.array([0, 2]), "kv_lengths": np.array([9, 6]),
        "sinks": support.normal(rng, 4), "alibi_slopes": support.normal(rng, 2, 4),
        "k_scale": k_scale, "v_scale": v_scale,
    }  # fmt: skip
    return {name: x.astype(x.dtype.newbyteorder(byte_order)) for name, x in arrays.items()}


OPTIONS = {"softcap": 3.0, "is_causal": True, "window": (8, 8)} | ALL


@pytest.mark.parametrize("name", [case(n, id=f"R18-{n}") for n in [*every_argument(), "all"]])
def test_read_only_arguments_are_read(engine, name):
    arguments = every_argument()
    expected = scaled_dot_product_attention(**arguments, **OPTIONS)
    for each in arguments if name == "all" else [name]:
        arguments[each].setflags(write=False)
    result = scaled_dot_product_attention(**arguments, **OPTIONS)
    support.assert_same_bits(tuple(result), tuple(expected))


@pytest.mark.parametrize("kind", [case("frozen", id="R18-frozen"), case("mapped", id="R18-mapped")])
def test_read_only_inputs_are_not_copied(tmp_path, kind):
    arrays = support.qkv(3, n_query=40, n_key=50, d=16)
    if kind == "mapped":
        for i, x in enumerate(arrays):
            x.tofile(tmp_path / str(i))
        arrays = [
            np.memmap(tmp_path / str(i), x.dtype, "r", shape=x.shape) for i, x in enumerate(arrays)
        ]
    else:
        arrays = [support.read_only(x) for x in arrays]
    described = describe_attention(*arrays)
    for given, used in zip(arrays, (described.query, described.key, described.value), strict=True):
        assert np.shares_memory(given, used)
        assert np.shares_memory(given, as_numbers("x", given))


@pytest.mark.parametrize("function", [case(f, id=f"R18-{f.__name__}") for f in (
    softmax, log_softmax, logsumexp)])  # fmt: skip
@pytest.mark.parametrize("axis", [0, -1, None])
def test_read_only_input_of_the_softmax_family_is_read(engine, function, axis):
    x = support.read_only(support.qkv(4, n_query=9)[0])
    where = support.read_only(x > -1)
    for options in ({}, {"where": where}):
        support.assert_same_bits(function(x, axis, **options), function(x.copy(), axis, **options))
    y = support.read_only(softmax(x))
    support.assert_same_bits(softmax_vjp(x, y), softmax_vjp(x.copy(), y.copy()))


@pytest.mark.parametrize("name", [case(n, id=f"R20-{n}") for n in [*every_argument(), "all"]])
def test_byte_swapped_arguments_have_their_values(engine, name):
    native, swapped = every_argument(), every_argument("S")
    mixed = swapped if name == "all" else native | {name: swapped[name]}
    result = scaled_dot_product_attention(**mixed, **OPTIONS)
    expected = scaled_dot_product_attention(**native, **OPTIONS)
    support.assert_same_bits(tuple(result), tuple(expected))


@pytest.mark.parametrize("dtype", [case(t, id=f"R20-{t}") for t in ("f2", "f4", "f8", "i4")])
@pytest.mark.parametrize("axis", [0, -1])
def test_byte_swapped_input_of_the_softmax_family_has_its_values(engine, dtype, axis):
    x = (4 * support.qkv(5, n_query=9)[0]).astype(dtype)
    swapped = x.astype(x.dtype.newbyteorder("S"))
    for function in (softmax, log_softmax, logsumexp):
        result = function(swapped, axis)
        assert result.dtype.isnative
        support.assert_same_bits(result, function(x, axis))
    y = softmax(x)
    turned = y.astype(y.dtype.newbyteorder("S"))
    support.assert_same_bits(softmax_vjp(swapped, turned), softmax_vjp(x, y))


@pytest.mark.parametrize("function", [
    case(lambda x, out: scaled_dot_product_attention(x, x, x, out=out), id="R20-attention"),
    case(lambda x, out: softmax(x, out=out), id="R20-softmax"),
])  # fmt: skip
def test_byte_swapped_out_is_refused(engine, function):
    x = support.qkv(6)[0]
    out = np.zeros(x.shape, x.dtype.newbyteorder("S"))
    with pytest.raises(TypeError, match=r"(?s)out.*float32"):
        function(x, out)
    assert not out.any()


@pytest.mark.parametrize("n_query", [case(1500, id="R21")])
def test_other_threads_run_while_a_call_computes(native_engine, n_query):
    """With the lock held, one thread would see the other's counter stand still during its call."""
    x, rows = np.ones((2, n_query, 64), "f4"), np.ones((3000, 3000), "f4")
    ticks, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)  # lets go of the lock

    def ticks_during(call):
        before = ticks[0]
        call()
        return ticks[0] - before

    calls = [lambda: scaled_dot_product_attention(x, x, x, num_threads=1), lambda: softmax(rows)]
    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # only a thread that lets go of the lock lets others run
    try:
        thread.start()
        for call in calls:  # on a busy machine the other thread may have to wait its turn
            assert any(ticks_during(call) > 10 for _ in range(100))
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("n_query", [case(2500, id="R21-two")])
def test_two_calls_from_two_threads_run_at_the_same_time(native_engine, n_query):
    """The second call, a short one, is over while the first is still in the kernel."""
    x = np.ones((4, n_query, 64), "f4")
    small = np.ones((1, 64, 64), "f4")
    began, order = threading.Event(), []

    def first():
        began.set()
        scaled_dot_product_attention(x, x, x, num_threads=1)
        order.append("long")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    thread = threading.Thread(target=first)
    try:
        thread.start()
        began.wait(10)
        scaled_dot_product_attention(small, small, small)
        order.append("short")
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert order == ["short", "long"]
