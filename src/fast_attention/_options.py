"""The options that say what attention computes, for every function that takes the same ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, SupportsFloat, SupportsIndex, TypedDict

from ._descriptor import AttentionDescriptor, describe_attention
from ._dtypes import Array, ArrayInput

Window = SupportsIndex | Sequence[SupportsIndex | None] | None


class FloatScoreOptions(TypedDict, total=False):
    """The keyword arguments on which the numbers depend, if key and value are floats."""

    bias: ArrayInput | None
    is_causal: bool
    scale: SupportsFloat | None
    window: Window
    query_offset: ArrayInput | Literal["end"] | None
    kv_lengths: ArrayInput | None
    softcap: SupportsFloat | None
    sinks: ArrayInput | None
    alibi_slopes: ArrayInput | None


class ScoreOptions(FloatScoreOptions, total=False):
    """The keyword arguments on which the numbers depend, and nothing else does."""

    k_scale: ArrayInput | None
    v_scale: ArrayInput | None


def describe_scores(
    function: str,
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None,
    options: ScoreOptions,
) -> AttentionDescriptor:
    """Describe a call for the public `function`: the checks and the warning of attention itself."""
    check_names(function, options, ScoreOptions.__optional_keys__)
    described = describe_attention(query, key, value, attn_mask, **options)
    if options.get("query_offset") is None:
        warn_if_ends_differ(described, stacklevel=4)
    warn_of_odd_mask(attn_mask, described, stacklevel=4)
    return described


def check_names(function: str, options: object, known: frozenset[str]) -> None:
    """Refuse options that `function` does not know."""
    assert isinstance(options, dict)
    for name in options:
        if name not in known:
            raise TypeError(
                f"{function}() has no option {name!r}, expected one of {', '.join(sorted(known))}"
            )


def warn_if_ends_differ(described: AttentionDescriptor, stacklevel: int = 3) -> None:
    """Warn of a call without query_offset whose results depend on one."""
    if described.alignment_matters():
        text = _TWO_ALIGNMENTS.format(described.n_query, described.n_key)
        warnings.warn(text, UserWarning, stacklevel=stacklevel)


def warn_of_odd_mask(
    attn_mask: object, described: AttentionDescriptor, stacklevel: int = 3
) -> None:
    """Warn of a mask that is one word of Python, and of a float one of ones and zeros.

    Of any other mask only the first and the last row are read.
    """
    if type(attn_mask) in (bool, float):
        warnings.warn(_ONE_VALUE.format(attn_mask), UserWarning, stacklevel=stacklevel)
        return
    mask = described.bias
    if attn_mask is None or described.mask is not None or mask is None or mask.size == 0:
        return
    mask = mask[tuple(slice(1) if stride == 0 else slice(None) for stride in mask.strides)]
    ends = [mask[(end,) * (mask.ndim - 1)] for end in (0, -1)]
    if any(map(is_one_or_zero, ends)) and is_one_or_zero(mask) and not mask.all():
        warnings.warn(_ONES_AND_ZEROS.format(mask.dtype), UserWarning, stacklevel=stacklevel)


def is_one_or_zero(mask: Array) -> bool:
    """Tell whether there is a one, and nothing else but zeros."""
    ones = mask == 1
    return bool(ones.any()) and bool((ones | (mask == 0)).all())


_ONES_AND_ZEROS = (
    "attn_mask of dtype {} holds zeros and ones only, which are added to the scores and mask "
    "nothing. To attend where it is 1 pass attn_mask.astype(bool), where it is 0 attn_mask == 0; "
    "as an addend, pass it as bias"
)

_ONE_VALUE = (
    "attn_mask is {}, the same for every query and key. To hide later keys pass is_causal=True, to "
    "scale the scores scale=..., to show or hide everything an array"
)

_TWO_ALIGNMENTS = (
    "{} queries and {} keys, and no query_offset: query 0 is taken to stand at key 0 "
    "(query_offset=0, top-left alignment). For the last query at the last valid key "
    '(bottom-right alignment) give query_offset="end"'
)
