"""Windows of series, for training by gradient: which rows a batch holds is a function of the seed and the step."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.seeding import derive


class SeriesWindows:
    """All windows of `length` steps of some series; an epoch reads each once, in an order of its own."""

    def __init__(self, series: Sequence[tuple[Tensor, Tensor]], length: int, rows: int) -> None:
        self.series, self.length, self.rows = series, length, rows  # values and mask (T, C) each
        longest = max(len(values) for values, _ in series)
        if longest < length:
            raise DataError(
                f"Training reads windows of {length} steps, model.context and what model.difference subtracts before "
                f"it, and the longest training series has {longest}. Lower model.context, or give more data."
            )
        self.starts = [(n, t) for n, (v, _) in enumerate(series) for t in range(len(v) - length + 1)]

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.starts) // self.rows)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
        """Values and mask (B, length, C)."""
        if self.rows % world:
            raise UsageError(f"batch.rows must be a multiple of the {world} processes, got {self.rows}.")
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng(derive(seed, "windows", epoch)).permutation(len(self.starts))
        chosen = np.resize(order, self.steps_per_epoch * self.rows)[place * self.rows : (place + 1) * self.rows]
        own = [self.starts[number] for number in chosen[rank * self.rows // world : (rank + 1) * self.rows // world]]
        return {
            "values": torch.stack([self.series[n][0][t : t + self.length] for n, t in own]).float(),
            "mask": torch.stack([self.series[n][1][t : t + self.length] for n, t in own]),
        }
