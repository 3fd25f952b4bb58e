"""What is measured: cases as data, each with the targets that ``--check`` holds it to.

An attention case is a workload of ``python -m fast_attention compare`` with a few fields more, a
softmax case a matrix whose rows are normalised. ``targets`` maps a measure to its bound:

=================  =================================================================  ========
measure            ratio                                                              bound
=================  =================================================================  ========
``fma``            share of the arithmetic rate of a fused-multiply-add loop          at least
``read``           share of the rate at which a loop reads memory                     at least
``copy``           share of the speed of a loop that copies the array                 at least
``numpy_fma``      the share ``fma`` of the NumPy fallback                            at least
name of a library  its time over ours                                                 at least
``one_thread``     our time on one thread over our time                               at least
``base``           our time over that of the case named by ``base``                   at most
``microseconds``   our time                                                           at most
=================  =================================================================  ========
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fast_attention._workloads import Workload

PEERS = ("torch", "onnxruntime", "openvino", "jax")
AT_MOST = ("base", "microseconds")
NEVER_SLOWER = 1.0
N_DOCUMENT = 16  # of equal length, in a mask of documents

Targets = Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """What every case has beside its shape.

    ``limit`` names the loop that bounds it, or is ``None`` where a call is too small for one;
    ``base`` names the case that is timed along with it, on the same library.
    """

    group: str
    limit: str | None = None
    base: str | None = None
    threads: int = 1
    targets: Targets = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionCase(Timed, Workload):
    """One attention call; see ``Workload`` for the shape.

    ``strided`` stores the arrays as ``(batch, n_query, n_head, d_head)`` and passes views;
    ``mask``, shared by the heads, is ``"random"`` (nine of ten keys), ``"all"`` (hides nothing),
    ``"triangle"`` or ``"documents"``; ``bias`` is ``"shared"`` by the heads or one per ``"head"``;
    ``band`` is how far a query sees to both sides.
    """

    strided: bool = False
    mask: str | None = None
    bias: str | None = None
    band: int | None = None
    softcap: float | None = None

    @property
    def flops(self) -> int:
        """Operations of both products over the pairs that are not hidden on purpose."""
        return 4 * self.batch * self.n_head * self.d_head * self.visible_pairs

    @property
    def visible_pairs(self) -> int:
        """How many pairs of query and key a head has; those of a random mask all count."""
        if self.mask == "documents":
            return self.n_query * self.n_key // N_DOCUMENT
        first = self.n_key - self.n_query  # the position of the first query
        hides_later = self.is_causal or self.mask == "triangle"
        left = self.n_key if self.window is None else self.window - 1
        right = 0 if hides_later else self.n_key
        if self.band is not None:
            left = right = self.band
        return sum(
            min(self.n_key, position + right + 1) - max(0, position - left)
            for position in range(first, self.n_key)
        )

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values, which have to be read at least once."""
        itemsize = {"float16": 2, "bfloat16": 2, "int8": 1}.get(self.cache_dtype or "float32", 4)
        n_kv_head = self.n_kv_head or self.n_head
        return 2 * self.batch * n_kv_head * self.n_key * self.d_head * itemsize


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxCase(Timed):
    """``softmax`` or ``log_softmax`` of the rows of a float32 matrix, in ``out`` if ``in_out``."""

    name: str
    about: str
    function: str
    n_row: int
    n_column: int
    in_out: bool = False

    @property
    def shape_text(self) -> str:
        """Rows and columns."""
        return f"{self.n_row} rows of {self.n_column}"

    @property
    def bytes(self) -> int:
        """Bytes of the matrix."""
        return 4 * self.n_row * self.n_column


Case = AttentionCase | SoftmaxCase


def targets(peers: float = 1.0, torch: float | None = None, **others: float) -> Targets:
    """Return targets against every library, with a bound of its own for PyTorch."""
    bounds = {"numpy": NEVER_SLOWER, **dict.fromkeys(PEERS, peers), **others}
    return {**bounds, "torch": torch} if torch is not None else bounds


full = partial(AttentionCase, limit="fma")
decode = partial(
    AttentionCase, group="decode", limit="read", n_head=32, n_query=1, n_key=4096, d_head=128
)


