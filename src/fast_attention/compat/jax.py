"""JAX's dot_product_attention, for NumPy arrays: heads after positions, (B, T, N, H).

References: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html
"""

from __future__ import annotations

import operator
from typing import Any, Literal, SupportsFloat, SupportsIndex, overload

import numpy as np

from .._attention import run
from .._descriptor import describe_attention
from .._dtypes import Array, ArrayInput, as_array, as_operand, broadcast
from ._lengths import read_lengths

__all__ = ["dot_product_attention"]

Window = SupportsIndex | tuple[SupportsIndex, SupportsIndex] | None


@overload
def dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    bias: ArrayInput | None = None,
    mask: ArrayInput | None = None,
    *,
    scale: SupportsFloat | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayInput | None = None,
    key_value_seq_lengths: ArrayInput | None = None,
    local_window_size: Window = None,
    implementation: Literal["xla"] | None = None,
    return_residual: Literal[False] = False,
) -> Array: ...
@overload
def dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    bias: ArrayInput | None = None,
    mask: ArrayInput | None = None,
    *,
    scale: SupportsFloat | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayInput | None = None,
    key_value_seq_lengths: ArrayInput | None = None,
    local_window_size: Window = None,
    implementation: Literal["xla"] | None = None,
    return_residual: Literal[True],
) -> tuple[Array, Array]: ...
def dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    bias: ArrayInput | None = None,
    mask: ArrayInput | None = None,
    *,
    scale: SupportsFloat | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayInput | None = None,
    key_value_seq_lengths: ArrayInput | None = None,
    local_window_size: Window = None,
    implementation: Literal["xla"] | None = None,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """Attend as ``jax.nn.dot_product_attention`` does.

    Parameters
    ----------
    query : array_like, shape (B, T, N, H) or (T, N, H)
        float16, bfloat16, float32 or float64; lists and wider integers count as float64. Any
        strides: nothing is copied. NaN makes its row NaN if the row sees a key.
    key : array_like, shape (B, S, K, H) or (S, K, H)
        Of the same dtype. N is a multiple of K: query head n reads ``n // (N // K)``. NaN makes NaN
        of the rows that see the key, and of no other.
    value : array_like
        Of the shape and dtype of `key`.
    bias : array_like, optional
        Floats that are added to the scores (-inf = masked), broadcastable to (B, N, T, S).
    mask : array_like of bool, optional
        True = attend, broadcastable to (B, N, T, S).
    scale : float, optional
        Any finite number; default ``1 / sqrt(H)``, or 1 if H is 0.
    is_causal : bool, default False
        Query i sees key j only if ``j <= i``, from the top left, whatever T and S.
    query_seq_lengths : array_like of int, shape (B,), optional
        Valid queries of each sequence, from 0 to T. The output of later ones is 0.
    key_value_seq_lengths : array_like of int, shape (B,), optional
        Valid keys of each sequence, from 0 to S. Later ones do not exist.
    local_window_size : int or (int, int), optional
        ``(left, right)``, 0 or above: query i sees key j only if ``i - left <= j <= i + right``. An
        int stands for both sides.
    implementation : "xla", optional
        Has no effect. "cudnn" is refused, as it needs a GPU.
    return_residual : bool, default False
        Also return the log-sum-exp of the scores.

    Returns
    -------
    output : ndarray, shape of `query`
        In the same dtype, C-ordered; 0 for a row that sees no key.
    residual : ndarray, shape (B, T, N) or (T, N)
        Only with `return_residual`, in the same dtype: -inf for a row that sees no key.

    Raises
    ------
    TypeError
        For dtypes that differ, a `mask` that is not bool and a `bias` that is not floating-point.
    ValueError
        For shapes that do not fit, lengths and widths out of range and an unknown `implementation`.

    See Also
    --------
    fast_attention.scaled_dot_product_attention : more options, and the error bound.

    Notes
    -----
    Two results differ from JAX, which masks by a great negative number. A row that sees no key is 0
    here, and the mean of all values there, those of padding included (0 past
    `query_seq_lengths` in both). And what is masked may hold NaN here, which would spread there.
    The softmax is float64 here for float64 and float32 in JAX, and weights are not rounded to 16
    bits before they meet the values.

    References
    ----------
    .. [1] JAX documentation, jax.nn.dot_product_attention.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention.compat.jax import dot_product_attention
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((2, 5, 8, 16), dtype=np.float32)  # (batch, T, heads, H)
    >>> key = value = rng.standard_normal((2, 5, 2, 16), dtype=np.float32)
    >>> output, residual = dot_product_attention(
    ...     query, key, value, is_causal=True, local_window_size=(3, 0), return_residual=True
    ... )
    >>> output.shape, residual.shape
    ((2, 5, 8, 16), (2, 5, 8))
    """
    if implementation not in (None, "xla"):
        raise ValueError(f"implementation must be None or 'xla', given {implementation!r}")
    operands = as_operand("query", query), as_operand("key", key), as_operand("value", value)
    shape, dtype = operands[0].shape, operands[0].dtype
    q, k, v = map(_heads_first, ("query", "key", "value"), operands)
    _check_operands(q, k, v)
    n_batch, n_head, n_query, _ = q.shape
    n_key = k.shape[2]
    query_lengths = key_lengths = None
    if query_seq_lengths is not None:
        query_lengths = read_lengths("query_seq_lengths", query_seq_lengths, n_batch, n_query)
    if key_value_seq_lengths is not None:
        key_lengths = read_lengths("key_value_seq_lengths", key_value_seq_lengths, n_batch, n_key)
    output = np.empty(shape, dtype)
    d = describe_attention(
        q,
        k,
        v,
        None if mask is None else _read_mask(mask, (n_batch, n_head, n_query, n_key)),
        bias=bias,
        is_causal=is_causal,
        scale=scale,
        window=_read_window(local_window_size),
        query_offset=0,
        kv_lengths=key_lengths,
        return_lse=return_residual,
        out=_heads_first("output", output),
    )
    run(d)
    lse = d.returned[1]
    _fill_padding(output, query_lengths, 0)
    if lse is None:
        return output
    residual = np.empty(shape[:-1], dtype)
    with np.errstate(over="ignore"):
        residual.reshape(n_batch, n_query, n_head)[...] = lse.transpose(0, 2, 1)
    _fill_padding(residual[..., None], query_lengths, -np.inf)
    return output, residual


