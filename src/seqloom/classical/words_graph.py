"""Steps of skip-gram and CBOW on a CUDA GPU, played from a record.

A step is some forty small operations, and a GPU is done with each before Python has asked for the next. So the step is
recorded once, as a CUDA graph on predictions that stand in fixed places, and from then on asked for as a whole. Where
fewer predictions are left than the record has places, the others count nothing.
"""

import torch
from torch import Tensor

from seqloom.classical.negative_sampling import Predictions, update
from seqloom.classical.word_vectors import WordVectors
from seqloom.core.graphs import record

WARM_UP = 3  # steps before a recording, as CUDA's libraries want; they change nothing


class RecordedStep:
    """`update` of these vectors, for at most `batch` predictions."""

    def __init__(self, model: WordVectors, batch: int) -> None:
        config, device = model.config, model.device
        self.batch, self.tables = batch, (model.vectors, model.contexts)
        reads, tells = 1 if config.objective == "skipgram" else 2 * config.window, 1 + config.negatives
        self.made = Predictions(
            torch.zeros(batch, reads, dtype=torch.int64, device=device),
            torch.zeros(batch, reads, dtype=torch.bool, device=device),
            torch.zeros(batch, tells, dtype=torch.int64, device=device),
            torch.zeros(batch, tells, dtype=torch.bool, device=device),
        )
        self.rate, self.loss = (torch.zeros((), device=device) for _ in range(2))
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                self.loss.add_(update(model, self.made, self.rate))
        torch.cuda.current_stream(device).wait_stream(beside)
        self.graph = record(lambda: self.loss.add_(update(model, self.made, self.rate)))

    def holds(self, model: WordVectors) -> bool:
        """Whether these are still the vectors it was recorded on."""
        return model.vectors is self.tables[0] and model.contexts is self.tables[1]

    def play(self, made: Predictions, rate: float) -> Tensor:
        """Make the steps of all these predictions, `batch` at a time; the sum of their losses."""
        self.loss.zero_()
        self.rate.fill_(rate)
        mine = self.made
        for first in range(0, len(made.told), self.batch):
            part = slice(first, first + self.batch)
            n = len(made.told[part])
            for place, new in (
                (mine.read, made.read),
                (mine.used, made.used),
                (mine.told, made.told),
                (mine.real, made.real),
            ):
                place[:n].copy_(new[part])
            if n < self.batch:
                mine.used[n:].fill_(False)
                mine.real[n:].fill_(False)
            self.graph.replay()
        return self.loss.clone()
