"""Digests of arrays, and the record of those that the specification gives."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import Any

import numpy as np

from .._dtypes import Array

VERSION = 1  # of the arithmetic

Record = dict[str, dict[str, Any]]  # case -> {"inputs": digest, class -> {result -> digest}}


def digest(*arrays: Array) -> str:
    """Return the SHA-256 of the bytes in C order, little-endian, in hexadecimal."""
    total = hashlib.sha256()
    for array in arrays:
        unsigned = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
        total.update(unsigned.astype(unsigned.dtype.newbyteorder("<")).tobytes())
    return total.hexdigest()


def digest_of_inputs(arguments: dict[str, Any]) -> str:
    """Return the digest of the arrays among the arguments of a call, in the order of names."""
    ordered = [arguments[name] for name in sorted(arguments)]
    return digest(*(each for each in ordered if isinstance(each, np.ndarray)))


def digests_of_results(*results: Array) -> dict[str, str]:
    """Return the digests of output, lse and weights; or of the one result of a reduction."""
    names = ("result",) if len(results) == 1 else ("output", "lse", "weights")
    return {name: digest(result) for name, result in zip(names, results, strict=True)}


def read_record() -> Record:
    """Return what is on record for this version of the arithmetic."""
    file = resources.files(__package__) / f"version{VERSION}.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    if record["arithmetic"] != VERSION:
        raise ValueError(f"{file} is of arithmetic version {record['arithmetic']}, not {VERSION}")
    cases: Record = record["cases"]
    return cases
