"""Faster implementations of operations: numba and Triton kernels, CUDA graphs, compilation.

Nothing here defines anything. A definition is an operation (`seqloom.core.operations`) and stands
where it belongs; `install` registers faster implementations of it, which the tests in `tests/accel`
prove equal, gradients included. Training and prediction call `install` once; `disabled` turns all
of it off for a block.
"""

import functools

from seqloom.core.operations import definitions_only as disabled

__all__ = ["disabled", "install"]


@functools.cache
def install() -> None:
    """Register every faster implementation. Calling it again changes nothing."""
    from seqloom.accel import cross_entropy, decoding, hmm, layers, recurrence, search, training, word_vectors

    # Of two implementations of one operation, the one that is registered first is asked first.
    parts = recurrence, cross_entropy, hmm, search, training, word_vectors, decoding, layers
    for part in parts:
        part.install()
