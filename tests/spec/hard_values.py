"""Calls with NaN, infinities, huge, tiny and negative zero, and with ties, by name."""

import numpy as np

from .attention import LOG2E_64
from .calls import TYPES, call, table
from .functions import KEY_BLOCK, constants

LARGEST = {"f4": float(np.finfo(np.float32).max), "f8": float(np.finfo(np.float64).max)}
SMALLEST = {"f4": 2.0**-149, "f8": 5e-324}
WORDS = ("nan", "inf", "-inf", "-0")  # as float() reads them


def with_values(seed, types, changes, **options):
    """Draw a call and set entries: changes are (0, 1 or 2 for query, key, value; index; number)."""
    result = call(seed, types, **options)
    for which, index, number in changes:
        result.arrays[which][(..., *index)] = number
    return result


def _operands():
    """One special number in query, key or value; whether seen by all rows, some or none."""
    for kind in ("f4", "f8"):
        numbers = {word: float(word) for word in WORDS}
        numbers |= {"huge": LARGEST[kind], "tiny": SMALLEST[kind]}
        for word, number in numbers.items():
            yield from _in_operands(kind, word, number)
        yield f"all -0 {kind}", with_values, (_all(kind), [(0, (), -0.0), (2, (), -0.0)]), {}
        changes = [(0, (), -LARGEST[kind]), (1, (slice(None, None, 2), slice(None)), 4.0)]
        yield f"scores -inf and more {kind}", with_values, (_all(kind), changes), {}
        changes = [(2, (), LARGEST[kind] / 3)]
        yield f"sums overflow {kind}", with_values, (_all(kind), changes), {}
        changes = [(2, (), SMALLEST[kind] * 5)]
        yield f"sums are subnormal {kind}", with_values, (_all(kind), changes), {}
        changes = [(2, (40, 1), np.inf), (2, (41, 1), -np.inf), (2, (42, 2), -np.inf)]
        yield f"values of both infinities {kind}", with_values, (_all(kind), changes), {}
        changes = [(0, (), 10.0), (1, (50, slice(None)), 20.0)]
        changes += [(2, (3, 1), np.inf), (2, (99, 2), np.nan)]
        yield f"weights of 0 on inf and nan {kind}", with_values, (_all(kind), changes), {}


def _in_operands(kind, word, number):
    causal = {"is_causal": True, "query_offset": 95}
    masked = {"attn_mask": np.arange(100) != 7}
    for which, operand, index in ((0, "query", (2, 3)), (1, "key", (97, 1)), (2, "value", (97, 1))):
        changes = [(which, index, number)]
        yield f"{word} in {operand} {kind}", with_values, (_all(kind), changes), causal
        changes = [(which, (7 if which else 2, 1), number)]
        yield f"{word} in masked {operand} {kind}", with_values, (_all(kind), changes), masked
        if which == 0:
            changes = [(0, (0, 1), number)]
            no_key = {"is_causal": True, "query_offset": -1}
            yield f"{word}, no key {kind}", with_values, (_all(kind), changes), no_key


def _all(kind):
    return f"{kind} {kind} {kind}"


def _bias(*numbers, dtype="f8"):
    bias = np.zeros((5, 100))
    for i, number in enumerate(numbers):
        bias[i, 3 : 99 - 20 * i] = number
    return bias.astype(dtype)


def _score_options():
    for kind in ("f4", "f8"):
        top = LARGEST[kind]
        options = {
            "bias inf": {"bias": _bias(np.inf, -np.inf, 0, np.inf)},
            "bias nan": {"bias": _bias(0, np.nan)},
            "bias huge": {"bias": _bias(top, -top, 1e300, -1e300, top / 2)},
            "bias finfo.min": {"bias": _bias(-np.finfo("f4").max, -np.finfo("f4").max, dtype="f4")},
            "bias finfo.min everywhere": {"bias": np.full(100, np.finfo("f4").min)},
            "bias huge, of float16": {"bias": _bias(65504, -65504, 6e-8, dtype="f2")},
            "bias on both sides of rounding up": {"bias": _bias(3.4028235e38, 3.4028236e38)},
            "sink inf": {"sinks": np.inf},
            "sink nan": {"sinks": np.nan},
            "sink nan, no key": {"sinks": np.nan, "kv_lengths": 0},
            "sink -inf, no key": {"sinks": -np.inf, "kv_lengths": 0},
            "sink huge": {"sinks": top},
            "sink -huge": {"sinks": -top},
            "sink -huge, no key": {"sinks": -top, "kv_lengths": 0},
            "scale huge": {"scale": top / 4},
            "scale tiny": {"scale": 1e-40},
            "scale huge, softcap": {"scale": top / 4, "softcap": 3.0},
            "softcap huge": {"softcap": top / 8},
            "softcap tiny": {"softcap": float(np.finfo(kind).tiny) * 2},
            "alibi huge": {"alibi_slopes": top, "query_offset": 3},
            "alibi -huge": {"alibi_slopes": -top, "query_offset": 3},
            "alibi, farthest": {"alibi_slopes": 2.0**-60, "query_offset": -(2**61)},
            "window, farthest": {"window": (2**62, 0), "query_offset": 2**61},
        }
        for name, o in options.items():
            yield f"{name} {kind}", call, (_all(kind),), o
        changes = [(0, (1, 0), np.inf), (0, (2, 0), np.nan)]
        changes += [(1, (5, 0), np.inf), (1, (9, 0), -np.inf)]
        o = {"softcap": 2.0}
        yield f"softcap of infinities {kind}", with_values, (_all(kind), changes), o
        changes = [(0, (), -top), (1, (slice(None, None, 2), slice(None)), 4.0)]
        o = {"bias": np.ones(100)}
        yield f"scores -inf, bias {kind}", with_values, (_all(kind), changes), o
        o = {"bias": _bias(np.nan, np.inf, 1), "attn_mask": np.arange(100) < 3}
        yield f"bias nan behind the mask {kind}", call, (_all(kind),), o


