"""Batches: a sampler selects the examples of a batch, and `collate` converts them to padded tensors.

`LengthSampler` groups examples of similar length within a budget of tokens. An example has two lengths: the lengths of
both sides of a pair, or the numbers of tokens and words of a sentence. If an example has only one length, both lengths
are equal. A batch of B examples padded to S and T satisfies B · max(S, T) ≤ `tokens`, unless the batch consists of a
single long example. Examples are shuffled only within fixed groups, so that every epoch has the same number of batches
with the same shapes:

    shapes=None   lengths are rounded up in steps of about 20 %. Examples are sorted by the second length, then by the
                  first (alternately ascending and descending, so that neighbours are similar), and cut into batches
                  that fill the budget. Examples with equal rounded lengths are shuffled.
    shapes=n      at most n shapes (B, S, T) are chosen, and every batch has one of them. All examples of a shape are
                  shuffled. Incomplete batches are filled with empty rows.

Long streams are divided into chunks of tokens for truncated backpropagation through time. Series are
divided into windows.
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
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]  # (B, S, T)
LENGTH_RATIO = 1.2  # ratio of successive rounded lengths if shapes=None; a larger ratio shuffles more and pads more
CACHED_EPOCHS = 2  # number of cached epochs; parallel processes may be in two consecutive epochs


@dataclass(frozen=True)
class Ragged:
    """Sequences of ids in one array: sequence i is ids[starts[i] : starts[i + 1]]. Texts end with END."""

    ids: Array  # (Σ lengths,) int32
    starts: Array  # (N + 1,) int64

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "Ragged":
        """Store texts, each followed by END. If `sequences` is an iterator, the lists are not all kept in memory."""
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
        """Store sequences unchanged, for example the tags of the words of each sentence."""
        ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int32)
        return cls(ids, np.cumsum([0, *map(len, sequences)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Array:
        return np.diff(self.starts)

    def take(self, chosen: Array) -> "Ragged":
        """Return the chosen sequences in this order."""
        pieces = [self.ids[self.starts[index] : self.starts[index + 1]] for index in chosen]
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64)
        return Ragged(np.concatenate(pieces) if pieces else self.ids[:0], starts)

    def truncate(self, lengths: Array) -> "Ragged":
        """Truncate the sequences to `lengths` (N,)."""
        positions = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], self.lengths)  # in each sequence
        kept = self.ids[positions < np.repeat(lengths, self.lengths)]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(kept, starts)

    def truncate_texts(self, lengths: Array) -> "Ragged":
        """Truncate texts to `lengths` (N,), each of which includes END."""
        truncated = self.truncate(lengths)
        truncated.ids[truncated.starts[1:] - 1] = END
        return truncated

    def pad(self, chosen: Array, rows: int, width: int) -> tuple[Tensor, Tensor]:
        """Return ids and mask (rows, width) of the chosen sequences; padding is 0 and False."""
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
    """A sampler of `size` examples in random order, without the incomplete last batch of an epoch."""

    def __init__(self, count: int, size: int, purpose: str) -> None:
        """Create the sampler; different values of `purpose` give independent random draws."""
        self.count, self.size = count, size
        self._order = lru_cache(maxsize=CACHED_EPOCHS)(
            lambda seed, epoch: np.random.default_rng(derive_seed(seed, purpose, epoch)).permutation(count)
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.count // self.size

    def choose(self, seed: int, step: int, rank: int = 0, world: int = 1) -> tuple[int, Array]:
        """Return the epoch of a step and the members of its batch; steps are counted over all epochs."""
        epoch, index = divmod(step * world + rank, len(self))
        return epoch, self._order(seed, epoch)[index * self.size : (index + 1) * self.size]


class LengthSampler:
    """A sampler of examples of similar length; a batch is a pure function of seed, step, rank and world size."""

    def __init__(
        self, lengths: Array, *, tokens: int, shapes: int | None, purpose: str, members: Array | None = None
    ) -> None:
        """Create the sampler; `lengths` (N, 2) are the lengths of the examples `members`, by default 0 … N − 1."""
        check_budget(tokens, shapes)
        plan = _cut_by_length(lengths, tokens) if shapes is None else _cut_into_boxes(lengths, tokens, shapes)
        self._group, self._cuts, self.shapes = plan  # `shapes` lists the shape of each batch
        self.lengths, self.purpose = lengths, purpose
        self.members = np.arange(len(lengths)) if members is None else members
        self.epoch = lru_cache(maxsize=CACHED_EPOCHS)(self._draw_epoch)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.shapes)

    def choose(self, seed: int, step: int, rank: int = 0, world: int = 1) -> tuple[Array, Shape]:
        """Return the members of a batch and its shape; steps are counted over all epochs."""
        epoch, position = divmod(step * world + rank, len(self))
        order, batches = self.epoch(seed, epoch)
        index = int(batches[position])
        return self.members[order[self._cuts[index] : self._cuts[index + 1]]], self.shapes[index]

    def _draw_epoch(self, seed: int, epoch: int) -> tuple[Array, Array]:
        """Draw the order of the examples, shuffled within groups, and the order of the batches."""
        draws = np.random.default_rng(derive_seed(seed, self.purpose, epoch))
        order = np.lexsort((draws.random(len(self._group)), self._group))
        return order, draws.permutation(len(self))


def check_budget(tokens: int, shapes: int | None) -> None:
    if tokens < 1 or (shapes is not None and shapes < 1):
        raise UsageError(f"Tokens and shapes must be at least 1; got {tokens} and {shapes}.")


def _cut_by_length(lengths: Array, tokens: int) -> tuple[Array, Array, list[Shape]]:
    """Return the group of each example, and the boundaries (in the sorted examples) and shapes of the batches."""
    longest = lengths.max(axis=0)
    powers = LENGTH_RATIO ** np.arange(np.ceil(np.log(longest.max()) / np.log(LENGTH_RATIO)) + 1)
    scale = np.unique(np.ceil(powers).astype(np.int64))  # 1, 2, 3 …, then powers of the ratio
    first, second = np.minimum(scale[np.searchsorted(scale, lengths)], longest).T
    alternating = np.where(second % 2, first, -first)
    kinds, group, counts = np.unique(
        np.stack([second, alternating], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    cuts, shapes, size, widths = [0], [], 0, (0, 0)
    for (target, signed), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        while count:
            new_widths = (max(widths[0], abs(signed)), max(widths[1], target))
            room = max(1, tokens // max(new_widths)) - size
            if room <= 0:
                cuts.append(cuts[-1] + size)
                shapes.append((size, *widths))
                size, widths = 0, (0, 0)
                continue
            added = min(room, count)
            size, count, widths = size + added, count - added, new_widths
    return group.reshape(-1), np.array([*cuts, len(lengths)]), [*shapes, (size, *widths)]


def _cut_into_boxes(lengths: Array, tokens: int, max_shapes: int) -> tuple[Array, Array, list[Shape]]:
    """Return the same values as `_cut_by_length`, with at most `max_shapes` shapes.

    As in a decision tree, the box whose split saves the most cells is split next. The examples of a box are divided
    evenly between its batches, so that few rows are empty.
    """
    kinds, kind, counts = np.unique(lengths, axis=0, return_inverse=True, return_counts=True)
    boxes = [_Box(kinds, counts, np.arange(len(kinds)), tokens)]
    while len(boxes) < max_shapes:
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
        cuts += [cuts[-1] + min(rows * index, box.examples) for index in range(1, batches + 1)]
        shapes += [(rows, *box.widest)] * batches
    return box_of_kind[kind.reshape(-1)], np.array(cuts), shapes


class _Box:
    """Pairs of lengths that share a shape, and their best split into two boxes."""

    def __init__(self, lengths: Array, counts: Array, kinds: Array, tokens: int):
        self.kinds, self.tokens = kinds, tokens
        self.examples = int(counts[kinds].sum())
        self.widest: tuple[int, int] = tuple(lengths[kinds].max(axis=0).tolist())
        self.gain, self.halves = 0.0, [kinds]
        all_cells = self._cells(np.array([self.examples]), lengths[kinds].max(axis=0, keepdims=True))[0]
        for side in (0, 1):
            ordered = kinds[np.argsort(lengths[kinds, side], kind="stable")]
            widths, totals = lengths[ordered], np.cumsum(counts[ordered])
            before, after = np.maximum.accumulate(widths), np.maximum.accumulate(widths[::-1])[::-1]
            cells = self._cells(totals[:-1], before[:-1]) + self._cells(self.examples - totals[:-1], after[1:])
            cells[widths[:-1, side] == widths[1:, side]] = np.inf  # do not separate equal lengths
            if len(cells) and all_cells - cells.min() > self.gain:
                border = int(cells.argmin()) + 1
                self.gain, self.halves = all_cells - cells.min(), [ordered[:border], ordered[border:]]

    def _cells(self, examples: Array, widest: Array) -> Array:
        """Return the number of cells in batches of maximum size, including empty rows."""
        rows = np.maximum(1, self.tokens // widest.max(axis=1))
        return (-(-examples // rows) * rows * widest.sum(axis=1)).astype(float)


# --- batches ----------------------------------------------------------------------------------------------------------


class Batches(ABC):
    """The batches of a split; a batch is a pure function of seed, step, rank and world size."""

    sampler: LengthSampler
    has_targets: ClassVar = True  # whether attention relates targets to sources instead of the tokens of one text

    @abstractmethod
    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        """Return the batch of these examples, padded to a shape or to the longest example."""

    @property
    def steps_per_epoch(self) -> int:
        return len(self.sampler)

    def shapes(self) -> set[tuple[int, ...]]:
        """Return all possible shapes of a batch."""
        return set(self.sampler.shapes)

    def padding(self) -> float:
        """Return the fraction of padding in an epoch. The fraction is the same in every epoch."""
        cells = sum(rows * (first + second) for rows, first, second in self.sampler.shapes)
        return 1 - int(self.sampler.lengths.sum()) / cells

    def members(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Array:
        """Return the indices of the examples of a batch."""
        return self.sampler.choose(seed, step, rank, world)[0]

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.collate(*self.sampler.choose(seed, step, rank, world))

    def all_batches(self, seed: int = 0) -> Iterator[tuple[Array, Tree]]:
        """Yield all batches of an epoch, each with the indices of its examples."""
        for step in range(self.steps_per_epoch):
            yield self.members(seed, step), self.batch(seed, step)

    def largest_step(self, seed: int) -> int:
        """Return the step of the first epoch whose batch has the most cells, including attention cells."""
        shapes = (self.sampler.shapes[index] for index in self.sampler.epoch(seed, 0)[1])
        if self.has_targets:
            return int(np.argmax([rows * (source * target + source + target) for rows, source, target in shapes]))
        return int(np.argmax([rows * (source * source + source) for rows, source, _ in shapes]))


# --- stream --------------------------------------------------------------------------------


class Chunk(TypedDict):
    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    fresh: bool  # whether this is the first chunk of an epoch, for which a carried state must be reset


@dataclass(frozen=True)
class StreamBatches:
    """A stream (N,) divided into `size` rows of L = ⌊N / size⌋ tokens, read in parallel in chunks of `length` tokens.

    Row r predicts stream[r·L : (r+1)·L]. The first input of a row is the token before its first target (END for row 0).
    Chunks of a row are contiguous, so that a carried state has read exactly the preceding tokens of the row. An epoch
    predicts each of size·L tokens once; only the last N mod size tokens of the stream are left out. The last chunk of
    an epoch is shorter if `length` does not divide L, so that there are at most two shapes.

    With an offset, the stream is rotated by this number of tokens, which shifts rows and chunks. The stream ends with
    the END of the last document, so that END still precedes the first document.
    """

    stream: Tensor  # (N,)
    size: int
    length: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.length < 1:
            raise UsageError(f"Size and length must be at least 1; got {self.size} and {self.length}.")
        if self.row_length < 2:
            raise DataError(
                f"{self.size} rows need at least {2 * self.size} tokens, but the text has {len(self.stream)}. "
                "Provide more text, or lower batch.size."
            )

    @property
    def row_length(self) -> int:
        """L, the number of targets of a row."""
        return len(self.stream) // self.size

    @property
    def left_out(self) -> int:
        """The number of tokens at the end of the stream that are not predicted."""
        return len(self.stream) % self.size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.row_length // self.length)

    def shapes(self, world: int = 1) -> set[tuple[int, int]]:
        """Return all possible shapes (B, T) of a batch."""
        rows, remainder = rows_of_rank(self.size, world), self.row_length % self.length
        return {(rows, min(self.length, self.row_length))} | ({(rows, remainder)} if remainder else set())

    def batch(self, step: int, rank: int = 0, world: int = 1, offset: int = 0) -> Chunk:
        """Return the chunk of a step for the rows of a rank; the result depends only on the arguments."""
        rows, chunk = rows_of_rank(self.size, world), step % self.steps_per_epoch
        start = chunk * self.length
        width = min(self.length, self.row_length - start)
        first = torch.arange(rank * rows, (rank + 1) * rows).unsqueeze(1) * self.row_length + start  # (B, 1)
        positions = first + torch.arange(width) + offset  # (B, T) positions of the targets
        inputs, targets = (self.stream[indices % len(self.stream)] for indices in (positions - 1, positions))
        if rank == 0 and chunk == 0 and offset == 0:
            inputs[0, 0] = END
        return {"inputs": inputs, "targets": targets, "fresh": chunk == 0}


def rows_of_rank(size: int, world: int) -> int:
    """Return the number of rows of a batch for each process."""
    if size % world:
        raise UsageError(f"batch.size must be a multiple of the number of processes ({world}); got {size}.")
    return size // world


class SeriesWindows:
    """All windows of `length` steps of several series, in a new random order in each epoch."""

    def __init__(self, series: Sequence[tuple[Tensor, Tensor]], length: int, size: int) -> None:
        self.series, self.length, self.size = series, length, size  # each series: values and mask (T, C)
        longest = max(len(values) for values, _ in series)
        if longest < length:
            raise DataError(
                f"Training needs windows of {length} steps (model.context plus model.difference), but the longest "
                f"training series has {longest}. Lower model.context, or provide more data."
            )
        self.starts = [(n, t) for n, (v, _) in enumerate(series) for t in range(len(v) - length + 1)]

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.starts) // self.size)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
        """Return values and mask (B, length, C)."""
        size = rows_of_rank(self.size, world)
        epoch, index = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng(derive_seed(seed, "windows", epoch)).permutation(len(self.starts))
        chosen = np.resize(order, self.steps_per_epoch * self.size)[index * self.size : (index + 1) * self.size]
        starts = [self.starts[number] for number in chosen[rank * size : (rank + 1) * size]]
        return {
            "values": torch.stack([self.series[n][0][t : t + self.length] for n, t in starts]).float(),
            "mask": torch.stack([self.series[n][1][t : t + self.length] for n, t in starts]),
        }
