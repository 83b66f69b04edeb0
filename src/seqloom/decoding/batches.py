"""Batches of sequences to decode, one after the other by definition; `seqloom.accel` decodes them in threads."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from seqloom.core.operations import operation

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_batches(function: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """The function's results, in the order of the items."""
    return run_batches(function, items, device)


@operation
def run_batches(function: Callable[[Any], Any], items: Sequence[Any], device: torch.device) -> list[Any]:
    return [function(item) for item in items]


@operation
def choose_batch_size(sequences: int, largest: int, device: torch.device) -> int:
    """How many sequences, at most `largest`, to decode together."""
    return largest
