"""What may be passed as query, key, value, mask and bias, and that none of it is ever written."""

import gc
import tempfile
from itertools import product

import numpy as np
import oracle
import pytest
import support
from numpy.lib.stride_tricks import as_strided

from fast_attention import scaled_dot_product_attention

SHAPE = {"lead": (2,), "heads": 4, "kv_heads": 2, "n_query": 9, "n_key": 11, "d": 6, "dv": 5}


class OnlyDLPack:
    """A CPU tensor of another library, which NumPy can read through DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OnlyArrayMethod:
    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype)


def names(dtypes):
    return " ".join(np.dtype(dtype).name for dtype in dtypes)


@pytest.mark.parametrize("dtypes", list(product(support.FLOATS, repeat=3)), ids=names)
def test_float_types_mix_freely(engine, dtypes):
    arrays = [x.astype(t) for x, t in zip(support.qkv(1, **SHAPE), dtypes, strict=True)]
    compute = np.float64 if np.float64 in dtypes else np.float32
    output, lse, weights = scaled_dot_product_attention(
        *arrays, return_lse=True, return_weights=True
    )
    assert output.dtype == weights.dtype == dtypes[0]
    assert lse.dtype == compute
    support.check(*arrays)


@pytest.mark.parametrize("dtype", ["i2", "i4", "i8"])
def test_integers_are_taken_as_float64(engine, dtype):
    arrays = [(5 * x).astype(dtype) for x in support.qkv(2, **SHAPE)]
    output = scaled_dot_product_attention(*arrays, scale=0.1)
    assert output.dtype == np.float64
    support.assert_same_bits(
        output, scaled_dot_product_attention(*(x.astype("f8") for x in arrays), scale=0.1)
    )


def test_lists_are_taken_as_float64(engine):
    arrays = support.qkv(3, dtype="f8")
    output = scaled_dot_product_attention(*(x.tolist() for x in arrays))
    support.assert_same_bits(output, scaled_dot_product_attention(*arrays))
    whole = scaled_dot_product_attention([[1, 2]], [[3, 4], [5, 6]], [[1], [2]])
    assert whole.shape == (1, 1)
    assert whole.dtype == np.float64


@pytest.mark.parametrize("kind", ["f2", "f8", "bfloat16"])
def test_type_of_mask_and_bias_never_promotes_the_arithmetic(engine, kind):
    if kind == "bfloat16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    arrays = support.qkv(4, **SHAPE)
    bias = support.normal(np.random.default_rng(5), 9, 11, dtype=kind)
    for options in ({"attn_mask": bias}, {"bias": bias}):
        result = scaled_dot_product_attention(*arrays, **options, return_lse=True)
        assert result.output.dtype == result.lse.dtype == np.float32
        support.check(*arrays, **options)


@pytest.mark.parametrize("wrap", [OnlyDLPack, OnlyArrayMethod, memoryview, np.asarray])
def test_array_likes_of_other_libraries_are_read(engine, wrap):
    arrays = support.qkv(6, **SHAPE)
    mask = np.random.default_rng(7).random((9, 11)) < 0.5
    expected = scaled_dot_product_attention(*arrays, mask)
    support.assert_same_bits(
        scaled_dot_product_attention(*(wrap(x) for x in arrays), wrap(mask)), expected
    )


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError])
@pytest.mark.parametrize("name", ["query", "value", "attn_mask", "kv_lengths"])
def test_object_that_refuses_to_become_an_array_is_named_with_its_reason(engine, kind, name):
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            raise kind("it needs detach()")

    query, key, value = support.qkv(1, **SHAPE)
    call = {"query": query, "key": key, "value": value, name: Tensor()}
    expected = ValueError if kind is ValueError else TypeError
    text = rf"{name} of type Tensor is not an array: it needs detach\(\)"
    with pytest.raises(expected, match=text) as caught:
        scaled_dot_product_attention(**call)
    assert isinstance(caught.value.__cause__, kind)


def test_subclass_comes_back_as_a_plain_array(engine):
    arrays = [x[0, 0] for x in support.qkv(8, lead=(1,))]
    expected = scaled_dot_product_attention(*arrays)
    output = scaled_dot_product_attention(*(x.view(np.recarray) for x in arrays))
    assert type(output) is np.ndarray
    support.assert_same_bits(output, expected)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("which", ["query", "key", "value", "attn_mask", "bias", "all"])
def test_big_endian_arrays_give_the_same_bits(engine, which, dtype):
    query, key, value = support.qkv(9, **SHAPE, dtype=dtype)
    mask = np.random.default_rng(10).random((9, 11)) < 0.5
    bias = support.normal(np.random.default_rng(11), 9, 11)
    given = {"query": query, "key": key, "value": value, "attn_mask": mask, "bias": bias}
    expected = scaled_dot_product_attention(**given)
    swapped = {
        name: support.byte_swapped(x) if which in (name, "all") else x for name, x in given.items()
    }
    output = scaled_dot_product_attention(**swapped)
    assert output.dtype.isnative
    support.assert_same_bits(output, expected)


@pytest.mark.parametrize("name", ["kv_lengths", "query_offset"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "u4", "i8", "u8", ">i8", ">i2"])
def test_lengths_and_offsets_of_any_integer_type_work(engine, name, dtype):
    arrays = support.qkv(12, **SHAPE)
    options = {"is_causal": True, "query_offset": 0} | {name: [3, 5]}
    expected = scaled_dot_product_attention(*arrays, **options)
    options[name] = np.array(options[name], dtype)
    support.assert_same_bits(scaled_dot_product_attention(*arrays, **options), expected)


@pytest.mark.parametrize("dtype", support.FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("layout", list(support.LAYOUTS))
def test_any_memory_layout_stays_within_the_bound_and_is_not_written(engine, layout, dtype):
    rng = np.random.default_rng(13)
    arrays = dict(
        zip(("query", "key", "value"), support.qkv(13, **SHAPE, dtype=dtype), strict=True)
    )
    arrays["bias"] = support.normal(rng, 2, 4, 9, 11, dtype=dtype)
    arrays["attn_mask"] = rng.random((2, 4, 9, 11)) < 0.6
    laid = {name: support.LAYOUTS[layout](x) for name, x in arrays.items()}
    support.check(**laid, expected=oracle.attention(**arrays))
    for name, x in arrays.items():
        support.assert_same_bits(np.ascontiguousarray(laid[name]), x, name)


@pytest.mark.parametrize("layout", list(support.LAYOUTS))
def test_int8_in_any_memory_layout_stays_within_the_bound(engine, layout):
    rng = np.random.default_rng(14)
    key, k_scale = support.quantised(rng, 2, 2, 100, 6)
    value, v_scale = support.quantised(rng, 2, 2, 100, 5)
    query = support.normal(rng, 2, 4, 9, 6)
    lay = support.LAYOUTS[layout]
    support.check(
        query, lay(key), lay(value), k_scale=lay(k_scale), v_scale=lay(v_scale),
        expected=oracle.attention(query, key, value, k_scale=k_scale, v_scale=v_scale),
    )  # fmt: skip


def test_strides_that_are_no_multiple_of_the_item_work(engine):
    record = np.dtype([("tag", "u1"), ("x", "f4")])
    arrays = support.qkv(15, **SHAPE)
    fields = []
    for x in arrays:
        packed = np.zeros(x.shape, record)
        packed["x"] = x
        fields.append(packed["x"])
    support.assert_same_bits(
        scaled_dot_product_attention(*fields), scaled_dot_product_attention(*arrays)
    )


def test_strides_of_axes_of_size_one_are_ignored(engine):
    query, key, value = support.qkv(16, lead=(1,), n_query=1, n_key=1, d=1)
    expected = scaled_dot_product_attention(query, key, value)
    for strides in [(999, -7, 123, 77), (-4, 0, 2**40, -(2**40)), (1, 1, 1, 1), (0, 0, 0, 0)]:
        strange = [as_strided(x, x.shape, strides) for x in (query, key, value)]
        mask = as_strided(np.ones((1, 1), bool), (1, 1), strides[:2])
        support.assert_same_bits(scaled_dot_product_attention(*strange), expected)
        support.assert_same_bits(scaled_dot_product_attention(*strange, mask), expected)


def test_one_query_with_strange_strides_works(engine):
    query, key, value = support.qkv(17, heads=2, n_query=1, n_key=130)
    strange = as_strided(query, query.shape, (query.strides[0], 12345, query.strides[2]))
    support.assert_same_bits(
        scaled_dot_product_attention(strange, key, value),
        scaled_dot_product_attention(query, key, value),
    )


@pytest.mark.parametrize("axes", ["lead", "heads", "rows", "columns", "all"])
def test_broadcast_views_give_the_same_bits_as_their_copies(engine, axes):
    index = {"lead": 0, "heads": 1, "rows": 2, "columns": 3}
    views = []
    for x in support.qkv(18, **SHAPE):
        kept = [0 if axes in (name, "all") else slice(None) for name in index]
        small = x[tuple(slice(0, 1) if k == 0 else k for k in kept)]
        views.append(np.broadcast_to(small, x.shape))
    support.assert_same_bits(
        scaled_dot_product_attention(*views),
        scaled_dot_product_attention(*(x.copy() for x in views)),
    )


def test_leading_axes_broadcast_over_query_key_and_value(engine):
    rng = np.random.default_rng(19)
    query = support.normal(rng, 2, 1, 1, 4, 5, 6)
    key = support.normal(rng, 3, 1, 2, 7, 6)
    value = support.normal(rng, 2, 1, 2, 2, 7, 3)
    output = support.check(query, key, value)
    assert output.shape == (2, 3, 2, 4, 5, 3)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_memory_mapped_inputs_are_read_in_place(engine, dtype):
    arrays = support.qkv(20, **SHAPE, dtype=dtype)
    with tempfile.TemporaryFile() as file:
        mapped = []
        for x in arrays:
            offset = file.seek(0, 2)
            file.write(x.tobytes())
            file.flush()
            mapped.append(np.memmap(file, x.dtype, "r", offset, x.shape))
        output = scaled_dot_product_attention(*mapped)
        assert type(output) is np.ndarray
        support.assert_same_bits(output, scaled_dot_product_attention(*arrays))
        del mapped
        gc.collect()


@pytest.mark.parametrize("ranks", list(product((2, 3), repeat=3)))
def test_head_axis_is_dropped_only_if_all_three_have_none(engine, ranks):
    arrays = [x if rank == 3 else x[0] for x, rank in zip(support.qkv(21), ranks, strict=True)]
    result = scaled_dot_product_attention(*arrays, return_lse=True, return_weights=True)
    lead = () if ranks == (2, 2, 2) else (1,)
    assert [x.shape for x in result] == [(*lead, 3, 4), (*lead, 3), (*lead, 3, 5)]
    support.check(*arrays)


def test_two_dimensional_query_is_one_head_beside_batched_keys(engine):
    query = support.qkv(22)[0][0]
    _, key, value = support.qkv(23, lead=(2,))
    assert support.check(query, key, value).shape == (2, 1, 3, 4)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
def test_axes_of_size_zero_give_results_of_size_zero_or_zeros(engine, shape):
    arrays = [np.ones(shape, "f4")] * 3
    output = support.check(*arrays)
    assert output.shape == shape


def test_no_keys_give_zeros_and_no_warning(engine):
    query, key, value = support.qkv(24, **SHAPE | {"n_key": 0})
    result = scaled_dot_product_attention(
        query, key, value, return_lse=True, return_weights=True, sinks=[1.0, -np.inf, 0.0, 2.0]
    )
    assert (support.bits(result.output) == 0).all()
    assert result.output.shape == (2, 4, 9, 5)
    assert result.weights.shape == (2, 4, 9, 0)
    for head, sink in enumerate([1.0, -np.inf, 0.0, 2.0]):
        np.testing.assert_allclose(result.lse[:, head], sink, rtol=1e-6, atol=1e-7)


def test_head_of_width_zero_averages_the_values(engine):
    query, key = np.ones((1, 3, 0), "f4"), np.ones((1, 4, 0), "f4")
    value = np.arange(4, dtype="f4").reshape(1, 4, 1)
    assert (scaled_dot_product_attention(query, key, value) == 1.5).all()
    support.check(query, key, value, is_causal=True, query_offset="end")


def test_identical_arrays_may_serve_as_query_key_and_value(engine):
    x = support.qkv(25, heads=2, n_query=70)[0]
    before = x.copy()
    support.check(x, x, x)
    support.assert_same_bits(x, before)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_mask_of_a_masked_array_is_not_lost_in_silence(engine, name):
    arrays = {each: np.ones((1, 2, 3, 4), "f4") for each in ("query", "key", "value")}
    arrays[name] = np.ma.masked_equal(np.arange(24, dtype="f4").reshape(1, 2, 3, 4), 5)
    with pytest.raises(TypeError, match=f"{name} is a masked array.*attn_mask"):
        scaled_dot_product_attention(**arrays)
