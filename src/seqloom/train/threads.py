"""The number of CPU threads of a training, on which the last bits of its weights depend.

PyTorch adds up the gradients of LayerNorm, of convolutions and of oneDNN's LSTM in one part for each thread. So a
training that is resumed ends with the same weights, to the bit, if it has the number of threads that it had before.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from seqloom.core.words import counted

VARIABLE = "OMP_NUM_THREADS"  # whoever sets it decides the number of threads


def used_threads(device: torch.device) -> int:
    """The number of threads that the results of a training on this device depend on; 0 if they do not."""
    return torch.get_num_threads() if device.type == "cpu" else 0


def resume_threads(before: int, device: torch.device) -> str | None:
    """Use as many CPU threads as the training used `before` (0: none); a note for the user if that is another number.

    The number stays as it is where `OMP_NUM_THREADS` is set, or where this process has fewer cores than that.
    """
    now = used_threads(device)
    if 0 in (before, now) or before == now:
        return None
    if os.environ.get(VARIABLE):
        why = f"{VARIABLE} says so"
    elif before > available_cores():
        why = f"there are only {counted(available_cores(), 'core')}"
    else:
        torch.set_num_threads(before)
        return (
            f"the training continues with {counted(before, 'CPU thread')}, as it began, so that the weights are the "
            f"same to the bit; set {VARIABLE} to use another number"
        )
    return (
        f"the training had {counted(before, 'CPU thread')} and continues with {now}, since {why}: its weights may "
        "differ in their last bits from those of a training that was never stopped"
    )


@contextmanager
def threads_restored() -> Iterator[None]:
    """Leave the process with the number of threads it had, whatever a resume set."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
