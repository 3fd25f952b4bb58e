"""Attention under the names, in the layouts and with the defaults of other libraries.

    onnx    attention(Q, K, V, ...)                          the operator Attention, opsets 23 to 25
    torch   scaled_dot_product_attention(query, key, ...)    torch.nn.functional
    jax     dot_product_attention(query, key, value, ...)    jax.nn

Each module takes and returns NumPy arrays, is imported only when asked for, and imports nothing of
the library whose names it speaks::

    from fast_attention.compat.jax import dot_product_attention

All of them end in the ordinary kernels, so the rules of `fast_attention` hold wherever a library
leaves a case open: a row that sees no key is 0, and what is masked may hold anything.
"""
