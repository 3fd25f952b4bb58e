"""softmax, log_softmax, logsumexp and the gradient of softmax: the public functions."""

from __future__ import annotations

from . import _backend, _threads
from ._dtypes import Array, ArrayInput
from ._reduction import Axis, Kind, ReductionDescriptor, describe_reduction


def softmax(
    x: ArrayInput, axis: Axis = -1, *, where: ArrayInput | None = None, out: Array | None = None
) -> Array:
    """Return ``exp(x) / sum(exp(x))`` over the given axes.

    Parameters
    ----------
    x : array_like
        float16, bfloat16 (``ml_dtypes.bfloat16``), float32 or float64, of any shape and strides;
        integers and bools are taken as float64. -inf has weight 0. NaN or +inf makes its row NaN,
        and no other.
    axis : int or tuple of int or None, default -1
        The axes over which the results sum to 1, together; None = all.
    where : array_like of bool, optional
        What exists, broadcastable to the shape of `x`, which it never enlarges. What does not exist
        may hold anything and comes out as 0. Default: all of `x`.
    out : ndarray, optional
        Where to write the result: of its shape and dtype, writeable, with any strides. It may be
        `x` itself; otherwise it may overlap neither itself nor an input.

    Returns
    -------
    ndarray
        In the shape and the dtype of `x` (float64 for integers and bools), C-ordered unless `out`
        is given; a NumPy scalar if `x` has no axes. 0 in a row in which nothing exists, or nothing
        but -inf.

    Raises
    ------
    TypeError
        For other dtypes, such as complex; a `where` that is not bool; an `axis` that is no int.
    numpy.exceptions.AxisError
        For an axis that `x` does not have. A scalar has axis 0 and -1, as in NumPy.
    ValueError
        For an axis given twice, a `where` that does not broadcast, an `out` that does not fit.

    See Also
    --------
    log_softmax : its logarithm, without underflow.
    softmax_vjp : its gradient.

    Notes
    -----
    The arithmetic is float64 if `x` is, else float32, with one rounding to 16 bits at the end. With
    u its unit roundoff (2**-24 or 2**-53), n the length of a row and m its greatest element::

        abs(result - exact) <= u * (n/16 + 32 + log(n) + abs(x - m)) * exact

    plus half an ulp of the result's type and the smallest subnormal number. `axis` may be any: the
    array is read where it lies. The native backend gives the same bits for any memory layout and
    number of threads; a row is computed the same way whatever else is in the call.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import softmax
    >>> softmax([0.0, np.log(3.0), -np.inf]).round(6)
    array([0.25, 0.75, 0.  ])
    >>> softmax([[1.0, 2.0], [3.0, 4.0]], axis=0, where=[[True, True], [True, False]]).round(4)
    array([[0.1192, 1.    ],
           [0.8808, 0.    ]])
    """
    return _along_axes(Kind.SOFTMAX, x, axis, where, out)


def log_softmax(
    x: ArrayInput, axis: Axis = -1, *, where: ArrayInput | None = None, out: Array | None = None
) -> Array:
    """Return ``x - log(sum(exp(x)))`` over the given axes, the logarithm of ``softmax``.

    Parameters
    ----------
    x : array_like
        float16, bfloat16 (``ml_dtypes.bfloat16``), float32 or float64, of any shape and strides;
        integers and bools are taken as float64. -inf stays what it is. NaN or +inf makes its row
        NaN, and no other.
    axis : int or tuple of int or None, default -1
        The axes over which the exponentials of the results sum to 1, together; None = all.
    where : array_like of bool, optional
        What exists, broadcastable to the shape of `x`, which it never enlarges. What does not exist
        may hold anything and comes out as -inf. Default: all of `x`.
    out : ndarray, optional
        Where to write the result: of its shape and dtype, writeable, with any strides. It may be
        `x` itself; otherwise it may overlap neither itself nor an input.

    Returns
    -------
    ndarray
        In the shape and the dtype of `x` (float64 for integers and bools), C-ordered unless `out`
        is given; a NumPy scalar if `x` has no axes. -inf in a row in which nothing exists, or
        nothing but -inf.

    Raises
    ------
    TypeError, numpy.exceptions.AxisError, ValueError
        As ``softmax``.

    See Also
    --------
    softmax : what this is the logarithm of.
    logsumexp : what is subtracted.

    Notes
    -----
    Computed as ``(x - m) - log1p(rest)``, where m is the greatest element of the row and ``rest``
    the sum of the exponentials of all others, less m. So equal elements of any size give
    ``-log(n)``, and the winner of a clear decision is a small number rather than 0. With u as in
    ``softmax``::

        abs(result - exact) <= 2 * ulp(max(abs(exact), abs(m)))
                             + u * (n/16 + 32 + max(abs(x - m))) * rest / (1 + rest)

    plus half an ulp of a 16-bit result; only elements above ``m - 104`` (``m - 746`` in float64)
    count for the maximum in the second line.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import log_softmax
    >>> log_softmax(np.float32([1e20, 1e20])).round(4)
    array([-0.6931, -0.6931], dtype=float32)
    >>> print(log_softmax([0.0, -20.0])[0].round(14))
    -2.06115e-09
    """
    return _along_axes(Kind.LOG_SOFTMAX, x, axis, where, out)


