"""Random calls, valid and invalid, on every engine for some seconds.

    python tests/fuzz_calls.py [seconds] [seed] [--keep-going]

A call either raises a documented exception, the same one everywhere, or returns results that lie
within twice the documented bound of each other.  Prints the counts; ends with status 1 at the first
call for which that is not so, after printing how to repeat it.
"""

import contextlib
import copy
import sys
import time
import traceback
import warnings
from collections import Counter

import grid
import numpy as np
import oracle
import support
from numpy.lib.stride_tricks import as_strided

from fast_attention import _backend, scaled_dot_product_attention

DOCUMENTED = (TypeError, ValueError, UserWarning)
OPTIONS = [
    "attn_mask", "bias", "is_causal", "scale", "window", "query_offset", "kv_lengths", "softcap",
    "sinks", "alibi_slopes", "k_scale", "v_scale", "return_lse", "return_weights", "out",
    "num_threads",
]  # fmt: skip
OPERANDS = ["query", "key", "value"]
JUNK = [
    None, "end", "x", b"x", 0, 1, -1, -2, 3, 2**31, 2**63 - 1, -(2**63), 2**64, 10**30, 0.0, -0.0,
    0.5, 1e-45, 1e-320, 1e38, 1e300, np.nan, np.inf, -np.inf, 1j, True, False, (), [], {}, object,
    (1, 2), (None, 0), (-1, -1), (-2, 0), (0, 2**63), [1, 2], [[1.0, 2.0], [3.0, 4.0]],
    [[1], [2, 3]],
    np.float16(2), np.int8(-3), np.uint64(2**63), np.array(3), np.array(2.5), np.array("now", "M8"),
    np.zeros((0, 3)), np.ones((2, 1, 1, 1)), np.ones((1, 1), bool), np.ones(3, "i8"),
    np.ones(4, "O"),
    np.ones(2, "c8"), np.ones(5, ">f4"), np.ones((1, 1), np.longdouble), np.ones(2, "f4,i4"),
    np.ma.masked_array(np.ones(3), [0, 1, 0]), np.ones((3, 4), "U3"),
]  # fmt: skip
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -3e38, 6e4, 1e-8]


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def random_call(rng):
    """Draw a valid call, with sizes at random or at the edges of tiles."""
    case = {name: pick(rng, levels) for name, levels in grid.FACTORS.items()}
    while grid._forbidden(case):
        case["bias"] = pick(rng, grid.FACTORS["bias"])
    for name, largest in (("n_query", 40), ("n_key", 130), ("d_head", 20), ("d_value", 20)):
        if rng.random() < 0.8:
            case[name] = str(rng.integers(0, largest + 1))
    call = grid.Call(case, int(rng.integers(2**32)), pick(rng, [1, 8, 16, 32, 64]))
    return dict(zip(OPERANDS, call.arrays, strict=True)) | call.options


# What a change may raise where an earlier one left nothing to change; the call stays as it is.
UNCHANGED = (ArithmeticError, LookupError, TypeError, ValueError, np.exceptions.ComplexWarning)


def replace(rng, call):
    """Put anything at all in the place of an argument."""
    call[pick(rng, OPERANDS + 3 * OPTIONS)] = copy.copy(pick(rng, JUNK))


def retype(rng, call):
    name = pick(rng, [n for n, x in call.items() if isinstance(x, np.ndarray)])
    kinds = ["f2", "f4", "f8", ">f4", "i1", "u1", "i2", "i8", "u8", "?", "c8", "O", np.longdouble]
    with np.errstate(all="ignore"):
        call[name] = call[name].astype(pick(rng, kinds))


def reshape(rng, call):
    """Add, drop, enlarge, shrink or exchange an axis."""
    name = pick(rng, [n for n, x in call.items() if isinstance(x, np.ndarray)])
    x = call[name]
    axis = int(rng.integers(x.ndim)) if x.ndim else 0
    change = pick(rng, ["add", "drop", "grow", "shrink", "swap"]) if x.ndim else "add"
    if change == "add":
        call[name] = np.expand_dims(x, axis)
    elif change == "drop":
        call[name] = x[(slice(None),) * axis + (0,)] if x.shape[axis] else x.sum(axis)
    elif change == "grow":
        call[name] = np.concatenate([x, x], axis)
    elif change == "shrink":
        call[name] = x[(slice(None),) * axis + (slice(1, None),)]
    else:
        call[name] = x.swapaxes(axis, -1)


def restride(rng, call):
    """Read one element again and again, or give an axis of size one a stride from nowhere."""
    name = pick(rng, [n for n, x in call.items() if isinstance(x, np.ndarray)])
    x = call[name]
    if x.ndim == 0:
        return
    axis = int(rng.integers(x.ndim))
    strides, shape = list(x.strides), list(x.shape)
    strides[axis] = 0 if shape[axis] != 1 else int(rng.integers(-(10**9), 10**9))
    call[name] = as_strided(x, shape, strides, writeable=x.flags.writeable)


