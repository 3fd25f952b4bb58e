"""Fast attention for NumPy arrays on CPUs.

    scaled_dot_product_attention(query, key, value, ...)                         _attention.py
        |
        |-- plain call, native in use: straight into C, which declines what is not plain
        |
        v
    describe_attention(...)  every check, every broadcast by stride 0,       _descriptor.py
        |                    the results allocated                           _dtypes.py, _output.py
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

Errors are raised before a backend sees the call, so that they are the same for all. No backend may
ignore a field of the descriptor. Importing the package starts no threads.
"""

from ._attention import scaled_dot_product_attention
from ._backend import backend
from ._config import show_config
from ._threads import get_num_threads, set_num_threads, threads
from ._version import __version__

__all__ = [
    "__version__",
    "backend",
    "get_num_threads",
    "scaled_dot_product_attention",
    "set_num_threads",
    "show_config",
    "threads",
]
