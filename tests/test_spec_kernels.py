"""The native kernels have the bits of the specification, on every instruction set."""

from functools import cache

import numpy as np
import pytest
import support
from spec import attention
from spec.calls import LONG, OPTIONS, SHAPES, TYPES_MIXED, Call
from spec.hard_values import HARD

from fast_attention import _backend, scaled_dot_product_attention

CALLS = SHAPES | TYPES_MIXED | OPTIONS | LONG | HARD


def class_of(engine):
    return {name: kind for name, _, kind in support.native().isa_table()}[engine[1]]


@cache
def specified(name, kind):
    return attention(CALLS[name]().describe(), kind)


def test_names_of_the_calls_are_unique():
    assert len(CALLS) == sum(len(table) for table in (SHAPES, TYPES_MIXED, OPTIONS, LONG, HARD))


@pytest.mark.parametrize("name", CALLS)
def test_native_results_have_the_bits_of_the_specification(name, native_engine):
    expected = specified(name, class_of(native_engine))
    call = CALLS[name]().describe()
    _backend.attend(call)
    for word, bits in zip(("output", "lse", "weights"), expected, strict=True):
        support.assert_same_bits(getattr(call, word), bits, word)


@pytest.mark.parametrize("name", CALLS)
def test_native_output_alone_on_two_threads_has_the_bits_of_the_specification(name, native_engine):
    call = CALLS[name]().describe(lse=False, weights=False, num_threads=2)
    _backend.attend(call)
    support.assert_same_bits(call.output, specified(name, class_of(native_engine))[0])


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("rows", [1, 2, 97])
@pytest.mark.parametrize("causal", [False, True])
def test_native_plain_call_has_the_bits_of_the_specification(kind, rows, causal, native_engine):
    """Through the public function, where plain calls take the short way into the kernels."""
    q, k, v = support.qkv(rows, heads=2, n_query=rows, n_key=97, d=16, dtype=kind)
    if causal:
        k, v = k[:, :rows], v[:, :rows]
    expected = attention(Call((q, k, v), {"is_causal": causal}).describe(), class_of(native_engine))
    output = scaled_dot_product_attention(q, k, v, is_causal=causal)
    support.assert_same_bits(output, expected[0])


@pytest.mark.parametrize("start_block", [0, 1, 14, 15, 16, 31])
def test_native_first_key_inside_a_segment_has_the_bits_of_the_specification(
    start_block, native_engine
):
    call = Call(support.qkv(5, n_query=3, n_key=300, d=4), {"is_causal": True, "query_offset": 250})
    call.key_start = start_block * support.native().KEY_BLOCK
    expected = attention(call.describe(), class_of(native_engine))
    described = call.describe()
    _backend.attend(described)
    for word, bits in zip(("output", "lse", "weights"), expected, strict=True):
        support.assert_same_bits(getattr(described, word).reshape(bits.shape), bits, word)


def test_native_nan_is_written_in_one_way(native_engine):
    """Whatever sign and payload came in: sign 0, only the top fraction bit set."""
    q, k, v = support.qkv(6, n_query=3, n_key=5)
    q[..., 1, :] = np.array([0xFFC12345], np.uint32).view(np.float32)
    described = Call((q, k, v)).describe()
    _backend.attend(described)
    assert set(support.bits(described.output[..., 1, :]).ravel().tolist()) == {0x7FC00000}
    assert set(support.bits(described.lse[..., 1]).ravel().tolist()) == {0x7FC00000}
    assert set(support.bits(described.weights[..., 1, :]).ravel().tolist()) == {0x7FC00000}
