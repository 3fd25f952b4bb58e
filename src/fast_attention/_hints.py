"""What to do about the usual mistakes with shapes: the ends of some error messages."""

from __future__ import annotations

Shape = tuple[int, ...]


def turned_key(query: Shape, key: Shape) -> str:
    """Help with a key that was transposed for a matrix product."""
    is_turned = key[-2] == query[-1]
    return ". A key is passed as (..., S, D), not transposed" if is_turned else ""


def turned_value(key: Shape, value: Shape) -> str:
    """Help with a value that was transposed."""
    is_turned = key[-2] == value[-1]
    return ". A value is passed as (..., S, Dv), not transposed" if is_turned else ""


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
    if not lead and mask == (n_head, n_key):
        return ". For one row of keys per head pass mask[:, None, :]"
    if lead and mask[-2:] == (n_head, n_head):
        return _TRANSPOSE
    if mask[-2:] == (n_key, n_query) and fits((*mask[:-2], n_query, n_key), scores):
        return ". Its last axes must be (L, S), queries by keys: pass mask.swapaxes(-1, -2)"
    return ""


def fits(shape: Shape, target: Shape) -> bool:
    """Tell whether `shape` broadcasts to `target`, which it does not enlarge."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, other) for size, other in pairs)


def without_ones(name: str, shape: Shape, target: Shape) -> str:
    """Help with a shape that would broadcast without some of its outer axes of length 1."""
    n_axis = len(shape)
    for front in range(n_axis + 1):
        for back in range(n_axis + 1 - front):
            inner = shape[front : n_axis - back]
            outer = shape[:front] + shape[n_axis - back :]
            if set(outer) <= {1} and fits(inner, target):
                index = ", ".join(["0"] * front + ["..."] + ["0"] * back)
                return f". Without axes of length 1, as {name}[{index}], it does"
    return ""


def batch_as_heads(name: str, shape: Shape, query: Shape) -> str:
    """Help with lengths for arrays (B, L, D), whose first axis is taken for heads."""
    if len(query) != 3 or query[0] == 1 or shape != query[:1]:
        return ""
    return f". The first of 3 axes counts heads: pass arrays (B, L, D) as x[:, None], with {name}"
