"""Batches decoded beside each other: on a CPU each by one thread, as many at a time as torch has threads.

A step of a search is many small operations, and threads that share each of them mostly wait for each other. On a GPU
two take turns: while it searches for the one, the other is written down, or begun.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch

from seqloom.core.cancellation import Cancellation, active_cancellation, check_cancelled

Item = TypeVar("Item")
Result = TypeVar("Result")
IMPATIENCE = 2e-4  # seconds for which Python lets the thread wait that has work for the GPU
FEWEST = 16  # sentences that are worth a thread of their own

_threads = threading.Lock()  # one set of threads for the whole process


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """The function's results, in the order of the items. Where one fails, is cancelled, or Ctrl-C comes, the others end
    soon: their loops call `check_cancelled`."""
    threads = torch.get_num_threads()
    together = min({"cpu": threads, "cuda": 2}.get(device.type, 1), len(items))
    if together < 2 or not _threads.acquire(blocking=False):
        return [function(item) for item in items]
    patience, as_here = sys.getswitchinterval(), _modes(device)
    cancellation = Cancellation(active_cancellation())

    def work(item: Item) -> Result:
        with as_here(), cancellation.active():
            check_cancelled()
            return function(item)

    pool = ThreadPoolExecutor(together)
    try:
        if device.type != "cpu":
            sys.setswitchinterval(IMPATIENCE)
        _take_one_each(pool, together, threads)
        found = [pool.submit(work, item) for item in items]
        return [one.result() for one in found]
    finally:
        try:
            cancellation.cancel()
            pool.shutdown(cancel_futures=True)
        finally:
            sys.setswitchinterval(patience)
            torch.set_num_threads(threads)
            _threads.release()


def _take_one_each(pool: ThreadPoolExecutor, together: int, threads: int) -> None:
    """One thread of torch's for each thread of the pool.

    What is set holds for the thread that sets it and for all that use torch for the first time afterwards, for ever. So
    it is set back at once, and not when all is decoded.
    """
    all_there = threading.Barrier(together + 1)

    def begin() -> None:
        torch.get_num_threads()  # from now on the thread has a number of its own
        torch.set_num_threads(1)
        all_there.wait()

    try:
        for _ in range(together):
            pool.submit(begin)
        all_there.wait()
    finally:
        all_there.abort()
        torch.set_num_threads(threads)


def _modes(device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """What torch has set for this thread alone, to be set in another."""
    kind = device.type
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    @contextmanager
    def as_here() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), torch.autocast(kind, dtype, enabled):
            yield

    return as_here


def most_together(sentences: int, most: int, device: torch.device) -> int:
    """How many sentences, at most `most`, to decode together so that there is a batch for each thread."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or sentences < threads * FEWEST:
        return most
    return min(most, -(-sentences // threads))
