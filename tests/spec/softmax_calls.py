"""Calls of the softmax family that reach every step of the arithmetic, by name.

A call is the arguments of ``describe_reduction``.  The tables map names to functions without
arguments, so that nothing is drawn before it is needed; every call has its own seed.
"""

from dataclasses import dataclass, field

import numpy as np
import support

from fast_attention._reduction import Kind, describe_reduction

from .calls import TYPES, draw, table
from .softmax import PARTIAL_SUMS

P = PARTIAL_SUMS
LENGTHS = [1, 2, 3, 7, 8, 9, P - 1, P, P + 1, 2 * P - 1, 2 * P, 2 * P + 1, 47, 48, 100, 257]
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17]
LONG = [8191, 8192, 8193, 8192 + P + 1, 20_000]  # around the length that is kept, and above
LARGEST = {"f2": 65504.0, "bf": 3.39e38, "f4": 3.4028235e38, "f8": 1.797e308}


@dataclass
class Call:
    """Arguments of one call; ``of(kind)`` describes it for one of the four functions."""

    x: np.ndarray
    axis: object = -1
    y: np.ndarray | None = None
    options: dict = field(default_factory=dict)

    def of(self, kind, *, num_threads=1, out=None):
        if kind == Kind.SOFTMAX_VJP:
            d = describe_reduction(kind, self.x, self.axis, y=self.y, out=out)
        else:
            d = describe_reduction(kind, self.x, self.axis, **self.options, out=out)
        d.num_threads = num_threads
        return d


def call(seed, name="f4", shape=(3, 20), axis=-1, *, size=3.0, where=None, layout=None, special=()):
    """Draw x and a second input of the same type; ``special`` are (index, number)."""
    rng = np.random.default_rng(seed)
    x = draw(rng, name, *shape)
    x = (x * np.asarray(size, x.dtype)).astype(x.dtype)
    y = np.abs(draw(rng, name, *shape))
    for index, number in special:
        x[index] = number
    options = {} if where is None else {"where": where(rng, shape)}
    if layout is not None:
        x, y = layout(x), layout(y)
    return Call(x, axis, y, options)


def some(rng, shape):
    """Half of the elements, and nothing in the first row of the last axis."""
    where = rng.random(shape) < 0.5
    where[(0,) * (len(shape) - 1)] = False
    return where


def columns(rng, shape):
    return rng.random(shape[-1:]) < 0.7


def whole_rows(rng, shape):
    return rng.random((*shape[:-1], 1)) < 0.5


def _shapes():
    """Every length along the last axis and along the first one, while the rows go round."""
    for i, n in enumerate(LENGTHS):
        for k, name in enumerate(("f4", "f8")):
            rows = ROWS[(i + 3 * k) % len(ROWS)]
            yield f"{name} {rows}x{n} last", call, (name, (rows, n), -1), {}
            rows = ROWS[(i + 5 + k) % len(ROWS)]
            yield f"{name} {n}x{rows} first", call, (name, (n, rows), 0), {}
    for rows in ROWS:
        for name in ("f4", "f8"):
            yield f"{name} {rows}x5 last", call, (name, (rows, 5), -1), {}
            yield f"{name} 5x{rows} first", call, (name, (5, rows), 0), {}
    for n in LONG:
        for name in ("f4", "f8", "f2"):
            yield f"{name} 2x{n} last", call, (name, (2, n), -1), {}
            yield f"{name} {n}x2 first", call, (name, (n, 2), 0), {}


def _axes():
    shape = (3, 4, 5, 6)
    axes = [0, 1, 2, 3, -2, (0, 1), (0, 2), (2, 0), (1, 3), (-1, 0), (0, 1, 3), (1, 2, 3), None, ()]
    for name in TYPES:
        for axis in axes:
            yield f"{name} axis {axis}", call, (name, shape, axis), {}
            yield f"{name} axis {axis}, where", call, (name, shape, axis), {"where": some}
    for name in TYPES:
        yield f"{name} no axes", call, (name, (), -1), {}
        for where in (columns, whole_rows):
            options = {"where": where}
            yield f"{name} {where.__name__} exist, last", call, (name, (9, 37), -1), options
            yield f"{name} {where.__name__} exist, first", call, (name, (37, 9), 0), options


