"""The adding problem (Hochreiter and Schmidhuber, 1997): which two numbers were marked, and what is their sum?

    x_t = (value in [0, 1), mark)          mark = 1 at one step of each half, else 0          y = the two values marked

Nothing but the marks says which numbers count, and the first must be kept for at least half of the sequence.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from seqloom.config import config
from seqloom.data.vectors import Indices, Sequences, VectorData, held_out_problem, to_float32, uniform


@config
class AddingConfig:
    length: int = 50  # steps of a sequence
    dev: int = 1000  # sequences in dev
    test: int = 1000  # sequences in test
    epoch: int = 10_000  # sequences called an epoch; training never reads one twice
    seed: int = 0  # decides dev and test; training draws by the recipe's own seed

    def problems(self) -> Iterator[str]:
        if self.length < 2:
            yield f"length must be at least 2, one step for each mark; got {self.length}"
        if problem := held_out_problem(self.dev, self.test):
            yield problem
        if self.epoch < 1:
            yield f"epoch must be at least 1, got {self.epoch}"

    def data(self) -> "Adding":
        return Adding(self)


class Adding(VectorData):
    name = "adding"
    version = "1"
    inputs = 2
    outputs = 1

    def __init__(self, config: AddingConfig) -> None:
        super().__init__(config.seed, {"dev": config.dev, "test": config.test})
        self.length = config.length

    def draw(self, seed: int, indices: Indices) -> Sequences:
        half = self.length // 2
        drawn = uniform(seed, indices, self.length + 2)
        values, places = drawn[:, : self.length], drawn[:, self.length :]  # (B, T) and (B, 2)
        marks = np.zeros_like(values)
        rows = np.arange(len(indices))
        marks[rows, (places[:, 0] * half).astype(int)] = 1
        marks[rows, half + (places[:, 1] * (self.length - half)).astype(int)] = 1
        inputs = to_float32(np.stack([values, marks], axis=2))  # (B, T, 2)
        return {"inputs": inputs, "targets": to_float32((values * marks).sum(axis=1))}

    def blind(self, targets: Tensor) -> Tensor:
        """The mean of two numbers in [0, 1]; the error is then their variance, 2 · 1/12 = 1/6."""
        return torch.ones(len(targets), 1)
