"""Transport ``delta``: versions of the weights as what changed, coded near its entropy.

``codec`` codes one block (``frame`` is its wire format, ``huffman`` the codes of classes; ``kernels`` chooses
between the compiled and the NumPy loops), ``link`` is the file of a delta, ``log`` the deltas on offer,
``paths`` the cheapest way from what a receiver has; ``companion`` makes links as versions are published,
``receiver`` applies them.
"""
