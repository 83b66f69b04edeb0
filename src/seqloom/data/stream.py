"""Long streams in pieces: tokens for truncated backpropagation through time, and windows of series."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.seeding import derive
from seqloom.text import END


class Chunk(TypedDict):
    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    fresh: bool  # the first of an epoch: a carried state must be forgotten


@dataclass(frozen=True)
class StreamBatches:
    """The stream (N,) cut into `size` rows of L = ⌊N / size⌋ tokens, read side by side `length` tokens at a time.

    Row r predicts stream[r·L : (r+1)·L]. Its first input is the token before its first target (END for row 0); chunks
    of a row follow each other without a gap, so a state carried from one to the next has read exactly the row so far.
    An epoch predicts size·L tokens, each once: only the last N mod size < size tokens of the stream are left out. The
    last chunk of an epoch is shorter where `length` does not divide L, so there are at most two shapes.

    With an offset the stream is a ring that begins so many tokens later: rows and chunks are cut elsewhere. Its last
    token is the END of the last document, so what comes before the first document is the same as ever.
    """

    stream: Tensor  # (N,)
    size: int
    length: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.length < 1:
            raise UsageError(f"Size and length must be at least 1, got {self.size} and {self.length}.")
        if self.row_length < 2:
            raise DataError(
                f"{self.size} rows need at least {2 * self.size} tokens, but the text has {len(self.stream)}. "
                "Give more text, or lower batch.rows."
            )

    @property
    def row_length(self) -> int:
        """L, the targets of one row."""
        return len(self.stream) // self.size

    @property
    def left_out(self) -> int:
        """How many tokens at the end of the stream are never predicted."""
        return len(self.stream) % self.size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.row_length // self.length)

    def shapes(self, world: int = 1) -> set[tuple[int, int]]:
        """Every shape (B, T) a batch can have."""
        rows, rest = rows_of_rank(self.size, world), self.row_length % self.length
        return {(rows, min(self.length, self.row_length))} | ({(rows, rest)} if rest else set())

    def batch(self, step: int, rank: int = 0, world: int = 1, offset: int = 0) -> Chunk:
        """The chunk of this step for the rows of this rank: a pure function of its arguments."""
        rows, place = rows_of_rank(self.size, world), step % self.steps_per_epoch
        start = place * self.length
        width = min(self.length, self.row_length - start)
        first = torch.arange(rank * rows, (rank + 1) * rows).unsqueeze(1) * self.row_length + start  # (B, 1)
        places = first + torch.arange(width) + offset  # (B, T), of the targets
        inputs, targets = (self.stream[where % len(self.stream)] for where in (places - 1, places))
        if rank == 0 and place == 0 and offset == 0:
            inputs[0, 0] = END
        return {"inputs": inputs, "targets": targets, "fresh": place == 0}


def rows_of_rank(size: int, world: int) -> int:
    """Return how many rows of a batch each of the processes reads."""
    if size % world:
        raise UsageError(f"batch.rows must be a multiple of the {world} processes, got {size}.")
    return size // world


class SeriesWindows:
    """All windows of `length` steps of some series; an epoch reads each once, in an order of its own."""

    def __init__(self, series: Sequence[tuple[Tensor, Tensor]], length: int, size: int) -> None:
        self.series, self.length, self.size = series, length, size  # values and mask (T, C) each
        longest = max(len(values) for values, _ in series)
        if longest < length:
            raise DataError(
                f"Training reads windows of {length} steps, model.context and what model.difference subtracts before "
                f"it, and the longest training series has {longest}. Lower model.context, or give more data."
            )
        self.starts = [(n, t) for n, (v, _) in enumerate(series) for t in range(len(v) - length + 1)]

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.starts) // self.size)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
        """Values and mask (B, length, C)."""
        size = rows_of_rank(self.size, world)
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng(derive(seed, "windows", epoch)).permutation(len(self.starts))
        chosen = np.resize(order, self.steps_per_epoch * self.size)[place * self.size : (place + 1) * self.size]
        own = [self.starts[number] for number in chosen[rank * size : (rank + 1) * size]]
        return {
            "values": torch.stack([self.series[n][0][t : t + self.length] for n, t in own]).float(),
            "mask": torch.stack([self.series[n][1][t : t + self.length] for n, t in own]),
        }
