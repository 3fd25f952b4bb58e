"""One attention call, checked, broadcast and allocated: the descriptor that both backends consume.

All arguments are read here, once, for every backend; a backend raises no errors of its own.
Whatever broadcasts does so by stride 0: query, key and value are copied only if their byte order,
alignment or strides leave no other way.
"""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import numpy as np

from . import _threads
from ._arguments import FARTHEST_OFFSET, check_range, read_scale, read_softcap, read_window
from ._dtypes import (
    FLOAT32,
    FLOAT64,
    INT8,
    Array,
    as_array,
    as_float_array,
    as_integers,
    as_parameter,
    broadcast,
    dtype_text,
    is_float,
    native_layout,
)
from ._hints import batch_as_heads, mask_axes
from ._operands import read_operands
from ._output import check_out, needs_a_detour


class AttentionDescriptor:
    """What a call computes, and where its results go; ``lead`` is the broadcast leading shape."""

    __slots__ = (
        "alibi_slopes",
        "bias",
        "compute_dtype",
        "d_head",
        "d_value",
        "detour",
        "drop_head",
        "is_causal",
        "k_scale",
        "key",
        "key_start",
        "kv_lengths",
        "lead",
        "lse",
        "mask",
        "n_batch",
        "n_head",
        "n_key",
        "n_kv_head",
        "n_query",
        "num_threads",
        "output",
        "query",
        "query_offset",
        "returned",
        "scale",
        "sinks",
        "softcap",
        "v_scale",
        "value",
        "weights",
        "window_left",
        "window_right",
    )

    lead: tuple[int, ...]
    n_batch: int  # product of lead
    n_head: int
    n_kv_head: int
    n_query: int
    n_key: int
    d_head: int
    d_value: int
    compute_dtype: np.dtype[Any]  # float32 or float64
    query: Array  # (*lead, n_head, n_query, d_head)
    key: Array  # (*lead, n_kv_head, n_key, d_head)
    value: Array  # (*lead, n_kv_head, n_key, d_value)
    mask: Array | None  # bool (*lead, n_head, n_query, n_key), True = attend
    bias: Array | None  # float (*lead, n_head, n_query, n_key)
    kv_lengths: Array | None  # int64 (n_batch,), None = n_key everywhere
    query_offset: Array | None  # int64 (n_batch,), None = 0
    is_causal: bool
    window_left: int  # -1 = open
    window_right: int
    scale: float
    softcap: float | None
    sinks: Array | None  # compute_dtype (n_head,)
    alibi_slopes: Array | None  # compute_dtype (*lead, n_head)
    k_scale: Array | None  # compute_dtype (*lead, n_kv_head, n_key)
    v_scale: Array | None
    key_start: int  # absolute position of key 0, a multiple of the key block
    output: Array  # (*lead, n_head, n_query, d_value), in the dtype of the query
    lse: Array | None  # compute_dtype (*lead, n_head, n_query)
    weights: Array | None  # (*lead, n_head, n_query, n_key), in the dtype of the query, all zero
    returned: tuple[Array, Array | None, Array | None]  # the arrays that output, lse, weights view
    detour: Array | None  # what output is a view of, to be copied to the caller's out
    num_threads: int
    drop_head: bool  # query, key and value were 2-D: results have no head axis

    def alignment_matters(self) -> bool:
        """Tell whether results depend on which end of the keys the queries are aligned with."""
        return self.n_query != self.n_key and (
            self.is_causal
            or self.window_left >= 0
            or self.window_right >= 0
            or self.alibi_slopes is not None
        )

    def has_results(self) -> bool:
        """Tell whether there is an element to compute."""
        wanted = self.d_value > 0 or self.lse is not None or self.weights is not None
        return wanted and self.n_batch * self.n_head * self.n_query > 0

    def fill_without_keys(self) -> None:
        """Fill rows that see no key: output 0, log-sum-exp -inf or the sink."""
        nan_rows: Array | bool = False
        lse: Array | float = -np.inf
        if self.sinks is not None:
            lse = np.where(self.sinks < np.inf, self.sinks, np.nan)[:, None]
            nan_rows = np.isnan(lse)[..., None]
        self.output[...] = np.where(nan_rows, np.nan, 0.0)
        if self.lse is not None:
            self.lse[...] = lse

    def results(self) -> tuple[Array, Array | None, Array | None]:
        """Return output, lse and weights as the caller gets them, once they are filled."""
        if self.detour is not None:
            self.returned[0][...] = self.detour
        return self.returned