def logsumexp(
    x: ArrayInput, axis: Axis = -1, *, where: ArrayInput | None = None, keepdims: bool = False
) -> Array:
    """Return ``log(sum(exp(x)))`` over the given axes.

    Parameters
    ----------
    x : array_like
        float16, bfloat16 (``ml_dtypes.bfloat16``), float32 or float64, of any shape and strides;
        integers and bools are taken as float64. -inf adds nothing, +inf makes the result +inf, and
        NaN makes it NaN.
    axis : int or tuple of int or None, default -1
        The axes that are summed over; None = all.
    where : array_like of bool, optional
        What exists, broadcastable to the shape of `x`, which it never enlarges. What does not exist
        may hold anything. Default: all of `x`.
    keepdims : bool, default False
        Keep the summed axes, with length 1.

    Returns
    -------
    ndarray
        In the dtype of `x` (float64 for integers and bools), C-ordered; a NumPy scalar if no axis
        is left. -inf where nothing exists, or nothing but -inf, and over axes of length 0.

    Raises
    ------
    TypeError, numpy.exceptions.AxisError, ValueError
        As ``softmax``.

    See Also
    --------
    log_softmax : `x` less this.

    Notes
    -----
    Computed as ``m + log1p(rest)``, with the terms and the error bound of ``log_softmax``: a row
    with one great element keeps what the others add.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import logsumexp
    >>> logsumexp([[1000.0, 1000.0], [-np.inf, -np.inf]]).round(4)
    array([1000.6931,      -inf])
    """
    return _result(
        describe_reduction(Kind.LOGSUMEXP, x, axis, where=where, keepdims=bool(keepdims))
    )


def softmax_vjp(
    grad: ArrayInput, y: ArrayInput, axis: Axis = -1, *, out: Array | None = None
) -> Array:
    """Return the gradient of a loss with respect to `x`, given that with respect to ``softmax(x)``.

    That is ``y * (grad - sum(grad * y))``, the product of a vector with the Jacobian.

    Parameters
    ----------
    grad : array_like
        Gradient with respect to the softmax: float16, bfloat16 (``ml_dtypes.bfloat16``), float32 or
        float64, of any strides; integers and bools are taken as float64.
    y : array_like
        The softmax, of the shape of `grad` and of any of these dtypes. NaN or infinity here or in
        `grad` makes its row not finite, and no other.
    axis : int or tuple of int or None, default -1
        The axes of the softmax.
    out : ndarray, optional
        Where to write the result: of its shape and dtype, writeable, with any strides. It may be
        `grad` or `y` itself; otherwise it may overlap neither itself nor an input.

    Returns
    -------
    ndarray
        In the shape of `grad`, C-ordered unless `out` is given; a NumPy scalar if there are no
        axes. In the dtype of `grad` and `y`; if they differ, float64 if one of them is, else
        float32. 0 where `y` is 0, so also where ``softmax`` had excluded an element.

    Raises
    ------
    TypeError, numpy.exceptions.AxisError, ValueError
        As ``softmax``; ValueError also if the shapes differ.

    See Also
    --------
    softmax : what this is the gradient of.

    Notes
    -----
    With u and n as in ``softmax`` and s the sum over the row of ``grad * y``::

        abs(result - exact) <= u * y * (3*abs(grad - s) + (n/16 + 32) * sum(abs(grad * y)))

    plus half an ulp of the result's type and the smallest subnormal number, while no product is
    subnormal.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import softmax, softmax_vjp
    >>> y = softmax([0.0, np.log(3.0)])
    >>> softmax_vjp([1.0, 0.0], y).round(6)
    array([ 0.1875, -0.1875])
    """
    return _result(describe_reduction(Kind.SOFTMAX_VJP, grad, axis, y=y, out=out), out)


def _along_axes(
    kind: Kind, x: ArrayInput, axis: Axis, where: ArrayInput | None, out: Array | None
) -> Array:
    """Softmax or log_softmax, by the short way if the call is plain."""
    if where is None:
        plain = _backend.reduce_plain(kind, x, axis, out, _threads.resolve(None))
        if plain is not None:
            return plain
    return _result(describe_reduction(kind, x, axis, where=where, out=out), out)


def _result(d: ReductionDescriptor, out: Array | None = None) -> Array:
    """Compute; without axes, an array that is not the caller's becomes a scalar, as in NumPy."""
    _backend.reduce(d)
    result = d.result()
    if result.ndim == 0 and out is None:
        scalar: Array = result[()]
        return scalar
    return result
