"""What the compiled module offers to the Python layers."""

from typing import Any

import numpy.typing as npt

from ._descriptor import AttentionDescriptor
from ._reduction import ReductionDescriptor

ARITHMETIC_VERSION: int
KEY_BLOCK: int
SEGMENT: int
REDUCTION_KINDS: dict[str, int]

def attention(d: AttentionDescriptor, isa: str) -> None: ...
def plan(d: AttentionDescriptor, isa: str) -> tuple[str, int, int, int, int]: ...
def reduce(d: ReductionDescriptor, isa: str) -> None: ...
def plain_attention(
    query: object,
    key: object,
    value: object,
    is_causal: bool,
    scale: float | None,
    num_threads: int,
    isa: str,
) -> npt.NDArray[Any] | None: ...
def plain_reduction(
    kind: int,
    x: object,
    axis: object,
    out: object,
    num_threads: int,
    isa: str,
) -> npt.NDArray[Any] | None: ...
def isa_table() -> tuple[tuple[str, bool, str], ...]: ...
def tile_rows(isa: str, dtype_name: str) -> int: ...
def compiler() -> str: ...
def classify_cpu(leaf1_ecx: int, leaf7_ebx: int, xcr0: int) -> str: ...
def pool_thread_count() -> int: ...
