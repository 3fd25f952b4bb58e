"""Named calls whose results are on record, with arguments from the streams.

    int8       (x >> 56) - 128;    its scales  abs(mantissas) / 64
    mask       (x >> 62) != 0;     bias        numbers as the case says, -inf where (x & 0x70) == 0
    sinks      coarse;             slopes      coarse / 16
    x, grad    numbers as the case says, times its size;    y    abs(mantissas) / 16
    where      (x >> 62) != 0

The stream of a case is 16 times its place in CASES, plus the place of the argument in STREAMS: a
new case goes to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._dtypes import FLOAT32, FLOAT64, Array
from .._reduction import Axis
from .._workloads import resolve_dtype
from .streams import coarse, hashed, mantissas

STREAMS = (
    *("query", "key", "value", "mask", "bias", "sinks", "alibi_slopes", "k_scale", "v_scale"),
    *("x", "grad", "y", "where"),
)

Shape = tuple[int, ...]
Numbers = Callable[[Array, str], Array]  # (hashes, name of a type) -> float64, exact in that type


@dataclass(frozen=True)
class Case:
    """One call of attention: sizes, types of query, key and value, options, and what is drawn."""

    types: str = "f4 f4 f4"
    n_query: int = 5
    n_key: int = 100
    d: int = 16
    dv: int = 16
    lead: Shape = ()
    heads: tuple[int, int] = (1, 1)
    numbers: Numbers = mantissas
    options: Mapping[str, Any] = field(default_factory=dict)  # passed as they are
    draw: tuple[str, ...] = ()  # of mask, bias, sinks, alibi_slopes
    bias_type: str = "f4"
    changes: tuple[tuple[str, Any, float], ...] = ()  # (argument, index, number)

    function = "scaled_dot_product_attention"

    @property
    def compute_dtype(self) -> np.dtype[Any]:
        """The type of the arithmetic."""
        return _compute_dtype(self.types)

    @property
    def has_bfloat16(self) -> bool:
        """Tell whether an array of this call is bfloat16."""
        return "bf" in self.types or "bf" in self.bias_type

    def arguments(self, place: int) -> dict[str, Any]:
        """Return the arguments of ``scaled_dot_product_attention``, by name."""
        arguments = dict(self.options)
        kinds = dict(zip(STREAMS, self.types.split(), strict=False))
        for name, shape in self._operands():
            arguments[name] = self._numbers(_stream(place, name, shape), kinds[name])
            if kinds[name] == "i1":
                scale = f"{name[0]}_scale"
                arguments[scale] = self._scale(_stream(place, scale, shape[:-1]))
        for name in self.draw:
            x = _stream(place, name, self._shape(name))
            arguments["attn_mask" if name == "mask" else name] = self._option(name, x)
        for name, index, number in self.changes:
            arguments[name][(..., *index)] = number
        return arguments

    def _operands(self) -> Iterator[tuple[str, Shape]]:
        n_head, n_kv_head = self.heads
        yield "query", (*self.lead, n_head, self.n_query, self.d)
        yield "key", (*self.lead, n_kv_head, self.n_key, self.d)
        yield "value", (*self.lead, n_kv_head, self.n_key, self.dv)

    def _shape(self, name: str) -> Shape:
        shapes: dict[str, Shape] = {
            "mask": (self.n_query, self.n_key),
            "bias": (self.heads[0], self.n_query, self.n_key),
            "sinks": (self.heads[0],),
            "alibi_slopes": (self.heads[0],),
        }
        return shapes[name]

    def _numbers(self, x: Array, kind: str) -> Array:
        if kind == "i1":
            return ((x >> np.uint64(56)).astype(np.int64) - 128).astype(np.int8)
        return _typed(self.numbers(x, kind), kind)

    def _scale(self, x: Array) -> Array:
        kind = "f8" if self.compute_dtype == FLOAT64 else "f4"
        return _typed(np.abs(mantissas(x, kind) / 64), kind)

    def _option(self, name: str, x: Array) -> Array:
        if name == "mask":
            return np.asarray((x >> np.uint64(62)) != 0)
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
    shape: Shape = (5, 100)
    axis: Axis = -1
    numbers: Numbers = mantissas
    size: float = 4.0
    has_where: bool = False
    changes: tuple[tuple[Any, float], ...] = ()  # (index, number), in x or grad

    @property
    def compute_dtype(self) -> np.dtype[Any]:
        """The type of the arithmetic."""
        return _compute_dtype(self.types)

    @property
    def has_bfloat16(self) -> bool:
        """Tell whether an array of this call is bfloat16."""
        return self.types == "bf"

    def arguments(self, place: int) -> dict[str, Any]:
        """Return the arguments of the function, by name."""
        first = "grad" if self.function == "softmax_vjp" else "x"
        array = self._numbers(place, first) * self.size
        for index, number in self.changes:
            array[index] = number
        arguments: dict[str, Any] = {first: _typed(array, self.types), "axis": self.axis}
        if self.function == "softmax_vjp":
            arguments["y"] = _typed(np.abs(self._numbers(place, "y")) / 16, self.types)
        if self.has_where:
            arguments["where"] = (_stream(place, "where", self.shape) >> np.uint64(62)) != 0
        return arguments

    def _numbers(self, place: int, name: str) -> Array:
        return self.numbers(_stream(place, name, self.shape), self.types)


def _stream(place: int, name: str, shape: Shape) -> Array:
    return hashed(16 * place + STREAMS.index(name), *shape)


def _typed(array: Array, kind: str) -> Array:
    return array.astype(resolve_dtype("bfloat16") if kind == "bf" else kind)


def _compute_dtype(types: str) -> np.dtype[Any]:
    return FLOAT64 if "f8" in types else FLOAT32


F64 = "f8 f8 f8"
INF, NAN = np.inf, np.nan
END = {"query_offset": "end"}
CASES: dict[str, Case | Reduction] = {
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


def arguments(name: str) -> dict[str, Any]:
    """Return the arguments of the case `name`."""
    return CASES[name].arguments(list(CASES).index(name))


def without_bfloat16() -> list[str]:
    """Return the names of the cases that do not need ml_dtypes."""
    return [name for name, case in CASES.items() if not case.has_bfloat16]
