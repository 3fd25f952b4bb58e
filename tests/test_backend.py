"""Which backend and instruction set are used, who chose them, what if they are broken."""

import importlib.machinery
import platform
import sys
import threading

import numpy as np
import oracle
import pytest
import support

import fast_attention
from fast_attention import _backend, backend, scaled_dot_product_attention, show_config
from fast_attention._reduction import Kind

NAME = "import fast_attention as f; print(f.backend(), f.show_config()['isa'])"
NATIVE_HERE = support.native() is not None
needs_native = pytest.mark.skipif(not NATIVE_HERE, reason="pure installation")
COUNT_WARNINGS = """
import sys, warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import fast_attention as f
    x = np.ones((1, 3, 4), "f4")
    for _ in range(2):
        f.scaled_dot_product_attention(x, x, x)
        f.show_config()
print(f.backend(), len(caught), *(w.category.__name__ for w in caught))
print(*(w.message for w in caught))
"""
BROKEN = {
    "garbage": (importlib.machinery.EXTENSION_SUFFIXES[0], b"\x7fELF but broken"),
    "empty": (importlib.machinery.EXTENSION_SUFFIXES[0], b""),
    "failing import": (".py", b"raise ImportError('no such symbol')"),
    "failing start": (".py", b"raise OSError('cannot map')"),
    "missing dependency": (".py", b"import no_such_module_anywhere"),
}


def test_default_is_native_where_it_is_installed():
    child = support.run_python(NAME)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split()[0] == ("native" if NATIVE_HERE else "numpy")
    assert child.stdout == support.run_python(NAME, FAST_ATTENTION_BACKEND="auto").stdout
    assert child.stdout == support.run_python(NAME, FAST_ATTENTION_BACKEND="").stdout


def test_variable_chooses_the_numpy_backend():
    child = support.run_python(NAME, FAST_ATTENTION_BACKEND="numpy")
    assert child.stdout == "numpy None\n", child.stderr


def test_variables_choose_every_engine_of_this_machine(native_engine):
    isa = native_engine[1]
    for environment in ({}, {"FAST_ATTENTION_BACKEND": "native"}):
        child = support.run_python(NAME, FAST_ATTENTION_ISA=isa, **environment)
        assert child.stdout == f"native {isa}\n", child.stderr


def test_unknown_backend_lists_the_valid_ones():
    child = support.run_python(NAME, FAST_ATTENTION_BACKEND="cuda")
    assert child.returncode != 0
    for word in ("ValueError", "FAST_ATTENTION_BACKEND", "cuda", "auto", "native", "numpy"):
        assert word in child.stderr


@needs_native
def test_unknown_instruction_set_lists_the_valid_ones():
    child = support.run_python(NAME, FAST_ATTENTION_ISA="avx1024")
    assert child.returncode != 0
    for word in ("ValueError", "FAST_ATTENTION_ISA", "avx1024", *show_config()["isa_available"]):
        assert word in child.stderr


def test_config_says_what_is_in_use(engine):
    config = show_config()
    assert (config["backend"], config["isa"]) == engine
    assert backend() == engine[0]
    assert config["version"] == fast_attention.__version__
    assert config["numpy"] == np.__version__
    assert config["num_threads"] == fast_attention.get_num_threads()
    assert platform.python_version() in config["python"]
    words = ("backend_reason", "num_threads_source", "arithmetic", "promises", "platform", "blas")
    assert all(config[word] for word in words)
    for name in config:
        assert name in str(config)


def test_config_names_the_promises_and_the_class_of_arithmetic(engine):
    config = show_config()
    assert "row invariance" in config["promises"]
    if engine[0] == "native":
        kinds = {name: kind for name, _, kind in support.native().isa_table()}
        assert kinds[engine[1]] in config["arithmetic"]
        assert str(support.native().ARITHMETIC_VERSION) in config["arithmetic"]
        assert config["compiler"]
    else:
        assert "only" in config["promises"]


