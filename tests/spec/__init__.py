"""The arithmetic of ``attn_ext/ARITHMETIC.md``, executed operation by operation in NumPy.

Slow, plain, and exact to the last bit for both classes: what a native kernel computes has to have the
bits that ``attention`` returns.  Read it beside the text, which is in the same order:

    fused.py        Classes: fma(a, b, c), fused or not
    functions.py    Words, Constants, Functions: max, min, exp2, tanh, log2
    attention.py    Parameters, A row: score, block, segments, result, NaN
    formats.py      which numbers the element types hold: widening, and rounding once

Rows and columns are handled together, as NumPy arrays; whatever the text orders (the dimensions of a
dot product, the keys) is a Python loop.
"""

from .attention import attention
from .fused import CLASSES

__all__ = ["CLASSES", "attention"]
