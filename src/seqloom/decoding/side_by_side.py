"""Batches decoded beside each other: on a CPU each by one thread, as many at a time as torch has threads.

A step of a search is many small operations, and threads that share each of them mostly wait for each other. On a GPU
two take turns: while it searches for the one, the other is written down, or begun.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
IMPATIENCE = 2e-4  # seconds for which Python lets the thread wait that has work for the GPU
FEWEST = 16  # sentences that are worth a thread of their own

_threads = threading.Lock()  # how many there are is one number for the whole process


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """The function's results, in the order of the items."""
    threads = torch.get_num_threads()
    together = min({"cpu": threads, "cuda": 2}.get(device.type, 1), len(items))
    if together < 2 or not _threads.acquire(blocking=False):
        return [function(item) for item in items]
    patience = sys.getswitchinterval()
    try:
        if device.type != "cpu":
            sys.setswitchinterval(IMPATIENCE)
        with ThreadPoolExecutor(together, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, items))
    finally:
        sys.setswitchinterval(patience)
        torch.set_num_threads(threads)
        _threads.release()


def most_together(sentences: int, most: int, device: torch.device) -> int:
    """How many sentences, at most `most`, to decode together so that there is a batch for each thread."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or sentences < threads * FEWEST:
        return most
    return min(most, -(-sentences // threads))
