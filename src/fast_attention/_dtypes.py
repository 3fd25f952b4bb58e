"""Which element types are accepted, and how anything array-like becomes a plain ndarray.

What leaves this module has a supported dtype in native byte order, is aligned, and has strides that
are multiples of the item size, so that both backends may count strides in elements. An array that
already is so comes back as itself, without a copy.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ._hints import without_ones

Array = npt.NDArray[Any]


class SupportsDLPack(Protocol):
    """A tensor that shares its memory through the DLPack protocol."""

    def __dlpack__(self) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


ArrayInput = npt.ArrayLike | SupportsDLPack

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
FLOAT16 = np.dtype(np.float16)
INT8 = np.dtype(np.int8)
_FLOAT_CHARS = frozenset("efd")
_INTEGER_CHARS = frozenset("hHiIlLqQ")
_FLOAT_NAMES = "float16, bfloat16, float32 or float64"
_LEAST_NORMAL_FLOAT16 = np.float32(2.0**-14)
_STEPS_OF_FLOAT16 = np.float32(0.75)  # float32 numbers near it are 2**-24 apart


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Tell ``ml_dtypes.bfloat16`` by its name, so that ml_dtypes is never imported."""
    return dtype.kind == "V" and dtype.itemsize == 2 and dtype.type.__name__ == "bfloat16"


def is_float(dtype: np.dtype[Any]) -> bool:
    """Tell whether this is one of the four floating-point types of the package."""
    return dtype.char in _FLOAT_CHARS or is_bfloat16(dtype)


