"""The bits of a row depend on that row and what it sees, and on nothing else (native backend)."""

from itertools import product

import numpy as np
import oracle
import pytest
import support

from fast_attention import _backend, explain, scaled_dot_product_attention, threads

K = oracle.KEY_BLOCK
BATCH, HEADS, KV_HEADS, N_QUERY, N_KEY, D, DV = 3, 4, 2, 150, 2 * K + 21, 24, 20
RESULTS = {"return_lse": True, "return_weights": True}
ROWS = np.random.default_rng(0)
MASK = ROWS.random((BATCH, HEADS, N_QUERY, N_KEY)) < 0.7
BIAS = support.normal(ROWS, BATCH, HEADS, N_QUERY, N_KEY)
ODD = ROWS.choice(np.array([-np.inf, 3e38, -3e38, np.inf, np.nan], "f4"), BIAS.shape)
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.3},
    "causal": {"is_causal": True, "query_offset": N_KEY - N_QUERY},
    "causal top-left": {"is_causal": True, "query_offset": 0},
    "window": {"window": (100, 7), "query_offset": 60},
    "mask": {"attn_mask": MASK},
    "float mask": {"attn_mask": np.where(MASK, BIAS, -np.inf).astype("f4")},
    "bias": {"bias": BIAS, "is_causal": True, "query_offset": 60},
    "mask and bias": {"attn_mask": MASK, "bias": BIAS},
    "odd bias": {"bias": np.where(ROWS.random(BIAS.shape) < 0.001, ODD, BIAS)},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": [0.3, -1.0, -np.inf, 4.0]},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "query_offset": 60},
    "lengths": {"kv_lengths": np.array([N_KEY, 3, K]), "query_offset": 0},
    "all": {
        "attn_mask": MASK, "bias": BIAS, "is_causal": True, "window": (180, None),
        "query_offset": np.array([60, 5, 199]), "kv_lengths": np.array([N_KEY, K + 1, 150]),
        "softcap": 5.0, "sinks": 0.5, "alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "scale": 0.4,
    },
}  # fmt: skip
DTYPES = {
    "float32": "f4 f4 f4", "float64": "f8 f8 f8", "float16": "f2 f2 f2", "mixed": "f4 f2 f4",
    "int8": "f4 i1 i1", "bfloat16": "bf bf bf",
}  # fmt: skip
if support.bfloat16 is None:
    del DTYPES["bfloat16"]


def inputs(dtypes="f4 f4 f4", seed=1):
    rng = np.random.default_rng(seed)
    shapes = {
        "query": (BATCH, HEADS, N_QUERY, D),
        "key": (BATCH, KV_HEADS, N_KEY, D),
        "value": (BATCH, KV_HEADS, N_KEY, DV),
    }
    given = {}
    for (name, shape), dtype in zip(shapes.items(), dtypes.split(), strict=True):
        if dtype == "i1":
            given[name], given[f"{name[0]}_scale"] = support.quantised(rng, *shape)
        else:
            dtype = support.bfloat16 if dtype == "bf" else dtype
            given[name] = support.normal(rng, *shape, dtype=dtype)
    return given


def attend(given, **more):
    return scaled_dot_product_attention(**(RESULTS | given | more))


def batch_entry(given, b):
    """Select one batch entry, whose arrays keep a batch axis of 1."""
    entry = dict(given)
    for name in ("query", "key", "value", "attn_mask", "bias", "k_scale", "v_scale"):
        if name in entry:
            entry[name] = entry[name][b : b + 1]
    for name in ("kv_lengths", "query_offset"):
        if np.ndim(entry.get(name)) > 0:
            entry[name] = entry[name][b : b + 1]
    return entry


def query_rows(given, start, stop):
    """Select some of the query rows, which stand where they stood."""
    part = dict(given)
    for name in ("query", "attn_mask", "bias"):
        if name in part:
            part[name] = part[name][..., start:stop, :]
    part["query_offset"] = np.asarray(part.get("query_offset", 0)) + start
    return part


def assert_rows_equal(actual, expected, rows):
    for one, other in zip(actual, expected, strict=True):
        support.assert_same_bits(one, other[rows])


CALLS = {
    f"{dtype} {name}": (DTYPES[dtype], options)
    for dtype, name in product(DTYPES, OPTIONS)
    if dtype == "float32" or name in ("plain", "causal", "mask", "all")
    for options in [OPTIONS[name]]
}
every_call = pytest.mark.parametrize(("dtypes", "options"), CALLS.values(), ids=CALLS)


@every_call
def test_batch_size_does_not_change_a_row(native_engine, dtypes, options):
    given = inputs(dtypes) | options
    whole = attend(given)
    for b in range(BATCH):
        assert_rows_equal(attend(batch_entry(given, b)), whole, np.s_[b : b + 1])


@every_call
def test_chunks_of_queries_equal_the_prefill(native_engine, dtypes, options):
    given = inputs(dtypes) | options
    whole = attend(given)
    tile = support.tile_rows(native_engine, "float32")
    for size in (1, 2, 3, 4, 5, 8, 15, 17, tile - 1, tile, tile + 1):
        starts = range(0, N_QUERY, size) if size > 4 else (0, 1, 63, 64, N_QUERY - size)
        for start in starts:
            stop = min(start + size, N_QUERY)
            part = attend(query_rows(given, start, stop))
            rows = np.s_[:, :, start:stop]
            assert_rows_equal(part, whole, rows)


@every_call
def test_number_of_threads_does_not_change_a_bit(native_engine, dtypes, options):
    given = inputs(dtypes) | options
    whole = attend(given, num_threads=1)
    for n in (2, 3, 8):
        support.assert_same_bits(attend(given, num_threads=n), whole)
    with threads(2):
        support.assert_same_bits(attend(given), whole)


