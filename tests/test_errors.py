"""Every documented error: its type, what its message names, the same on every backend."""

import numpy as np
import pytest
import support

from fast_attention import _backend, scaled_dot_product_attention

INF, NAN = np.inf, np.nan
READ_ONLY = support.read_only(np.zeros((2, 4, 3, 5), "f4"))
OVERLAPPING = np.lib.stride_tricks.as_strided(
    np.zeros(64, "f4"), (2, 4, 3, 5), (16, 4, 4, 4), writeable=True
)


def f4(*shape):
    return np.zeros(shape, "f4")


def base(**changes):
    """Replace some arguments of a valid call."""
    return {"query": f4(2, 4, 3, 8), "key": f4(2, 2, 6, 8), "value": f4(2, 2, 6, 5)} | changes


def int8(**changes):
    quantised = {"key": np.zeros((2, 2, 6, 8), "i1"), "value": np.zeros((2, 2, 6, 5), "i1")}
    return base(**quantised, k_scale=1.0, v_scale=1.0) | changes


SHAPES = {
    "query is a scalar": (base(query=np.float32(1)), ["query", "()"]),
    "query is a vector": (base(query=f4(8)), ["query", "(8,)"]),
    "key is a vector": (base(key=f4(8)), ["key", "(8,)"]),
    "value is a vector": (base(value=f4(8)), ["value", "(8,)"]),
    "widths of query and key differ": (
        base(key=f4(2, 2, 6, 7)), ["(2, 4, 3, 8)", "(2, 2, 6, 7)"],
    ),
    "lengths of key and value differ": (
        base(value=f4(2, 2, 5, 5)), ["(2, 2, 6, 8)", "(2, 2, 5, 5)"],
    ),
    "heads of key and value differ": (
        base(value=f4(2, 4, 6, 5)), ["(2, 2, 6, 8)", "(2, 4, 6, 5)"],
    ),
    "query heads are no multiple": (base(query=f4(2, 3, 3, 8)), ["3", "2"]),
    "query has fewer heads": (base(query=f4(2, 1, 3, 8)), ["1", "2"]),
    "query has no head axis": (
        base(query=f4(3, 8)), ["heads of the query: 1", "query (3, 8), key (2, 2, 6, 8)"],
    ),
    "no kv heads": (base(key=f4(2, 0, 6, 8), value=f4(2, 0, 6, 5)), ["4", "0"]),
    "no heads in value": (base(value=f4(2, 0, 6, 5)), ["(2, 2, 6, 8)", "(2, 0, 6, 5)"]),
    "leading axes do not broadcast": (
        base(key=f4(3, 2, 6, 8)), ["(2, 4, 3, 8)", "(3, 2, 6, 8)"],
    ),
    "mask has too many keys": (
        base(attn_mask=np.ones((3, 7), bool)), ["(3, 7)", "(2, 4, 3, 6)"],
    ),
    "mask has kv heads": (
        base(attn_mask=np.ones((2, 2, 3, 6), bool)), ["(2, 2, 3, 6)", "(2, 4, 3, 6)"],
    ),
    "mask would enlarge the batch": (
        base(query=f4(1, 4, 3, 8), key=f4(1, 2, 6, 8), value=f4(1, 2, 6, 5),
             attn_mask=np.ones((2, 1, 3, 6), bool)),
        ["(2, 1, 3, 6)", "(1, 4, 3, 6)"],
    ),
    "mask has too many axes": (
        base(attn_mask=np.ones((1, 2, 4, 3, 6), bool)), ["(1, 2, 4, 3, 6)", "(2, 4, 3, 6)"],
    ),
    "float mask does not broadcast": (base(attn_mask=f4(4, 6)), ["(4, 6)", "(2, 4, 3, 6)"]),
    "bias does not broadcast": (base(bias=f4(3, 5)), ["bias", "(3, 5)", "(2, 4, 3, 6)"]),
    "lengths do not broadcast": (base(kv_lengths=[1, 2, 3]), ["kv_lengths", "(3,)", "(2,)"]),
    "offsets do not broadcast": (base(query_offset=[1, 2, 3]), ["query_offset", "(3,)", "(2,)"]),
    "sinks are not per head": (base(sinks=f4(2)), ["sinks", "(2,)", "(4,)"]),
    "sinks have a batch axis": (base(sinks=f4(2, 4)), ["sinks", "(2, 4)", "(4,)"]),
    "slopes are not per head": (base(alibi_slopes=f4(3)), ["alibi_slopes", "(3,)", "(2, 4)"]),
    "key scale does not broadcast": (int8(k_scale=f4(5)), ["k_scale", "(5,)", "(2, 2, 6)"]),
    "value scale does not broadcast": (
        int8(v_scale=f4(4, 6)), ["v_scale", "(4, 6)", "(2, 2, 6)"],
    ),
    "value is transposed": (
        base(value=f4(2, 2, 5, 6)), ["(2, 2, 5, 6)", "(..., S, Dv), not transposed"],
    ),
    "out has another shape": (base(out=f4(2, 4, 3, 8)), ["out", "(2, 4, 3, 8)", "(2, 4, 3, 5)"]),
    "out would need broadcasting": (
        base(out=f4(3, 2, 4, 3, 5)), ["out", "(3, 2, 4, 3, 5)", "(2, 4, 3, 5)"],
    ),
}  # fmt: skip

