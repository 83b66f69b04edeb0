"""Faster implementations of operations: numba and Triton kernels, CUDA graphs, compilation.

The other packages define operations (`seqloom.core.operations`), and `install` registers faster implementations of
these operations. `tests/accel` checks that each implementation computes the same results and gradients as the reference
implementation. Training and prediction call `install` once. Within `disabled`, only the reference implementations are
used.
"""

import functools

from seqloom.core.operations import definitions_only as disabled

__all__ = ["disabled", "install"]


@functools.cache
def install() -> None:
    """Register every faster implementation. Further calls have no effect."""
    from seqloom.accel import cross_entropy, ctc, decoding, hmm, layers, recurrence, search, training, word_vectors

    # Implementations of an operation are tried in the order of their registration.
    parts = recurrence, cross_entropy, ctc, hmm, search, training, word_vectors, decoding, layers
    for part in parts:
        part.install()
