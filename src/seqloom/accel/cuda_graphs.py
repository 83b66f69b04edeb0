"""CUDA graphs: the operations of a function, captured once and replayed as a whole."""

import gc
from collections.abc import Callable
from typing import Any

import torch


def capture(work: Callable[[], Any], pool: Any = None, stream: Any = None) -> Any:
    """Capture the operations of `work` on the GPU; they are computed by `replay()` of the graph.

    Graphs that share a `pool` of memory must not be replayed at the same time. During a capture no
    garbage is collected: to free another graph's memory would invalidate it.
    """
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    finally:
        torch.cuda.set_stream(here)  # which torch would not, after a capture that failed
        if collecting:
            gc.enable()
    return graph