def describe_attention(
    query: object,
    key: object,
    value: object,
    attn_mask: object = None,
    *,
    bias: object = None,
    is_causal: bool = False,
    scale: SupportsFloat | None = None,
    window: object = None,
    query_offset: object = None,
    kv_lengths: object = None,
    softcap: SupportsFloat | None = None,
    sinks: object = None,
    alibi_slopes: object = None,
    k_scale: object = None,
    v_scale: object = None,
    return_lse: bool = False,
    return_weights: bool = False,
    out: object = None,
    num_threads: int | None = None,
    allocate: bool = True,
) -> AttentionDescriptor:
    """Check everything, and return the call as one object with its results allocated.

    Without `allocate` the results have their shapes and dtypes, but no memory: for a plan.
    """
    d = AttentionDescriptor()
    d.num_threads = _threads.resolve(num_threads)
    d.key_start = 0
    _set_operands(d, query, key, value)
    _set_scales(d, k_scale, v_scale)
    _set_score_options(d, scale, softcap, sinks, alibi_slopes)
    _set_positions(d, is_causal, window, query_offset, kv_lengths)
    _set_mask_and_bias(d, attn_mask, bias)
    _set_results(d, return_lse, return_weights, allocate)
    if out is not None:
        inputs = {"query": query, "key": key, "value": value, "attn_mask": attn_mask, "bias": bias}
        inputs |= {"query_offset": query_offset, "kv_lengths": kv_lengths, "sinks": sinks}
        inputs |= {"alibi_slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale}
        _write_to(d, check_out(out, d.returned[0].shape, d.query.dtype, inputs))
    return d


def _set_operands(d: AttentionDescriptor, query: object, key: object, value: object) -> None:
    (d.query, d.key, d.value), d.drop_head = read_operands(query, key, value)
    *lead, d.n_head, d.n_query, d.d_head = d.query.shape
    d.lead = tuple(lead)
    d.n_batch = math.prod(lead)
    d.n_kv_head, d.n_key, d.d_value = d.value.shape[-3:]
    wide = FLOAT64 in (d.query.dtype, d.key.dtype, d.value.dtype)
    d.compute_dtype = FLOAT64 if wide else FLOAT32


def _set_scales(d: AttentionDescriptor, k_scale: object, v_scale: object) -> None:
    d.k_scale = d.v_scale = None
    if k_scale is not None or d.key.dtype == INT8:
        d.k_scale = _quantisation_scale(d, "key", d.key, "k_scale", k_scale)
    if v_scale is not None or d.value.dtype == INT8:
        d.v_scale = _quantisation_scale(d, "value", d.value, "v_scale", v_scale)


def _quantisation_scale(
    d: AttentionDescriptor, operand: str, array: Array, name: str, scale: object
) -> Array:
    if scale is None:
        raise TypeError(f"{operand} is int8, expected {name}, with real value = {name} * {operand}")
    if array.dtype != INT8:
        raise TypeError(f"{name} is given for a {operand} of dtype {array.dtype}, expected int8")
    parameter = as_parameter(name, scale, d.compute_dtype)
    return broadcast(name, parameter, array.shape[:-1], "(..., Hkv, S) =")


def _set_score_options(
    d: AttentionDescriptor,
    scale: SupportsFloat | None,
    softcap: SupportsFloat | None,
    sinks: object,
    alibi_slopes: object,
) -> None:
    d.scale = read_scale(scale, d.d_head, d.compute_dtype)
    d.softcap = d.sinks = d.alibi_slopes = None
    if softcap is not None:
        d.softcap = read_softcap(softcap, d.compute_dtype)
    if sinks is not None:
        array = as_parameter("sinks", sinks, d.compute_dtype)
        d.sinks = np.ascontiguousarray(broadcast("sinks", array, (d.n_head,), "(Hq,) ="))
    if alibi_slopes is not None:
        array = as_parameter("alibi_slopes", alibi_slopes, d.compute_dtype)
        finite = np.isfinite(array)
        if not finite.all():
            at = tuple(map(int, np.argwhere(~finite)[0]))
            raise ValueError(
                f"alibi_slopes must be finite in {d.compute_dtype}, given "
                f"{as_array('alibi_slopes', alibi_slopes)[at]} at {at}"
            )
        d.alibi_slopes = broadcast("alibi_slopes", array, (*d.lead, d.n_head), "(..., Hq) =")


def _set_positions(
    d: AttentionDescriptor,
    is_causal: bool,
    window: object,
    query_offset: object,
    kv_lengths: object,
) -> None:
    if not isinstance(is_causal, (bool, np.bool_)):
        raise TypeError(f"is_causal must be a bool, not {type(is_causal).__name__} {is_causal!r}")
    d.is_causal = bool(is_causal)
    d.window_left = d.window_right = -1
    if window is not None:
        d.window_left, d.window_right = read_window(window)
    d.kv_lengths = d.query_offset = None
    if kv_lengths is not None:
        d.kv_lengths = _per_sequence(d, "kv_lengths", kv_lengths)
        check_range("kv_lengths", d.kv_lengths, 0, d.n_key)
    if query_offset is not None:
        d.query_offset = _query_offset(d, query_offset)


def _query_offset(d: AttentionDescriptor, query_offset: object) -> Array:
    if isinstance(query_offset, str):
        if query_offset != "end":
            raise ValueError(f'query_offset must be ints or "end", not {query_offset!r}')
        if d.kv_lengths is not None:
            return d.kv_lengths - d.n_query
        return np.full(d.n_batch, d.n_key - d.n_query, np.int64)
    offset = _per_sequence(d, "query_offset", query_offset)
    check_range("query_offset", offset, -FARTHEST_OFFSET, FARTHEST_OFFSET)
    return offset


def _per_sequence(d: AttentionDescriptor, name: str, given: object) -> Array:
    try:
        return as_integers(name, given, d.lead)
    except ValueError as error:
        shape, query = as_array(name, given).shape, d.query.shape
        raise ValueError(f"{error}{batch_as_heads(name, shape, query)}") from None


def _set_mask_and_bias(d: AttentionDescriptor, attn_mask: object, bias: object) -> None:
    d.mask = d.bias = None
    if attn_mask is None and bias is None:
        return
    shape = (*d.lead, d.n_head, d.n_query, d.n_key)
    name = "bias"
    if attn_mask is not None:
        mask = as_array("attn_mask", attn_mask)
        if mask.dtype == np.bool_:
            d.mask = _over_scores("attn_mask", native_layout(mask), shape)
        else:
            _check_float_mask(attn_mask, mask, bias)
            name, bias = "attn_mask", mask
    if bias is not None:
        d.bias = _over_scores(name, as_float_array(name, bias), shape)


def _over_scores(name: str, mask: Array, shape: tuple[int, ...]) -> Array:
    try:
        return broadcast(name, mask, shape, "the scores (..., Hq, L, S) =")
    except ValueError as error:
        raise ValueError(f"{error}{mask_axes(mask.shape, shape)}") from None


def _check_float_mask(given: object, mask: Array, bias: object) -> None:
    if not is_float(mask.dtype):
        two_ways = ", which could be read in two ways:" if mask.dtype.kind in "iu" else ","
        raise TypeError(
            f"{dtype_text('attn_mask', given, mask)}{two_ways} expected bool (True = attend) or "
            "floats (added to the scores, -inf = masked)"
        )
    if bias is not None:
        raise ValueError(
            f"attn_mask of dtype {mask.dtype} and bias are both given: expected a bool attn_mask "
            "with a bias, or one of the two, or their sum"
        )


def _set_results(
    d: AttentionDescriptor, return_lse: bool, return_weights: bool, allocate: bool
) -> None:
    dtype = d.query.dtype
    rows = (d.n_query,) if d.drop_head else (*d.lead, d.n_head, d.n_query)
    new, zeros = (np.empty, np.zeros) if allocate else (_stand_in, _stand_in)
    output = new((*rows, d.d_value), dtype)
    lse = new(rows, d.compute_dtype) if return_lse else None
    weights = zeros((*rows, d.n_key), dtype) if return_weights else None
    d.returned = d.output, d.lse, d.weights = output, lse, weights
    d.detour = None
    if d.drop_head:
        d.output = output[None]
        d.lse = None if lse is None else lse[None]
        d.weights = None if weights is None else weights[None]


def _stand_in(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a writeable array of which every element is the same one."""
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, (0,) * len(shape))


def _write_to(d: AttentionDescriptor, out: Array) -> None:
    """Let the output go to the caller's array, straight or, if its layout is odd, afterwards."""
    if needs_a_detour(out):
        d.detour = d.returned[0]
    else:
        d.output = out[None] if d.drop_head else out
    d.returned = (out, *d.returned[1:])
