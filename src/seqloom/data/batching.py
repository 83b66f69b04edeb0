"""Batches: a sampler decides which examples a batch holds, and `collate` turns them into padded tensors.

`LengthSampler` puts examples of similar length together, as many as a budget of tokens allows. An
example has two lengths, those of the two sides of a pair, or the tokens and the words of a
sentence; where it has one, they are equal. A batch of B examples padded to S and T has B · max(S,
T) ≤ `tokens`, unless it is one long example alone. Which examples may change places is fixed
beforehand, so that every epoch has the same number of batches of the same shapes:

    shapes=None   lengths are rounded up to a scale with steps of a fifth or so; examples are ordered by the second
                  length, then by the first (up and down in turn, so that neighbours across a border are similar too),
                  and cut where the budget is full. Examples of equal rounded lengths change places.
    shapes=n      at most n shapes (B, S, T) are chosen from the lengths, and every batch has exactly one of them. All
                  examples of a shape change places. Where a batch lacks examples, it has rows without any.

Long streams are read in pieces: tokens for truncated backpropagation through time, and windows of
series.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, TypedDict

import numpy as np
import torch
from torch import Tensor

from seqloom.core import END
from seqloom.core.device import derive
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]  # (B, S, T)
LENGTH_RATIO = 1.2  # between lengths that count as different where shapes are free: larger mixes more and pads more
KEPT_EPOCHS = 2  # processes side by side may be in two epochs at once, never in three


@dataclass(frozen=True)
class Ragged:
    """Sequences of ids of any length, in one array: number i is ids[starts[i] : starts[i + 1]]; texts end with END."""

    ids: Array  # (Σ lengths,) int32
    starts: Array  # (N + 1,) int64

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "Ragged":
        """Read sequences one after the other, so that they need not be in memory as lists all at once."""
        lengths: list[int] = []

        def add_ends() -> Iterator[Sequence[int]]:
            for sequence in sequences:
                lengths.append(len(sequence) + 1)
                yield sequence
                yield (END,)

        ids = np.fromiter(chain.from_iterable(add_ends()), dtype=np.int32)
        return cls(ids, np.cumsum([0, *lengths], dtype=np.int64))

    @classmethod
    def plain(cls, sequences: Sequence[Sequence[int]]) -> "Ragged":
        """Numbers that are not tokens, such as a tag for each word: nothing is added at their end."""
        ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int32)
        return cls(ids, np.cumsum([0, *map(len, sequences)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Array:
        return np.diff(self.starts)

    def take(self, chosen: Array) -> "Ragged":
        """Return some of the sequences, in the order given."""
        pieces = [self.ids[self.starts[index] : self.starts[index + 1]] for index in chosen]
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64)
        return Ragged(np.concatenate(pieces) if pieces else self.ids[:0], starts)

    def truncate(self, lengths: Array) -> "Ragged":
        """Return the beginnings of the sequences, `lengths` (N,) long."""
        positions = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], self.lengths)  # of each id in its sequence
        kept = self.ids[positions < np.repeat(lengths, self.lengths)]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(kept, starts)

    def truncate_texts(self, lengths: Array) -> "Ragged":
        """Return the beginnings of texts, which then end with END."""
        made = self.truncate(lengths)
        made.ids[made.starts[1:] - 1] = END
        return made

    def pad(self, chosen: Array, rows: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the chosen sequences as ids and mask (rows, width); padding is id 0 and False."""
        lengths = np.zeros(rows, dtype=np.int64)
        lengths[: len(chosen)] = self.starts[chosen + 1] - self.starts[chosen]
        mask = np.arange(width) < lengths[:, None]  # (B, W)
        ids = np.zeros((rows, width), dtype=np.int64)
        first = np.zeros(rows, dtype=np.int64)
        first[: len(chosen)] = self.starts[chosen]
        ids[mask] = self.ids[(first[:, None] + np.arange(width))[mask]]
        return torch.from_numpy(ids), torch.from_numpy(mask)


# --- samplers ---------------------------------------------------------------------------------------------------------


