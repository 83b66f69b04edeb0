"""CUDA graphs: what was asked of a GPU once, recorded, and asked for again as a whole."""

import gc
from collections.abc import Callable
from typing import Any

import torch


def record(work: Callable[[], Any], pool: Any = None, stream: Any = None) -> Any:
    """The graph of what `work` asks of the GPU; nothing of it is computed. `replay()` does.

    Graphs that share a `pool` of memory must not be played at the same time. While one is recorded no garbage is
    collected: to free another graph's memory then would spoil the record.
    """
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    finally:
        torch.cuda.set_stream(here)  # where torch would not, after a record that failed
        if collecting:
            gc.enable()
    return graph
