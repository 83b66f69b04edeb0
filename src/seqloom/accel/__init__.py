"""Faster implementations of operations: numba and Triton kernels, CUDA graphs, compilation.

The definitions are in the other packages, as operations (`seqloom.core.operations`). `install` registers faster
implementations of them. `tests/accel` checks that results and gradients are equal. Training and prediction call
`install` once; within `disabled`, only definitions are used.
"""

import functools

from seqloom.core.operations import definitions_only as disabled

__all__ = ["disabled", "install"]


@functools.cache
def install() -> None:
    """Register every faster implementation. Calling it again changes nothing."""
    from seqloom.accel import cross_entropy, decoding, hmm, layers, recurrence, search, training, word_vectors

    # Implementations of an operation are tried in the order of their registration.
    parts = recurrence, cross_entropy, hmm, search, training, word_vectors, decoding, layers
    for part in parts:
        part.install()