class ShuffleSampler:
    """Batches of `size` examples in a random order; the rest at the end of an epoch is left out of it."""

    def __init__(self, count: int, size: int, purpose: str) -> None:
        """`purpose` keeps the draws of one kind of data apart from those of others."""
        self.count, self.size = count, size
        self._order = lru_cache(maxsize=KEPT_EPOCHS)(
            lambda seed, epoch: np.random.default_rng(derive(seed, purpose, epoch)).permutation(count)
        )

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.count // self.size

    def choose(self, seed: int, step: int, rank: int = 0, world: int = 1) -> tuple[int, Array]:
        """Return the epoch of a step and the members of its batch; steps are counted over all epochs."""
        epoch, place = divmod(step * world + rank, len(self))
        return epoch, self._order(seed, epoch)[place * self.size : (place + 1) * self.size]


class LengthSampler:
    """Batches of examples of similar length: a pure function of seed, step, rank and world."""

    def __init__(
        self, lengths: Array, *, tokens: int, shapes: int | None, purpose: str, members: Array | None = None
    ) -> None:
        """`lengths` (N, 2) are those of `members`, by default of examples 0 … N − 1."""
        check_budget(tokens, shapes)
        planned = _cut_by_length(lengths, tokens) if shapes is None else _cut_into_boxes(lengths, tokens, shapes)
        self._group, self._cuts, self.shapes = planned  # shapes: of each batch
        self.lengths, self.purpose = lengths, purpose
        self.members = np.arange(len(lengths)) if members is None else members
        self.epoch = lru_cache(maxsize=KEPT_EPOCHS)(self._draw_epoch)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.shapes)

    def choose(self, seed: int, step: int, rank: int = 0, world: int = 1) -> tuple[Array, Shape]:
        """Return the members of a batch and its shape; steps are counted over all epochs."""
        epoch, place = divmod(step * world + rank, len(self))
        order, batches = self.epoch(seed, epoch)
        index = int(batches[place])
        return self.members[order[self._cuts[index] : self._cuts[index + 1]]], self.shapes[index]

    def _draw_epoch(self, seed: int, epoch: int) -> tuple[Array, Array]:
        """Draw the order of the examples, in which those of a group are at random, and the order of the batches."""
        drawn = np.random.default_rng(derive(seed, self.purpose, epoch))
        order = np.lexsort((drawn.random(len(self._group)), self._group))
        return order, drawn.permutation(len(self))


def check_budget(tokens: int, shapes: int | None) -> None:
    if tokens < 1 or (shapes is not None and shapes < 1):
        raise UsageError(f"Tokens and shapes must be at least 1, got {tokens} and {shapes}.")


