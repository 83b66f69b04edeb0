"""Faster implementations of `seqloom.classical.hmm.inference`."""

from seqloom.accel.hmm import numba_inference, scaled
from seqloom.classical.hmm import inference as hmm_inference
from seqloom.core.operations import always


def install() -> None:
    """Register numba kernels and, for all other tensors, scaled matrix products."""
    hmm_inference.recursion.register(numba_inference.applies_to_sums, numba_inference.recursion)
    hmm_inference.recursion.register(always, scaled.recursion)
    hmm_inference.log_likelihood.register(numba_inference.applies, numba_inference.log_likelihood)
    hmm_inference.expected_states.register(numba_inference.applies, numba_inference.expected_states)
    hmm_inference.best_path.register(numba_inference.applies, numba_inference.best_path)
    hmm_inference.backtrack.register(always, scaled.backtrack)
