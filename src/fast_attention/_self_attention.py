"""self_attention: from embeddings to context vectors, projections and heads included."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, SupportsIndex, Unpack, overload

import numpy as np

from ._arguments import read_count
from ._attention import OutputLse, OutputLseWeights, OutputWeights, run
from ._descriptor import describe_attention
from ._dtypes import FLOAT32, FLOAT64, Array, ArrayInput, as_operand, round_to
from ._options import FloatScoreOptions, check_names, warn_of_odd_mask


class _Options(FloatScoreOptions, total=False):
    attn_mask: ArrayInput | None
    num_threads: int | None


@overload
def self_attention(
    x: ArrayInput,
    w_query: ArrayInput | None = None,
    w_key: ArrayInput | None = None,
    w_value: ArrayInput | None = None,
    w_out: ArrayInput | None = None,
    *,
    num_heads: SupportsIndex = 1,
    num_kv_heads: SupportsIndex | None = None,
    return_lse: Literal[False] = False,
    return_weights: Literal[False] = False,
    **options: Unpack[_Options],
) -> Array: ...
@overload
def self_attention(
    x: ArrayInput,
    w_query: ArrayInput | None = None,
    w_key: ArrayInput | None = None,
    w_value: ArrayInput | None = None,
    w_out: ArrayInput | None = None,
    *,
    num_heads: SupportsIndex = 1,
    num_kv_heads: SupportsIndex | None = None,
    return_lse: Literal[True],
    return_weights: Literal[False] = False,
    **options: Unpack[_Options],
) -> OutputLse: ...
@overload
def self_attention(
    x: ArrayInput,
    w_query: ArrayInput | None = None,
    w_key: ArrayInput | None = None,
    w_value: ArrayInput | None = None,
    w_out: ArrayInput | None = None,
    *,
    num_heads: SupportsIndex = 1,
    num_kv_heads: SupportsIndex | None = None,
    return_lse: Literal[False] = False,
    return_weights: Literal[True],
    **options: Unpack[_Options],
) -> OutputWeights: ...
@overload
def self_attention(
    x: ArrayInput,
    w_query: ArrayInput | None = None,
    w_key: ArrayInput | None = None,
    w_value: ArrayInput | None = None,
    w_out: ArrayInput | None = None,
    *,
    num_heads: SupportsIndex = 1,
    num_kv_heads: SupportsIndex | None = None,
    return_lse: Literal[True],
    return_weights: Literal[True],
    **options: Unpack[_Options],
) -> OutputLseWeights: ...
@overload
def self_attention(
    x: ArrayInput,
    w_query: ArrayInput | None = None,
    w_key: ArrayInput | None = None,
    w_value: ArrayInput | None = None,
    w_out: ArrayInput | None = None,
    *,
    num_heads: SupportsIndex = 1,
    num_kv_heads: SupportsIndex | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Unpack[_Options],
) -> Array | OutputLse | OutputWeights | OutputLseWeights: ...
def self_attention(
    x: ArrayInput,
    w_query: ArrayInput | None = None,
    w_key: ArrayInput | None = None,
    w_value: ArrayInput | None = None,
    w_out: ArrayInput | None = None,
    *,
    num_heads: SupportsIndex = 1,
    num_kv_heads: SupportsIndex | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Unpack[_Options],
) -> Array | OutputLse | OutputWeights | OutputLseWeights:
    """Let every token of a sequence attend to the others: a context vector for each embedding.

    In the plain form, without matrices, the similarity of two tokens is the dot product of their
    embeddings, and a context vector is a weighted mean of embeddings. In the learned form, matrices
    make queries, keys and values of the embeddings first.

    Parameters
    ----------
    x : array_like, shape (..., T, d_e)
        T tokens with embeddings of width d_e: float16, bfloat16, float32 or float64; lists and
        integers of 16 to 64 bits are taken as float64.
    w_query : array_like, shape (d_e, num_heads * d_k), optional
        Applied as ``x @ w_query``; the columns of head 0 come first. A matrix that is not given is
        the identity: x itself is cut into heads. Dtypes as for x.
    w_key : array_like, shape (d_e, num_kv_heads * d_k), optional
    w_value : array_like, shape (d_e, num_kv_heads * d_v), optional
    w_out : array_like, shape (num_heads * d_v, d_out), optional
        Applied to the context vectors of all heads, side by side.
    num_heads : int, default 1
        Number of query heads.
    num_kv_heads : int, optional
        Number of key and value heads, a divisor of `num_heads`, which is the default. Query head h
        reads head ``h // (num_heads // num_kv_heads)``.
    return_lse, return_weights : bool, default False
        Also return the log-sum-exps or the weights of all heads.
    **options
        ``attn_mask`` (True = attend), ``bias``, ``is_causal``, ``scale``, ``window``,
        ``query_offset``, ``kv_lengths``, ``softcap``, ``sinks``, ``alibi_slopes``,
        ``num_threads``: as for ``scaled_dot_product_attention``, with L = S = T. The default of
        ``scale`` is ``1 / sqrt(d_k)``; it is 1 if neither `w_query` nor `w_key` is given.

    Returns
    -------
    output : ndarray, shape (..., T, num_heads * d_v), or (..., T, d_out) with w_out
        The context vectors, in the dtype of x (float64 for lists and integers).
    lse : ndarray, shape (..., num_heads, T)
        Only with `return_lse`, in the dtype of the arithmetic.
    weights : ndarray, shape (..., num_heads, T, T)
        Only with `return_weights`, in the dtype of x: row i is what token i gives to each token.
        With one or both of these the result is a named tuple ``(output, lse, weights)`` of what was
        asked for. Both are without the head axis if x is 2-D and `num_heads` is 1.

    Raises
    ------
    TypeError
        For dtypes, or options, that are not named above.
    ValueError
        For shapes that do not fit: both are named. For the rest as
        ``scaled_dot_product_attention``.

    Warns
    -----
    UserWarning
        If a float `attn_mask` holds ones and zeros only: it was probably meant to be bool. If it is
        a Python bool or float: another argument was probably meant.

    See Also
    --------
    scaled_dot_product_attention : attention on queries, keys and values.
    attention_steps : the same as a lesson, with every stage.

    Notes
    -----
    For each head, with its columns of the matrices::

        query = x @ w_query,    key = x @ w_key,    value = x @ w_value
        context = softmax(scale * query @ key.T) @ value
        output = (the contexts of all heads, side by side) @ w_out

    All of it is computed in float64 if x or a matrix is float64, else in float32, and rounded to
    the dtype of x at the end. The products with matrices are NumPy's, so that row invariance is
    promised for the plain form only.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2.

    Examples
    --------
    The plain form, of three tokens with d_e = 2. The third has something of both others:

    >>> import numpy as np
    >>> from fast_attention import self_attention
    >>> x = np.array([[1, 0], [0, 1], [1, 1]])
    >>> context, weights = self_attention(x, return_weights=True)
    >>> weights.round(2)
    array([[0.42, 0.16, 0.42],
           [0.16, 0.42, 0.42],
           [0.21, 0.21, 0.58]])
    >>> context.round(2)
    array([[0.84, 0.58],
           [0.58, 0.84],
           [0.79, 0.79]])

    The learned form, from embeddings of width 2 to context vectors of width d_v = 3. Each token
    sees itself and those before it:

    >>> w_query = w_key = np.array([[1], [2]])  # d_k = 1
    >>> w_value = np.array([[1, 0, 5], [0, 1, 5]])
    >>> self_attention(x, w_query, w_key, w_value, is_causal=True).round(2)
    array([[1.  , 0.  , 5.  ],
           [0.12, 0.88, 5.  ],
           [0.95, 1.  , 9.75]])

    Two heads of width 4, and an output of the width of the input:

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((10, 8))
    >>> w_query, w_key, w_value, w_out = rng.standard_normal((4, 8, 8))
    >>> self_attention(x, w_query, w_key, w_value, w_out, num_heads=2).shape
    (10, 8)
    """
    check_names("self_attention", options, _Options.__optional_keys__)
    model = _read(x, (w_query, w_key, w_value, w_out), num_heads, num_kv_heads)
    if w_query is None and w_key is None and options.get("scale") is None:
        options["scale"] = 1.0
    with np.errstate(all="ignore"):
        query, key, value = model.project()
    shape = (*model.x.shape[:-1], model.n_head * value.shape[-1])
    context = np.empty(shape, query.dtype)
    described = describe_attention(
        query,
        key,
        value,
        out=model.split(context, model.n_head),
        return_lse=return_lse,
        return_weights=return_weights,
        **options,
    )
    warn_of_odd_mask(options.get("attn_mask"), described)
    result = run(described)
    output = model.finish(context)
    if isinstance(result, OutputLse):
        return OutputLse(output, result.lse)
    if isinstance(result, OutputWeights):
        return OutputWeights(output, model.rounded(result.weights))
    if isinstance(result, OutputLseWeights):
        return OutputLseWeights(output, result.lse, model.rounded(result.weights))
    return output


class _Model(NamedTuple):
    """Embeddings and matrices that fit together, in the type of the arithmetic."""

    x: Array  # (..., T, d_e)
    dtype: np.dtype[Any]  # of the x that was given
    matrices: tuple[Array | None, ...]  # of query, key, value and output
    n_head: int
    n_kv_head: int

    def project(self) -> tuple[Array, Array, Array]:
        """Return query, key and value, (..., heads, T, width)."""
        heads = (self.n_head, self.n_kv_head, self.n_kv_head)
        query, key, value = (
            self.split(self.x if matrix is None else self.x @ matrix, n)
            for matrix, n in zip(self.matrices, heads, strict=False)
        )
        return query, key, value

    def split(self, columns: Array, n_head: int) -> Array:
        """View (..., T, heads * width) as (..., heads, T, width); one head of 2-D has no axis."""
        if columns.ndim == 2 and self.n_head == 1:
            return columns
        *rows, width = columns.shape
        return columns.reshape(*rows, n_head, width // n_head).swapaxes(-3, -2)

    def finish(self, context: Array) -> Array:
        """Apply the last matrix, if there is one, and round."""
        matrix = self.matrices[3]
        with np.errstate(all="ignore"):
            return self.rounded(context if matrix is None else context @ matrix)

    def rounded(self, array: Array) -> Array:
        """Round to the dtype of the given x."""
        with np.errstate(all="ignore"):
            return array if array.dtype == self.dtype else round_to(array, self.dtype)


_NAMES = ("w_query", "w_key", "w_value", "w_out")


def _read(
    x: ArrayInput,
    given: tuple[ArrayInput | None, ...],
    num_heads: SupportsIndex,
    num_kv_heads: SupportsIndex | None,
) -> _Model:
    """Read and check everything but the options of attention."""
    embeddings = as_operand("x", x)
    if embeddings.ndim < 2:
        raise ValueError(f"x has shape {embeddings.shape}, expected (..., T, d_e)")
    n_head = read_count("num_heads", num_heads, 1)
    n_kv_head = n_head if num_kv_heads is None else read_count("num_kv_heads", num_kv_heads, 1)
    if n_head % n_kv_head:
        raise ValueError(f"num_heads is {n_head}, expected a multiple of num_kv_heads, {n_kv_head}")
    matrices = [
        None if matrix is None else as_operand(name, matrix)
        for name, matrix in zip(_NAMES, given, strict=True)
    ]
    dtype = embeddings.dtype
    _check_shapes(embeddings, matrices, n_head, n_kv_head)
    present = [matrix for matrix in matrices if matrix is not None]
    if present:
        wide = FLOAT64 if any(a.dtype == FLOAT64 for a in (embeddings, *present)) else FLOAT32
        embeddings = embeddings.astype(wide, copy=False)
        matrices = [None if m is None else m.astype(wide, copy=False) for m in matrices]
    return _Model(embeddings, dtype, tuple(matrices), n_head, n_kv_head)


def _check_shapes(x: Array, matrices: list[Array | None], n_head: int, n_kv_head: int) -> None:
    w_query, w_key, w_value, w_out = matrices
    d_query = _head_width("w_query", w_query, x, "num_heads", n_head)
    d_key = _head_width("w_key", w_key, x, "num_kv_heads", n_kv_head)
    d_value = _head_width("w_value", w_value, x, "num_kv_heads", n_kv_head)
    if d_query != d_key:
        raise ValueError(
            f"queries and keys differ in width, {d_query} and {d_key}: "
            f"{_shape('w_query', w_query, x)} for num_heads = {n_head}, "
            f"{_shape('w_key', w_key, x)} for num_kv_heads = {n_kv_head}"
        )
    if w_out is not None and (w_out.ndim != 2 or w_out.shape[0] != n_head * d_value):
        raise ValueError(
            f"w_out has shape {w_out.shape}, expected (num_heads * d_v, d_out) with {n_head} * "
            f"{d_value} = {n_head * d_value} rows, as {_shape('w_value', w_value, x)}"
        )


def _head_width(name: str, matrix: Array | None, x: Array, heads: str, n_head: int) -> int:
    """Return the columns of one head, those of x if there is no matrix."""
    d_e = x.shape[-1]
    if matrix is not None and (matrix.ndim != 2 or matrix.shape[0] != d_e):
        raise ValueError(
            f"{name} has shape {matrix.shape}, expected (d_e, columns) with d_e = {d_e}, "
            f"as x has shape {x.shape}"
        )
    columns = int(d_e if matrix is None else matrix.shape[1])
    if columns % n_head:
        raise ValueError(
            f"{_shape(name, matrix, x)}, expected a multiple of {heads} = {n_head} columns"
        )
    return columns // n_head


def _shape(name: str, matrix: Array | None, x: Array) -> str:
    if matrix is None:
        return f"x has shape {x.shape}, without {name}"
    return f"{name} has shape {matrix.shape}"