def _forward() -> Iterator[Case]:
    for d_head, fma in ((64, 0.80), (128, 0.85)):
        for length in (128, 256, 512, 1024, 2048, 4096):
            extra = {"fma": fma, "numpy": 1.4} if length >= 512 else {}
            if (length, d_head) == (1024, 64):
                extra["numpy_fma"] = 0.45
            yield full(
                name=f"forward-{length}-{d_head}",
                about="every query sees every key",
                group="forward",
                n_head=4 if length < 4096 else 1,
                n_query=length,
                n_key=length,
                d_head=d_head,
                targets=targets(torch=1.25 if length >= 512 else 1.0, **extra),
            )


def _causal() -> Iterator[Case]:
    for d_head, over_numpy in ((64, 2.0), (128, 1.5)):
        for length in (512, 1024, 2048, 4096):
            yield full(
                name=f"causal-{length}-{d_head}",
                about="a query sees the keys up to its own",
                group="causal",
                n_head=4 if length < 4096 else 1,
                n_query=length,
                n_key=length,
                d_head=d_head,
                is_causal=True,
                targets=targets(torch=1.5, fma=0.75 if length < 2048 else 0.80, numpy=over_numpy),
            )


def _short() -> Iterator[Case]:
    for d_head, fma in ((64, 0.70), (32, 0.60)):
        yield full(
            name=f"heads-12-{d_head}",
            about="a layer of a sentence encoder",
            group="short",
            n_head=12,
            n_query=128,
            n_key=128,
            d_head=d_head,
            targets=targets(torch=1.3, fma=fma),
        )


def _views() -> Iterator[Case]:
    for length, d_head in ((512, 64), (1024, 64), (1024, 128)):
        plain = full(
            name=f"heads-8-{length}-{d_head}",
            about="contiguous arrays, for the views below",
            group="views",
            n_head=8,
            n_query=length,
            n_key=length,
            d_head=d_head,
        )
        yield plain
        yield dataclasses.replace(
            plain,
            name=f"views-{length}-{d_head}",
            about="views of (B, L, H, D) arrays",
            strided=True,
            base=plain.name,
            targets=targets(torch=1.25, numpy=1.4, base=1 / 0.95),
        )


def _prompt_in_16_bits() -> Iterator[Case]:
    yield full(
        name="heads-8-1024-64-bfloat16",
        about="all of it in bfloat16, which some processors multiply in hardware",
        group="bfloat16",
        n_head=8,
        n_query=1024,
        n_key=1024,
        d_head=64,
        cache_dtype="bfloat16",
        targets=targets(numpy=3.0),
    )


def _decode() -> Iterator[Case]:
    for n_kv_head, name, about in (
        (0, "decode-32", "one token on a long cache"),
        (8, "decode-32-8", "one token, 8 heads of keys and values"),
    ):
        plain = decode(
            name=name, about=about, n_kv_head=n_kv_head, targets=targets(torch=2.0, read=0.85)
        )
        yield plain
        for dtype, over_float32 in (("float16", 1.7), ("bfloat16", 1.7), ("int8", 2.5)):
            bounds = {"numpy": 3.0, "base": 1 / over_float32}
            yield dataclasses.replace(
                plain,
                name=f"{name}-{dtype}",
                about=f"{about}, {dtype} keys and values",
                cache_dtype=dtype,
                base=name,
                targets=bounds if dtype == "int8" else {**bounds, "torch": 10.0},
            )


