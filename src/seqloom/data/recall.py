"""The recall problem: a symbol is shown, others follow, and then it is asked for.

    s  d_1 … d_lag  ?          s, d_i any of K symbols          y = s

Every x_t is one-hot over the K symbols and the question mark. The others come from the same alphabet, so only being the
first makes s worth keeping, and it must be kept over `lag` steps that each offer something else to keep.

Training asks after `shortest` to `lag` steps, one of these for all of a batch; dev and test always after `lag`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.core.seeding import derive
from seqloom.data.vectors import Indices, Sequences, VectorData, held_out_problem, numbered, uniform


@config
class RecallConfig:
    lag: int = 20  # steps between the symbol and the question
    shortest: int = 1  # training asks after so many to lag steps; as much as lag for that one alone
    symbols: int = 8  # different symbols; guessing is right once in so many
    dev: int = 1000  # sequences in dev
    test: int = 1000  # sequences in test
    epoch: int = 10_000  # sequences called an epoch; training never reads one twice
    seed: int = 0  # decides dev and test; training draws by the recipe's own seed

    def problems(self) -> Iterator[str]:
        if self.lag < 1:
            yield f"lag must be at least 1, got {self.lag}"
        elif not 1 <= self.shortest <= self.lag:
            yield f"shortest must be from 1 to lag ({self.lag}), got {self.shortest}"
        if self.symbols < 2:
            yield f"symbols must be at least 2, or there is nothing to remember; got {self.symbols}"
        if problem := held_out_problem(self.dev, self.test):
            yield problem
        if self.epoch < 1:
            yield f"epoch must be at least 1, got {self.epoch}"

    def data(self) -> "Recall":
        return Recall(self)


class Recall(VectorData):
    name = "recall"
    version = "1"

    def __init__(self, config: RecallConfig) -> None:
        super().__init__(config.seed, {"dev": config.dev, "test": config.test})
        self.lag, self.shortest, self.symbols = config.lag, config.shortest, config.symbols
        self.inputs, self.outputs = self.symbols + 1, self.symbols

    def draw(self, seed: int, indices: Indices) -> Sequences:
        return self._draw(seed, indices, self.lag)

    def batch(self, seed: int, first: int, rows: int) -> Sequences:
        indices = numbered(first, rows)
        (where,) = uniform(derive(seed, self.name, "lag"), indices[:1], 1)[0]
        lag = self.shortest + int(where * (self.lag - self.shortest + 1))
        return self._draw(derive(seed, self.name, "train"), indices, lag)

    def _draw(self, seed: int, indices: Indices, lag: int) -> Sequences:
        drawn = torch.from_numpy((uniform(seed, indices, lag + 1) * self.symbols).astype("int64"))  # (B, 1 + lag)
        question = torch.full((len(drawn), 1), self.symbols)
        inputs = torch.nn.functional.one_hot(torch.cat([drawn, question], dim=1), self.inputs)  # (B, lag + 2, K + 1)
        return {"inputs": inputs.float(), "targets": drawn[:, 0]}

    def blind(self, targets: Tensor) -> Tensor:
        """All symbols are equally likely."""
        return torch.zeros(len(targets), self.outputs)