@pytest.mark.parametrize(("suffix", "content"), BROKEN.values(), ids=BROKEN)
def test_broken_extension_gives_one_warning_and_the_fallback(tmp_path, suffix, content):
    path = support.copy_of_package(tmp_path, suffix, content)
    child = support.run_python(COUNT_WARNINGS, PYTHONPATH=path)
    assert child.stdout.splitlines()[0] == "numpy 1 RuntimeWarning", child.stderr
    assert "_native" in child.stdout
    code = "import fast_attention as f; print(f.backend())"
    quiet = support.run_python(code, PYTHONPATH=path, FAST_ATTENTION_BACKEND="numpy")
    assert quiet.stdout == "numpy\n", quiet.stderr


def test_broken_extension_that_was_asked_for_is_an_error_with_the_reason(tmp_path):
    path = support.copy_of_package(tmp_path, *BROKEN["failing start"])
    code = "import warnings; warnings.simplefilter('ignore'); " + NAME
    child = support.run_python(code, PYTHONPATH=path, FAST_ATTENTION_BACKEND="native")
    assert child.returncode != 0
    assert "ImportError" in child.stderr
    assert "cannot map" in child.stderr


def test_pure_installation_gives_no_warning(tmp_path):
    path = support.copy_of_package(tmp_path)
    child = support.run_python(COUNT_WARNINGS, PYTHONPATH=path)
    assert child.stdout.splitlines()[0] == "numpy 0", child.stderr
    assert support.run_python(NAME, PYTHONPATH=path).stdout == "numpy None\n"


@pytest.mark.parametrize("name", ["FAST_ATTENTION_BACKEND", "FAST_ATTENTION_ISA"])
def test_pure_installation_says_so_when_native_is_asked_for(tmp_path, name):
    value = "native" if name.endswith("BACKEND") else "avx2"
    child = support.run_python(NAME, PYTHONPATH=support.copy_of_package(tmp_path), **{name: value})
    assert child.returncode != 0
    assert "Error" in child.stderr
    assert "pure" in child.stderr
    assert name in child.stderr


def test_using_nests_and_restores():
    before = _backend.current()
    with _backend.using("numpy"):
        assert _backend.current() == ("numpy", None)
        with _backend.using(*support.ENGINES[-1]):
            assert _backend.current() == support.ENGINES[-1]
        assert _backend.current() == ("numpy", None)
        assert backend() == "numpy"
    assert _backend.current() == before


def test_using_ends_with_an_exception():
    before = _backend.current()
    with pytest.raises(KeyError), _backend.using("numpy"):
        raise KeyError
    assert _backend.current() == before


def test_using_belongs_to_its_thread():
    before, seen = _backend.current(), []
    with _backend.using("numpy"):
        thread = threading.Thread(target=lambda: seen.append(_backend.current()))
        thread.start()
        thread.join()
    assert seen == [("numpy", None) if support.THREADS_INHERIT_CONTEXT else before]


def test_using_an_unknown_engine_lists_the_valid_ones():
    with pytest.raises(ValueError, match=r"(?s)cuda.*native.*numpy"):
        _backend.using("cuda")
    if NATIVE_HERE:
        with pytest.raises(ValueError, match=r"(?s)avx1024.*" + support.NATIVE_ENGINES[-1][1]):
            _backend.using("native", "avx1024")


@needs_native
def test_compiled_module_agrees_with_the_constants_of_the_tests():
    native = support.native()
    assert native.KEY_BLOCK == oracle.KEY_BLOCK
    assert native.SEGMENT >= 1
    assert native.ARITHMETIC_VERSION >= 1
    assert {kind.name: kind.value for kind in Kind} == native.REDUCTION_KINDS
    assert native.compiler()
    for name, _, kind in native.isa_table():
        assert kind in ("fused", "unfused")
        assert native.tile_rows(name, "float32") >= 1
        assert native.tile_rows(name, "float64") >= 1