def _scales():
    """Quantisation scales that are not ordinary, seen and unseen."""
    for word, number in (("nan", np.nan), ("inf", np.inf), ("0", 0.0), ("negative", -0.01)):
        for name, types in (("k_scale", "f4 i1 f4"), ("v_scale", "f4 f4 i1")):
            scale = np.full(100, 0.01, "f4")
            scale[[5, KEY_BLOCK]] = number
            yield f"{name} {word}", call, (types,), {name: scale}
            options = {name: scale, "attn_mask": (np.arange(100) % KEY_BLOCK) != (5 % KEY_BLOCK)}
            yield f"{name} {word}, one masked", call, (types,), options


def _outputs():
    """Results at the ends of the 16-bit types, and between two of their numbers."""
    for query in ("f2", "bf"):
        if query not in TYPES:
            continue
        for values in ("f4", "f8"):
            types = f"{query} {values} {values}"
            for scale in (1e-7, 3e-6, 1e-39, 2e4, 3e38):
                changes = [(2, (slice(None), 0), scale), (2, (slice(None), 1), -scale * 0.9999)]
                yield f"{types} near {scale}", with_values, (types, changes), {"n_key": 7}
    ties = [(2, (slice(None), i), 1 + i * 2.0**-12) for i in range(8)]
    yield "f2 f8 f8 ties", with_values, ("f2 f8 f8", ties), {"n_key": 1}
    above = [(2, (slice(None), i), 1 + 2.0**-9 * i + 2.0**-45) for i in range(8)]
    for query in [name for name in ("bf", "f2", "f4") if name in TYPES]:
        yield f"{query} f8 f8 above ties", with_values, (f"{query} f8 f8", above), {"n_key": 1}


def _integer_steps(kind):
    """Numbers x_i whose product with a constant of the kernels is i + 1/2, or as near as can be."""
    steps, log2e = np.arange(100) / 2 + 0.5, float(constants(kind).log2e)
    return {"half": steps, "log2e": steps / log2e, "2 log2e": steps / (2 * log2e)}


def _ties():
    """Scores in the middle between two integers, where rint has to go to the even one."""
    for kind in ("f4", "f8"):
        numbers = _integer_steps(kind)
        sizes = {"n_query": 3, "d": 1}
        for sign in (1, -1):
            one = (0, (), sign)
            changes = [one, (1, (slice(None), 0), numbers["half"])]
            o = {"scale": 1 / LOG2E_64, **sizes}
            yield f"ties, short form {sign} {kind}", with_values, (_all(kind), changes), o
            changes = [one, (1, (slice(None), 0), numbers["log2e"])]
            o = {"scale": 1.0, "bias": np.zeros(1), **sizes}
            yield f"ties, long form {sign} {kind}", with_values, (_all(kind), changes), o
            changes = [one, (1, (slice(None), 0), numbers["2 log2e"])]
            o = {"scale": 1.0, "softcap": 1.0, **sizes}
            yield f"ties, softcap {sign} {kind}", with_values, (_all(kind), changes), o
        changes = [(0, (), 0.0)]
        for sink in (2.5, -2.5):
            o = {"sinks": sink / float(constants(kind).log2e), **sizes}
            yield f"ties, sink {sink} {kind}", with_values, (_all(kind), changes), o


HARD = table(*_operands(), *_score_options(), *_scales(), *_outputs(), *_ties())