VALUES = {
    "float mask and bias": (base(attn_mask=f4(3, 6), bias=f4(3, 6)), ["attn_mask", "bias"]),
    "scale is nan": (base(scale=NAN), ["scale", "nan"]),
    "scale is infinite": (base(scale=-INF), ["scale", "inf"]),
    "scale is not finite in float32": (base(scale=1e39), ["scale", "1e+39"]),
    "scale times log2(e) is not finite": (base(scale=3e38), ["scale", "3e+38"]),
    "softcap is zero": (base(softcap=0.0), ["softcap", "0"]),
    "softcap is negative": (base(softcap=-2.5), ["softcap", "-2.5"]),
    "softcap is nan": (base(softcap=NAN), ["softcap", "nan"]),
    "softcap is infinite": (base(softcap=INF), ["softcap", "inf"]),
    "softcap is not finite in float32": (base(softcap=1e39), ["softcap", "1e+39"]),
    "one over softcap is not finite": (base(softcap=1e-45), ["softcap", "1e-45"]),
    "window is below -1": (base(window=-2, query_offset=0), ["window", "-2"]),
    "left of window is below -1": (base(window=(-3, 0), query_offset=0), ["window", "-3"]),
    "right of window is below -1": (base(window=(0, -2), query_offset=0), ["window", "-2"]),
    "window has three sides": (base(window=(1, 2, 3), query_offset=0), ["window"]),
    "length is negative": (base(kv_lengths=-1), ["kv_lengths", "-1", "6"]),
    "length is past the keys": (base(kv_lengths=[6, 7]), ["kv_lengths", "7", "6"]),
    "offset is another word": (base(query_offset="start"), ["query_offset", "start", "end"]),
    "length is beyond 64 bits": (base(kv_lengths=2**70), ["kv_lengths", str(2**70)]),
    "offset is beyond 64 bits": (base(query_offset=-(2**70)), ["query_offset", str(2**70)]),
    "slope is nan": (base(alibi_slopes=[0, 0, NAN, 0], query_offset=0), ["nan at (2,)"]),
    "slope is infinite": (
        base(alibi_slopes=[[0, 0, 0, 0], [0, INF, 0, 0]], query_offset=0), ["inf at (1, 1)"],
    ),
    "slope is not finite in float32": (
        base(alibi_slopes=[0, 0, 0, 1e300], query_offset=0), ["float32", "1e+300 at (3,)"],
    ),
    "no threads": (base(num_threads=0), ["num_threads", "0"]),
    "negative threads": (base(num_threads=-1), ["num_threads", "-1"]),
    "out is read-only": (base(out=READ_ONLY), ["out", "write"]),
    "out overlaps itself": (base(out=OVERLAPPING), ["out", "overlap"]),
    "out is broadcast": (base(out=np.lib.stride_tricks.as_strided(
        f4(4), (2, 4, 3, 5), (0, 0, 0, 0), writeable=True)), ["out", "overlap"]),
}  # fmt: skip

