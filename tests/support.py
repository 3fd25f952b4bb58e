"""What the tests share: inputs in every layout, comparison by bits and by the documented bound."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle

import fast_attention
from fast_attention import _backend, scaled_dot_product_attention

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

ENGINES = list(_backend.available())
NATIVE_ENGINES = [engine for engine in ENGINES if engine[0] == "native"]
FLOATS = [np.float16, np.float32, np.float64] + ([bfloat16] if bfloat16 else [])
FALLBACK_TILE_ROWS = 64
# From Python 3.14 a new thread may start in the context of its parent; without the GIL it does.
THREADS_INHERIT_CONTEXT = bool(getattr(sys.flags, "thread_inherit_context", False))


def native():
    """Return the compiled module, or None in a pure installation."""
    if not NATIVE_ENGINES:
        return None
    from fast_attention import _native

    return _native


def fused_isas():
    """Names of the instruction sets of this machine that share their bits."""
    if native() is None:
        return []
    return [name for name, here, kind in native().isa_table() if here and kind == "fused"]


def tile_rows(engine, dtype_name):
    backend, isa = engine
    return native().tile_rows(isa, dtype_name) if backend == "native" else FALLBACK_TILE_ROWS


def normal(rng, *shape, dtype=np.float32, size=1.0):
    return (size * rng.standard_normal(shape)).astype(dtype)


def qkv(seed, *, lead=(), heads=1, kv_heads=None, n_query=3, n_key=5, d=4, dv=None, dtype="f4"):
    """Draw query, key and value from the standard normal distribution."""
    rng = np.random.default_rng(seed)
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        normal(rng, *lead, heads, n_query, d, dtype=dtype),
        normal(rng, *lead, kv_heads, n_key, d, dtype=dtype),
        normal(rng, *lead, kv_heads, n_key, d if dv is None else dv, dtype=dtype),
    )


def bits(array):
    """Return the array's bits as unsigned integers."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual, expected, message=""):
    """Arrays, or tuples of them, equal in shape, type and every bit."""
    if isinstance(actual, tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same_bits(one, other, message)
        return
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=message)


def _assert_near(actual, expected, bound, name):
    assert actual.shape == expected.shape, name
    finite = np.isfinite(expected)
    actual = actual.astype(expected.dtype)
    error = np.abs(np.where(finite, actual - np.where(finite, expected, 0), 0))
    with np.errstate(invalid="ignore"):
        ratio = np.where(finite, error / np.where(bound > 0, bound, 1), 0)
    ratio = np.where(np.isfinite(ratio), ratio, np.inf)
    worst = ratio.max(initial=0)
    where = np.unravel_index(ratio.argmax(), ratio.shape) if ratio.size else ()
    assert worst <= 1, f"{name} is {worst:.3g} times its bound away at {where}"


def assert_output_near(output, expected):
    """Output within the bound of an ``oracle.Reference``; empty rows are +0, NaN rows are NaN."""
    finite = np.isfinite(expected.output)
    assert not np.isfinite(output[~finite].astype(np.float64)).any(), "finite where it must not be"
    assert np.isnan(output[np.isnan(expected.lse)].astype(np.float64)).all()
    empty = ~expected.visible.any(axis=-1) & ~np.isnan(expected.lse)
    assert (bits(output[empty]) == 0).all(), "a row that sees no key must be +0"
    _assert_near(output, expected.output, expected.output_bound, "output")


def assert_lse_near(lse, expected):
    special = ~np.isfinite(expected.lse)
    np.testing.assert_array_equal(lse[special], expected.lse[special].astype(lse.dtype))
    _assert_near(lse, expected.lse, expected.lse_bound, "lse")


def assert_weights_near(weights, expected):
    assert (bits(weights[~expected.visible]) == 0).all(), "weight of an invisible key"
    rows = np.isnan(expected.lse)
    assert np.isnan(weights[rows][expected.visible[rows]].astype(np.float64)).all()
    _assert_near(weights, expected.weights, expected.weights_bound, "weights")


def check(query, key, value, attn_mask=None, *, expected=None, **options):
    """Call with all three results, compare each with the oracle, return the output."""
    options = {"return_lse": True, "return_weights": True} | options
    result = scaled_dot_product_attention(query, key, value, attn_mask, **options)
    if expected is None:
        expected = oracle.attention(query, key, value, attn_mask, **options)
    output = getattr(result, "output", result)
    assert_output_near(output, expected)
    if options["return_lse"]:
        assert_lse_near(result.lse, expected)
    if options["return_weights"]:
        assert_weights_near(result.weights, expected)
    return output


def transposed_heads(array):
    """Equal values; memory as (..., rows, heads, columns), heads beside each other."""
    if array.ndim < 3:
        return array
    return np.ascontiguousarray(array.swapaxes(-3, -2)).swapaxes(-3, -2)


def column_major(array):
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def reversed_axes(array):
    """Equal values; every stride negative."""
    index = (slice(None, None, -1),) * array.ndim
    return np.ascontiguousarray(array[index])[index]


def gapped(array):
    """Equal values; twice the columns and rows in memory, NaN or extremes between them."""
    filler = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan
    shape = (*array.shape[:-2], 2 * array.shape[-2] + 1, 3 * array.shape[-1] + 2)
    base = np.full(shape, filler, array.dtype)
    view = base[..., 1::2, 2::3]
    view[...] = array
    return view


def misaligned(array):
    """Equal values; the data begins one byte past an aligned address."""
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    view = memory.view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def byte_swapped(array):
    return array.astype(array.dtype.newbyteorder("S"))


def read_only(array):
    copy = array.copy()
    copy.setflags(write=False)
    return copy


LAYOUTS = {
    "contiguous": np.array,
    "transposed_heads": transposed_heads,
    "column_major": column_major,
    "reversed": reversed_axes,
    "gapped": gapped,
    "misaligned": misaligned,
    "read_only": read_only,
}


def quantised(rng, *shape):
    """Draw an int8 array (..., rows, columns) and its scale (..., rows)."""
    values = rng.integers(-128, 128, shape).astype(np.int8)
    return values, (0.02 * rng.random(shape[:-1]) + 0.001).astype(np.float32)


def run_python(code, *arguments, timeout=120, **environment):
    """Run code in a child process with warnings as errors; variables of None are removed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FAST_ATTENTION_")} | environment
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=env, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def copy_of_package(folder, suffix=None, content=b""):
    """Copy the package without its compiled module, with another one in its place."""
    source = Path(fast_attention.__file__).parent
    ignored = shutil.ignore_patterns("_native.*.so", "_native.so", "_native*.pyd", "__pycache__")
    shutil.copytree(source, folder / "fast_attention", ignore=ignored)
    if suffix:
        (folder / "fast_attention" / f"_native{suffix}").write_bytes(content)
    return os.pathsep.join([str(folder), *filter(None, sys.path)])
