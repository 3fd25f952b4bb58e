"""A deterministic pairwise cover: a list of calls in which every two levels of two factors meet.

Sizes are named by the tile constants (T query rows, K keys of a block) and become numbers only when
the engine of the test is known.
"""

from itertools import combinations

import numpy as np
import oracle
import support

FACTORS = {
    "dtypes": [
        "f4 f4 f4", "f8 f8 f8", "f2 f2 f2", "f4 f2 f2", "f2 f4 f4", "f8 f4 f4", "f4 f8 f4",
        "f4 i1 i1", "f2 i1 f4", "f8 f4 i1", "bf bf bf", "f4 bf f2", "bf i1 i1",
    ],
    "lead": ["none", "2", "2x3", "kv stride 0", "q stride 0", "crossed"],
    "heads": ["1 on 1", "4 on 4", "4 on 2", "3 on 1"],
    "n_query": ["0", "1", "3", "T-1", "T", "T+1", "2T+1"],
    "n_key": ["0", "1", "K-1", "K", "K+1", "2K+1"],
    "d_head": ["1", "8", "13", "32"],
    "d_value": ["1", "8", "17", "32"],
    "mask": ["none", "full", "shared", "keys", "queries", "float", "float16 shared"],
    "bias": ["none", "full", "head", "float64 keys", "with -inf"],
    "causal": [False, True],
    "offset": ["0", "positive", "negative", "per batch", "end"],
    "window": [None, 5, (7, None), (None, 3), (-1, 0), (0, 2), (0, 0)],
    "lengths": ["none", "scalar", "per batch"],
    "scale": [None, 0.0, -0.3, 1.5],
    "softcap": [None, 2.5],
    "sinks": ["none", "scalar", "per head", "some"],
    "alibi": ["none", "per head", "per batch"],
    "results": ["output", "lse", "weights", "all"],
    "out": ["none", "C", "gapped", "transposed_heads"],
    "layout": list(support.LAYOUTS),
    "threads": [None, 1, 2, 3],
}  # fmt: skip
if support.bfloat16 is None:
    FACTORS["dtypes"] = [names for names in FACTORS["dtypes"] if "bf" not in names]


def _forbidden(case):
    """Say whether a float mask meets a bias, which is an error."""
    return str(case.get("mask")).startswith("float") and case.get("bias", "none") != "none"


def pairwise(factors, seed):
    """Complete uncovered pairs at random and keep the completion that covers most."""
    rng = np.random.default_rng(seed)
    names = list(factors)
    levels = {name: range(len(factors[name])) for name in names}
    missing = {
        (one, i, two, j)
        for one, two in combinations(names, 2)
        for i in levels[one]
        for j in levels[two]
        if not _forbidden({one: factors[one][i], two: factors[two][j]})
    }
    cases = []
    while missing:
        best = max(_completions(min(missing), factors, rng), key=lambda c: len(_pairs(c) & missing))
        missing -= _pairs(best)
        cases.append({name: factors[name][best[name]] for name in names})
    return cases


def _completions(pair, factors, rng, count=40):
    one, i, two, j = pair
    found = []
    while len(found) < count:
        case = {name: int(rng.integers(len(factors[name]))) for name in factors}
        case |= {one: i, two: j}
        if not _forbidden({name: factors[name][case[name]] for name in factors}):
            found.append(case)
    return found


def _pairs(case):
    return {(one, case[one], two, case[two]) for one, two in combinations(case, 2)}


def size(name, tile):
    """Turn "13", "K-1" or "2T+1" into a number."""
    for unit, value in (("T", tile), ("K", oracle.KEY_BLOCK)):
        times, found, rest = name.partition(unit)
        if found:
            return int(times or 1) * value + int(rest or 0)
    return int(name)


