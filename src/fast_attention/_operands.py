"""Query, key and value: read, checked against each other, and brought to equal leading axes.

Leading axes broadcast by stride 0. An array of two axes gets one for its single head.
"""

from __future__ import annotations

import numpy as np

from ._dtypes import Array, as_operand
from ._hints import heads_last, turned_key, turned_value

Operands = tuple[Array, Array, Array]  # query, key, value


def read_operands(query: object, key: object, value: object) -> tuple[Operands, bool]:
    """Return arrays (*lead, heads, length, width), and whether none of the three had heads."""
    q = as_operand("query", query)
    k = as_operand("key", key, int8_allowed=True)
    v = as_operand("value", value, int8_allowed=True)
    given = q, k, v
    if q.ndim < 2 or k.ndim < 2 or v.ndim < 2:
        raise ValueError(
            "query, key and value need at least 2 axes, (length, width): a single vector is passed "
            f"as x[None]; {_shapes(*given)}"
        )
    without_heads = q.ndim == k.ndim == v.ndim == 2
    q = q if q.ndim > 2 else q[None]
    k = k if k.ndim > 2 else k[None]
    v = v if v.ndim > 2 else v[None]
    _check_shapes(q, k, v, given)
    if not q.shape[:-3] == k.shape[:-3] == v.shape[:-3]:
        q, k, v = _broadcast_lead(q, k, v, given)
    return (q, k, v), without_heads


def _check_shapes(q: Array, k: Array, v: Array, given: Operands) -> None:
    """Refuse what does not fit; the errors name the shapes that were `given`."""
    n_head, n_kv_head = q.shape[-3], k.shape[-3]
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"query and key differ in width, {q.shape[-1]} and {k.shape[-1]}; "
            f"{_shapes(*given)}{turned_key(q.shape, k.shape)}"
        )
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"key and value differ in length, {k.shape[-2]} and {v.shape[-2]}; {_shapes(*given)}"
            f"{turned_value(k.shape, v.shape)}"
        )
    if n_kv_head != v.shape[-3]:
        raise ValueError(
            f"key and value differ in heads, {n_kv_head} and {v.shape[-3]}; {_shapes(*given)}"
        )
    if n_head != n_kv_head and (n_kv_head == 0 or n_head % n_kv_head):
        raise ValueError(
            f"heads of the query: {n_head}, expected a multiple of the {n_kv_head} heads of key "
            f"and value; {_shapes(*given)}{heads_last(q.shape, k.shape)}"
        )


def _broadcast_lead(q: Array, k: Array, v: Array, given: Operands) -> Operands:
    try:
        lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    except ValueError:
        raise ValueError(
            f"the leading axes {q.shape[:-3]}, {k.shape[:-3]} and {v.shape[:-3]} do not broadcast; "
            f"{_shapes(*given)}"
        ) from None
    return (
        np.broadcast_to(q, lead + q.shape[-3:]),
        np.broadcast_to(k, lead + k.shape[-3:]),
        np.broadcast_to(v, lead + v.shape[-3:]),
    )


def _shapes(q: Array, k: Array, v: Array) -> str:
    return f"shapes are query {q.shape}, key {k.shape}, value {v.shape}"
