"""Faster implementations of `seqloom.nn.recurrent.run_cell`."""

from seqloom.accel.recurrence import sequences, torch_kernels
from seqloom.nn.recurrent import run_cell


def install() -> None:
    """Register the autograd function for whole sequences, then torch's fused kernels."""
    run_cell.register(sequences.applies, sequences.run)
    run_cell.register(torch_kernels.applies, torch_kernels.run)
