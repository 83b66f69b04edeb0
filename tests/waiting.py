"""A device that must not be waited for, for the tests of several rooms."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the program wait for a CUDA device in here is an error."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