def test_tiny_heads_that_share_a_task_have_the_bits_of_heads_alone(native_engine):
    rng = np.random.default_rng(6)
    given = {name: support.normal(rng, 4000, 8, 16) for name in ("query", "key", "value")}
    assert explain(**given, num_threads=1).tasks < 1000
    whole = attend(given, num_threads=1)
    for n in (2, 3):
        assert explain(**given, num_threads=n).threads == n
        support.assert_same_bits(attend(given, num_threads=n), whole)
    for i in (0, 1, 11, 12, 2345, 3999):
        alone = attend({name: x[i] for name, x in given.items()})
        assert_rows_equal(alone, whole, np.s_[i])


@pytest.mark.parametrize("name", ["plain", "causal", "mask", "nan"])
def test_size_of_a_tile_does_not_change_a_bit(native_engine, name):
    tile = support.tile_rows(native_engine, "float32")
    rng = np.random.default_rng(5)
    n = 4 * tile + 75
    query, key, value = (support.normal(rng, n, 2, D).swapaxes(0, 1) for _ in range(3))
    options = {"causal": {"is_causal": True}, "mask": {"attn_mask": rng.random((n, n)) < 0.7}}
    if name == "nan":
        value[1, n - 70, 3] = np.nan
        options[name] = {"is_causal": True}
    given = {"query": query, "key": key, "value": value, **options.get(name, {})}
    dense = given | {"key": key.copy(), "value": value.copy()}
    rows = [explain(**call, num_threads=1).rows_per_task for call in (dense, given)]
    assert rows == [tile, 4 * tile]
    whole = attend(dense, num_threads=1)
    for threads_allowed in (1, 2, 9):
        support.assert_same_bits(attend(given, num_threads=threads_allowed), whole)
    part = attend(query_rows(given, 3 * tile + 1, n))
    assert_rows_equal(part, whole, np.s_[:, 3 * tile + 1 :])


@every_call
@pytest.mark.parametrize("n_query", [1, N_QUERY])
def test_padding_on_the_right_does_not_change_a_bit(native_engine, dtypes, options, n_query):
    given = query_rows(inputs(dtypes) | options, 0, n_query)
    lengths = given.get("kv_lengths", N_KEY)
    whole = attend(given)
    for extra in (1, K - 21, 3 * K + 5):
        padded = given | {"kv_lengths": lengths}
        for name in ("key", "value", "k_scale", "v_scale", "attn_mask", "bias"):
            if name in padded:
                padded[name] = _padded(padded[name], extra, name)
        output, lse, weights = attend(padded)
        support.assert_same_bits((output, lse), tuple(whole[:2]))
        support.assert_same_bits(weights[..., :N_KEY], whole.weights)
        assert (support.bits(weights[..., N_KEY:]) == 0).all()


def _padded(array, extra, name):
    axis = array.ndim - 2 if name in ("key", "value") else array.ndim - 1
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, extra)
    fill = 127 if array.dtype == np.int8 else array.dtype == bool or np.nan
    return np.pad(array, widths, constant_values=fill)


@every_call
def test_strides_do_not_change_a_bit(native_engine, dtypes, options):
    given = inputs(dtypes) | options
    whole = attend(given)
    names = ("query", "key", "value", "attn_mask", "bias", "k_scale", "v_scale")
    for layout in support.LAYOUTS.values():
        laid = {name: layout(given[name]) for name in names if name in given}
        support.assert_same_bits(attend(given | laid), whole)


@every_call
def test_what_else_is_returned_does_not_change_a_bit(native_engine, dtypes, options):
    given = inputs(dtypes) | options
    whole = attend(given)
    for lse, weights in product((False, True), repeat=2):
        result = attend(given, return_lse=lse, return_weights=weights)
        support.assert_same_bits(getattr(result, "output", result), whole.output)
        if lse:
            support.assert_same_bits(result.lse, whole.lse)
        if weights:
            support.assert_same_bits(result.weights, whole.weights)
    for layout in ("contiguous", "transposed_heads", "gapped", "reversed", "misaligned"):
        out = support.LAYOUTS[layout](np.zeros_like(whole.output))
        attend(given, out=out)
        support.assert_same_bits(np.ascontiguousarray(out), whole.output)


@every_call
@pytest.mark.parametrize("n_query", [1, 2, N_QUERY])
def test_grouped_heads_equal_repeated_and_single_heads(native_engine, dtypes, options, n_query):
    given = query_rows(inputs(dtypes) | options, 0, n_query)
    whole = attend(given)
    repeated = dict(given)
    for name in ("key", "value", "k_scale", "v_scale"):
        if name in given:
            repeated[name] = np.repeat(given[name], HEADS // KV_HEADS, axis=1)
    support.assert_same_bits(attend(repeated), whole)
    for h in range(HEADS):
        single = {k: v[:, h : h + 1] if np.ndim(v) > 2 else v for k, v in repeated.items()}
        for name in ("sinks", "alibi_slopes"):
            if np.ndim(given.get(name)) == 1:
                single[name] = given[name][h : h + 1]
        assert_rows_equal(attend(single), whole, np.s_[:, h : h + 1])


@every_call
def test_fused_instruction_sets_agree_in_every_bit(dtypes, options):
    isas = support.fused_isas()
    if len(isas) < 2:
        pytest.skip("needs two instruction sets with fused multiply-add")
    results = []
    for isa in isas:
        with _backend.using("native", isa):
            results.append(attend(inputs(dtypes) | options))
    for result in results[1:]:
        support.assert_same_bits(result, results[0])
