"""explain(): the plan of an attention call, without running it; and the log of such plans.

How the native backend cuts a call into tasks is decided in C, once: the entry of the kernels fills
the plan that it would otherwise follow. With FAST_ATTENTION_VERBOSE=1 each call of attention logs
its plan before it runs.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple, Unpack

import numpy as np

from . import _backend
from ._descriptor import AttentionDescriptor, describe_attention
from ._dtypes import Array, ArrayInput
from ._numpy import planned
from ._options import ScoreOptions, check_names, warn_if_ends_differ, warn_of_odd_mask
from ._positions import positions


class AttentionPlan(NamedTuple):
    """What a call of attention does, and what it costs; prints as a table.

    What the fields are: ``explain``.
    """

    backend: str
    isa: str | None
    kernel: str
    arithmetic: str
    rows_per_task: int
    tasks: int
    threads: int | None
    flops: int
    bytes_read: int
    bytes_written: int
    bytes_scratch: int

    def __str__(self) -> str:
        return "\n".join(f"{name:<14}{_text(entry)}" for name, entry in self._asdict().items())


class CallOptions(ScoreOptions, total=False):
    """All keyword arguments of a call of attention."""

    return_lse: bool
    return_weights: bool
    out: Array | None
    num_threads: int | None


def explain(
    query: ArrayInput,
    key: ArrayInput,
    value: ArrayInput,
    attn_mask: ArrayInput | None = None,
    **options: Unpack[CallOptions],
) -> AttentionPlan:
    """Return what ``scaled_dot_product_attention`` would do with these arguments, without doing it.

    Parameters
    ----------
    query, key, value, attn_mask : array_like
        As for ``scaled_dot_product_attention``. Only its checks and warnings look at the values.
    **options
        Its keyword arguments, all of them.

    Returns
    -------
    AttentionPlan
        A named tuple that prints as a table:

        ``backend``, ``isa``
            As in ``show_config``.
        ``kernel``
            Native: ``"tile"`` (queries in the vector lanes) or ``"few"`` (few rows, as in a decode:
            keys in the lanes). NumPy: ``"online"`` (the keys chunk by chunk) or ``"at once"``.
            ``"none"`` if there is nothing to compute.
        ``arithmetic``
            ``"float32"`` or ``"float64"``.
        ``rows_per_task``, ``tasks``
            Into how many independent pieces of how many query rows, at most, the call is cut. The
            rows of query heads that share a kv head count together. Several small ones are one
            piece. Where few rows would leave threads without work, a piece is one segment of 1536
            of their keys.
        ``threads``
            How many work on them, the caller among them: as many as are allowed, have a task and
            are worth it. None for the NumPy backend, whose threads are those of BLAS.
        ``flops``
            Multiplications and additions of both products, ``2 * (D + Dv)`` for each pair of a
            query and a key that causal, window and lengths leave. What a mask hides is not known
            without reading it.
        ``bytes_read``, ``bytes_written``
            Size of the arguments and of the results, what is broadcast counted once.
        ``bytes_scratch``
            Memory beside those: that of all threads for the native backend, a block of scores for
            the NumPy backend.

    Raises
    ------
    TypeError, ValueError
        As the call itself.

    Warns
    -----
    UserWarning
        As the call itself.

    See Also
    --------
    scaled_dot_product_attention : does it.
    show_config : what is in use here, whatever the call.

    Notes
    -----
    No result is allocated, so the plan of a call that does not fit into memory can be asked for.

    With the environment variable FAST_ATTENTION_VERBOSE=1 every call, one of ``self_attention`` or
    of ``fast_attention.compat`` too, logs its plan, in one line, to the logger ``fast_attention``,
    which then writes to stderr if the program has given it no handler by the time of the import.

    Examples
    --------
    >>> import numpy as np
    >>> from fast_attention import explain
    >>> x = np.zeros((8, 1000, 64), np.float32)
    >>> plan = explain(x, x, x, is_causal=True)
    >>> plan.flops == 8 * (1000 * 1001 // 2) * 2 * (64 + 64)
    True
    """
    check_names("explain", options, CallOptions.__optional_keys__)
    described = describe_attention(query, key, value, attn_mask, **options, allocate=False)
    if options.get("query_offset") is None:
        warn_if_ends_differ(described)
    warn_of_odd_mask(attn_mask, described)
    return plan_of(described)


def plan_of(d: AttentionDescriptor) -> AttentionPlan:
    """Return the plan of a described call on the backend in use."""
    backend, isa = _backend.current()
    threads: int | None = None
    if not d.has_results():
        kernel, rows, tasks, scratch = "none", 0, 0, 0
    elif isa is None:
        kernel, rows, tasks, scratch = planned(d)
    else:
        module = _backend.native().module
        assert module is not None
        kernel, rows, tasks, threads, scratch = module.plan(d, isa)
    arguments = (d.query, d.key, d.value, d.mask, d.bias, d.kv_lengths, d.query_offset)
    options = (d.sinks, d.alibi_slopes, d.k_scale, d.v_scale)
    return AttentionPlan(
        backend=backend,
        isa=isa,
        kernel=kernel,
        arithmetic=d.compute_dtype.name,
        rows_per_task=rows,
        tasks=tasks,
        threads=threads,
        flops=2 * _visible_pairs(d) * (d.d_head + d.d_value),
        bytes_read=sum(map(_own_bytes, arguments + options)),
        bytes_written=sum(result.nbytes for result in d.returned if result is not None),
        bytes_scratch=scratch,
    )


def _visible_pairs(d: AttentionDescriptor) -> int:
    """Count (query, key) pairs of all heads that the positions allow."""
    where = positions(d)
    return d.n_head * int(np.maximum(where.high - where.low, 0).sum())


def _own_bytes(array: Array | None) -> int:
    """Count the bytes behind an array, axes of stride 0 once."""
    if array is None or array.size == 0:
        return 0
    axes = zip(array.shape, array.strides, strict=True)
    own: int = math.prod(size for size, stride in axes if stride != 0)
    return own * array.itemsize


def _text(entry: object) -> str:
    if entry is None:
        return "-"
    return f"{entry:,}" if isinstance(entry, int) else str(entry)


# --- The log ---

_LOGGER = logging.getLogger("fast_attention")


def read_verbose(environment: Mapping[str, str]) -> bool:
    """Tell whether FAST_ATTENTION_VERBOSE asks for a line per call."""
    text = environment.get("FAST_ATTENTION_VERBOSE", "").strip()
    if text not in ("", "0", "1"):
        raise ValueError(f"FAST_ATTENTION_VERBOSE={text!r} is not valid: expected 0 or 1")
    return text == "1"


def _open_log() -> None:
    _LOGGER.setLevel(logging.INFO)
    if not _LOGGER.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        _LOGGER.addHandler(handler)


def log_plan(d: AttentionDescriptor) -> None:
    """Log the plan of a described call in one line."""
    plan = plan_of(d)
    shape = f"query {d.query.shape} {d.query.dtype}, key {d.key.shape} {d.key.dtype}"
    engine = " ".join(filter(None, (plan.backend, plan.isa, plan.kernel)))
    on = "" if plan.threads is None else f" on {plan.threads} thread{'s' * (plan.threads != 1)}"
    _LOGGER.info(
        f"attention: {shape}: {engine}, {plan.tasks} tasks of {plan.rows_per_task} rows{on}, "
        f"{plan.flops / 1e6:.6g} MFLOP, {plan.bytes_read / 1e6:.6g} MB read, "
        f"{plan.bytes_written / 1e6:.6g} MB written, {plan.bytes_scratch / 1e6:.6g} MB scratch"
    )


is_verbose = read_verbose(os.environ)
if is_verbose:
    _open_log()
