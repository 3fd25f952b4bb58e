"""merge_attention: one result from several, each computed over a part of the keys.

With (o, s) the output and the log-sum-exp of a part, and M the greatest s of a row,

    w = exp(s - M),    output = sum(w / sum(w) * o),    lse = M + log(sum(w)).

No exponent is positive, so nothing overflows however far apart the parts are, and the weights are
normalised before they meet the outputs, so no sum leaves the range of these. A part whose s is -inf
has seen no key: it is left out by selection, whatever its output holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ._attention import OutputLse
from ._dtypes import FLOAT32, FLOAT64, Array, ArrayInput, as_operand, as_parameter, broadcast
from ._numpy._rounding import store


def merge_attention(
    outputs: Sequence[ArrayInput] | Array,
    lses: Sequence[ArrayInput] | Array,
    *,
    sinks: ArrayInput | None = None,
) -> OutputLse:
    """Merge results of attention over disjoint parts of the keys into that over all of them.

    The parts are merged in the order of the arguments. That way a long cache can be read piece by
    piece, or a prefix that many sequences share only once.

    Parameters
    ----------
    outputs : sequence of array_like, each of shape (..., H, L, Dv)
        The output of each part: float16, bfloat16, float32 or float64, all of the same dtype and
        shape; (L, Dv) for one head without an axis. An array counts the parts by its first axis.
    lses : sequence of array_like, each of shape (..., H, L)
        The log-sum-exp of each part, from ``return_lse=True``: natural logarithms, -inf for a row
        that sees no key of that part. The pair (0, -inf) changes nothing, nor does any other output
        with -inf. NaN or +inf makes the row NaN.
    sinks : float or array_like, shape (H,), optional
        As for ``scaled_dot_product_attention``. Give sinks once: here, or to one part.

    Returns
    -------
    output : ndarray, shape (..., H, L, Dv)
        In the dtype of `outputs` (float64 for lists and integers); 0 for a row without a key.
    lse : ndarray, shape (..., H, L)
        float64 if an output or a log-sum-exp is, else float32; -inf, or the sink, for a row without
        a key. The two make a named tuple ``(output, lse)``, which can be merged again.

    Raises
    ------
    TypeError
        For dtypes that are not named above, or outputs of different dtypes.
    ValueError
        For no part at all, a different number of outputs and log-sum-exps, or shapes that do not
        fit.

    See Also
    --------
    scaled_dot_product_attention : with ``return_lse=True`` it computes the parts.

    Notes
    -----
    With M the greatest log-sum-exp of a row, sinks included::

        w[n] = exp(lse[n] - M),    W = sum_n w[n] + exp(sink - M)
        output = sum_n (w[n] / W) * output[n],    lse = M + log(W)

    in float64 if an output or a log-sum-exp is float64, else in float32. The result is within the
    error bound of the call over all keys at once, with, for 16-bit outputs, half an ulp more for
    the parts, which have been rounded once already. What is not finite in an output stays in its
    row and column.

    Cost: one pass over the outputs, and memory for one part.

    References
    ----------
    .. [1] M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import merge_attention, scaled_dot_product_attention
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((4, 2, 8), dtype=np.float32)
    >>> key, value = rng.standard_normal((2, 4, 90, 8), dtype=np.float32)
    >>> parts = [
    ...     scaled_dot_product_attention(query, key[:, part], value[:, part], return_lse=True)
    ...     for part in (slice(0, 50), slice(50, 90))
    ... ]
    >>> output, lse = merge_attention([p.output for p in parts], [p.lse for p in parts])
    >>> whole = scaled_dot_product_attention(query, key, value)
    >>> bool(np.allclose(output, whole, rtol=0, atol=1e-6))
    True
    """
    parts, logs = _read(outputs, lses)
    wide = any(array.dtype == FLOAT64 for array in (*parts, *logs))
    dtype = FLOAT64 if wide else FLOAT32
    with np.errstate(all="ignore"):
        stack = np.stack([log.astype(dtype, copy=False) for log in logs])
        sink = _sink(sinks, parts[0].shape, dtype)
        weights, lse = _weigh(stack, sink)
        merged = np.zeros(parts[0].shape, dtype)
        for part, weight, log in zip(parts, weights, stack, strict=True):
            product = weight[..., None] * part.astype(dtype, copy=False)
            merged += np.where((log == -np.inf)[..., None], dtype.type(0), product)
        merged[np.isnan(lse)] = np.nan
        merged[np.isnan(merged)] = np.nan  # one NaN, whatever its sign and payload were
        output = np.empty(merged.shape, parts[0].dtype)
        store(merged, output, merged.shape[:-1])
    return OutputLse(output, lse)


def _read(outputs: Any, lses: Any) -> tuple[list[Array], list[Array]]:
    """Return both as arrays that fit together."""
    for name, given in (("outputs", outputs), ("lses", lses)):
        if not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
            raise TypeError(
                f"{name} must be a sequence with one array per part, not {type(given).__name__}"
            )
    parts = [as_operand(f"outputs[{n}]", part) for n, part in enumerate(outputs)]
    logs = [as_operand(f"lses[{n}]", log) for n, log in enumerate(lses)]
    if len(parts) != len(logs):
        raise ValueError(f"{len(parts)} outputs and {len(logs)} lses, expected as many of each")
    if not parts:
        raise ValueError("outputs is empty, expected the result of at least one part")
    first = parts[0]
    if first.ndim < 2:
        raise ValueError(f"outputs[0] has shape {first.shape}, expected (..., H, L, Dv)")
    for n, (part, log) in enumerate(zip(parts, logs, strict=True)):
        _check_part(n, part, log, first)
    return parts, logs


def _check_part(n: int, part: Array, log: Array, first: Array) -> None:
    if part.dtype != first.dtype:
        raise TypeError(
            f"outputs[{n}] has dtype {part.dtype}, expected {first.dtype}, that of outputs[0]"
        )
    if part.shape != first.shape:
        raise ValueError(
            f"outputs[{n}] has shape {part.shape}, expected {first.shape}, that of outputs[0]"
        )
    if log.shape != part.shape[:-1]:
        raise ValueError(
            f"lses[{n}] has shape {log.shape}, expected {part.shape[:-1]}, "
            f"for outputs[{n}] of shape {part.shape}"
        )


def _sink(sinks: ArrayInput | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the sinks, -inf for none, broadcastable to (..., H, L)."""
    if sinks is None:
        return np.asarray(-np.inf, dtype)
    n_head = shape[-3] if len(shape) > 2 else 1
    array = broadcast("sinks", as_parameter("sinks", sinks, dtype), (n_head,), "(H,) =")
    return array[:, None] if len(shape) > 2 else array


def _weigh(logs: Array, sink: Array) -> tuple[Array, Array]:
    """Return the weight of every part, (n, ..., H, L), and the log-sum-exp of all of them."""
    peak = np.maximum(logs.max(axis=0), sink)
    shift = np.where(peak == -np.inf, peak.dtype.type(0), peak)
    weights = np.exp(logs - shift)
    total = np.exp(sink - shift)
    for weight in weights:
        total = total + weight
    lse = peak + np.log(total)  # -inf + -inf without a key
    lse[np.isnan(lse)] = np.nan
    return weights / total, lse
