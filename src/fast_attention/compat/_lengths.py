"""One length for each sequence of a batch, as ONNX and JAX have them."""

from __future__ import annotations

from .._arguments import check_range
from .._dtypes import Array, ArrayInput, as_array, as_integers


def read_lengths(name: str, given: ArrayInput, n_batch: int, largest: int) -> Array:
    """Read ints of shape (n_batch,), from 0 to `largest`."""
    array = as_array(name, given)
    if array.shape != (n_batch,):
        raise ValueError(
            f"{name} has shape {array.shape}, expected one length for each sequence, ({n_batch},)"
        )
    lengths = as_integers(name, array, (n_batch,))
    check_range(name, lengths, 0, largest)
    return lengths