def poison(rng, call):
    """Write special numbers into an array, which may be visible or not."""
    names = [n for n in (*OPERANDS, "bias", "attn_mask", "k_scale") if n in call]
    x = call[pick(rng, names)]
    if isinstance(x, np.ndarray) and x.size and x.flags.writeable and x.dtype.kind in "fV":
        index = tuple(int(rng.integers(n)) for n in x.shape)
        with np.errstate(all="ignore"):
            x[index] = np.float64(pick(rng, SPECIAL)).astype(x.dtype)


def misuse_out(rng, call):
    """Give an ``out`` that overlaps an input or itself, or cannot be written."""
    query = call["query"]
    if not isinstance(query, np.ndarray):
        return
    shape = query.shape
    call["out"] = pick(rng, [
        query, query[..., ::-1], support.read_only(query), np.zeros(shape, query.dtype),
        as_strided(np.zeros(1, query.dtype), shape, (0,) * len(shape), writeable=True),
    ])  # fmt: skip


CHANGES = [replace, replace, retype, reshape, restride, poison, poison, misuse_out]


def outcome(engine, call):
    """(results, None) or (None, exception); anything undocumented is raised."""
    try:
        with _backend.using(*engine):
            result = scaled_dot_product_attention(**call)
    except DOCUMENTED as error:
        return None, error
    named = {"output": result} if isinstance(result, np.ndarray) else result._asdict()
    return {name: np.array(x) for name, x in named.items()}, None


def agree(call, results):
    """Whether all results lie within twice the bound of the first; None if it is not valid."""
    if any(_huge(call[name]) for name in (*OPERANDS, "k_scale", "v_scale") if name in call):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = oracle.attention(**{n: x for n, x in call.items() if n != "out"})
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    first = results[0]
    for other in results[1:]:
        for name, x in first.items():
            bound = np.nan_to_num(getattr(expected, f"{name}_bound").astype("f8"), nan=np.inf)
            if not _near(x, other[name], bound):
                return False
    return True


def _huge(x):
    """Whether a product of such numbers, or a sum of them, may leave the range of float32."""
    with np.errstate(all="ignore"):
        size = np.abs(np.asarray(x).astype("f8"))
    return size.size > 0 and size.max(where=np.isfinite(size), initial=0) > 1e15


def _near(one, other, bound):
    one, other = one.astype("f8"), other.astype("f8")
    same = (one == other) | (~np.isfinite(one) & ~np.isfinite(other))
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(one - other) <= 2 * bound
    return one.shape == other.shape and bool((same | close | ~np.isfinite(bound)).all())


def judge(call):
    """Run one call everywhere: (verdict, reason), a verdict of "wrong" being a fault."""
    found = [outcome(engine, call) for engine in support.ENGINES]
    errors = {f"{type(e).__name__}: {e}" for _, e in found if e is not None}
    if any(e is not None for _, e in found):
        everywhere = all(e is not None for _, e in found) and len(errors) == 1
        return ("refused" if everywhere else "wrong"), "; ".join(sorted(errors))
    same = agree(call, [results for results, _ in found])
    return {True: "agreed", None: "returned", False: "wrong"}[same], "results differ"


def describe(call):
    rows = []
    for name, x in call.items():
        rows.append(
            f"  {name}: {x.dtype} {x.shape} strides {x.strides}" if isinstance(x, np.ndarray)
            else f"  {name}: {x!r}"
        )  # fmt: skip
    return "\n".join(rows)


def one_round(seed):
    """Draw, change and judge call number ``seed``; returns the verdict."""
    rng = np.random.default_rng(seed)
    call = random_call(rng)
    for _ in range(pick(rng, [0, 0, 1, 1, 2, 3])):
        with contextlib.suppress(*UNCHANGED):
            pick(rng, CHANGES)(rng, call)
    try:
        verdict, reason = judge(call)
    except Exception:
        verdict, reason = "wrong", traceback.format_exc()
    if verdict == "wrong":
        print(f"seed {seed}: {reason}\n{describe(call)}", flush=True)
    return verdict


def main(seconds, seed, *, keep_going=False):
    """Run rounds until the time is up or one is wrong; returns the counts."""
    counts, end = Counter(), time.monotonic() + seconds
    warnings.simplefilter("error")
    while time.monotonic() < end and (keep_going or not counts["wrong"]):
        counts[one_round(seed)] += 1
        seed += 1
    print(f"{sum(counts.values())} calls on {len(support.ENGINES)} engines: {dict(counts)}")
    return counts


if __name__ == "__main__":
    numbers = [float(a) for a in sys.argv[1:] if a != "--keep-going"]
    seconds, seed = (numbers + [60.0, 0.0][len(numbers) :])[:2]
    found = main(seconds, int(seed), keep_going="--keep-going" in sys.argv)
    sys.exit(1 if found["wrong"] else 0)
