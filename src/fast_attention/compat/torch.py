"""PyTorch's scaled_dot_product_attention, for NumPy arrays.

References: https://docs.pytorch.org/docs/stable/generated/
torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

from typing import SupportsFloat

import numpy as np

from .._attention import run
from .._descriptor import describe_attention
from .._dtypes import FLOAT32, Array, ArrayInput, as_array, as_operand

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: SupportsFloat | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Attend as ``torch.nn.functional.scaled_dot_product_attention`` does.

    Combinations and dtypes that PyTorch refuses are refused, by a ValueError or TypeError in place
    of its RuntimeError.

    Parameters
    ----------
    query : array_like, shape (N, ..., Hq, L, E)
        float16, bfloat16, float32 or float64; lists and wider integers count as float64. 2-D means
        one head and no head axis. NaN makes its row NaN if the row sees a key.
    key : array_like, shape (N, ..., H, S, E)
        Of the same dtype. NaN makes NaN of the rows that see the key, and of no other.
    value : array_like, shape (N, ..., H, S, Ev)
        Of the same dtype. Leading axes broadcast over all three; those of heads do not.
    attn_mask : array_like, optional
        bool (True = attend), or floats that are added to the scores (-inf = masked): float32, or of
        the dtype of `query`. Broadcastable to (N, ..., Hq, L, S). Not with `is_causal`.
    dropout_p : float, default 0.0
        Must be 0: there is no randomness here.
    is_causal : bool, default False
        Query i sees key j only if ``j <= i``, from the top left, whatever L and S.
    scale : float, optional
        Any finite number; default ``1 / sqrt(E)``, or 1 if E is 0.
    enable_gqa : bool, default False
        Allow Hq to be a multiple of H: query head h reads ``h // (Hq // H)``.

    Returns
    -------
    ndarray, shape (N, ..., Hq, L, Ev)
        In the dtype of `query`, C-ordered. 0 for a row that sees no key, as in PyTorch since 2.5.

    Raises
    ------
    TypeError
        For dtypes that differ or are not floating-point, and for an `attn_mask` of another dtype.
    ValueError
        For `dropout_p` other than 0, `attn_mask` together with `is_causal`, numbers of heads that
        differ without `enable_gqa`, and shapes that do not fit.

    See Also
    --------
    fast_attention.scaled_dot_product_attention : more options, and the error bound.

    Notes
    -----
    Arithmetic is float64 for float64, else float32, with one rounding to 16 bits at the end.

    References
    ----------
    .. [1] PyTorch documentation, torch.nn.functional.scaled_dot_product_attention.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention.compat.torch import scaled_dot_product_attention
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((2, 8, 5, 16), dtype=np.float32)
    >>> key = value = rng.standard_normal((2, 2, 5, 16), dtype=np.float32)
    >>> scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).shape
    (2, 8, 5, 16)
    """
    if dropout_p != 0:
        raise ValueError(
            f"dropout_p must be 0, as there is no randomness here, given {dropout_p!r}"
        )
    q, k, v = as_operand("query", query), as_operand("key", key), as_operand("value", value)
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(
            f"query, key and value have dtypes {q.dtype}, {k.dtype} and {v.dtype}, expected one"
        )
    if attn_mask is not None:
        _check_mask(attn_mask, q, is_causal)
    if not enable_gqa:
        _check_heads(q, k, v)
    described = describe_attention(
        q, k, v, attn_mask, is_causal=is_causal, scale=scale, query_offset=0
    )
    output = run(described)
    assert isinstance(output, np.ndarray)
    return output


def _check_mask(attn_mask: ArrayInput, query: Array, is_causal: bool) -> None:
    if is_causal:
        raise ValueError("attn_mask and is_causal=True are both given, expected one of them")
    dtype = as_array("attn_mask", attn_mask).dtype
    if dtype not in (np.bool_, FLOAT32, query.dtype):
        own = "" if query.dtype == FLOAT32 else f" or {query.dtype}, the dtype of the query"
        raise TypeError(
            f"attn_mask has dtype {dtype}, expected bool (True = attend) or float32{own}"
        )


def _check_heads(query: Array, key: Array, value: Array) -> None:
    arrays = query, key, value
    if min(array.ndim for array in arrays) < 2:
        return  # which has an error of its own
    if len({array.shape[-3] if array.ndim > 2 else 1 for array in arrays}) > 1:
        raise ValueError(
            "query, key and value differ in heads, which needs enable_gqa=True; shapes are query "
            f"{query.shape}, key {key.shape}, value {value.shape}"
        )
