"""compat.jax: JAX's layout and rules, and JAX itself where it is installed."""

import inspect
import warnings

import numpy as np
import oracle
import pytest
import support

from fast_attention.compat.jax import dot_product_attention

INSTALL = "needs JAX: pip install jax"
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
DTYPES = [dtype for dtype in support.FLOATS if np.dtype(dtype).name in ROUNDOFF]
HIDDEN_BY_JAX = -1e38  # residuals of rows that see no key are below, as JAX has no -inf there


@pytest.fixture(scope="module")
def jax():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("jax", reason=INSTALL)


def draw(seed, *, dtype="f4", batch=2, heads=4, kv_heads=2, n_query=5, n_key=7, d=6):
    """Draw query, key and value with heads after positions."""
    arrays = support.qkv(
        seed, lead=(batch,), heads=heads, kv_heads=kv_heads, n_query=n_query, n_key=n_key, d=d,
        dtype=dtype,
    )  # fmt: skip
    return [np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays]


def heads_first(x):
    return (x if x.ndim == 4 else x[None]).swapaxes(1, 2)


def reference(
    query, key, value, bias=None, mask=None, *, scale=None, is_causal=False,
    query_seq_lengths=None, key_value_seq_lengths=None, local_window_size=None,
    return_residual=True,
):  # fmt: skip
    """Return the oracle's answer, heads first, from one dense mask of all that restricts."""
    q, k, v = map(heads_first, (query, key, value))
    keep = np.ones((len(q), 1, q.shape[2], k.shape[2]), bool)
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    if is_causal:
        keep &= j <= i
    if local_window_size is not None:
        left, right = np.broadcast_to(local_window_size, 2)
        keep &= (i - left <= j) & (j <= i + right)
    if query_seq_lengths is not None:
        keep &= i < np.reshape(query_seq_lengths, (-1, 1, 1, 1))
    if key_value_seq_lengths is not None:
        keep &= j < np.reshape(key_value_seq_lengths, (-1, 1, 1, 1))
    if mask is not None:
        keep = keep & mask
    return oracle.attention(q, k, v, keep, bias=bias, scale=scale)


def check(*arrays, **options):
    """Compare output and residual with the oracle; return both."""
    expected = reference(*arrays, **options)
    output, residual = dot_product_attention(*arrays, **options, return_residual=True)
    assert output.shape == arrays[0].shape
    assert residual.shape == arrays[0].shape[:-1]
    for x in (output, residual):
        assert x.dtype == arrays[0].dtype
        assert x.flags.c_contiguous
        assert x.flags.owndata
    support.assert_output_near(np.ascontiguousarray(heads_first(output)), expected)
    lse = heads_first(residual.reshape(*output.shape[:-1], 1))[..., 0].astype("f8")
    finite = np.isfinite(expected.lse)
    assert (lse[~finite] == -np.inf).all()
    size = np.where(finite, np.abs(expected.lse), 0)
    bound = expected.lse_bound + oracle.half_ulp(size, residual.dtype)
    assert (np.abs(lse[finite] - expected.lse[finite]) <= bound[finite]).all()
    support.assert_same_bits(dot_product_attention(*arrays, **options), output)
    return output, residual


def calls():
    """(name, arrays, options) of calls that give every argument a part, each kind of shape."""
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((2, 4, 5, 7)).astype("f4")
    mask = rng.random((2, 4, 5, 7)) < 0.7
    mask[..., 0] = True  # JAX has another answer for rows that see no key
    options = {
        "plain": {},
        "scale": {"scale": 0.2},
        "causal": {"is_causal": True},
        "window": {"local_window_size": 2},
        "window of two sides": {"local_window_size": (3, 0)},
        "causal window": {"is_causal": True, "local_window_size": (1, 4)},
        "bias": {"bias": bias},
        "bias of one head": {"bias": bias[:1, :1]},
        "bias of three axes": {"bias": bias[0]},
        "bias of two axes": {"bias": bias[0, 0]},
        "mask": {"mask": mask},
        "mask of one query": {"mask": mask[:, :, :1]},
        "mask of one axis": {"mask": mask[0, 0, 0]},
        "mask and bias": {"mask": mask[:, :1], "bias": bias[:1]},
        "key lengths": {"key_value_seq_lengths": np.array([7, 3], "i4")},
        "query lengths": {"query_seq_lengths": np.array([2, 5], "i4")},
        "all": {
            "mask": mask, "bias": bias, "is_causal": True, "local_window_size": (6, 1),
            "query_seq_lengths": np.array([0, 4], "i4"),
            "key_value_seq_lengths": np.array([5, 1], "i4"),
        },
    }  # fmt: skip
    listed = [(name, {}, chosen) for name, chosen in options.items()]
    listed.append(("one head", {"heads": 1, "kv_heads": 1}, {"is_causal": True}))
    listed.append(("equal heads", {"heads": 4, "kv_heads": 4}, {"bias": bias}))
    return listed


CALLS = calls()
each_call = pytest.mark.parametrize(
    ("shape", "options"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS]
)


@each_call
def test_call_keeps_the_bound(engine, shape, options):
    check(*draw(2, **shape), **options)


