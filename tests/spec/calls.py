"""Calls that reach every step of the arithmetic, by name: shapes, types, options, long rows.

A call holds arguments of ``scaled_dot_product_attention``.  The tables map names to functions
without arguments, so that nothing is drawn before it is needed; every call has its own seed.
"""

import zlib
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import support

from fast_attention._descriptor import describe_attention

from .functions import KEY_BLOCK, SEGMENT

ROWS = [*range(1, 10), 15, 16, 17, 63, 64, 65]
KEYS = [1, KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1, 2 * KEY_BLOCK + 1]
WIDTHS = [1, 3, 8, 15, 16, 17]
TYPES = ["f2", "bf", "f4", "f8"] if support.bfloat16 else ["f2", "f4", "f8"]


@dataclass
class Call:
    """Arguments of one call; ``key_start`` moves it among blocks and segments."""

    arrays: tuple
    options: dict = field(default_factory=dict)
    key_start: int = 0

    def describe(self, *, num_threads=1, lse=True, weights=True):
        results = {"return_lse": lse, "return_weights": weights}
        d = describe_attention(*self.arrays, **self.options, **results, num_threads=num_threads)
        d.key_start = self.key_start
        return d


def draw(rng, name, *shape):
    """Draw from the normal distribution in a type; int8 from all its values."""
    if name == "i1":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return support.normal(rng, *shape, dtype=support.bfloat16 if name == "bf" else name)


def call(
    seed, types="f4 f4 f4", *, lead=(), heads=(1, 1), n_query=5, n_key=100, d=8, dv=8, **options
):
    """Draw query, key and value; scales come with int8, other options are given."""
    rng = np.random.default_rng(seed)
    query_type, key_type, value_type = types.split()
    n_head, n_kv_head = heads
    arrays = (
        draw(rng, query_type, *lead, n_head, n_query, d),
        draw(rng, key_type, *lead, n_kv_head, n_key, d),
        draw(rng, value_type, *lead, n_kv_head, n_key, dv),
    )
    for name, type_name in (("k_scale", key_type), ("v_scale", value_type)):
        if type_name == "i1":
            scale = 0.002 + 0.02 * rng.random((*lead, n_kv_head, n_key))
            options = {name: scale.astype(np.float32), **options}
    return Call(arrays, options)


def _seed(name):
    return zlib.crc32(name.encode())


def table(*entries):
    """Name -> function that makes the call, with a seed from the name."""
    return {name: partial(make, _seed(name), *args, **kw) for name, make, args, kw in entries}


