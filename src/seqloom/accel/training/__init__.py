"""Training steps as CUDA graphs, and the parts of a model in them compiled."""

from seqloom.accel.training.graphed_step import can_graph, graph_step
from seqloom.train.wrappers import accelerate


def install() -> None:
    accelerate.register(can_graph, graph_step)
