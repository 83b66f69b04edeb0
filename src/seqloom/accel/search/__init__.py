"""Beam search with CUDA graphs, and decoding of batches in threads."""

from seqloom.accel.search.graphed_search import can_graph_search, graphed_beam_search, release_graphs
from seqloom.accel.search.threads import can_use_threads, run_in_threads, split_among_threads
from seqloom.core.operations import always
from seqloom.decoding.beam import beam_search, choose_batch_size, release_memory, run_batches


def install() -> None:
    beam_search.register(can_graph_search, graphed_beam_search)
    release_memory.register(always, release_graphs)
    run_batches.register(can_use_threads, run_in_threads)
    choose_batch_size.register(always, split_among_threads)
