"""Fast attention for NumPy arrays on CPUs.

    scaled_dot_product_attention(query, key, value, ...)                         _attention.py
        |
        |-- plain call, native in use: straight into C, which declines what is not plain
        |
        v
    describe_attention(...)  every check, every broadcast by stride 0,       _descriptor.py
        |                    the results allocated             _operands.py, _dtypes.py, _output.py
        v
    AttentionDescriptor      one object that says all there is to say about the call
        |
        v
    attend(descriptor)       the backend in use: chosen at import from what is   _backend.py
        |          |         there and from the environment, or by using(...)
        v          v
    _native      _numpy/     compiled kernels, and the same functions in NumPy:
                             the readable specification, and what runs where nothing is compiled

    threads(n), set_num_threads(n)   how many threads, and where the number came from   _threads.py
    show_config()                    what was chosen, and why                           _config.py
    explain(...)                     what a call would do, without running it          _explain.py

    masks, merge_attention           what goes in and what comes out            masks.py, _merge.py
    error_bound                      how far a result may lie from the exact one         _bound.py
    self_attention, attention_steps  the lesson               _self_attention.py, _steps.py
                                     what these share                  _options.py, _positions.py

    softmax, log_softmax,            over any axes: describe_reduction,   _softmax.py, _reduction.py
    logsumexp, softmax_vjp           then reduce(descriptor) on the backend in use       _backend.py

Errors are raised before a backend sees the call, so that they are the same for all. No backend may
ignore a field of the descriptor. Importing the package starts no threads.
"""

from . import masks
from ._attention import scaled_dot_product_attention
from ._backend import backend
from ._bound import error_bound
from ._config import show_config
from ._explain import AttentionPlan, explain
from ._merge import merge_attention
from ._self_attention import self_attention
from ._softmax import log_softmax, logsumexp, softmax, softmax_vjp
from ._steps import AttentionSteps, attention_steps
from ._threadpoolctl import register_controller
from ._threads import get_num_threads, set_num_threads, threads
from ._version import __version__

register_controller()

__all__ = [
    "AttentionPlan",
    "AttentionSteps",
    "__version__",
    "attention_steps",
    "backend",
    "error_bound",
    "explain",
    "get_num_threads",
    "log_softmax",
    "logsumexp",
    "masks",
    "merge_attention",
    "scaled_dot_product_attention",
    "self_attention",
    "set_num_threads",
    "show_config",
    "softmax",
    "softmax_vjp",
    "threads",
]
