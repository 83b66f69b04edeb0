"""One long stream of tokens as rows of chunks, for truncated backpropagation through time."""

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.text import END


class Chunk(TypedDict):
    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    fresh: bool  # the first of an epoch: a carried state must be forgotten


@dataclass(frozen=True)
class StreamBatches:
    """The stream (N,) cut into `rows` pieces of L = ⌊N / rows⌋ tokens, read side by side `chunk` tokens at a time.

    Row r predicts stream[r·L : (r+1)·L]. Its first input is the token before its first target (END for row 0); chunks
    of a row follow each other without a gap, so a state carried from one to the next has read exactly the row so far.
    An epoch predicts rows·L tokens, each once: only the last N mod rows < rows tokens of the stream are left out. The
    last chunk of an epoch is shorter where `chunk` does not divide L, so there are at most two shapes.

    With an offset the stream is a ring that begins so many tokens later: rows and chunks are cut elsewhere. Its last
    token is the END of the last document, so what comes before the first document is the same as ever.
    """

    stream: Tensor  # (N,)
    rows: int
    chunk: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.chunk < 1:
            raise UsageError(f"Rows and chunk must be at least 1, got {self.rows} and {self.chunk}.")
        if self.length < 2:
            raise DataError(
                f"{self.rows} rows need at least {2 * self.rows} tokens, but the text has {len(self.stream)}. "
                "Give more text, or lower batch.rows."
            )

    @property
    def length(self) -> int:
        """L, the targets of one row."""
        return len(self.stream) // self.rows

    @property
    def left_out(self) -> int:
        """How many tokens at the end of the stream are never predicted."""
        return len(self.stream) % self.rows

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.length // self.chunk)

    def shapes(self, world: int = 1) -> set[tuple[int, int]]:
        """Every shape (B, T) a batch can have."""
        rows, rest = self._rows_each(world), self.length % self.chunk
        return {(rows, min(self.chunk, self.length))} | ({(rows, rest)} if rest else set())

    def batch(self, step: int, rank: int = 0, world: int = 1, offset: int = 0) -> Chunk:
        """The chunk of this step for the rows of this rank: a pure function of its arguments."""
        rows, place = self._rows_each(world), step % self.steps_per_epoch
        start = place * self.chunk
        width = min(self.chunk, self.length - start)
        first = torch.arange(rank * rows, (rank + 1) * rows).unsqueeze(1) * self.length + start  # (B, 1)
        places = first + torch.arange(width) + offset  # (B, T), of the targets
        inputs, targets = (self.stream[where % len(self.stream)] for where in (places - 1, places))
        if rank == 0 and place == 0 and offset == 0:
            inputs[0, 0] = END
        return {"inputs": inputs, "targets": targets, "fresh": place == 0}

    def _rows_each(self, world: int) -> int:
        if self.rows % world:
            raise UsageError(f"batch.rows must be a multiple of the {world} processes, got {self.rows}.")
        return self.rows // world
