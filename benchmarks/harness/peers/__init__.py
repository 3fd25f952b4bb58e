"""One adapter for each library, all alike.

An adapter is a module with ``start(threads)``, called once and before the library is used,
``version()``, and ``candidates(problem)``: the reasonable ways to compute a problem with the
library, of which the fastest is timed. It raises ``UnsupportedError`` where there is none. What a
user would do once, such as a compilation or a conversion of the inputs, is done in ``candidates``;
what a user would do for each call is in the call.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from ..problems import Array


@dataclasses.dataclass
class Candidate:
    """A call to time, and what makes its result an array ``(B, H, L, D)`` or a matrix.

    ``amount`` is what the loops of ``limits`` do in a call: operations or bytes.
    """

    name: str
    call: Callable[[], Any]
    to_array: Callable[[Any], Array]
    amount: float | None = None


# The module of each library; ours is there twice, with the compiled kernels and without.
MODULES = {
    "native": "own",
    "numpy": "own",
    "torch": "pytorch",
    "onnxruntime": "onnx_runtime",
    "openvino": "intel",
    "jax": "xla",
    "scipy": "scientific",
    "limits": "loops",
}