TYPES = {
    "integer mask": (base(attn_mask=np.ones((3, 6), int)), ["True", "add", "int64"]),
    "uint8 mask": (base(attn_mask=np.ones((3, 6), "u1")), ["True", "add", "uint8"]),
    "complex mask": (base(attn_mask=np.ones((3, 6), "c8")), ["attn_mask", "complex64", "True"]),
    "text as mask": (base(attn_mask="causal"), ["attn_mask", "str", "True = attend", "floats"]),
    "function as mask": (base(attn_mask=f4), ["attn_mask", "given a function", "True = attend"]),
    "boolean bias": (base(bias=np.ones((3, 6), bool)), ["bias", "bool", "passed as attn_mask"]),
    "integer bias": (base(bias=np.ones((3, 6), int)), ["int64", "bias.astype(np.float32)"]),
    "int8 query": (base(query=np.zeros((2, 4, 3, 8), "i1")), ["query", "int8"]),
    "uint8 query": (
        base(query=np.zeros((2, 4, 3, 8), "u1")),
        ["uint8", "query.astype(np.float32)"],
    ),
    "boolean query": (base(query=np.zeros((2, 4, 3, 8), bool)), ["query", "bool"]),
    "complex query": (base(query=np.zeros((2, 4, 3, 8), "c8")), ["query", "complex64"]),
    "text as query": (base(query="abc"), ["query", "given a str"]),
    "objects as key": (
        base(key=np.ones((2, 2, 6, 8), "O")),
        ["key has dtype object", "key.astype(np.float32)"],
    ),
    "nothing as value": (base(value=None), ["value", "given a NoneType"]),
    "generator as query": (base(query=(x for x in f4(2, 4, 3, 8))), ["query", "generator"]),
    "uint8 key": (base(key=np.zeros((2, 2, 6, 8), "u1")), ["key", "uint8"]),
    "complex value": (base(value=np.zeros((2, 2, 6, 5), "c16")), ["value", "complex128"]),
    "dates as key": (base(key=np.zeros((2, 2, 6, 8), "M8[s]")), ["key", "datetime64"]),
    "int8 key without scale": (int8(k_scale=None), ["key", "int8", "k_scale"]),
    "int8 value without scale": (int8(v_scale=None), ["value", "int8", "v_scale"]),
    "key scale with float keys": (base(k_scale=1.0), ["k_scale", "float32"]),
    "value scale with float values": (base(v_scale=1.0), ["v_scale", "float32"]),
    "window is a float": (base(window=1.5, query_offset=0), ["window", "1.5"]),
    "window is text": (base(window="ab", query_offset=0), ["window"]),
    "length is a float": (base(kv_lengths=2.0), ["kv_lengths", "float"]),
    "lengths are floats": (base(kv_lengths=[2.0, 3.0]), ["kv_lengths", "float"]),
    "lengths are an array of floats": (base(kv_lengths=f4(2)), ["kv_lengths.astype(np.int64)"]),
    "offset is a float": (base(query_offset=1.0), ["query_offset", "float"]),
    "scale is text": (base(scale="small"), ["scale"]),
    "scale is an array": (base(scale=[1.0, 2.0]), ["scale"]),
    "softcap is text": (base(softcap="big"), ["softcap"]),
    "sinks are text": (base(sinks="none"), ["sinks", "given a str"]),
    "sinks are complex": (base(sinks=1j), ["sinks", "complex"]),
    "slopes are complex": (base(alibi_slopes=[1j] * 4, query_offset=0), ["alibi_slopes"]),
    "key scale is complex": (int8(k_scale=1j), ["k_scale", "complex"]),
    "threads are a float": (base(num_threads=1.5), ["num_threads", "1.5"]),
    "out is a list": (base(out=[1.0]), ["out", "list"]),
    "unknown option": (base(dropout_p=0.5), ["dropout_p"]),
}

