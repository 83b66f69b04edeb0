"""Skip-gram and CBOW steps as a CUDA graph.

A step consists of about forty small operations, each faster than its launch from Python. The step is therefore captured
once, with its training examples in static buffers, and then replayed. Unused rows of the buffers are masked.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from seqloom.accel.cuda_graphs import capture
from seqloom.classical.word_vectors import WordVectorModel
from seqloom.classical.word_vectors.negative_sampling import ContextPredictions, update, update_in_batches

WARM_UP_STEPS = 3  # steps that initialize CUDA libraries; the masked buffers leave the vectors unchanged

_graphs: WeakKeyDictionary[WordVectorModel, "GraphedUpdate"] = WeakKeyDictionary()


def install() -> None:
    update_in_batches.register(can_graph_update, graphed_update)


def can_graph_update(model: WordVectorModel, predictions: ContextPredictions, rate: float, batch: int) -> bool:
    return model.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()


def graphed_update(model: WordVectorModel, predictions: ContextPredictions, rate: float, batch: int) -> Tensor:
    graphed = _graphs.get(model)
    if graphed is None or not graphed.fits(model, batch):
        graphed = _graphs[model] = GraphedUpdate(model, batch)
    return graphed(predictions, rate)


class GraphedUpdate:
    """The `update` of word vectors as a CUDA graph, for at most `batch` training examples."""

    def __init__(self, model: WordVectorModel, batch: int) -> None:
        config, device = model.config, model.device
        self.batch, self.tables = batch, (model.vectors, model.contexts)
        inputs, candidates = 1 if config.objective == "skipgram" else 2 * config.window, 1 + config.negatives
        self.buffers = ContextPredictions(
            torch.zeros(batch, inputs, dtype=torch.int64, device=device),
            torch.zeros(batch, inputs, dtype=torch.bool, device=device),
            torch.zeros(batch, candidates, dtype=torch.int64, device=device),
            torch.zeros(batch, candidates, dtype=torch.bool, device=device),
        )
        self.rate, self.loss = (torch.zeros((), device=device) for _ in range(2))
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        tables = WordVectorModel(config, model.vocabulary)  # does not refer to the model, which owns this graph
        tables.vectors, tables.contexts = self.tables
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self.loss.add_(update(tables, self.buffers, self.rate))
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = capture(lambda: self.loss.add_(update(tables, self.buffers, self.rate)))

    def fits(self, model: WordVectorModel, batch: int) -> bool:
        """Return whether the graph was captured with these vectors and this batch size."""
        return model.vectors is self.tables[0] and model.contexts is self.tables[1] and batch == self.batch

    def __call__(self, predictions: ContextPredictions, rate: float) -> Tensor:
        """Run the steps for all training examples, `batch` examples at a time, and return the sum of their losses."""
        self.loss.zero_()
        self.rate.fill_(rate)
        for part in predictions.batches(self.batch):
            for name, buffer in vars(self.buffers).items():
                buffer[: len(part)].copy_(getattr(part, name))
            self.buffers.input_mask[len(part) :].fill_(False)
            self.buffers.candidate_mask[len(part) :].fill_(False)
            self.graph.replay()
        return self.loss.clone()
