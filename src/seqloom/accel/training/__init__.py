"""Training steps as CUDA graphs, with compiled model regions."""

from seqloom.accel.training.graphed_step import can_graph, graph_step
from seqloom.train.wrappers import accelerate


def install() -> None:
    accelerate.register(can_graph, graph_step)