ERRORS = [
    pytest.param(kind, arguments, words, id=name)
    for kind, table in ((ValueError, SHAPES), (ValueError, VALUES), (TypeError, TYPES))
    for name, (arguments, words) in table.items()
]


def message(error, arguments):
    with pytest.raises(error) as caught:
        scaled_dot_product_attention(**arguments)
    assert type(caught.value) is error
    return str(caught.value)


@pytest.mark.parametrize(("error", "arguments", "words"), ERRORS)
def test_error_names_what_was_given_and_what_was_expected(engine, error, arguments, words):
    text = message(error, arguments)
    for word in words:
        assert word in text


@pytest.mark.parametrize(("error", "arguments", "words"), ERRORS)
def test_error_is_the_same_on_every_engine(error, arguments, words):
    texts = set()
    for backend, isa in support.ENGINES:
        with _backend.using(backend, isa):
            texts.add(message(error, arguments))
    assert len(texts) == 1


def test_options_are_keyword_only(engine):
    query, key, value = support.qkv(1)
    with pytest.raises(TypeError, match="positional"):
        scaled_dot_product_attention(query, key, value, None, None)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_out_that_shares_memory_with_an_input_is_refused(engine, name):
    memory = np.zeros(64, "f4")
    arrays = {n: np.zeros((1, 4, 4), "f4") for n in ("query", "key", "value")}
    arrays[name] = memory[:16].reshape(1, 4, 4)
    with pytest.raises(ValueError, match=f"(?s)out.*{name}|{name}.*out"):
        scaled_dot_product_attention(**arrays, out=memory[8:24].reshape(1, 4, 4))
    with pytest.raises(ValueError, match=f"(?s)out.*{name}|{name}.*out"):
        scaled_dot_product_attention(**arrays, out=arrays[name])


@pytest.mark.parametrize(
    "name", ["attn_mask", "bias", "k_scale", "v_scale", "alibi_slopes", "sinks"]
)
def test_out_that_shares_memory_with_an_option_is_refused(engine, name):
    out = np.zeros((4, 4, 4), "f4")
    shape = {"attn_mask": (4, 4), "bias": (4, 4), "k_scale": (4, 4), "v_scale": (4, 4)}
    options = {"k_scale": 1.0, "v_scale": 1.0} if name.endswith("_scale") else {}
    options[name] = out.reshape(-1)[: np.prod(shape.get(name, (4,)))].reshape(shape.get(name, (4,)))
    kind = "i1" if name.endswith("_scale") else "f4"
    arrays = [np.zeros((4, 4, 4), t) for t in ("f4", kind, kind)]
    with pytest.raises(ValueError, match="out"):
        scaled_dot_product_attention(*arrays, out=out, **options)


@pytest.mark.parametrize("dtype", ["f8", "f2", "i4", "c8"])
def test_out_of_another_type_is_refused(engine, dtype):
    arrays = support.qkv(2)
    with pytest.raises((TypeError, ValueError), match=r"(?s)out.*float32"):
        scaled_dot_product_attention(*arrays, out=np.zeros((1, 3, 4), dtype))


def test_failed_call_leaves_out_alone(engine):
    query, key, value = support.qkv(3)
    out = np.full(query.shape, 7, "f4")
    with pytest.raises(ValueError, match="softcap"):
        scaled_dot_product_attention(query, key, value, out=out, softcap=-1)
    assert (out == 7).all()


def test_error_after_error_leaves_the_next_call_right(engine):
    for _ in range(50):
        with pytest.raises(ValueError, match="kv_lengths"):
            scaled_dot_product_attention(*support.qkv(4), kv_lengths=99)
    support.check(*support.qkv(4))
