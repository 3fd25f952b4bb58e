"""A case as arrays: the same on every machine, in every process and for every library."""

import dataclasses
import zlib
from typing import Any

import numpy as np

from fast_attention import _workloads, masks

from .cases import N_DOCUMENT, AttentionCase, Case, SoftmaxCase

Array = np.ndarray[Any, Any]

SHOWN = 0.9  # of a random mask
INT8_STEP = 1 / 30  # the largest of the normal numbers that are stored lie within 127 steps


class UnsupportedError(Exception):
    """A library does not do what the case asks for; the message says what."""


@dataclasses.dataclass
class AttentionProblem:
    """Query, key and value ``(B, H, L, D)`` and the options of our call."""

    case: AttentionCase
    query: Array
    key: Array
    value: Array
    options: dict[str, Any]

    @property
    def is_causal(self) -> bool:
        """Whether the causal rule alone, from the top left, hides keys."""
        return self.case.is_causal and self.case.window is None

    def refuse(self, *fields: str, why: str) -> None:
        """Raise ``UnsupportedError`` if the case sets one of `fields`."""
        found = [name for name in fields if getattr(self.case, name)]
        if found:
            raise UnsupportedError(f"{', '.join(found)}: {why}")

    def mask_or_bias(self) -> Array | None:
        """Return what hides keys and is added to scores as one array that broadcasts.

        It is bool, True = attend, or float. A library without windows and slopes is given this,
        made before the call is timed. The causal rule is in it only together with a window.
        """
        case = self.case
        position = np.arange(case.n_key)
        distance = position - np.arange(case.n_query)[:, None]
        if case.alibi:
            slopes = self.options["alibi_slopes"][:, None, None]
            return np.asarray(-slopes * np.abs(distance), np.float32)[None]
        if case.band is not None:
            return np.asarray(np.abs(distance) <= case.band)[None, None]
        if case.window is not None:
            return np.asarray((distance <= 0) & (distance > -case.window))[None, None]
        mask: Array | None = self.options.get("attn_mask")
        bias: Array | None = self.options.get("bias")
        if mask is None:
            mask = bias
        elif bias is not None:
            mask = np.where(mask, bias, np.float32(-np.inf))
        return None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


@dataclasses.dataclass
class SoftmaxProblem:
    """A matrix whose rows are normalised, and the array for the result, if one is given."""

    case: SoftmaxCase
    matrix: Array
    out: Array | None


Problem = AttentionProblem | SoftmaxProblem


def make_problem(case: Case) -> Problem:
    """Return `case` as arrays."""
    if isinstance(case, SoftmaxCase):
        rng = _generator(case.name)
        matrix = rng.standard_normal((case.n_row, case.n_column), dtype=np.float32)
        return SoftmaxProblem(case, matrix, np.empty_like(matrix) if case.in_out else None)
    return _attention_problem(case)


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _attention_problem(case: AttentionCase) -> AttentionProblem:
    stored = case.cache_dtype or "float32"
    is_int8 = stored == "int8"
    drawn = dataclasses.replace(case, cache_dtype=None if is_int8 else stored)
    # The query of a 16-bit cache has its type: libraries want one type for all three.
    arrays: tuple[Array, ...]
    arrays, options = _workloads.make_call(drawn, "float32" if is_int8 else stored)
    if is_int8:
        arrays = (arrays[0], _quantised(arrays[1]), _quantised(arrays[2]))
        options.update(k_scale=np.float32(INT8_STEP), v_scale=np.float32(INT8_STEP))
    if case.strided:
        arrays = tuple(map(_heads_after_positions, arrays))
    query, key, value = arrays
    return AttentionProblem(case, query, key, value, {**options, **_more_options(case)})


def _quantised(array: Array) -> Array:
    return np.clip(np.rint(array / INT8_STEP), -127, 127).astype(np.int8)


def _heads_after_positions(array: Array) -> Array:
    """Return the same numbers as a view of an array ``(B, L, H, D)``."""
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def _more_options(case: AttentionCase) -> dict[str, Any]:
    options: dict[str, Any] = {}
    rng = _generator(f"{case.name} mask")
    shape = (case.n_query, case.n_key)
    if case.mask == "random":
        options["attn_mask"] = rng.random(shape) < SHOWN
    if case.mask == "all":
        options["attn_mask"] = np.ones(shape, bool)
    if case.mask == "triangle":
        options["attn_mask"] = masks.causal(*shape)
    if case.mask == "documents":
        options["attn_mask"] = masks.document(np.arange(case.n_key) * N_DOCUMENT // case.n_key)
    if case.bias is not None:
        heads = (case.n_head,) if case.bias == "head" else ()
        options["bias"] = rng.standard_normal((*heads, *shape), dtype=np.float32)
    if case.band is not None:
        options["window"] = case.band
    if case.softcap is not None:
        options["softcap"] = case.softcap
    return options
