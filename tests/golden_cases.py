"""Named calls whose results are on record, from numbers that are the same on every platform.

Number ``i`` of a stream is a hash of both, so that any language can repeat it in a few lines: all
operations are on unsigned 64-bit integers, and the results are exact in the types that hold them.

    hash(stream, i):  x = (stream * 2**32 + i + 1) * 0x9E3779B97F4A7C15
                      x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9
                      x = (x ^ x >> 27) * 0x94D049BB133111EB
                      x ^ x >> 31

    coarse     (x >> 59) / 8 - 2, whose products and sums are often exact
    mantissas  a number of [1, 2) with the fraction x >> 12, cut to the digits of the type,
               times 2**(x % 4 - 3), negative if x & 4
    int8       (x >> 56) - 128;    its scales  abs(mantissas) / 64
    mask       (x >> 62) != 0;     bias        numbers as above, -inf where (x & 0x70) == 0
    sinks      coarse;             slopes      coarse / 16
    x, grad    numbers as above, times the case's size;    y    abs(mantissas) / 16
    where      (x >> 62) != 0

The stream of a case is 16 times its place in CASES, plus the place of the argument in STREAMS: a
new case goes to the end.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import support

STREAMS = ("query", "key", "value", "mask", "bias", "sinks", "alibi_slopes", "k_scale", "v_scale")
STREAMS += ("x", "grad", "y", "where")
PRECISION = {"f2": 11, "bf": 8, "f4": 24, "f8": 53}


def hashed(stream, *shape):
    """Hashes of a stream in C order, uint64."""
    x = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) + np.uint64(stream << 32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).reshape(shape)


def coarse(x, name):
    del name  # five bits fit in every type
    return (x >> np.uint64(59)).astype(np.float64) / 8 - 2


def mantissas(x, name):
    cut = np.uint64(53 - PRECISION[name])
    fraction = (x >> np.uint64(12)) >> cut << cut
    size = np.ldexp(
        1 + np.ldexp(fraction.astype(np.float64), -52), (x & np.uint64(3)).astype(int) - 3
    )
    return np.where(x & np.uint64(4), -size, size)


@dataclass(frozen=True)
class Case:
    """One call: sizes, types of query, key and value, options, and what is drawn for it."""

    types: str = "f4 f4 f4"
    n_query: int = 5
    n_key: int = 100
    d: int = 16
    dv: int = 16
    lead: tuple = ()
    heads: tuple = (1, 1)
    numbers: object = mantissas
    options: dict = field(default_factory=dict)  # passed as they are
    draw: tuple = ()  # of mask, bias, sinks, alibi_slopes
    bias_type: str = "f4"
    changes: tuple = ()  # (argument, index, number)

    def arguments(self, place):
        """Arguments of ``scaled_dot_product_attention``, by name."""
        arguments = dict(self.options)
        for name, shape in self._operands():
            kind = dict(zip(STREAMS, self.types.split(), strict=False))[name]
            x = hashed(16 * place + STREAMS.index(name), *shape)
            arguments[name] = self._numbers(x, kind)
            if kind == "i1":
                scale = f"{name[0]}_scale"
                arguments[scale] = self._scale(
                    hashed(16 * place + STREAMS.index(scale), *shape[:-1])
                )
        for name in self.draw:
            x = hashed(16 * place + STREAMS.index(name), *self._shape(name))
            arguments["attn_mask" if name == "mask" else name] = self._option(name, x)
        for name, index, number in self.changes:
            arguments[name][(..., *index)] = number
        return arguments

    def _operands(self):
        n_head, n_kv_head = self.heads
        yield "query", (*self.lead, n_head, self.n_query, self.d)
        yield "key", (*self.lead, n_kv_head, self.n_key, self.d)
        yield "value", (*self.lead, n_kv_head, self.n_key, self.dv)

    def _shape(self, name):
        return {
            "mask": (self.n_query, self.n_key),
            "bias": (self.heads[0], self.n_query, self.n_key),
            "sinks": (self.heads[0],),
            "alibi_slopes": (self.heads[0],),
        }[name]

    def _numbers(self, x, kind):
        if kind == "i1":
            return ((x >> np.uint64(56)).astype(np.int64) - 128).astype(np.int8)
        return self.numbers(x, kind).astype(support.bfloat16 if kind == "bf" else kind)

    def _scale(self, x):
        kind = "f8" if "f8" in self.types else "f4"
        return np.abs(mantissas(x, kind) / 64).astype(kind)

    def _option(self, name, x):
        if name == "mask":
            return (x >> np.uint64(62)) != 0
        if name == "bias":
            bias = self._numbers(x, self.bias_type)
            bias[(x & np.uint64(0x70)) == 0] = -np.inf
            return bias
        return coarse(x, "f4") / (16 if name == "alibi_slopes" else 1)


@dataclass(frozen=True)
class Reduction:
    """One call of the softmax family."""

    function: str
    types: str = "f4"
    shape: tuple = (5, 100)
    axis: object = -1
    numbers: object = mantissas
    size: float = 4.0
    has_where: bool = False
    changes: tuple = ()  # (index, number), in x or grad
    bias_type = ""

    def arguments(self, place):
        """Arguments of the function, by name."""
        first = "grad" if self.function == "softmax_vjp" else "x"
        array = self._numbers(place, first) * self.size
        for index, number in self.changes:
            array[index] = number
        arguments = {first: self._typed(array), "axis": self.axis}
        if self.function == "softmax_vjp":
            arguments["y"] = self._typed(np.abs(self._numbers(place, "y")) / 16)
        if self.has_where:
            x = hashed(16 * place + STREAMS.index("where"), *self.shape)
            arguments["where"] = (x >> np.uint64(62)) != 0
        return arguments

    def _numbers(self, place, name):
        return self.numbers(hashed(16 * place + STREAMS.index(name), *self.shape), self.types)

    def _typed(self, array):
        return array.astype(support.bfloat16 if self.types == "bf" else self.types)


F64 = "f8 f8 f8"
INF, NAN = np.inf, np.nan
END = {"query_offset": "end"}
CASES = {
    "plain": Case(n_query=70, n_key=200, d=64, dv=64),
    "plain float64": Case(F64, n_query=13, n_key=200, d=64, dv=64),
    "plain coarse": Case(n_query=17, n_key=97, numbers=coarse),
    "plain coarse float64": Case(F64, n_query=17, n_key=97, numbers=coarse),
    "one key": Case(n_key=1),
    "odd sizes": Case(n_query=9, n_key=193, d=17, dv=31),
    "odd sizes float64": Case(F64, n_query=9, n_key=193, d=17, dv=31),
    "batches and heads": Case(lead=(2, 2), heads=(4, 2), n_query=6, n_key=98),
    "one query": Case(heads=(4, 1), n_query=1, n_key=300, d=64, dv=64),
    "one query, segments": Case(n_query=1, n_key=3100),
    "one query, segments float64": Case(F64, n_query=1, n_key=1540),
    "segments": Case(n_query=7, n_key=1700, d=8, dv=8),
    "causal": Case(n_query=100, n_key=100, options={"is_causal": True}),
    "causal, at the end": Case(n_query=40, n_key=250, options={"is_causal": True, **END}),
    "causal, before the start": Case(options={"is_causal": True, "query_offset": -3}),
    "window": Case(n_query=30, n_key=300, options={"window": (100, 5), **END}),
    "window float64": Case(F64, n_query=30, n_key=99, options={"window": (7, 0), **END}),
    "lengths": Case(lead=(3,), options={"kv_lengths": np.array([0, 50, 97])}),
    "mask": Case(draw=("mask",)),
    "bias": Case(heads=(2, 2), draw=("bias",)),
    "bias, float16 and mask": Case(heads=(2, 1), draw=("bias", "mask"), bias_type="f2"),
    "bias, bfloat16": Case(draw=("bias",), bias_type="bf"),
    "bias, float64": Case(draw=("bias",), bias_type="f8"),
    "scale": Case(options={"scale": -0.7}),
    "scale of 0": Case(options={"scale": 0.0}),
    "softcap": Case(options={"softcap": 1.25}),
    "softcap float64": Case(F64, options={"softcap": 1.25, "scale": 1.0}),
    "sinks": Case(heads=(4, 2), draw=("sinks",)),
    "sinks and no key": Case(heads=(4, 2), draw=("sinks",), options={"kv_lengths": 0}),
    "alibi": Case(heads=(4, 4), draw=("alibi_slopes",), options=END),
    "alibi float64, far": Case(F64, draw=("alibi_slopes",), options={"query_offset": 2**40 + 1}),
    "int8": Case("f4 i1 i1", heads=(2, 1), n_key=130),
    "int8 float64": Case("f8 i1 i1"),
    "float16": Case("f2 f2 f2", n_query=7),
    "float16 of float64": Case("f2 f8 f8"),
    "bfloat16": Case("bf bf bf", n_query=7),
    "bfloat16 of float64": Case("bf f8 f4"),
    "mixed types": Case("f4 bf f2"),
    "all options": Case(
        "f2 i1 f4", lead=(2,), heads=(4, 2), n_query=20, n_key=210, d=24, dv=40,
        draw=("mask", "bias", "sinks", "alibi_slopes"),
        options={
            "softcap": 3.0, "scale": 0.4, "window": (150, 2), "kv_lengths": np.array([210, 180]),
            "query_offset": np.array([190, 170]), "is_causal": True,
        },
    ),
    "all options float64": Case(
        "f8 f4 i1", heads=(2, 2), n_query=9, n_key=120,
        draw=("mask", "bias", "sinks", "alibi_slopes"),
        options={"softcap": 3.0, "scale": 0.4, "window": (60, 2), **END},
    ),
    "ties in exp2": Case(
        d=1, numbers=coarse, options={"scale": 2 / 1.4426950408889634},
        changes=(("query", (), -2.0),),
    ),
    "nan and infinities": Case(
        n_query=8, options={"is_causal": True, "query_offset": 92},
        changes=(
            ("query", (2, 3), NAN), ("query", (4, 0), INF), ("key", (98, 1), NAN),
            ("value", (3, 5), INF), ("value", (4, 5), -INF), ("value", (96, 2), NAN),
        ),
    ),
    "huge scores": Case(
        numbers=coarse, draw=("bias",), changes=(("query", (1,), -3.0e38), ("bias", (0, 7), 3.3e38))
    ),
    "tiny values": Case("f2 f4 f4", changes=(("value", (slice(None), 3), 2.0**-25),)),
    "softmax": Reduction("softmax"),
    "softmax float64, first axis": Reduction("softmax", "f8", (100, 9), 0),
    "softmax over the range of exp": Reduction("softmax", shape=(4, 200), size=64.0),
    "softmax over the range of exp, float64": Reduction("softmax", "f8", (4, 200), size=512.0),
    "softmax float16, two axes of four": Reduction(
        "softmax", "f2", (3, 4, 5, 6), (0, 2), has_where=True
    ),
    "log_softmax, first axis": Reduction("log_softmax", shape=(100, 9), axis=0),
    "log_softmax float64": Reduction("log_softmax", "f8", size=16.0),
    "log_softmax bfloat16, where": Reduction("log_softmax", "bf", has_where=True),
    "log_softmax of ties": Reduction("log_softmax", shape=(50, 40), numbers=coarse),
    "logsumexp": Reduction("logsumexp"),
    "logsumexp float64, a long row": Reduction("logsumexp", "f8", (2, 9000)),
    "logsumexp float16, all axes": Reduction("logsumexp", "f2", (9, 7, 11), None, has_where=True),
    "logsumexp, nan and infinities": Reduction(
        "logsumexp", changes=(((1, 3), NAN), ((2, 5), INF), ((3,), -INF), ((4, 7), -INF))
    ),
    "softmax_vjp": Reduction("softmax_vjp"),
    "softmax_vjp float64, first axis": Reduction("softmax_vjp", "f8", (100, 9), 0),
}  # fmt: skip


def arguments(name):
    return CASES[name].arguments(list(CASES).index(name))


def digest(*arrays):
    """SHA-256 of the bytes in C order, little-endian, in hexadecimal."""
    total = hashlib.sha256()
    for array in arrays:
        unsigned = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
        total.update(unsigned.astype(unsigned.dtype.newbyteorder("<")).tobytes())
    return total.hexdigest()


def digest_of_inputs(name):
    """Digest of all arrays of a case, in the order of their names."""
    inputs = arguments(name)
    return digest(*(inputs[key] for key in sorted(inputs) if isinstance(inputs[key], np.ndarray)))


def digests_of_results(*results):
    """Digests of output, lse and weights; or of the one result of a reduction."""
    names = ("result",) if len(results) == 1 else ("output", "lse", "weights")
    return {name: digest(result) for name, result in zip(names, results, strict=True)}
