"""Decoding of batches in parallel threads; on a CPU, one thread per batch, up to torch's number of threads.

A search step consists of many small operations, and threads that share such an operation mostly wait for each other. On
a GPU, two batches alternate: one batch is prepared or collected while the GPU runs the search of the other batch.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from seqloom.core.progress import Cancellation, active_cancellation, check_cancelled

SWITCH_INTERVAL = 2e-4  # seconds; limits the waiting time of the thread that has work for the GPU
MIN_PER_THREAD = 16  # minimum number of sequences per thread

_pool_lock = threading.Lock()  # only one pool per process is used at a time


def can_use_threads(function: Callable[[Any], Any], items: Sequence[Any], device: torch.device) -> bool:
    return _worker_count(items, device) > 1


def _worker_count(items: Sequence[Any], device: torch.device) -> int:
    return min({"cpu": torch.get_num_threads(), "cuda": 2}.get(device.type, 1), len(items))


def run_in_threads(function: Callable[[Any], Any], items: Sequence[Any], device: torch.device) -> list[Any]:
    """Return the results of the function, in the order of the items.

    An error, a cancellation or Ctrl-C stops all threads at their next call of `check_cancelled`.
    """
    threads, workers = torch.get_num_threads(), _worker_count(items, device)
    if not _pool_lock.acquire(blocking=False):
        return [function(item) for item in items]
    interval, same_modes = sys.getswitchinterval(), _copy_modes(device)
    cancellation = Cancellation(active_cancellation())

    def work(item: Any) -> Any:
        with same_modes(), cancellation.active():
            check_cancelled()
            return function(item)

    pool = ThreadPoolExecutor(workers)
    try:
        if device.type != "cpu":
            sys.setswitchinterval(SWITCH_INTERVAL)
        _limit_torch_threads(pool, workers, threads)
        futures = [pool.submit(work, item) for item in items]
        return [future.result() for future in futures]
    finally:
        try:
            cancellation.cancel()
            pool.shutdown(cancel_futures=True)
        finally:
            sys.setswitchinterval(interval)
            torch.set_num_threads(threads)
            _pool_lock.release()


def _limit_torch_threads(pool: ThreadPoolExecutor, workers: int, threads: int) -> None:
    """Limit torch to one thread in each thread of the pool.

    The setting also applies to all threads that later use torch for the first time, so this function restores it before
    decoding starts.
    """
    barrier = threading.Barrier(workers + 1)

    def set_one_thread() -> None:
        torch.get_num_threads()  # this call gives the thread its own setting
        torch.set_num_threads(1)
        barrier.wait()

    try:
        for _ in range(workers):
            pool.submit(set_one_thread)
        barrier.wait()
    finally:
        barrier.abort()
        torch.set_num_threads(threads)


def _copy_modes(device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager that copies the thread-local modes of torch from this thread."""
    device_type = device.type
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    dtype, enabled = torch.get_autocast_dtype(device_type), torch.is_autocast_enabled(device_type)

    @contextmanager
    def same_modes() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), torch.autocast(device_type, dtype, enabled):
            yield

    return same_modes


def split_among_threads(sequences: int, largest: int, device: torch.device) -> int:
    """Return the batch size, at most `largest`, that gives each thread a batch."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or sequences < threads * MIN_PER_THREAD:
        return largest
    return min(largest, -(-sequences // threads))
