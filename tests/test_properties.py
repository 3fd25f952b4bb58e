"""Properties that hold for any call: the bound, invisibility of what is masked, row invariance."""

from itertools import pairwise

import numpy as np
import oracle
import strategies
import support
from hypothesis import given
from hypothesis import strategies as st

from fast_attention import scaled_dot_product_attention

GARBAGE = st.sampled_from([np.nan, np.inf, -np.inf, 3e38])
ALL = {"return_lse": True, "return_weights": True}
repeatable = strategies.repeatable(200)


@repeatable
@given(call=strategies.calls())
def test_every_call_stays_within_the_bound(engine, call):
    arrays, options = call
    support.check(**arrays, **options)


@repeatable
@given(call=strategies.calls())
def test_inputs_are_never_written(engine, call):
    arrays, options = call
    every = {k: v for k, v in (arrays | options).items() if isinstance(v, np.ndarray)}
    kept = {name: x.copy() for name, x in every.items()}
    result = scaled_dot_product_attention(**arrays, **options)
    for name, x in every.items():
        support.assert_same_bits(np.ascontiguousarray(x), np.ascontiguousarray(kept[name]), name)
        for part in result if isinstance(result, tuple) else (result,):
            assert not np.shares_memory(part, x)


def unseen_keys(visible, arrays, name):
    """Keys of ``arrays[name]``, with its own leading axes, that no row of the call sees."""
    *lead, kv_heads, n_key, _ = arrays[name].shape
    n_head, n_query = visible.shape[-3:-1]
    grouped = visible.reshape(*visible.shape[:-3], kv_heads, n_head // kv_heads, n_query, n_key)
    seen = grouped.any(axis=(-3, -2))
    lost = seen.ndim - len(lead) - 2
    seen = seen.any(axis=tuple(range(lost)))
    narrow = tuple(i for i, n in enumerate(lead) if n == 1)
    return ~seen.any(axis=narrow, keepdims=True)


def poisoned(array, where, garbage):
    copy = np.array(array)
    with np.errstate(over="ignore"):
        copy[where] = np.array(garbage).astype(copy.dtype) if copy.dtype != np.int8 else 127
    return copy


@repeatable
@given(call=strategies.calls(), garbage=GARBAGE)
def test_masked_garbage_changes_no_bit(engine, call, garbage):
    arrays = {name: np.ascontiguousarray(x) for name, x in call[0].items()}
    options = call[1] | ALL
    visible = oracle.attention(**arrays, **options).visible
    clean = scaled_dot_product_attention(**arrays, **options)
    bad = dict(arrays)
    for name in ("key", "value"):
        unseen = unseen_keys(visible, arrays, name)
        bad[name] = poisoned(arrays[name], unseen, garbage)
        if f"{name[0]}_scale" in options:
            options[f"{name[0]}_scale"] = poisoned(options[f"{name[0]}_scale"], unseen, garbage)
    if options.get("bias") is not None and options["bias"].shape == visible.shape:
        options["bias"] = poisoned(options["bias"], ~visible, garbage)
    result = scaled_dot_product_attention(**bad, **options)
    support.assert_same_bits(tuple(result), tuple(clean))


@repeatable
@given(call=strategies.calls(), cuts=st.tuples(st.integers(0, 110), st.integers(0, 110)))
def test_queries_may_be_split_anywhere(native_engine, call, cuts):
    arrays, options = call
    n_query = arrays["query"].shape[-2]
    lengths = options.get("kv_lengths", arrays["key"].shape[-2])
    if isinstance(options["query_offset"], str):
        options = options | {"query_offset": np.asarray(lengths) - n_query}
    options = options | ALL | {"num_threads": 1}
    whole = scaled_dot_product_attention(**arrays, **options)
    edges = sorted({0, n_query, *(min(c, n_query) for c in cuts)})
    parts = [part(arrays, options, i, j) for i, j in pairwise(edges)]
    for field in whole._fields if parts else ():
        axis = -1 if field == "lse" else -2
        joined = np.concatenate([getattr(p, field) for p in parts], axis)
        support.assert_same_bits(joined, getattr(whole, field), field)


def part(arrays, options, start, stop):
    """Attention of the query rows ``start`` to ``stop``, standing where they stood."""
    options = dict(options)
    for name in ("attn_mask", "bias"):
        x = options.get(name)
        if x is not None and x.ndim >= 2 and x.shape[-2] > 1:
            options[name] = x[..., start:stop, :]
    options["query_offset"] = np.asarray(options["query_offset"]) + start
    query = arrays["query"][..., start:stop, :]
    return scaled_dot_product_attention(query, arrays["key"], arrays["value"], **options)


@repeatable
@given(call=strategies.calls(), seed=st.integers(0, 99))
def test_layout_and_threads_change_no_bit(native_engine, call, seed):
    arrays, options = call
    whole = scaled_dot_product_attention(**arrays, **options)
    names = list(support.LAYOUTS)
    laid = {
        name: support.LAYOUTS[names[(seed + i) % len(names)]](np.array(x))
        for i, (name, x) in enumerate(arrays.items())
    }
    options = options | {"num_threads": 1 + seed % 4}
    support.assert_same_bits(scaled_dot_product_attention(**laid, **options), whole)