def _masks() -> Iterator[Case]:
    length = 1024
    shape: dict[str, Any] = {
        "group": "masks",
        "n_head": 8,
        "n_query": length,
        "n_key": length,
        "d_head": 64,
    }
    plain = full(name="mask-none", about="nothing masked", **shape)
    yield plain
    yield full(name="mask-none-4096", about="nothing masked, long", **{
        **shape, "n_head": 1, "n_query": 4096, "n_key": 4096,
    })  # fmt: skip
    more: tuple[tuple[str, str, float, dict[str, Any]], ...] = (
        ("mask-bool", "bool mask, shared by the heads", 1.15, {"mask": "random"}),
        ("mask-all", "bool mask that hides nothing", 1.05, {"mask": "all"}),
        ("bias-shared", "bias, shared by the heads", 1.15, {"bias": "shared"}),
        ("mask-bias", "both of these together", 1.3, {"mask": "random", "bias": "shared"}),
        ("bias-heads", "bias of each head", 1.3, {"bias": "head"}),
        ("window", "window of 512 to both sides", 1.15, {"band": 512}),
        ("alibi", "ALiBi slopes", 1.15, {"alibi": True}),
        ("softcap", "soft capping", 1.4, {"softcap": 20.0}),
        ("mask-triangle", "causal rule as a bool mask", 0.65, {"mask": "triangle"}),
        ("mask-documents", "16 documents as a bool mask", 0.2, {"mask": "documents"}),
    )
    for name, about, most, fields in more:
        numpy = 2.0 if name == "window" else NEVER_SLOWER
        yield dataclasses.replace(
            plain,
            name=name,
            about=about,
            base=plain.name,
            targets={"base": most, "numpy": numpy},
            **fields,
        )
    yield full(
        name="window-16",
        about="each of 4096 tokens sees 16",
        group="masks",
        n_head=1,
        n_query=4096,
        n_key=4096,
        d_head=64,
        is_causal=True,
        window=16,
        base="mask-none-4096",
        targets={"base": 0.05, "numpy": 2.0},
    )


def _tiny() -> Iterator[Case]:
    tiny = AttentionCase(
        name="tiny",
        about="the cost of calling at all",
        group="small",
        n_head=1,
        n_query=8,
        n_key=8,
        d_head=16,
        targets=targets(microseconds=3.0, numpy=3.0),
    )
    yield tiny
    yield dataclasses.replace(
        tiny,
        name="tiny-10000",
        about="ten thousand of these in one call",
        batch=10_000,
        limit="fma",
        targets=targets(numpy=3.0),
    )
    for n_query, n_key, d_head in ((1, 128, 64), (7, 7, 80), (16, 16, 64), (100, 100, 64)):
        yield full(
            name=f"small-{n_query}-{n_key}-{d_head}",
            about="a call below the sizes above",
            group="small",
            n_head=2,
            n_query=n_query,
            n_key=n_key,
            d_head=d_head,
            targets=targets(),
        )


def _softmax() -> Iterator[Case]:
    for function in ("softmax", "log_softmax"):
        for n_column in (32, 64, 128, 512, 4096, 50_000):
            is_long = n_column >= 4096
            bounds = {"copy": 0.7} if is_long else {"torch": 3.0, "scipy": 3.0}
            yield SoftmaxCase(
                name=f"{function.replace('_', '-')}-{n_column}",
                about="written into out" if is_long else "scores of attention",
                group="softmax",
                function=function,
                n_row=2**22 // n_column if is_long else 2**18 // n_column,
                n_column=n_column,
                in_out=is_long,
                limit="copy",
                targets=targets(scipy=bounds.pop("scipy", 1.0), **bounds),
            )


def _threads() -> Iterator[Case]:
    shared: dict[str, Any] = {"group": "threads", "threads": 2}
    compute: dict[str, Any] = {**shared, "n_head": 8, "targets": targets(one_thread=1.85)}
    memory: dict[str, Any] = {**shared, "targets": targets(read=0.9)}
    for length, d_head, is_causal in ((1024, 64, False), (1024, 128, False), (2048, 64, True)):
        yield full(
            name=f"threads-{'causal' if is_causal else 'forward'}-{length}-{d_head}",
            about="prefill on two threads",
            n_query=length,
            n_key=length,
            d_head=d_head,
            is_causal=is_causal,
            **compute,
        )
    yield decode(name="threads-decode-32", about="one token on two threads", **memory)
    yield decode(
        name="threads-decode-32-8", about="one token, 8 heads of keys", n_kv_head=8, **memory
    )
    yield decode(
        name="threads-one-head",
        about="one token, one long head",
        **{**memory, "n_head": 1, "n_key": 200_000},
    )
    yield SoftmaxCase(
        name="threads-softmax-4096",
        about="written into out",
        function="softmax",
        n_row=1024,
        n_column=4096,
        in_out=True,
        limit="copy",
        **{**shared, "targets": targets(copy=0.7, one_thread=1.85, scipy=1.0)},
    )


CASES: tuple[Case, ...] = (
    *_forward(), *_causal(), *_short(), *_views(), *_prompt_in_16_bits(), *_decode(), *_masks(),
    *_tiny(), *_softmax(), *_threads(),
)  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
GROUPS = tuple(dict.fromkeys(case.group for case in CASES))