def _layouts():
    for layout in ("gapped", "reversed", "column_major", "misaligned"):
        for name in TYPES:
            options = {"layout": support.LAYOUTS[layout]}
            for where in (None, some):
                text = f"{name} {layout}{', where' if where else ''}"
                options = options | {"where": where}
                yield f"{text}, last", call, (name, (5, 37), -1), options
                yield f"{text}, first", call, (name, (37, 5), 0), options
                yield f"{text}, inner", call, (name, (3, 18, 9), (0, 1)), options


def broadcast(x):
    return np.broadcast_to(x[:, :1], x.shape)


def _numbers():
    """Put special numbers into the first input of each of the four functions."""
    nan, inf = np.nan, np.inf
    for name in TYPES:
        large, tiny = LARGEST[name], {"f2": 6e-8, "bf": 1e-40, "f4": 1e-45, "f8": 5e-324}[name]
        numbers = {
            "nan": [((1, 3), nan)],
            "inf": [((1, 3), inf)],
            "-inf": [((1, 3), -inf), ((2, 0), -inf), ((2, -1), -inf)],
            "nan and inf": [((1, 3), nan), ((1, 30), inf), ((2, 30), nan), ((2, 3), inf)],
            "nan among -inf": [((1,), -inf), ((1, 3), nan)],
            "inf twice": [((1, 3), inf), ((1, 4), inf)],
            "inf and -inf": [((1,), -inf), ((1, 3), inf)],
            "all -inf": [((1,), -inf)],
            "all -inf but one": [((1,), -inf), ((1, 3), 1.5), ((2,), -inf), ((2, -1), -large)],
            "largest": [((1, 3), large), ((2, 3), -large)],
            "both largest": [((1, 3), large), ((1, 4), -large), ((2, 3), large), ((2, 5), large)],
            "least": [((1,), -large)],
            "subnormal": [((1,), tiny), ((2, slice(0, 9)), -tiny)],
            "zeros": [((0,), -0.0), ((1,), 0.0), ((1, slice(None, None, 2)), -0.0)],
            "ties": [((1,), 2.5), ((2, slice(None, None, 3)), 11.0)],
            "one winner": [((1, 3), 25.0), ((2, 20), 60.0)],
        }
        for word, special in numbers.items():
            for where in (None, some):
                options = {"special": special, "where": where}
                text = f"{name} {word}{', where' if where else ''}"
                yield f"{text}, last", call, (name, (3, 37), -1), options
                across = [((*index[1:], index[0]) if len(index) > 1 else (..., *index), number)
                          for index, number in special]  # fmt: skip
                yield f"{text}, first", call, (name, (37, 3), 0), options | {"special": across}


def spread(seed, name, low):
    """Differences over the whole range of exp, down to where it becomes 0."""
    rng = np.random.default_rng(seed)
    x = (low * rng.random((4, 300))).astype(name)
    x[:, 7] = 0
    x[1] += np.asarray(3.25, name)
    return Call(x, -1, np.abs(x))


def around(seed, name, low):
    """Differences next to the least argument of exp, and next to ties of its rounding."""
    rng = np.random.default_rng(seed)
    x = np.zeros((3, 40), name)
    x[0, 1:] = low
    for step in range(1, 20):
        x[0, step] = np.nextafter(x[0, step - 1], -np.inf)
        x[0, 20 + step] = np.nextafter(x[0, 19 + step] if step > 1 else np.dtype(name).type(low), 0)
    x[0, 0] = 0
    ties = -(np.arange(39) + 0.5) * np.log(2)
    x[1, 1:], x[2, 1:] = ties, np.nextafter(ties.astype(name), -np.inf)
    return Call(x, -1, rng.random(x.shape).astype(name))


def _ranges():
    for name, low in (("f4", -110), ("f8", -760), ("f2", -110)):
        yield f"spread {name}", spread, (name, low), {}
    for name, low in (("f4", -104), ("f8", -746), ("f4", -87.3), ("f8", -708.4)):
        yield f"around {low} {name}", around, (name, low), {}
    for size in (1e-30, 1e-3, 30.0, 1e4):
        for name in ("f4", "f8"):
            yield f"{name} size {size}", call, (name, (5, 70)), {"size": size}
    yield "broadcast", call, ("f4", (7, 20), -1), {"layout": broadcast}
    yield "broadcast, first", call, ("f4", (7, 20), 0), {"layout": broadcast}


REDUCTIONS = {
    **table(*_shapes()),
    **table(*_axes()),
    **table(*_layouts()),
    **table(*_numbers()),
    **table(*_ranges()),
}