def _cut_by_length(lengths: Array, tokens: int) -> tuple[Array, Array, list[Shape]]:
    """Each example's group (its place among the kinds of lengths), where to cut the ordered ones, and the shapes."""
    longest = lengths.max(axis=0)
    powers = LENGTH_RATIO ** np.arange(np.ceil(np.log(longest.max()) / np.log(LENGTH_RATIO)) + 1)
    scale = np.unique(np.ceil(powers).astype(np.int64))  # 1, 2, 3 … and, where those are closer than the ratio, powers
    one, other = np.minimum(scale[np.searchsorted(scale, lengths)], longest).T
    alternating = np.where(other % 2, one, -one)
    kinds, group, counts = np.unique(
        np.stack([other, alternating], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    cuts, shapes, filled, widest = [0], [], 0, (0, 0)
    for (target, signed), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        while count:
            wider = (max(widest[0], abs(signed)), max(widest[1], target))
            room = max(1, tokens // max(wider)) - filled
            if room <= 0:
                cuts.append(cuts[-1] + filled)
                shapes.append((filled, *widest))
                filled, widest = 0, (0, 0)
                continue
            taken = min(room, count)
            filled, count, widest = filled + taken, count - taken, wider
    return group.reshape(-1), np.array([*cuts, len(lengths)]), [*shapes, (filled, *widest)]


def _cut_into_boxes(lengths: Array, tokens: int, most: int) -> tuple[Array, Array, list[Shape]]:
    """The same with at most `most` shapes, found by splitting, as a decision tree does, what saves most cells.

    Within a box the examples are divided evenly, so that hardly a row is left without one.
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
        batches = -(-box.examples // max(1, tokens // max(box.widest)))
        rows = -(-box.examples // batches)
        cuts += [cuts[-1] + min(rows * place, box.examples) for place in range(1, batches + 1)]
        shapes += [(rows, *box.widest)] * batches
    return box_of_kind[kind.reshape(-1)], np.array(cuts), shapes


class _Box:
    """Some kinds of lengths that share a shape, and how they are best split into two boxes."""

    def __init__(self, lengths: Array, counts: Array, kinds: Array, tokens: int):
        self.kinds, self.tokens = kinds, tokens
        self.examples = int(counts[kinds].sum())
        self.widest: tuple[int, int] = tuple(lengths[kinds].max(axis=0).tolist())
        self.gain, self.halves = 0.0, [kinds]
        whole = self._cells(np.array([self.examples]), lengths[kinds].max(axis=0, keepdims=True))[0]
        for side in (0, 1):
            ordered = kinds[np.argsort(lengths[kinds, side], kind="stable")]
            found, number = lengths[ordered], counts[ordered]
            before, after = np.maximum.accumulate(found), np.maximum.accumulate(found[::-1])[::-1]
            done = np.cumsum(number)
            cells = self._cells(done[:-1], before[:-1]) + self._cells(self.examples - done[:-1], after[1:])
            cells[found[:-1, side] == found[1:, side]] = np.inf  # equal lengths stay together
            if len(cells) and whole - cells.min() > self.gain:
                place = int(cells.argmin()) + 1
                self.gain, self.halves = whole - cells.min(), [ordered[:place], ordered[place:]]

    def _cells(self, examples: Array, widest: Array) -> Array:
        """What batches as large as the budget allows take, the last one's empty rows included."""
        rows = np.maximum(1, self.tokens // widest.max(axis=1))
        return (-(-examples // rows) * rows * widest.sum(axis=1)).astype(float)


# --- batches ----------------------------------------------------------------------------------------------------------


class Batches(ABC):
    """The examples of a split as batches: a pure function of seed, step, rank and world."""

    sampler: LengthSampler
    has_targets: ClassVar = True  # attention between source and target; of a text alone, within it

    @abstractmethod
    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        """Return the batch of these examples, padded to a shape, or to the longest of them."""

    @property
    def steps_per_epoch(self) -> int:
        return len(self.sampler)

    def shapes(self) -> set[tuple[int, ...]]:
        """Every shape a batch can have."""
        return set(self.sampler.shapes)

    def padding(self) -> float:
        """The share of an epoch's cells that hold no token; the same in every epoch."""
        cells = sum(rows * (one + other) for rows, one, other in self.sampler.shapes)
        return 1 - int(self.sampler.lengths.sum()) / cells

    def members(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Array:
        """Return the numbers of the examples that make up this batch."""
        return self.sampler.choose(seed, step, rank, world)[0]

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.collate(*self.sampler.choose(seed, step, rank, world))

    def every(self, seed: int = 0) -> Iterator[tuple[Array, Tree]]:
        """Yield each example once: the numbers of the examples of a batch, and the batch."""
        for step in range(self.steps_per_epoch):
            yield self.members(seed, step), self.batch(seed, step)

    def largest_step(self, seed: int) -> int:
        """Return which batch of the first epoch has most cells, those of attention counted."""
        shapes = (self.sampler.shapes[index] for index in self.sampler.epoch(seed, 0)[1])
        if self.has_targets:
            return int(np.argmax([rows * (source * target + source + target) for rows, source, target in shapes]))
        return int(np.argmax([rows * (source * source + source) for rows, source, _ in shapes]))


# --- stream --------------------------------------------------------------------------------


class Chunk(TypedDict):
    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    fresh: bool  # the first of an epoch: a carried state must be forgotten


@dataclass(frozen=True)
class StreamBatches:
    """The stream (N,) cut into `size` rows of L = ⌊N / size⌋ tokens, read side by side `length` tokens at a time.

    Row r predicts stream[r·L : (r+1)·L]. Its first input is the token before its first target (END
    for row 0); chunks of a row follow each other without a gap, so a state carried from one to the
    next has read exactly the row so far. An epoch predicts size·L tokens, each once: only the last
    N mod size < size tokens of the stream are left out. The last chunk of an epoch is shorter where
    `length` does not divide L, so there are at most two shapes.

    With an offset the stream is a ring that begins so many tokens later: rows and chunks are cut
    elsewhere. Its last token is the END of the last document, so what comes before the first
    document is the same as ever.
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
                "Give more text, or lower batch.size."
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
        raise UsageError(f"batch.size must be a multiple of the {world} processes, got {size}.")
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
