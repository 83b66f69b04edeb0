"""Faster implementations of `seqloom.classical.hmm.inference`."""

from seqloom.accel.hmm import compiled, scaled
from seqloom.classical.hmm import inference as hmm_inference
from seqloom.core.operations import always


def install() -> None:
    """Numba kernels where they apply, else scaled products."""
    hmm_inference.recursion.register(compiled.applies_to_sums, compiled.recursion)
    hmm_inference.recursion.register(always, scaled.recursion)
    hmm_inference.log_likelihood.register(compiled.applies, compiled.log_likelihood)
    hmm_inference.expected_states.register(compiled.applies, compiled.expected_states)
    hmm_inference.best_path.register(compiled.applies, compiled.best_path)
    hmm_inference.backtrack.register(always, scaled.backtrack)