FMA, SSE, F16C, OSXSAVE, AVX = (
    1 << 12,
    1 << 0 | 1 << 9 | 3 << 19 | 1 << 23,
    1 << 29,
    1 << 27,
    1 << 28,
)
AVX2, AVX512 = 1 << 5 | 1 << 3 | 1 << 8, 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31
ECX = FMA | SSE | F16C | OSXSAVE | AVX
ALL = 0xFFFFFFFF
CPUS = [
    (ECX, AVX2 | AVX512, 0x07, "avx2"),
    (ECX, AVX2, 0x03, "sse2"),
    (0, 0, 0, "sse2"),
    (ALL, ALL, 0xE7, "avx512"),
    (ECX, AVX2, 0x07, "avx2"),
    (ECX, AVX2 | AVX512, 0xE7, "avx512"),
    (ECX, AVX2 | AVX512, 0x67, "avx2"),
    (ECX, AVX2 | AVX512, 0xE1, "sse2"),
    (ECX, AVX2 | 1 << 16, 0xE7, "avx2"),
    (ECX, AVX512, 0xE7, "sse2"),
    (ECX & ~FMA, AVX2, 0x07, "sse2"),
    (ECX & ~AVX, AVX2, 0x07, "sse2"),
    (ECX & ~OSXSAVE, AVX2, 0x07, "sse2"),
    (ECX, 0, 0x07, "sse2"),
    (ECX, AVX2, 0x05, "sse2"),
    (SSE, 0, 0x03, "sse2"),
    (ALL, ALL, 0, "sse2"),
]


@needs_native
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="cpuid is of x86")
@pytest.mark.parametrize(("ecx", "ebx", "xcr0", "isa"), CPUS)
def test_instruction_set_needs_the_cpu_and_the_operating_system(ecx, ebx, xcr0, isa):
    assert support.native().classify_cpu(ecx, ebx, xcr0) == isa


LIBRARIES = """
import sys
import numpy as np
import fast_attention
from fast_attention import _backend

def libraries():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if ".so" in line}

x = np.ones((8, 300, 64), "f4")
x @ x.swapaxes(1, 2)
before = {name for name in libraries() if "_native" not in name}
with _backend.using(sys.argv[1], sys.argv[2] or None):
    fast_attention.scaled_dot_product_attention(x, x, x, num_threads=3)
for name in libraries():
    base = name.rsplit("/", 1)[-1]
    assert not any(word in base for word in ("gomp", "libomp", "iomp")) or name in before, name
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map of Linux")
def test_no_openmp_runtime_is_loaded(engine):
    child = support.run_python(LIBRARIES, engine[0], engine[1] or "")
    assert child.returncode == 0, child.stderr


THREADS = """
import os, sys
import numpy as np
import fast_attention
from fast_attention import _backend
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
with _backend.using("native", sys.argv[1]):
    for h, n, d in ((1, 4, 8), (2, 16, 16), (4, 32, 32)):
        x = np.ones((1, h, n, d), "f4")
        fast_attention.scaled_dot_product_attention(x, x, x)
        fast_attention.scaled_dot_product_attention(x, x, x, is_causal=True)
        fast_attention.scaled_dot_product_attention(x, x, x, np.ones((n, n), bool))
    assert count() == before, "small calls start threads"
    x = np.ones((8, 300, 64), "f4")
    fast_attention.scaled_dot_product_attention(x, x, x, num_threads=1)
    assert count() == before, "one thread starts others"
    fast_attention.scaled_dot_product_attention(x, x, x, num_threads=3)
    assert before < count() <= before + 2, "three threads are the caller and two more"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux lists them")
def test_small_calls_start_no_threads_and_large_ones_only_what_was_asked_for(native_engine):
    child = support.run_python(THREADS, native_engine[1])
    assert child.returncode == 0, child.stderr


def test_engines_agree_within_twice_the_bound(engine):
    arrays = support.qkv(1, lead=(2,), heads=4, kv_heads=2, n_query=70, n_key=150, d=16)
    expected = oracle.attention(*arrays)
    results = [scaled_dot_product_attention(*arrays)]
    with _backend.using("numpy"):
        results.append(scaled_dot_product_attention(*arrays))
    difference = np.abs(results[0].astype("f8") - results[1])
    assert (difference <= 2 * expected.output_bound).all()
