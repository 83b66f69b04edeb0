"""Pairs of token sequences as padded batches: pairs of like length together, as many as a budget of tokens allows.

Both sides end with END, and their lengths count it. A batch of B pairs padded to S and T has B · max(S, T) ≤ `tokens`,
unless it is one long pair alone. Which pairs may change places is fixed beforehand, so that every epoch has the same
number of batches of the same shapes:

    shapes=None   pairs are ordered by target length, then by source length (up and down in turn, so that neighbours
                  across a border are alike too), and cut where the budget is full. Pairs of equal lengths change
                  places.
    shapes=n      at most n shapes (B, S, T) are chosen from the lengths, and every batch has exactly one of them. All
                  pairs of a shape change places. Where a batch lacks pairs, it has rows whose masks are all False.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.seeding import derive
from seqloom.core.tree import Tree
from seqloom.text import END

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]  # (B, S, T)


@dataclass(frozen=True)
class Ragged:
    """Sequences of ids of any length, in one array: number i is ids[starts[i] : starts[i + 1]], END at its end."""

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
        if tokens < 1 or (shapes is not None and shapes < 1):
            raise UsageError(f"Tokens and shapes must be at least 1, got {tokens} and {shapes}.")
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
        self._lengths = lengths[self.pairs]
        planned = _free(self._lengths, tokens) if shapes is None else _boxed(self._lengths, tokens, shapes)
        self._group, self._cuts, self._shapes = planned
        self._epochs: dict[tuple[int, int], tuple[Array, Array]] = {}

    @property
    def steps_per_epoch(self) -> int:
        return len(self._shapes)

    def shapes(self) -> set[Shape]:
        """Every shape (B, S, T) a batch can have."""
        return set(self._shapes)

    def padding(self) -> float:
        """The share of an epoch's cells that hold no token; the same in every epoch."""
        cells = sum(rows * (source + target) for rows, source, target in self._shapes)
        return 1 - int(self._lengths.sum()) / cells

    def members(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Array:
        """The numbers of the pairs that make up this batch."""
        return self._chosen(seed, step * world + rank)[0]

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        chosen, shape = self._chosen(seed, step * world + rank)
        return pair_tree(self.sources, self.targets, chosen, shape)

    def largest_step(self, seed: int) -> int:
        """Which batch of the first epoch has most cells, those between source and target (attention) counted."""
        places = self._epoch(seed, 0)[1]
        cells = [rows * (source * target + source + target) for rows, source, target in self._shapes]
        return int(np.argmax(np.array(cells)[places]))

    def every(self) -> Iterator[tuple[Array, Tree]]:
        """Each pair once: its batches, with the numbers of the pairs in them."""
        for step in range(self.steps_per_epoch):
            yield self.members(0, step), self.batch(0, step)

    def _chosen(self, seed: int, number: int) -> tuple[Array, Shape]:
        """The pairs of a batch, counted over all epochs."""
        epoch, place = divmod(number, self.steps_per_epoch)
        order, places = self._epoch(seed, epoch)
        index = int(places[place])
        return self.pairs[order[self._cuts[index] : self._cuts[index + 1]]], self._shapes[index]

    def _epoch(self, seed: int, epoch: int) -> tuple[Array, Array]:
        """The pairs in the order they are cut in, those of a group at random; and the order of the batches."""
        if (seed, epoch) not in self._epochs:
            drawn = np.random.default_rng(derive(seed, "pairs", epoch))
            order = np.lexsort((drawn.random(len(self._group)), self._group))
            if len(self._epochs) > 1:  # processes side by side may stand in two epochs at once, never in three
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[seed, epoch] = order, drawn.permutation(self.steps_per_epoch)
        return self._epochs[seed, epoch]


def _rows(tokens: int, source: int, target: int) -> int:
    return max(1, tokens // max(source, target))


def _free(lengths: Array, tokens: int) -> tuple[Array, Array, list[Shape]]:
    """Each pair's group (its place among the kinds of lengths), where to cut the ordered pairs, and the shapes."""
    source, target = lengths.T
    turning = np.where(target % 2, source, -source)
    kinds, group, counts = np.unique(
        np.stack([target, turning], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    cuts, shapes, filled, widest = [0], [], 0, (0, 0)
    for (goal, turned), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        while count:
            wider = (max(widest[0], abs(turned)), max(widest[1], goal))
            room = _rows(tokens, *wider) - filled
            if room <= 0:
                cuts.append(cuts[-1] + filled)
                shapes.append((filled, *widest))
                filled, widest = 0, (0, 0)
                continue
            taken = min(room, count)
            filled, count, widest = filled + taken, count - taken, wider
    return group.reshape(-1), np.array([*cuts, len(lengths)]), [*shapes, (filled, *widest)]


def _boxed(lengths: Array, tokens: int, most: int) -> tuple[Array, Array, list[Shape]]:
    """The same with at most `most` shapes, found by splitting, as a decision tree does, what saves most cells.

    Within a box the pairs are shared out evenly, so that hardly a row is left without one.
    """
    kinds, kind, counts = np.unique(lengths, axis=0, return_inverse=True, return_counts=True)
    boxes = [_Box(kinds, counts, np.arange(len(kinds)), tokens)]
    while len(boxes) < most:
        box = max(boxes, key=lambda box: box.gain)
        if box.gain <= 0:
            break
        boxes.remove(box)
        boxes += [_Box(kinds, counts, half, tokens) for half in box.halves]
    box_of_kind = np.empty(len(kinds), dtype=np.int64)
    cuts, shapes = [0], []
    for number, box in enumerate(boxes):
        box_of_kind[box.kinds] = number
        batches = -(-box.pairs // _rows(tokens, *box.widest))
        rows = -(-box.pairs // batches)
        cuts += [cuts[-1] + min(rows * place, box.pairs) for place in range(1, batches + 1)]
        shapes += [(rows, *box.widest)] * batches
    return box_of_kind[kind.reshape(-1)], np.array(cuts), shapes


class _Box:
    """Some kinds of lengths that share a shape, and how they are best split into two boxes."""

    def __init__(self, lengths: Array, counts: Array, kinds: Array, tokens: int):
        self.kinds, self.tokens = kinds, tokens
        self.pairs = int(counts[kinds].sum())
        self.widest: tuple[int, int] = tuple(lengths[kinds].max(axis=0).tolist())
        self.gain, self.halves = 0.0, [kinds]
        whole = self._cells(np.array([self.pairs]), lengths[kinds].max(axis=0, keepdims=True))[0]
        for side in (0, 1):
            ordered = kinds[np.argsort(lengths[kinds, side], kind="stable")]
            found, number = lengths[ordered], counts[ordered]
            before, after = np.maximum.accumulate(found), np.maximum.accumulate(found[::-1])[::-1]
            done = np.cumsum(number)
            cells = self._cells(done[:-1], before[:-1]) + self._cells(self.pairs - done[:-1], after[1:])
            cells[found[:-1, side] == found[1:, side]] = np.inf  # equal lengths stay together
            if len(cells) and whole - cells.min() > self.gain:
                place = int(cells.argmin()) + 1
                self.gain, self.halves = whole - cells.min(), [ordered[:place], ordered[place:]]

    def _cells(self, pairs: Array, widest: Array) -> Array:
        """What batches as large as the budget allows take, the last one's empty rows included."""
        rows = np.maximum(1, self.tokens // widest.max(axis=1))
        return (-(-pairs // rows) * rows * widest.sum(axis=1)).astype(float)
