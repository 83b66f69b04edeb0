"""Batches decoded in threads: on a CPU each by one thread, as many at a time as torch has threads.

A step of a search is many small operations, and threads that share each of them mostly wait for
each other. On a GPU two take turns: while it searches for the one, the other is written down, or
begun.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from seqloom.core.progress import Cancellation, active_cancellation, check_cancelled

SWITCH_INTERVAL = 2e-4  # seconds for which Python lets the thread wait that has work for the GPU
MIN_PER_THREAD = 16  # sequences that are worth a thread of their own

_threads = threading.Lock()  # one set of threads for the whole process


def can_use_threads(function: Callable[[Any], Any], items: Sequence[Any], device: torch.device) -> bool:
    return _batches_at_a_time(items, device) > 1


def _batches_at_a_time(items: Sequence[Any], device: torch.device) -> int:
    return min({"cpu": torch.get_num_threads(), "cuda": 2}.get(device.type, 1), len(items))


def run_in_threads(function: Callable[[Any], Any], items: Sequence[Any], device: torch.device) -> list[Any]:
    """The function's results, in the order of the items. If one fails, is cancelled, or Ctrl-C comes, the others end
    soon: their loops call `check_cancelled`."""
    threads, together = torch.get_num_threads(), _batches_at_a_time(items, device)
    if not _threads.acquire(blocking=False):
        return [function(item) for item in items]
    interval, as_here = sys.getswitchinterval(), _modes(device)
    cancellation = Cancellation(active_cancellation())

    def work(item: Any) -> Any:
        with as_here(), cancellation.active():
            check_cancelled()
            return function(item)

    pool = ThreadPoolExecutor(together)
    try:
        if device.type != "cpu":
            sys.setswitchinterval(SWITCH_INTERVAL)
        _take_one_each(pool, together, threads)
        futures = [pool.submit(work, item) for item in items]
        return [future.result() for future in futures]
    finally:
        try:
            cancellation.cancel()
            pool.shutdown(cancel_futures=True)
        finally:
            sys.setswitchinterval(interval)
            torch.set_num_threads(threads)
            _threads.release()


def _take_one_each(pool: ThreadPoolExecutor, together: int, threads: int) -> None:
    """One thread of torch's for each thread of the pool.

    What is set holds for the thread that sets it and for all that use torch for the first time
    afterwards, for ever. So it is set back at once, and not when all is decoded.
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


def split_among_threads(sequences: int, largest: int, device: torch.device) -> int:
    """How many sequences, at most `largest`, to decode together so that there is a batch for each thread."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or sequences < threads * MIN_PER_THREAD:
        return largest
    return min(largest, -(-sequences // threads))