@each_call
def test_call_agrees_with_jax(engine, jax, shape, options):
    for dtype in DTYPES:
        arrays = draw(2, **shape, dtype=dtype)
        expected = reference(*arrays, **options)
        ours = dot_product_attention(*arrays, **options, return_residual=True)
        theirs = in_jax(jax, arrays, options)
        roundoff = ROUNDOFF[np.dtype(dtype).name]
        # JAX rounds the weights to this dtype before they meet the values.
        allowed = 2 * expected.output_bound + roundoff * np.abs(arrays[2].astype("f8")).max()
        difference = np.abs(ours[0].astype("f8") - theirs[0].astype("f8"))
        assert (heads_first(difference) <= allowed).all()
        seen = theirs[1].astype("f8") > HIDDEN_BY_JAX
        np.testing.assert_array_equal(seen, np.isfinite(ours[1].astype("f8")))
        wide, other = ours[1].astype("f8")[seen], theirs[1].astype("f8")[seen]
        largest = np.abs(other).max(initial=0)
        assert (np.abs(wide - other) <= 4 * roundoff * largest + 2 * expected.lse_bound.max()).all()


def in_jax(jax, arrays, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            np.asarray(x)
            for x in jax.nn.dot_product_attention(*arrays, **options, return_residual=True)
        ]


def test_names_and_defaults_are_those_of_jax(jax):
    ours = inspect.signature(dot_product_attention).parameters
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


@pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("layout", list(support.LAYOUTS))
def test_any_layout_and_dtype(engine, dtype, layout):
    arrays = [support.LAYOUTS[layout](x) for x in draw(3, dtype=dtype)]
    check(*arrays, is_causal=True)


def test_three_axes_are_one_sequence(engine):
    four = draw(4, batch=1)
    three = [x[0] for x in four]
    options = {"is_causal": True, "query_seq_lengths": [4], "key_value_seq_lengths": [3]}
    output, residual = check(*three, **options)
    expected = dot_product_attention(*four, **options, return_residual=True)
    support.assert_same_bits((output[None], residual[None]), expected)


def test_padding_may_hold_anything(engine):
    query, key, value = draw(5)
    options = {"query_seq_lengths": [2, 5], "key_value_seq_lengths": [3, 7]}
    clean = dot_product_attention(query, key, value, **options, return_residual=True)
    query[0, 2:], key[0, 3:], value[0, 3:] = np.nan, np.nan, np.inf
    dirty = dot_product_attention(query, key, value, **options, return_residual=True)
    support.assert_same_bits(dirty, clean)
    assert (support.bits(dirty[0][0, 2:]) == 0).all()
    assert (dirty[1][0, 2:] == -np.inf).all()


def test_row_that_sees_no_key_is_zero(engine):
    output, residual = check(*draw(6), mask=np.arange(5)[:, None] != 2)
    assert (support.bits(output[:, 2]) == 0).all()
    assert (residual[:, 2] == -np.inf).all()


@pytest.mark.parametrize(("n_query", "n_key"), [(0, 3), (3, 0), (0, 0)])
def test_empty_axes(engine, n_query, n_key):
    output, residual = check(*draw(7, n_query=n_query, n_key=n_key), is_causal=True)
    assert not output.any()
    assert (residual == -np.inf).all()


ERRORS = {
    "implementation": ({"implementation": "cudnn"}, ValueError, "must be None or 'xla'"),
    "axes": ({"query": np.zeros((5, 6), "f4")}, ValueError, r"query has shape \(5, 6\), expected"),
    "dtypes": ({"key": np.zeros((2, 7, 2, 6))}, TypeError, "float32, float64 and float32"),
    "value": ({"value": np.zeros((2, 7, 2, 5), "f4")}, ValueError, "key and value differ in shape"),
    "batch": ({"query": np.zeros((1, 5, 4, 6), "f4")}, ValueError, "differ in batch size"),
    "width": ({"query": np.zeros((2, 5, 4, 5), "f4")}, ValueError, "differ in width"),
    "heads": ({"query": np.zeros((2, 5, 3, 6), "f4")}, ValueError, "multiple of the 2 heads"),
    "float mask": ({"mask": np.zeros((5, 7))}, TypeError, "mask has dtype float64, expected bool"),
    "mask": ({"mask": np.ones((5, 6), bool)}, ValueError, r"mask has shape \(5, 6\), .*4, 5, 7\)"),
    "bool bias": ({"bias": np.ones((5, 7), bool)}, TypeError, "bias has dtype bool"),
    "bias": ({"bias": np.ones((4, 1, 5, 7), "f4")}, ValueError, "bias has shape"),
    "length": ({"query_seq_lengths": [6, 1]}, ValueError, "query_seq_lengths must be from 0 to 5"),
    "lengths": ({"key_value_seq_lengths": [1]}, ValueError, r"shape \(1,\), expected .* \(2,\)"),
    "float": ({"key_value_seq_lengths": [1.0, 2.0]}, TypeError, "key_value_seq_lengths has dtype"),
    "window": ({"local_window_size": (-1, 2)}, ValueError, r"0 or above, given \(-1, 2\)"),
    "open window": ({"local_window_size": (None, 2)}, TypeError, "must be an int or"),
    "three sides": ({"local_window_size": (1, 2, 3)}, ValueError, "must be an int or"),
    "scale": ({"scale": np.inf}, ValueError, "scale must be finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ERRORS))
def test_error_says_what_was_given_and_expected(name):
    change, kind, message = ERRORS[name]
    call = dict(zip(("query", "key", "value"), draw(8), strict=True))
    with pytest.raises(kind, match=message):
        dot_product_attention(**call | change)
