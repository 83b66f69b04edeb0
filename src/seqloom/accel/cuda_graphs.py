"""Capture of CUDA graphs."""

import gc
from collections.abc import Callable
from typing import Any

import torch


def capture(work: Callable[[], Any], pool: Any = None, stream: Any = None) -> Any:
    """Capture the GPU operations of `work` in a graph, whose `replay()` runs them.

    Graphs that share a memory `pool` must not be replayed at the same time. Garbage collection is disabled during the
    capture, because freeing another graph's memory would invalidate the capture.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    finally:
        torch.cuda.set_stream(current)  # torch does not restore the stream after a failed capture
        if gc_was_enabled:
            gc.enable()
    return graph
