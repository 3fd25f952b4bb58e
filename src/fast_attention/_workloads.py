"""The workloads that ``python -m fast_attention compare`` measures, as data.

Each row of ``WORKLOADS`` is one attention call as a real model makes it: its shape, what hides
keys from it, and one line that says where it comes from. ``make_call`` turns a row into arrays.
Values are standard normal and seeded by the name, so a row is the same input on every machine and
in every selection. To add a workload, add a row.
"""

import dataclasses
import importlib
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One attention call: query ``(batch, n_head, n_query, d_head)`` on ``n_key`` keys.

    ``padded`` gives every sequence of the batch its own ``kv_lengths``; ``window`` counts the keys
    that a causal query sees, itself included; ``masked`` adds a bool mask of the batch's padding
    and ``biased`` a float bias per head; ``cache_dtype`` is the type of key and value, where it is
    not that of the query.
    """

    name: str
    about: str
    n_head: int
    n_query: int
    n_key: int
    d_head: int
    batch: int = 1
    n_kv_head: int = 0  # 0: as many as n_head
    is_causal: bool = False
    window: int | None = None
    padded: bool = False
    masked: bool = False
    biased: bool = False
    alibi: bool = False
    cache_dtype: str | None = None

    @property
    def shape_text(self) -> str:
        """The shape in at most 27 characters, such as ``4x12 heads L=197 D=64``."""
        heads = f"{self.n_head} heads" if self.n_head > 1 else "1 head"
        if self.n_kv_head:
            heads = f"{self.n_head}/{self.n_kv_head} heads"
        if self.batch > 1:
            heads = f"{self.batch}x{heads}"
        keys = f" S={self.n_key}" if self.n_key != self.n_query else ""
        return f"{heads} L={self.n_query}{keys} D={self.d_head}"


WORKLOADS = (
    Workload(
        name="sentence-encoder",
        about="MiniLM on 8 padded sentences (kv_lengths)",
        batch=8, n_head=12, n_query=128, n_key=128, d_head=32, padded=True,
    ),
    Workload(
        name="encoder-512",
        about="BERT base at its longest input",
        n_head=12, n_query=512, n_key=512, d_head=64,
    ),
    Workload(
        name="vision-transformer",
        about="ViT base on 4 images, 14 x 14 patches and a token",
        batch=4, n_head=12, n_query=197, n_key=197, d_head=64,
    ),
    Workload(
        name="causal-512",
        about="short causal prompt",
        n_head=12, n_query=512, n_key=512, d_head=64, is_causal=True,
    ),
    Workload(
        name="gpt-prefill",
        about="GPT-2 reading a full context, causal",
        n_head=12, n_query=1024, n_key=1024, d_head=64, is_causal=True,
    ),
    Workload(
        name="llama-prefill",
        about="Llama 3 8B reading a prompt, causal, grouped",
        n_head=32, n_kv_head=8, n_query=1024, n_key=1024, d_head=128, is_causal=True,
    ),
    Workload(
        name="causal-2048",
        about="long causal prompt, few wide heads",
        n_head=4, n_query=2048, n_key=2048, d_head=128, is_causal=True,
    ),
    Workload(
        name="long-chunk",
        about="last 64 queries of a 32k context, causal",
        n_head=1, n_query=64, n_key=32768, d_head=128, is_causal=True,
    ),
    Workload(
        name="sliding-window",
        about="Mistral style: each token sees the last 256",
        n_head=8, n_query=4096, n_key=4096, d_head=64, is_causal=True, window=256,
    ),
    Workload(
        name="mask-bias",
        about="T5 style encoder: padding mask, bias per head",
        batch=2, n_head=12, n_query=512, n_key=512, d_head=64, masked=True, biased=True,
    ),
    Workload(
        name="alibi",
        about="MPT style causal prompt with ALiBi slopes",
        n_head=16, n_query=512, n_key=512, d_head=64, is_causal=True, alibi=True,
    ),
    Workload(
        name="gpt-decode",
        about="GPT-2 writing one token",
        n_head=12, n_query=1, n_key=1024, d_head=64,
    ),
    Workload(
        name="llama-decode",
        about="Llama 3 8B writing one token, grouped heads",
        n_head=32, n_kv_head=8, n_query=1, n_key=4096, d_head=128,
    ),
    Workload(
        name="decode-32-heads",
        about="Llama 2 7B writing one token",
        n_head=32, n_query=1, n_key=4096, d_head=128,
    ),
    Workload(
        name="float16-cache",
        about="llama-decode on a float16 key and value",
        n_head=32, n_kv_head=8, n_query=1, n_key=4096, d_head=128, cache_dtype="float16",
    ),
    Workload(
        name="tiny",
        about="the smallest call: the cost of calling at all",
        n_head=1, n_query=8, n_key=8, d_head=16,
    ),
    Workload(
        name="tiny-batch",
        about="64 tiny sequences in one call",
        batch=64, n_head=4, n_query=16, n_key=16, d_head=16,
    ),
)  # fmt: skip

BY_NAME = {workload.name: workload for workload in WORKLOADS}


def resolve_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype called `name`; bfloat16 comes from the package ``ml_dtypes``."""
    source: Any = importlib.import_module("ml_dtypes") if name == "bfloat16" else np
    dtype: np.dtype[Any] = np.dtype(getattr(source, name))
    return dtype


def needs_bfloat16(workloads: Iterable[Workload], dtype: str) -> bool:
    """Tell whether any array of `workloads` is bfloat16."""
    return dtype == "bfloat16" or any(w.cache_dtype == "bfloat16" for w in workloads)


def make_call(workload: Workload, dtype: str) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """Return ``(query, key, value)`` and the options of `workload`, in `dtype`."""
    rng = np.random.default_rng(zlib.crc32(workload.name.encode()))
    wanted = resolve_dtype(dtype)
    stored = resolve_dtype(workload.cache_dtype or dtype)

    def normal(*shape: int, dtype: np.dtype[Any]) -> Any:
        drawn = np.float64 if dtype == np.float64 else np.float32
        return rng.standard_normal(shape, dtype=drawn).astype(dtype, copy=False)

    w = workload
    n_kv_head = w.n_kv_head or w.n_head
    query = normal(w.batch, w.n_head, w.n_query, w.d_head, dtype=wanted)
    key = normal(w.batch, n_kv_head, w.n_key, w.d_head, dtype=stored)
    value = normal(w.batch, n_kv_head, w.n_key, w.d_head, dtype=stored)
    options = _visibility(w)
    if w.biased:
        options["bias"] = normal(w.n_head, w.n_query, w.n_key, dtype=wanted)
    return (query, key, value), options


def _visibility(workload: Workload) -> dict[str, Any]:
    """Return the options that decide which keys a query sees, and the ALiBi slopes."""
    w = workload
    options: dict[str, Any] = {}
    lengths = np.linspace(w.n_key / 4, w.n_key, w.batch).astype(np.int64)
    if w.padded:
        options["kv_lengths"] = lengths
    if w.masked:
        options["attn_mask"] = (np.arange(w.n_key) < lengths[:, None])[:, None, None, :]
    if w.is_causal:
        options["is_causal"] = True
    if w.is_causal and w.n_query != w.n_key:
        options["query_offset"] = "end"
    if w.window is not None:
        options["window"] = (w.window - 1, 0)
    if w.alibi:
        options["alibi_slopes"] = 2.0 ** (-8.0 * np.arange(1, w.n_head + 1) / w.n_head)
    return options
