"""Faults that other attention implementations had: layout, heads, sizes, numbers, memory."""

import sys
import tempfile

import numpy as np
import oracle
import pytest
import support
from support import check, normal, qkv

from fast_attention import _backend, scaled_dot_product_attention, softmax

K = oracle.KEY_BLOCK
ALL = {"return_lse": True, "return_weights": True}


def case(*arguments, id):
    return pytest.param(*arguments, id=id)


def sparse_bytes(size):
    """As many zeros in a sparse file, or skip the test."""
    try:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return np.memmap(file, np.uint8, "r+", shape=(size,))
    except (OSError, OverflowError, ValueError) as error:
        pytest.skip(f"no sparse file of this size: {error}")


def far_rows(rows, cols, stride, dtype="f4"):
    """Rows that lie ``stride`` bytes apart in a sparse file: far offsets for little memory."""
    size = rows * stride + 4096
    item = np.dtype(dtype).itemsize
    flat = sparse_bytes(size)[: size // item * item].view(dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (stride, item))


@pytest.mark.parametrize("dtype", [case(t, id=f"A06-{t}") for t in ("f4", "f8", "f2")])
@pytest.mark.parametrize("n_query", [1, 5, 70])
def test_strided_last_axis_gives_the_bits_of_the_copy(engine, n_query, dtype):
    rng = np.random.default_rng(1)
    base = normal(rng, 1, 2, n_query, 16, dtype=dtype)
    arrays = [
        base[..., ::2],
        normal(rng, 1, 2, 8, 5, dtype=dtype).swapaxes(-1, -2),
        normal(rng, 1, 2, 5, 16, dtype=dtype)[..., ::-2],
    ]
    before = [x.copy() for x in arrays]
    output = scaled_dot_product_attention(*arrays)
    for x, kept in zip(arrays, before, strict=True):
        support.assert_same_bits(np.ascontiguousarray(x), kept)
    if engine[0] == "native":
        support.assert_same_bits(output, scaled_dot_product_attention(*before))
    check(*arrays, expected=oracle.attention(*before))


@pytest.mark.parametrize("strides", [case((999, -7, 123, 77), id="A08")])
def test_any_stride_on_axes_of_size_one_works(engine, strides):
    query = normal(np.random.default_rng(2), 1, 1, 1, 2).swapaxes(-1, -2)
    ones = [normal(np.random.default_rng(s), 1, 1, 1, 1) for s in (3, 4)]
    strange = [np.lib.stride_tricks.as_strided(x, x.shape, strides) for x in ones]
    check(query, *strange, expected=oracle.attention(query, *ones))


@pytest.mark.parametrize("n_query", [case(n, id=f"A21-{n}") for n in (1, 3, 70)])
def test_query_heads_read_the_kv_head_of_their_group(engine, n_query):
    query, key = np.zeros((1, 4, n_query, 2), "f4"), np.zeros((1, 2, 1, 2), "f4")
    value = np.array([10, 20], "f4").reshape(1, 2, 1, 1)
    output = scaled_dot_product_attention(query, key, value)
    assert (output[0, :, :, 0] == np.array([[10], [10], [20], [20]])).all()


@pytest.mark.parametrize("kind", [case("f4", id="A23-float"), case(bool, id="A23-bool")])
def test_grouped_heads_take_a_mask_per_query_head(engine, kind):
    query, key, value = qkv(5, lead=(2,), heads=4, kv_heads=2, n_query=3, n_key=5, d=8)
    mask = normal(np.random.default_rng(6), 2, 4, 3, 5)
    mask = mask > 0 if kind is bool else mask
    expected = oracle.attention(query, np.repeat(key, 2, 1), np.repeat(value, 2, 1), mask)
    check(query, key, value, mask, expected=expected)


@pytest.mark.parametrize("which", [case("key", id="A24-key"), case("both", id="A24-both")])
def test_zero_kv_heads_are_an_error_and_the_process_lives(engine, which):
    query, _, value = qkv(7, lead=(2,), heads=4, n_query=8, n_key=8)
    empty = np.zeros((2, 0, 8, 4), "f4")
    with pytest.raises(ValueError, match="head"):
        scaled_dot_product_attention(query, empty, empty if which == "both" else value)


@pytest.mark.parametrize("kv_heads", [case(0, id="A24-none"), case(2, id="A24-some")])
def test_zero_query_heads_give_an_empty_result(engine, kv_heads):
    query = np.zeros((2, 0, 8, 16), "f4")
    key = np.zeros((2, kv_heads, 8, 16), "f4")
    assert scaled_dot_product_attention(query, key, key).shape == (2, 0, 8, 16)


@pytest.mark.parametrize("stride", [case(2**31 + 64, id="A26"), case(2**32 + 64, id="A26-32")])
@pytest.mark.parametrize("n_query", [1, 20])
def test_rows_beyond_two_gigabytes_are_read_where_they_are(engine, stride, n_query):
    query = normal(np.random.default_rng(8), 1, n_query, 4)
    key, value = far_rows(3, 4, stride)[None], far_rows(3, 4, stride)[None]
    key[0, :, 0], value[0, :, 0] = [1, 2, 3], [4, 5, 7]
    output = scaled_dot_product_attention(query, key, value)
    check(query, key, value, expected=oracle.attention(query, key.copy(), value.copy()))
    if engine[0] == "native":
        copies = scaled_dot_product_attention(query, key.copy(), value.copy())
        support.assert_same_bits(output, copies)


@pytest.mark.parametrize("stride", [2**31 + 64, 2**33 + 64])
@pytest.mark.parametrize(
    "name", [case(n, id=f"A26-{n}") for n in ("query", "bias", "mask", "out", "x")]
)
def test_every_array_may_reach_beyond_two_gigabytes(engine, name, stride):
    query, key, value = support.qkv(8, n_query=3, n_key=4)
    far = far_rows(3, 4, stride, bool if name == "mask" else "f4")
    far[...] = query[0] > 0 if name == "mask" else query[0]
    near = far.copy()
    if name == "query":
        output = scaled_dot_product_attention(far[None], key, value)
        expected = scaled_dot_product_attention(near[None], key, value)
    elif name == "bias":
        output = scaled_dot_product_attention(query, key, value, bias=far)
        expected = scaled_dot_product_attention(query, key, value, bias=near)
    elif name == "mask":
        output = scaled_dot_product_attention(query, key, value, far)
        expected = scaled_dot_product_attention(query, key, value, near)
    elif name == "out":
        output = scaled_dot_product_attention(query, key, value, out=far[None])
        expected = scaled_dot_product_attention(query, key, value)
    else:
        output = np.stack([softmax(far, axis) for axis in (0, 1)])
        expected = np.stack([softmax(near, axis) for axis in (0, 1)])
        support.assert_same_bits(softmax(far, out=far).copy(), expected[1])
    support.assert_same_bits(np.ascontiguousarray(output), expected)


LATE = 2**31 + 3  # position of the first query
LATE_OPTIONS = {
    "window": {}, "alibi": {"alibi_slopes": [0.5]}, "lengths": {"kv_lengths": LATE + 1},
    "mask": {"attn_mask": np.broadcast_to(True, (1, LATE + 5))}, "softcap": {"softcap": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("n_query", [1, 2])
@pytest.mark.parametrize("options", [case(o, id=f"A26-{name}") for name, o in LATE_OPTIONS.items()])
def test_keys_after_two_to_the_31st_are_the_ones_of_their_positions(engine, options, n_query):
    """Equal to the same call on the last keys alone, whose positions are small."""
    rng = np.random.default_rng(9)
    key, value, bias = (sparse_bytes(2 * (LATE + 5)).view("f2") for _ in range(3))
    for x in (key, value, bias):
        x[-12:] = rng.standard_normal(12)
    query = normal(rng, 1, n_query, 1)
    common = {"is_causal": True, "window": (2, 0), "bias": bias[None]} | options
    output = scaled_dot_product_attention(
        query, key[None, :, None], value[None, :, None], query_offset=LATE, **common
    )
    first = key.size - 12
    common["bias"] = bias[None, first:]
    if "kv_lengths" in options:
        common["kv_lengths"] = LATE + 1 - first
    if "attn_mask" in options:
        common["attn_mask"] = options["attn_mask"][:, first:]
    near = [np.array(x[first:])[None, :, None] for x in (key, value)]
    check(query, *near, query_offset=LATE - first, **common)
    expected = oracle.attention(query, *near, query_offset=LATE - first, **common)
    support.assert_output_near(output, expected)
    assert np.isfinite(output).all()


@pytest.mark.parametrize("n_key", [case(n, id=f"A28-{n}") for n in (1, K - 1, K, K + 1, 2 * K + 1)])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"scale": 3.0}, {"bias": True}])
@pytest.mark.parametrize("n_query", [1, 3, 65])
def test_padding_of_the_last_tile_takes_no_weight(engine, n_key, options, n_query):
    options = options | ({"bias": np.full((1, n_key), -5, "f4")} if "bias" in options else {})
    query, key = np.zeros((1, 1, n_query, 4), "f4"), np.zeros((1, 1, n_key, 4), "f4")
    output = scaled_dot_product_attention(query, key, np.ones((1, 1, n_key, 1), "f4"), **options)
    assert (output == 1).all()