def _heads_first(name: str, array: Array) -> Array:
    """View (B, T, N, H), or (T, N, H), as (B, N, T, H)."""
    if array.ndim not in (3, 4):
        raise ValueError(
            f"{name} has shape {array.shape}, expected (batch, length, heads, width) or "
            "(length, heads, width)"
        )
    array = array if array.ndim == 4 else array[None]
    return array.transpose(0, 2, 1, 3)


def _check_operands(query: Array, key: Array, value: Array) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}, "
            "expected one"
        )
    shapes = f"shapes with heads first are query {query.shape}, key {key.shape}"
    if key.shape != value.shape:
        raise ValueError(f"key and value differ in shape; {shapes}, value {value.shape}")
    if len(query) != len(key):
        raise ValueError(f"query and key differ in batch size; {shapes}")


def _read_mask(given: ArrayInput, shape: tuple[int, ...]) -> Array:
    mask = as_array("mask", given)
    if mask.dtype != np.bool_:
        raise TypeError(f"mask has dtype {mask.dtype}, expected bool; floats are given as bias")
    return broadcast("mask", mask, shape, "the scores (B, N, T, S) =")


def _read_window(given: Window) -> tuple[int, int] | None:
    if given is None:
        return None
    sides: tuple[Any, ...] = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    message = f"local_window_size must be an int or (left, right), 0 or above, given {given!r}"
    if len(sides) != 2:
        raise ValueError(message)
    try:
        left, right = operator.index(sides[0]), operator.index(sides[1])
    except TypeError:
        raise TypeError(message) from None
    if min(left, right) < 0:
        raise ValueError(message)
    return left, right


def _fill_padding(array: Array, lengths: Array | None, filler: float) -> None:
    """Fill the rows past each sequence's length; `array` is (B, T, N, width) or (T, N, width)."""
    if lengths is None:
        return
    for rows, length in zip(array if array.ndim == 4 else array[None], lengths, strict=True):
        rows[length:] = filler
