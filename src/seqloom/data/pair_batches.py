"""Pairs of token sequences as padded batches: pairs of like length together, as many as a budget of tokens allows.

Both sides end with END, and their lengths count it. How pairs fall into batches is told in `buckets.py`; where a batch
lacks pairs, it has rows whose masks are all False.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError
from seqloom.core.tree import Tree
from seqloom.data.buckets import Array as Array
from seqloom.data.buckets import Buckets, Shape, refuse_none
from seqloom.text import END


@dataclass(frozen=True)
class Ragged:
    """Sequences of ids of any length, in one array: number i is ids[starts[i] : starts[i + 1]]; texts end with END."""

    ids: Array  # (Σ lengths,) int32
    starts: Array  # (N + 1,) int64

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "Ragged":
        """Read one after the other, so that they need not be in memory as lists all at once."""
        lengths: list[int] = []

        def ended() -> Iterator[Sequence[int]]:
            for sequence in sequences:
                lengths.append(len(sequence) + 1)
                yield sequence
                yield (END,)

        ids = np.fromiter(chain.from_iterable(ended()), dtype=np.int32)
        return cls(ids, np.cumsum([0, *lengths], dtype=np.int64))

    @classmethod
    def plain(cls, sequences: Sequence[Sequence[int]]) -> "Ragged":
        """Numbers that are not tokens, a tag for each word say: nothing stands at their end."""
        ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int32)
        return cls(ids, np.cumsum([0, *map(len, sequences)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Array:
        return np.diff(self.starts)

    def take(self, chosen: Array) -> "Ragged":
        """Some of the sequences, in the order given."""
        pieces = [self.ids[self.starts[index] : self.starts[index + 1]] for index in chosen]
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64)
        return Ragged(np.concatenate(pieces) if pieces else self.ids[:0], starts)

    def shortened(self, lengths: Array) -> "Ragged":
        """The beginnings of the sequences, as long as `lengths` (N,) says."""
        within = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], self.lengths)  # each id's place in its sequence
        kept = self.ids[within < np.repeat(lengths, self.lengths)]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(kept, starts)

    def ended(self, lengths: Array) -> "Ragged":
        """The same for texts, which then end with END."""
        made = self.shortened(lengths)
        made.ids[made.starts[1:] - 1] = END
        return made

    def padded(self, chosen: Array, rows: int, width: int) -> tuple[Tensor, Tensor]:
        """The chosen sequences as (rows, width) ids and mask; what is not real is id 0 and False."""
        lengths = np.zeros(rows, dtype=np.int64)
        lengths[: len(chosen)] = self.starts[chosen + 1] - self.starts[chosen]
        mask = np.arange(width) < lengths[:, None]  # (B, W)
        ids = np.zeros((rows, width), dtype=np.int64)
        first = np.zeros(rows, dtype=np.int64)
        first[: len(chosen)] = self.starts[chosen]
        ids[mask] = self.ids[(first[:, None] + np.arange(width))[mask]]
        return torch.from_numpy(ids), torch.from_numpy(mask)


def pair_tree(sources: Ragged, targets: Ragged, chosen: Array, shape: Shape | None = None) -> Tree:
    """The batch of these pairs, padded to a shape, or to the longest of each side."""
    longest = (int(side.lengths[chosen].max()) for side in (sources, targets)) if shape is None else ()
    rows, *widths = shape or (len(chosen), *longest)
    source, source_mask = sources.padded(chosen, rows, widths[0])
    target, target_mask = targets.padded(chosen, rows, widths[1])
    inputs = torch.zeros_like(target)  # END, then the target without its own END; padding is 0, as END is
    inputs[:, 1:] = target[:, :-1]
    return {
        "source": source,  # (B, S)
        "source_mask": source_mask,
        "inputs": inputs,  # (B, T)
        "targets": target,
        "target_mask": target_mask,
    }


class PairBatches:
    """The pairs of a split as batches: a pure function of seed, step, rank and world."""

    def __init__(
        self,
        sources: Iterable[Sequence[int]] | Ragged,
        targets: Iterable[Sequence[int]] | Ragged,
        *,
        tokens: int,
        shapes: int | None = None,
        max_length: int | None = None,
    ):
        refuse_none(tokens, shapes)
        self.sources = sources if isinstance(sources, Ragged) else Ragged.of(sources)
        self.targets = targets if isinstance(targets, Ragged) else Ragged.of(targets)
        self.tokens = tokens
        lengths = np.stack([self.sources.lengths, self.targets.lengths], axis=1)  # (N, 2)
        self.pairs = np.flatnonzero(lengths.max(axis=1, initial=0) <= (max_length or np.inf))  # those that are read
        self.left_out = len(lengths) - len(self.pairs)
        if not len(self.pairs):
            raise DataError(
                f"There is no pair to read: all {len(lengths):,} are longer than {max_length} tokens. Raise "
                "batch.max_length."
                if len(lengths)
                else "There is no pair to read: the split is empty."
            )
        self._buckets = Buckets(lengths[self.pairs], tokens=tokens, shapes=shapes, purpose="pairs")

    @property
    def steps_per_epoch(self) -> int:
        return len(self._buckets)

    def shapes(self) -> set[Shape]:
        """Every shape (B, S, T) a batch can have."""
        return set(self._buckets.shapes)

    def padding(self) -> float:
        """The share of an epoch's cells that hold no token; the same in every epoch."""
        return self._buckets.padding()

    def members(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Array:
        """The numbers of the pairs that make up this batch."""
        found: Array = self.pairs[self._buckets.chosen(seed, step, rank, world)[0]]
        return found

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        chosen, shape = self._buckets.chosen(seed, step, rank, world)
        return pair_tree(self.sources, self.targets, self.pairs[chosen], shape)

    def largest_step(self, seed: int) -> int:
        """Which batch of the first epoch has most cells, those between source and target (attention) counted."""
        shapes = self._buckets.first_epoch(seed)
        return int(np.argmax([rows * (source * target + source + target) for rows, source, target in shapes]))

    def every(self) -> Iterator[tuple[Array, Tree]]:
        """Each pair once: its batches, with the numbers of the pairs in them."""
        for step in range(self.steps_per_epoch):
            yield self.members(0, step), self.batch(0, step)