def _shapes():
    """Every number of rows with every number of keys, while the widths go round."""
    cases = [(rows, keys) for rows in ROWS for keys in KEYS]
    for i, (n_query, n_key) in enumerate(cases):
        for k, kind in enumerate(("f4", "f8")):
            d, dv = WIDTHS[(i + k) % 6], WIDTHS[(i // 6 + i) % 6]
            sizes = {"n_query": n_query, "n_key": n_key, "d": d, "dv": dv}
            yield f"{kind} {n_query}x{n_key} {d}:{dv}", call, (f"{kind} {kind} {kind}",), sizes
    for d, dv in [(0, 8), (8, 0), (1, 33), (64, 64), (40, 100)]:
        for kind in ("f4", "f8"):
            sizes = {"n_query": 7, "n_key": 98, "d": d, "dv": dv}
            yield f"{kind} 7x98 {d}:{dv}", call, (f"{kind} {kind} {kind}",), sizes


def _types():
    for query in TYPES:
        for key in [*TYPES, "i1"]:
            for value in [*TYPES, "i1"]:
                yield f"{query} {key} {value}", call, (f"{query} {key} {value}",), {"n_query": 3}


def random_call(seed):
    """Draw a call with several options at once, of random types and small sizes."""
    rng = np.random.default_rng(seed)

    def pick(*values):
        return values[rng.integers(len(values))]

    types = " ".join(pick(*names) for names in (TYPES, [*TYPES, "i1"], [*TYPES, "i1"]))
    lead, heads = pick((), (2,), (2, 1)), pick((1, 1), (2, 1), (4, 2), (2, 2))
    n_query, n_key = pick(1, 2, 5, 7, 9), pick(1, 40, KEY_BLOCK, KEY_BLOCK + 1, 200)
    options = _random_rules(rng, pick, lead, n_query, n_key)
    options |= _random_score(rng, pick, lead, heads[0], n_query, n_key)
    sizes = {"n_query": n_query, "n_key": n_key, "d": pick(1, 8, 13, 16), "dv": pick(1, 7, 8, 24)}
    result = call(seed, types, lead=lead, heads=heads, **sizes, **options)
    result.key_start = int(pick(0, 0, 1, SEGMENT - 1)) * KEY_BLOCK
    return result


def _random_rules(rng, pick, lead, n_query, n_key):
    options = {"is_causal": pick(False, True), "query_offset": pick(0, 3, -2, "end")}
    options["window"] = pick(None, None, 5, (90, None), (None, 3), (0, 0))
    if pick(0, 1):
        options["query_offset"] = rng.integers(-3, n_key + 3, lead)
    if pick(0, 1):
        options["kv_lengths"] = rng.integers(0, n_key + 1, lead)
    if pick(0, 1):
        options["attn_mask"] = rng.random((n_query, n_key)) < 0.7
    return options


def _random_score(rng, pick, lead, n_head, n_query, n_key):
    options = {"scale": pick(None, None, 0.3, -1.5, 0.0), "softcap": pick(None, None, 2.5, 0.1)}
    if pick(0, 1):
        options["bias"] = draw(rng, pick(*TYPES), n_head, n_query, n_key)
        options["bias"][rng.random(options["bias"].shape) < 0.2] = -np.inf
    if pick(0, 1):
        options["sinks"] = rng.choice([-np.inf, 0.0, 1.25, -3.5], n_head)
    if pick(0, 1):
        options["alibi_slopes"] = rng.choice([0.5, 0.03, -0.01, 0.0], (*lead, n_head))
    return options


def _options():
    """Each option alone, in both types of arithmetic, and many calls with several."""
    mask = np.random.default_rng(7).random((5, 100)) < 0.6
    alone = {
        "causal": {"is_causal": True, "query_offset": 0},
        "causal, end": {"is_causal": True, "query_offset": "end"},
        "causal, rows before the first key": {"is_causal": True, "query_offset": -3},
        "window": {"window": (3, 2), "query_offset": 94},
        "window on the left": {"window": (2, None), "query_offset": 0},
        "window past every key": {"window": (0, 1), "query_offset": 1000},
        "lengths": {"kv_lengths": 97},
        "no key": {"kv_lengths": 0},
        "no key, sink": {"kv_lengths": 0, "sinks": 0.7},
        "S = 0": {"n_key": 0},
        "S = 0, sinks": {"n_key": 0, "heads": (4, 4), "sinks": [0.7, -3.3, -np.inf, 1e-3]},
        "L = 0": {"n_query": 0},
        "mask": {"attn_mask": mask},
        "mask of columns": {"attn_mask": mask[:1]},
        "mask of rows": {"attn_mask": mask[:, :1]},
        "a block masked": {"attn_mask": np.arange(100) >= KEY_BLOCK},
        "float mask": {"attn_mask": np.where(mask, 0.0, -np.inf)},
        "bias": {"bias": np.linspace(-3, 3, 500, dtype="f4").reshape(5, 100)},
        "bias of float64": {"bias": np.linspace(-3, 3, 100)},
        "scale": {"scale": 0.7},
        "scale 0": {"scale": 0.0},
        "scale negative": {"scale": -2.0},
        "softcap": {"softcap": 3.0},
        "softcap, large scores": {"softcap": 50.0, "scale": 100.0},
        "sink": {"sinks": 0.0},
        "sink above all": {"sinks": 40.0},
        "sink far below": {"sinks": -300.0},
        "alibi": {"alibi_slopes": 0.25, "query_offset": 0},
        "alibi, far": {"alibi_slopes": 2.0**-30, "query_offset": 2**40 + 1},
    }
    for name, options in alone.items():
        for kind in ("f4", "f8"):
            yield f"{name} {kind}", call, (f"{kind} {kind} {kind}",), options
    for i in range(120):
        yield f"random {i}", random_call, (), {}


def _long():
    """Rows that cross a segment, with and without a key in each."""
    segment = KEY_BLOCK * SEGMENT
    nothing_first = np.arange(segment + 2) >= segment
    for kind in ("f4", "f8"):
        types = f"{kind} {kind} {kind}"
        for n_query in (1, 7):
            sizes = {"n_query": n_query, "n_key": segment + 2, "d": 2, "dv": 3}
            yield f"segments {n_query} rows {kind}", call, (types,), sizes
        yield f"first segment unseen {kind}", call, (types,), {**sizes, "attn_mask": nothing_first}
        yield f"last segment unseen {kind}", call, (types,), {**sizes, "attn_mask": ~nothing_first}
        yield f"segments, sink {kind}", call, (types,), {**sizes, "sinks": 2.0, "softcap": 1.0}
        causal = {"is_causal": True, "query_offset": segment - 3}
        yield f"segments, causal {kind}", call, (types,), {**sizes, **causal}


SHAPES = table(*_shapes())
TYPES_MIXED = table(*_types())
OPTIONS = table(*_options())
LONG = table(*_long())