def as_array(name: str, x: object) -> Array:
    """Return the base-class ndarray behind `x`, through DLPack if that is all it offers."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost; pass {name}.data, and what is "
            "to be left out as attn_mask or where"
        )
    if hasattr(x, "__dlpack__") and not _numpy_can_read(x):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"{name} of type {type(x).__name__} offers DLPack, but NumPy cannot read it "
                f"({error}); expected an array in CPU memory"
            ) from error
    try:
        return np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:  # of nested lists, or of an __array__
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name} of type {type(x).__name__} is not an array: {error}") from error


def dtype_text(name: str, x: object, array: Array) -> str:
    """Begin an error about the dtype of `array`, which was read from `x`."""
    given = ""
    if array.dtype.kind not in "biufc" and not isinstance(x, np.ndarray):
        given = f" (given a {type(x).__name__})"
    return f"{name} has dtype {array.dtype}{given}"


def _conversion(name: str, x: object, array: Array, dtype: str = "float32") -> str:
    """Say how numbers are converted to `dtype`, if that is what `x` holds."""
    if array.dtype.kind not in "biufO" or not hasattr(x, "astype"):
        return ""
    return f"; numbers are converted by {name}.astype(np.{dtype})"


def _numpy_can_read(x: object) -> bool:
    if any(hasattr(x, word) for word in ("__array__", "__array_interface__", "__array_struct__")):
        return True
    try:
        memoryview(x)  # type: ignore[arg-type]
    except (TypeError, BufferError):
        return False
    return True


def native_layout(array: Array) -> Array:
    """Return `array`, or a copy of it if byte order, alignment or strides are unusual."""
    dtype = array.dtype
    itemsize = dtype.itemsize
    if (
        math.gcd(itemsize, *array.strides) == itemsize
        and array.flags.aligned
        and (dtype.isnative or dtype.kind == "V")
    ):
        return array
    return np.array(array, dtype=dtype.newbyteorder("="), order="C", copy=True)


def as_operand(name: str, x: object, *, int8_allowed: bool = False) -> Array:
    """Read query, key or value: floats, int8 where allowed, or wider integers as float64."""
    array = as_array(name, x)
    dtype = array.dtype
    if dtype.char in _FLOAT_CHARS or is_bfloat16(dtype) or (int8_allowed and dtype == INT8):
        return native_layout(array)
    if dtype.char in _INTEGER_CHARS:
        return array.astype(np.float64)
    hint = _conversion(name, x, array)
    if dtype == INT8 and name == "query":
        hint = " (int8 is for key and value, with k_scale and v_scale)"
    raise TypeError(
        f"{dtype_text(name, x, array)}, expected {_FLOAT_NAMES}, or integers of 16 to 64 bits, "
        f"which are taken as float64{hint}"
    )


def as_numbers(name: str, x: object) -> Array:
    """Read what a reduction runs over: floats as they are, integers and bools as float64."""
    array = as_array(name, x)
    if is_float(array.dtype):
        return native_layout(array)
    if array.dtype.kind in "biu":
        return array.astype(np.float64)
    raise TypeError(
        f"{dtype_text(name, x, array)}, expected {_FLOAT_NAMES}, or integers or bools, "
        f"which are taken as float64{_conversion(name, x, array)}"
    )


def as_float_array(name: str, x: object) -> Array:
    """Read a bias: one of the four float types, kept as it is."""
    array = as_array(name, x)
    if not is_float(array.dtype):
        hint = _conversion(name, x, array)
        if array.dtype == np.bool_:
            hint = "; a bool mask (True = attend) is passed as attn_mask"
        raise TypeError(f"{dtype_text(name, x, array)}, expected {_FLOAT_NAMES}{hint}")
    return native_layout(array)


def as_parameter(name: str, x: object, compute_dtype: np.dtype[Any]) -> Array:
    """Read sinks, slopes or quantisation scales: real numbers, rounded once to the arithmetic."""
    array = as_array(name, x)
    dtype = array.dtype
    if not (is_float(dtype) or dtype.kind in "iu"):
        raise TypeError(f"{dtype_text(name, x, array)}, expected real numbers")
    if dtype == compute_dtype:
        return native_layout(array)
    with np.errstate(all="ignore"):
        return round_to(array, compute_dtype)


def as_integers(name: str, x: object, lead: tuple[int, ...]) -> Array:
    """Read an int, or ints that broadcast to `lead`, as int64 of shape (n_batch,)."""
    if isinstance(x, int) and not -(2**63) <= x < 2**63:
        raise ValueError(f"{name} has the value {x}, which does not fit in 64 bits")
    array = as_array(name, x)
    if array.dtype.kind not in "iu" and (array.size > 0 or array.dtype.kind != "f"):
        hint = _conversion(name, x, array, "int64") if array.dtype != np.bool_ else ""
        if array.dtype == np.bool_ and array.ndim > 0 and "length" in name:
            hint = "; of a mask of the valid tokens they are mask.sum(axis=-1)"
        text = dtype_text(name, x, array)
        raise TypeError(f"{text}, expected an int or an array of ints{hint}")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} has the value {int(array.max())}, which does not fit in 64 bits")
    wide = broadcast(name, array.astype(np.int64), lead, "the axes before the heads,")
    return np.ascontiguousarray(wide).reshape(-1)


def broadcast(name: str, array: Array, shape: tuple[int, ...], what: str) -> Array:
    """View `array` in `shape` by stride 0; it never enlarges the shape."""
    if array.shape == shape:
        return array
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(
            f"{name} has shape {array.shape}, which does not broadcast to {what} {shape}"
            f"{without_ones(name, array.shape, shape)}"
        ) from None


def round_to(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert with a single rounding, to nearest even, whatever the two float types are."""
    if array.dtype == FLOAT64 and is_bfloat16(dtype):
        return _round_to_odd(array).astype(dtype)
    if array.dtype == FLOAT32 and dtype == FLOAT16:
        array = _round_to_subnormals(array)
    return array.astype(dtype)


def _round_to_subnormals(array: Array) -> Array:
    """Round numbers below the normal ones of float16 to its steps of 2**-24.

    NumPy's own conversion does the same, but reports each of them to the floating-point flags,
    which takes many times as long.
    """
    tiny = np.abs(array) < _LEAST_NORMAL_FLOAT16
    if not tiny.any():
        return array
    rounded = (array + _STEPS_OF_FLOAT16) - _STEPS_OF_FLOAT16
    return np.where(tiny, np.copysign(rounded, array), array)


def _round_to_odd(array: Array) -> Array:
    """Round to float32, making inexact results odd: rounding those to 16 bits is then direct.

    (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008, theorem 1: needs
    two more bits in the middle format than in the last, and here there are 24 against 8.)
    """
    with np.errstate(all="ignore"):
        nearest = array.astype(np.float32)
        back = nearest.astype(np.float64)
    bits = nearest.view(np.int32)
    bits -= np.abs(back) > np.abs(array)
    bits |= (back != array) & ~np.isnan(array)
    return nearest
