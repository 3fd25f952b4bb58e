"""The arithmetic of ``attn_ext/ARITHMETIC.md``, executed operation by operation in NumPy.

Slow, plain, and exact to the last bit for both classes: what a native kernel computes has to have
the bits that ``attention`` returns.  To be read beside the text, whose names it keeps:

    fused.py        Classes: fma(a, b, c), fused or not
    functions.py    Words, Constants, Functions: max, min, exp2, tanh, log2
    attention.py    Parameters, A row: score, block, segments, result, NaN
    softmax.py      The softmax family, with its exp and log1p
    formats.py      which numbers the element types hold: widening, and rounding once

Rows and columns are handled together, as NumPy arrays; whatever the text orders (the dimensions of
a dot product, the keys) is a Python loop.  ``calls``, ``hard_values`` and
``softmax_calls`` are calls to try it on.
"""

from .attention import attention
from .fused import CLASSES

__all__ = ["CLASSES", "attention"]
