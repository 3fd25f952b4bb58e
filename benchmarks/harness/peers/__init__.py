"""One adapter for each library, all alike.

An adapter is a module with ``start(threads)``, called once and before the library is used,
``version()``, and ``candidates(problem)``: the reasonable ways to compute a problem with the
library, of which the fastest is timed. It raises ``Unsupported`` where there is none. What a user
would do once, such as a compilation or a conversion of the inputs, is done in ``candidates``; what
a user would do for each call is in the call.
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


# Module, the import name and the distributions of each library.
MODULES = {
    "native": ("own", "fast_attention", ()),
    "numpy": ("own", "fast_attention", ()),
    "torch": ("pytorch", "torch", ("torch",)),
    "onnxruntime": ("onnx_runtime", "onnxruntime", ("onnxruntime", "onnx")),
    "openvino": ("intel", "openvino", ("openvino",)),
    "jax": ("xla", "jax", ("jax",)),
    "scipy": ("scientific", "scipy", ("scipy",)),
    "limits": ("loops", "numpy", ()),
}
