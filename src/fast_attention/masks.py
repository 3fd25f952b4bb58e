"""Masks for `attn_mask`: bool arrays in which True = attend.

Every function here returns such an array (but `alibi_slopes`), ready to be passed as `attn_mask`,
and masks intersect by ``&``. Without leading axes a mask has the shape (L, S) of the scores of one
head; with leading axes (..., they come from arrays of lengths, offsets or ids) it has the shape
(..., 1, L, S), where the 1 stands for all heads. An L or S that the mask does not depend on is 1.

Where `scaled_dot_product_attention` has an option of the same meaning, the option is faster, takes
no memory, and gives the same bits on the native backend: ``is_causal``, ``window`` and
``query_offset`` for `causal` and `window`, ``kv_lengths`` for `padding`.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, SupportsIndex

import numpy as np

from ._arguments import FARTHEST_OFFSET, check_range, read_count, read_window
from ._dtypes import Array, ArrayInput, as_array, as_integers, is_bfloat16, is_float
from ._options import is_one_or_zero

__all__ = ["alibi_slopes", "causal", "document", "from_additive", "padding", "window"]

_ONES_AND_ZEROS = (
    "mask of dtype {} holds zeros and ones only, none of which means minus infinity: all of it "
    "becomes True. To attend where it is 1 pass mask.astype(bool), where it is 0 mask == 0"
)
_BFLOAT16_MIN = float.fromhex("-0x1.fep+127")


def causal(
    L: SupportsIndex,  # noqa: N803
    S: SupportsIndex,  # noqa: N803
    query_offset: ArrayInput | Literal["end"] = 0,
) -> Array:
    """Return a mask, True = attend, of the keys up to each query's own position.

    Parameters
    ----------
    L, S : int
        Number of queries and of keys, 0 or more.
    query_offset : int, array_like of int, or "end", default 0
        Position of query 0 among the keys. 0 aligns the first query with the first key (top-left),
        "end", which is ``S - L``, the last query with the last key (bottom-right). An array gives
        one position for each sequence.

    Returns
    -------
    ndarray of bool, shape (L, S), or (..., 1, L, S) for a query_offset of shape (...)
        ``j <= i + query_offset`` for query i and key j.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not what is said above.

    Examples
    --------
    >>> from fast_attention import masks
    >>> masks.causal(2, 4).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0]])
    >>> masks.causal(2, 4, query_offset="end").astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    return _within(L, S, -1, 0, query_offset)


def window(
    L: SupportsIndex,  # noqa: N803
    S: SupportsIndex,  # noqa: N803
    left: SupportsIndex | None,
    right: SupportsIndex | None,
    query_offset: ArrayInput | Literal["end"] = 0,
) -> Array:
    """Return a mask, True = attend, of the keys near each query.

    Parameters
    ----------
    L, S : int
        Number of queries and of keys, 0 or more.
    left, right : int or None
        How many keys before and after its own position a query sees; None or -1 = all.
    query_offset : int, array_like of int, or "end", default 0
        As for `causal`.

    Returns
    -------
    ndarray of bool, shape (L, S), or (..., 1, L, S) for a query_offset of shape (...)
        ``p - left <= j <= p + right`` for key j and the query at position ``p = i + query_offset``.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not what is said above.

    Examples
    --------
    >>> from fast_attention import masks
    >>> masks.window(3, 4, left=1, right=0).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0]])
    """
    return _within(L, S, *read_window((left, right)), query_offset)


def padding(lengths: ArrayInput, S: SupportsIndex) -> Array:  # noqa: N803
    """Return a mask, True = attend, of the first keys of each sequence; the others are padding.

    Parameters
    ----------
    lengths : int or array_like of int, shape (...)
        Number of valid keys of each sequence, 0 to S.
    S : int
        Number of keys, 0 or more.

    Returns
    -------
    ndarray of bool, shape (1, S) for an int, else (..., 1, 1, S)
        ``j < lengths`` for key j.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not what is said above.

    Examples
    --------
    >>> from fast_attention import masks
    >>> masks.padding([2, 3], 4).shape
    (2, 1, 1, 4)
    >>> masks.padding([2, 3], 4)[:, 0, 0].astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 1, 0]])
    """
    n_key = read_count("S", S)
    valid = _integers("lengths", lengths)
    check_range("lengths", valid, 0, n_key)
    return np.arange(n_key) < _over_scores(valid)