@pytest.mark.parametrize(
    ("d", "dv"), [case(d, v, id=f"A30-{d}-{v}") for d, v in [(8, 1), (8, 3), (3, 8), (64, 80)]]
)
@pytest.mark.parametrize("n_query", [1, 5, 70])
def test_value_width_is_free(engine, n_query, d, dv):
    output = check(*qkv(9, lead=(2,), heads=3, n_query=n_query, n_key=20, d=d, dv=dv))
    assert output.shape == (2, 3, n_query, dv)


@pytest.mark.parametrize("scale", [case(s, id=f"A31{s}") for s in (-1.0, -0.25)])
def test_negative_scale_is_a_scale(engine, scale):
    check(*qkv(10, n_query=9, n_key=20), scale=scale)


@pytest.mark.parametrize("sign", [case(1, id="A33-minus"), case(-1, id="A33-plus")])
def test_rows_of_very_negative_scores_are_not_empty(engine, sign):
    query = np.full((1, 1, 1, 4), -300 * sign, "f4")
    key = np.array([[500] * 4, [500.01] * 4], "f4").reshape(1, 1, 2, 4)
    value = np.array([1, 3], "f4").reshape(1, 1, 2, 1)
    result = scaled_dot_product_attention(query, key, value, scale=1, return_lse=True)
    right = oracle.attention(query, key, value, scale=1)
    support.assert_output_near(result.output, right)
    absolute = 2e-6
    assert abs(result.output.item() - (1.0000123 if sign == 1 else 2.9999877)) <= absolute
    np.testing.assert_allclose(result.lse, right.lse.astype("f4"), rtol=1e-6)


