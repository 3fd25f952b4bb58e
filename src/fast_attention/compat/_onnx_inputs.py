"""Reading the inputs and attributes of ONNX's Attention: checks, and views by heads."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, SupportsFloat, TypedDict

import numpy as np

from .._dtypes import Array, ArrayInput, as_array, as_operand
from ._lengths import read_lengths


class Attributes(TypedDict, total=False):
    """The attributes that do not change how many outputs there are; None = not given."""

    is_causal: int | None
    kv_num_heads: int | None
    left_window_size: int | None
    q_num_heads: int | None
    right_window_size: int | None
    scale: SupportsFloat | None
    softcap: SupportsFloat | None
    softmax_precision: int | None


_MODE = "qk_matmul_output_mode"
_NAMES = sorted([*Attributes.__annotations__, _MODE])
_PRECISIONS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


class ReadAttributes(NamedTuple):
    """The attributes, checked."""

    is_causal: bool
    n_head: int | None
    n_kv_head: int | None
    window: tuple[int, int]
    scale: SupportsFloat | None
    softcap: SupportsFloat | None
    mode: int | None
    double: bool  # the arithmetic is to be float64


def read_attributes(attributes: dict[str, Any]) -> ReadAttributes:
    unknown = sorted(attributes.keys() - set(_NAMES))
    if unknown:
        raise TypeError(
            f"Attention has no attribute {', '.join(unknown)}; expected {', '.join(_NAMES)}"
        )

    def integer(name: str, expected: str, valid: range | dict[int, str]) -> int | None:
        given = attributes.get(name)
        if given is None:
            return None
        try:
            number = operator.index(given.item() if isinstance(given, np.generic) else given)
        except TypeError:
            raise TypeError(f"{name} must be {expected}, not {given!r}") from None
        if number not in valid:
            raise ValueError(f"{name} must be {expected}, given {given!r}")
        return number

    def side(name: str) -> int:
        width = integer(name, "-1 (open) or above", range(-1, 2**63))
        return -1 if width is None else width

    precision = integer(
        "softmax_precision",
        ", ".join(f"{n} ({kind})" for n, kind in _PRECISIONS.items()),
        _PRECISIONS,
    )
    softcap = attributes.get("softcap")
    return ReadAttributes(
        is_causal=bool(integer("is_causal", "0 or 1", range(2))),
        n_head=integer("q_num_heads", "1 or above", range(1, 2**63)),
        n_kv_head=integer("kv_num_heads", "1 or above", range(1, 2**63)),
        window=(side("left_window_size"), side("right_window_size")),
        scale=attributes.get("scale"),
        softcap=None if softcap == 0 else softcap,
        mode=integer(_MODE, "0, 1, 2 or 3", range(4)),
        double=precision is not None and _PRECISIONS[precision] == "float64",
    )


def by_heads(
    q: ArrayInput, k: ArrayInput, v: ArrayInput, read: ReadAttributes
) -> tuple[Array, Array, Array, bool]:
    """View Q, K and V as (B, heads, length, width), and tell whether they had 3 axes."""
    arrays = as_operand("Q", q), as_operand("K", k), as_operand("V", v)
    shapes = "shapes are " + ", ".join(f"{n} {a.shape}" for n, a in zip("QKV", arrays, strict=True))
    if {a.ndim for a in arrays} not in ({3}, {4}):
        raise ValueError(f"Q, K and V need 3 axes each, or 4 each; {shapes}")
    if len({len(a) for a in arrays}) > 1:
        raise ValueError(f"Q, K and V differ in batch size; {shapes}")
    query, key, value = arrays
    return (
        _split("Q", query, "q_num_heads", read.n_head),
        _split("K", key, "kv_num_heads", read.n_kv_head),
        _split("V", value, "kv_num_heads", read.n_kv_head),
        query.ndim == 3,
    )


def _split(name: str, array: Array, attribute: str, count: int | None) -> Array:
    if array.ndim == 4:
        if count not in (None, array.shape[1]):
            raise ValueError(
                f"{attribute} is {count}, but {name} of shape {array.shape} has "
                f"{array.shape[1]} heads"
            )
        return array
    batch, length, hidden = array.shape
    if count is None:
        raise ValueError(f"{name} of shape {array.shape} has 3 axes, expected {attribute} with it")
    if hidden % count:
        raise ValueError(
            f"{name} of shape {array.shape} cannot be split into {attribute}={count} heads: "
            f"{hidden} is not a multiple of {count}"
        )
    return array.reshape(batch, length, count, hidden // count).transpose(0, 2, 1, 3)


def after_past(
    key: Array, value: Array, past_key: ArrayInput | None, past_value: ArrayInput | None
) -> tuple[int | None, Array, Array]:
    """Return the length of the past if there is one, and keys and values that begin with it."""
    if past_key is None and past_value is None:
        return None, key, value
    if past_key is None or past_value is None:
        given, missing = ("key", "value") if past_value is None else ("value", "key")
        raise ValueError(f"past_{given} is given without past_{missing}, expected both or neither")
    past_k, past_v = as_operand("past_key", past_key), as_operand("past_value", past_value)
    key = _joined("past_key", past_k, "K", key)
    value = _joined("past_value", past_v, "V", value)
    if past_k.shape[2] != past_v.shape[2]:
        raise ValueError(
            f"past_key of shape {past_k.shape} and past_value of shape {past_v.shape} "
            "differ in length"
        )
    return past_k.shape[2], key, value


def _joined(past_name: str, past: Array, name: str, new: Array) -> Array:
    if past.ndim != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
        batch, n_head, _, width = new.shape
        raise ValueError(
            f"{past_name} has shape {past.shape}, expected ({batch}, {n_head}, any length, "
            f"{width}) as {name} by heads has shape {new.shape}"
        )
    if past.dtype != new.dtype:
        raise TypeError(
            f"{past_name} has dtype {past.dtype}, expected {new.dtype}, the dtype of {name}"
        )
    return np.concatenate((past, new), axis=2)


def lengths_and_offset(
    nonpad_kv_seqlen: ArrayInput | None, n_past: int | None, query: Array, key: Array
) -> tuple[Array | None, Array | int]:
    """Return how many keys of each sequence are valid, and the position of query 0."""
    if nonpad_kv_seqlen is None:
        return None, n_past or 0
    if n_past is not None:
        raise ValueError("nonpad_kv_seqlen and past_key are both given, expected one of them")
    lengths = read_lengths("nonpad_kv_seqlen", nonpad_kv_seqlen, len(query), key.shape[2])
    return lengths, lengths - query.shape[2]


def mask_and_its_end(attn_mask: ArrayInput | None, n_key: int) -> tuple[Array | None, int]:
    """Return the mask, and how many keys there are before it ends."""
    if attn_mask is None:
        return None, n_key
    mask = as_array("attn_mask", attn_mask)
    if mask.ndim == 0 or mask.shape[-1] > n_key:
        raise ValueError(
            f"attn_mask has shape {mask.shape}, expected a last axis of at most {n_key}, the "
            "number of keys with those of the past"
        )
    return mask, mask.shape[-1]