def document(ids_q: ArrayInput, ids_k: ArrayInput | None = None) -> Array:
    """Return a mask, True = attend, of the keys in the same document as each query.

    For documents that are packed into one sequence. Combine it with `causal` by ``&``.

    Parameters
    ----------
    ids_q : array_like of int, shape (..., L)
        Number of the document that each query is part of. Any ints; equal ids attend to each other,
        an id of padding too.
    ids_k : array_like of int, shape (..., S), optional
        The same for the keys; default `ids_q`. The leading axes of both broadcast.

    Returns
    -------
    ndarray of bool, shape (L, S), or (..., 1, L, S) with leading axes
        ``ids_q[i] == ids_k[j]``.

    Raises
    ------
    TypeError, ValueError
        For ids that are not ints, have no axis, or do not fit together.

    Examples
    --------
    >>> from fast_attention import masks
    >>> masks.document([7, 7, 8]).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    queries = _integers("ids_q", ids_q)
    keys = queries if ids_k is None else _integers("ids_k", ids_k)
    if queries.ndim == 0 or keys.ndim == 0:
        raise ValueError(
            "ids need an axis with one id per token, "
            f"given ids_q of shape {queries.shape} and ids_k of shape {keys.shape}"
        )
    try:
        np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        raise ValueError(
            "the leading axes of the ids do not broadcast: "
            f"ids_q has shape {queries.shape}, ids_k has shape {keys.shape}"
        ) from None
    same = np.equal(queries[..., :, None], keys[..., None, :])
    return same if same.ndim == 2 else same[..., None, :, :]


def alibi_slopes(heads: SupportsIndex) -> Array:
    """Return the slopes of ALiBi for the option `alibi_slopes`; this is no mask.

    Parameters
    ----------
    heads : int
        Number of query heads, 0 or more.

    Returns
    -------
    ndarray of float64, shape (heads,)
        For a power of two ``2 ** (-8 * h / heads)`` with h = 1, 2, ... heads. For other numbers the
        slopes of the next lower power of two, followed by every other slope of the next higher one,
        from the first on, as in the code of the paper.

    Raises
    ------
    TypeError, ValueError
        If `heads` is not an int of 0 or more.

    References
    ----------
    .. [1] O. Press, N. A. Smith and M. Lewis, "Train Short, Test Long: Attention with Linear Biases
       Enables Input Length Extrapolation", ICLR 2022, section 3.

    Examples
    --------
    >>> from fast_attention import masks
    >>> masks.alibi_slopes(8)[:3]
    array([0.5  , 0.25 , 0.125])
    >>> masks.alibi_slopes(3)
    array([0.0625    , 0.00390625, 0.25      ])
    """
    n_head = read_count("heads", heads)
    lower = 1 << max(0, n_head.bit_length() - 1)
    return np.concatenate([_geometric(lower), _geometric(2 * lower)[::2]])[:n_head]


def from_additive(mask: ArrayInput) -> Array:
    """Return a mask, True = attend, from one that is added to the scores, with 0 = attend.

    What is meant as minus infinity becomes False, whether it is -inf or a finite stand-in such as
    ``finfo.min``, which attention itself takes for a number: added to every score of a row it
    cancels, and a fully masked row attends to everything.

    Parameters
    ----------
    mask : array_like of float16, bfloat16, float32 or float64
        Of any shape.

    Returns
    -------
    ndarray of bool, of the shape of `mask`
        False where ``mask <= finfo(mask.dtype).min / 2``, else True. Of other numbers, as in a
        mask that also holds a bias, nothing is left: pass the array as `bias` as well.

    Raises
    ------
    TypeError
        If the mask is not of floats. A bool mask needs no conversion, and integers can be read in
        two ways.
    ValueError
        If there is a NaN or +inf, which means neither attend nor masked.

    Warns
    -----
    UserWarning
        If it holds ones and zeros only, of which all are True.

    Notes
    -----
    The limit is that of the mask's own dtype. Smaller stand-ins, such as -1e4 or -1e9 in float32,
    could be a bias and are True: convert those by a comparison of your own, ``mask > -1e3``.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import masks
    >>> masks.from_additive([0.0, -np.inf, np.finfo(np.float64).min, -2.5])
    array([ True, False, False,  True])
    """
    array = as_array("mask", mask)
    if not is_float(array.dtype):
        raise TypeError(
            f"mask has dtype {array.dtype}, expected floats that are added to the scores, with 0 = "
            "attend and -inf or finfo.min = masked (a bool mask, True = attend, is used as it is)"
        )
    wide = array.astype(np.float32) if array.dtype.itemsize == 2 else array
    wrong = ~(wide < np.inf)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(
            f"mask has the value {wide[at]} at {at}, expected numbers or -inf: "
            "it means neither attend nor masked"
        )
    if is_one_or_zero(wide) and not wide.all():
        warnings.warn(_ONES_AND_ZEROS.format(array.dtype), UserWarning, stacklevel=2)
    return np.asarray(wide > _least(array.dtype) / 2)


def _least(dtype: np.dtype[Any]) -> float:
    return _BFLOAT16_MIN if is_bfloat16(dtype) else float(np.finfo(dtype).min)


def _geometric(n_head: int) -> Array:
    return np.array([2.0 ** (-8 * h / n_head) for h in range(1, n_head + 1)])


def _within(
    queries: SupportsIndex, keys: SupportsIndex, left: int, right: int, query_offset: object
) -> Array:
    """Return p - left <= j <= p + right; a side of -1 is open."""
    n_query, n_key = read_count("L", queries), read_count("S", keys)
    if isinstance(query_offset, str):
        if query_offset != "end":
            raise ValueError(f'query_offset must be ints or "end", not {query_offset!r}')
        query_offset = n_key - n_query
    offset = _integers("query_offset", query_offset)
    check_range("query_offset", offset, -FARTHEST_OFFSET, FARTHEST_OFFSET)
    position = np.arange(n_query)[:, None] + _over_scores(offset)
    key = np.arange(n_key)
    keep = np.ones((*position.shape[:-1], n_key), np.bool_)
    if left >= 0:
        keep &= key >= position - left
    if right >= 0:
        keep &= key <= position + right
    return keep


def _over_scores(array: Array) -> Array:
    """Give an array (...) the axes (..., 1, 1, 1) of heads, queries and keys; one int (1, 1)."""
    return array.reshape(*array.shape, *((1,) * (3 if array.ndim else 2)))


def _integers(name: str, x: object) -> Array:
    shape = as_array(name, x).shape
    return as_integers(name, x, shape).reshape(shape)