@pytest.mark.parametrize("twice", [case(False, id="A35-min"), case(True, id="A35-twice")])
def test_float16_sentinels_never_give_nan(engine, twice):
    query, key, value = qkv(11, n_query=5, n_key=7, dtype="f2")
    mask = np.full((5, 7), np.finfo("f2").min, "f2")
    with np.errstate(over="ignore"):
        mask = mask + mask if twice else mask
    result = scaled_dot_product_attention(query, key, value, mask, **ALL)
    plain = scaled_dot_product_attention(query, key, value, **ALL)
    if twice:
        assert (support.bits(result.output) == 0).all()
        assert (result.lse == -np.inf).all()
    else:
        np.testing.assert_allclose(result.weights, plain.weights, atol=2e-2)


@pytest.mark.parametrize("n_query", [case(n, id=f"A39-{n}") for n in (1, 2)])
def test_no_buffer_depends_on_the_number_of_keys(engine, n_query):
    check(*qkv(12, lead=(1,), heads=2, n_query=n_query, n_key=20_000))


@pytest.mark.parametrize("repeats", [case(200, id="A41")])
def test_grouped_decode_of_ragged_batches_is_always_the_same(engine, repeats):
    query, key, value = qkv(13, lead=(3,), heads=4, kv_heads=2, n_query=1, n_key=8)
    lengths = np.array([5, 1, 3])
    for b, n in enumerate(lengths):
        key[b, :, n:] = value[b, :, n:] = np.nan
    mask = np.arange(8) < lengths[:, None, None, None]
    first = scaled_dot_product_attention(query, key, value, mask)
    for b, n in enumerate(lengths):
        trimmed = (query[b], key[b, :, :n], value[b, :, :n])
        support.assert_output_near(first[b], oracle.attention(*trimmed))
        if engine[0] == "native":
            support.assert_same_bits(first[b], scaled_dot_product_attention(*trimmed))
    for _ in range(repeats):
        support.assert_same_bits(scaled_dot_product_attention(query, key, value, mask), first)
        by_length = scaled_dot_product_attention(query, key, value, kv_lengths=lengths)
        if engine[0] == "native":
            support.assert_same_bits(by_length, first)


@pytest.mark.parametrize("width", [case(w, id=f"A43-{w}") for w in (1, 2, 3)])
def test_window_counts_previous_keys_beside_the_current_one(engine, width):
    zeros = np.zeros((1, 6, 2), "f4")
    value = np.arange(6, dtype="f4").reshape(1, 6, 1)
    options = {"is_causal": True, "window": (width - 1, None)}
    output = scaled_dot_product_attention(zeros, zeros, value, **options)
    means = [np.mean(np.arange(max(0, i - width + 1), i + 1)) for i in range(6)]
    np.testing.assert_array_equal(output.ravel(), means)
    for i in range(6):
        seen = zeros[:, : i + 1]
        row = scaled_dot_product_attention(
            zeros[:, :1], seen, value[:, : i + 1], query_offset="end", **options
        )
        assert row.item() == means[i]