class Call:
    """The arrays and options of one case."""

    def __init__(self, case, seed, tile):
        self.case, self.rng = case, np.random.default_rng(seed)
        self.n_query, self.n_key = size(case["n_query"], tile), size(case["n_key"], tile)
        self.n_head, self.n_kv_head = (int(n) for n in case["heads"].split(" on "))
        shapes = {
            "none": ((), (), ()), "2": ((2,), (2,), (2,)), "2x3": ((2, 3),) * 3,
            "kv stride 0": ((2,), (1,), (1,)), "q stride 0": ((), (2,), (2,)),
            "crossed": ((2, 1), (1, 2), (2,)),
        }[case["lead"]]  # fmt: skip
        self.lead = np.broadcast_shapes(*shapes)
        self.options = {"is_causal": case["causal"], "window": case["window"]}
        self.options |= {"scale": case["scale"], "softcap": case["softcap"]}
        self.options |= {"num_threads": case["threads"]}
        self.arrays = self._arrays(*shapes)
        self._add_mask()
        self._add_bias()
        self._add_range()
        self._add_heads()
        self.options["return_lse"] = case["results"] in ("lse", "all")
        self.options["return_weights"] = case["results"] in ("weights", "all")
        self._add_out()

    def _array(self, name, shape, scale_name):
        if name == "i1":
            values, self.options[scale_name] = support.quantised(self.rng, *shape)
        else:
            dtype = support.bfloat16 if name == "bf" else name
            values = support.normal(self.rng, *shape, dtype=dtype)
        return support.LAYOUTS[self.case["layout"]](values)

    def _arrays(self, query_lead, key_lead, value_lead):
        d_head, d_value = int(self.case["d_head"]), int(self.case["d_value"])
        query_type, key_type, value_type = self.case["dtypes"].split()
        kv = (self.n_kv_head, self.n_key)
        return (
            self._array(query_type, (*query_lead, self.n_head, self.n_query, d_head), None),
            self._array(key_type, (*key_lead, *kv, d_head), "k_scale"),
            self._array(value_type, (*value_lead, *kv, d_value), "v_scale"),
        )

    def _shape(self, kind):
        full = (*self.lead, self.n_head, self.n_query, self.n_key)
        return {
            "full": full, "shared": full[-2:], "keys": full[-1:], "head": (self.n_head, 1, 1),
            "queries": (self.n_query, 1),
        }[kind]  # fmt: skip

    def _add_mask(self):
        kind = self.case["mask"]
        if kind == "none":
            return
        shape = self._shape("shared" if "shared" in kind else "full" if kind == "float" else kind)
        self.options["attn_mask"] = self.rng.random(shape) < 0.7
        if kind.startswith("float"):
            values = np.where(self.options["attn_mask"], self.rng.standard_normal(shape), -np.inf)
            self.options["attn_mask"] = values.astype("f2" if "16" in kind else "f4")

    def _add_bias(self):
        kind = self.case["bias"]
        if kind == "none":
            return
        name = {"float64 keys": "keys", "with -inf": "shared"}.get(kind, kind)
        values = self.rng.standard_normal(self._shape(name))
        if kind == "with -inf":
            values[self.rng.random(values.shape) < 0.3] = -np.inf
        self.options["bias"] = values.astype("f8" if "64" in kind else "f4")

    def _add_range(self):
        offset, lengths = self.case["offset"], self.case["lengths"]
        self.options["query_offset"] = {
            "0": 0, "positive": 3, "negative": -2, "end": "end",
            "per batch": self.rng.integers(-3, self.n_key + 3, self.lead),
        }[offset]  # fmt: skip
        if lengths == "scalar":
            self.options["kv_lengths"] = (3 * self.n_key) // 4
        elif lengths == "per batch":
            self.options["kv_lengths"] = self.rng.integers(0, self.n_key + 1, self.lead)

    def _add_heads(self):
        sinks = self.rng.standard_normal(self.n_head)
        if self.case["sinks"] == "some":
            sinks[::2] = -np.inf
        if self.case["sinks"] != "none":
            self.options["sinks"] = 0.0 if self.case["sinks"] == "scalar" else sinks
        lead = self.lead if self.case["alibi"] == "per batch" else ()
        if self.case["alibi"] != "none":
            self.options["alibi_slopes"] = self.rng.random((*lead, self.n_head)) / 8

    def _add_out(self):
        if self.case["out"] == "none":
            return
        shape = (*self.lead, self.n_head, self.n_query, int(self.case["d_value"]))
        out = np.full(shape, 7, self.arrays[0].dtype)
        self.options["out"] = support.LAYOUTS.get(self.case["out"], np.array)(out)
