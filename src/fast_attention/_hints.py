"""What to do about the usual mistakes with shapes: the ends of some error messages."""

from __future__ import annotations

Shape = tuple[int, ...]


def turned_key(query: Shape, key: Shape) -> str:
    """Help with a key that was transposed for a matrix product."""
    is_turned = key[-2] == query[-1]
    return ". A key is passed as (..., S, D), not transposed" if is_turned else ""


def heads_last(query: Shape, key: Shape) -> str:
    """Help with arrays (B, L, H, D), whose lengths are taken for heads that do not fit."""
    if len(query) < 4 or len(key) < 4 or key[-2] == 0 or query[-2] % key[-2]:
        return ""
    return _TRANSPOSE


_TRANSPOSE = ". Axes are (..., heads, length, width): pass (B, L, H, D) as x.transpose(0, 2, 1, 3)"


def mask_axes(mask: Shape, scores: Shape) -> str:
    """Help with a mask of each sequence that lacks axes, or one of arrays (B, L, H, D)."""
    *lead, n_head, n_query, n_key = scores
    if mask == (*lead, n_key):
        return ". For one row of keys per sequence pass mask[..., None, None, :]"
    if mask == (*lead, n_query, n_key):
        return ". For one mask per sequence pass mask[..., None, :, :]"
    if lead and mask[-2:] == (n_head, n_head):
        return _TRANSPOSE
    return ""