@pytest.mark.parametrize("layout", [case(n, id=f"A46-{n}") for n in support.LAYOUTS])
def test_memory_order_of_the_result_is_the_same_on_every_engine(layout):
    arrays = [support.LAYOUTS[layout](x) for x in qkv(14, lead=(2,), heads=3, n_query=9)]
    forms = set()
    for chosen in support.ENGINES:
        with _backend.using(*chosen):
            output = scaled_dot_product_attention(*arrays)
        forms.add((output.shape, output.strides, output.dtype, str(output.flags), output.base))
    assert len(forms) == 1


@pytest.mark.parametrize("n_query", [case(n, id=f"A47-{n}") for n in (1, 5, 70)])
def test_float64_with_a_mask_is_exact_and_silent(engine, n_query):
    arrays = qkv(15, lead=(1,), heads=2, n_query=n_query, n_key=150, dtype="f8")
    mask = np.random.default_rng(16).random((n_query, 150)) < 0.5
    with np.errstate(all="raise"):
        output = scaled_dot_product_attention(*arrays, mask)
    assert output.dtype == np.float64
    right = oracle.attention(*arrays, mask).output.astype("f8")
    np.testing.assert_allclose(output, right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [case("f2", id="A52-f2"), case("bf", id="A52-bf16")])
def test_low_precision_is_judged_against_its_own_rounded_inputs(engine, dtype):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bf" else dtype
    arrays = [
        (5 * x).astype(dtype) for x in qkv(17, lead=(1,), heads=2, n_query=64, n_key=64, d=32)
    ]
    mask = np.random.default_rng(18).random((64, 64)) < 0.6
    output = check(*arrays, mask)
    right = oracle.attention(*arrays, mask).output
    allowed = 4 * oracle.half_ulp(np.abs(right), dtype) + 1e-3 * np.abs(right)
    assert (np.abs(output.astype("f8") - right) <= allowed).all()


@pytest.mark.parametrize("repeats", [case(3, id="A51")])
def test_nothing_is_random(engine, repeats):
    arrays = qkv(19, n_query=70, n_key=150)
    first = scaled_dot_product_attention(*arrays, **ALL)
    for _ in range(repeats):
        again = scaled_dot_product_attention(*arrays, **ALL)
        support.assert_same_bits(tuple(again), tuple(first))


@pytest.mark.parametrize("dtype", [case("f4", id="A50")])
def test_scores_two_hundred_apart_neither_overflow_nor_vanish(engine, dtype):
    key = np.array([0, 200], dtype).reshape(1, 2, 1)
    value = np.array([[1, 0], [0, 1]], dtype)[None]
    for order in ([0, 1], [1, 0]):
        arrays = (np.ones((1, 1, 1), dtype), key[:, order], value[:, order])
        result = scaled_dot_product_attention(*arrays, scale=1.0, return_lse=True)
        support.assert_lse_near(result.lse, oracle.attention(*arrays, scale=1.0))
        np.testing.assert_allclose(result.lse, 200, rtol=1e-6)
        np.testing.assert_array_equal(result.output[0, 0], [0, 1])


MEMORY = """
import resource, sys
import numpy as np
from fast_attention import _backend, scaled_dot_product_attention
rng = np.random.default_rng(21)

def peak(n):
    query, key, value = (rng.random((heads, n, 32), dtype="f4") for heads in (8, 2, 2))
    mask = rng.random((n, n), dtype="f4") < 0.5
    bias = np.where(mask, np.float32(0), np.float32(-np.inf))
    out = np.ones((8, n, 32), "f4")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for options in ({"attn_mask": mask}, {"attn_mask": bias},
                    {"is_causal": True, "attn_mask": mask, "return_lse": True}):
        scaled_dot_product_attention(query, key, value, out=out, **options)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

with _backend.using(sys.argv[1], sys.argv[2] or None):
    peak(300)
    print(peak(1500))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read as Linux reports it")
@pytest.mark.parametrize("n_query", [case(1500, id="P06")])
def test_masks_and_grouped_heads_never_form_the_score_matrix(engine, n_query):
    child = support.run_python(MEMORY, engine[0], engine[1] or "")
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 0.1 * 8 * n_query * n_query * 4
