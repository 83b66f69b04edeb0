"""How the examples of a split fall into batches: those of like length together, as many as a budget of tokens allows.

An example has two lengths, those of the two sides of a pair, or the tokens and the words of a sentence; where it has
one, they are equal. A batch of B examples padded to S and T has B · max(S, T) ≤ `tokens`, unless it is one long example
alone. Which examples may change places is fixed beforehand, so that every epoch has the same number of batches of the
same shapes:

    shapes=None   lengths are rounded up to a scale with steps of a fifth or so; examples are ordered by the second
                  length, then by the first (up and down in turn, so that neighbours across a border are alike too), and
                  cut where the budget is full. Examples of equal rounded lengths change places, so that each meets
                  others in every epoch.
    shapes=n      at most n shapes (B, S, T) are chosen from the lengths, and every batch has exactly one of them. All
                  examples of a shape change places. Where a batch lacks examples, it has rows without any.
"""

from typing import Any

import numpy as np

from seqloom.core.errors import UsageError
from seqloom.core.seeding import derive

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]  # (B, S, T)
STEP = 1.2  # between lengths that count as different where shapes are free: larger mixes more examples and pads more


class Buckets:
    """Which examples make up a batch, and its shape: a pure function of seed, step, rank and world."""

    def __init__(self, lengths: Array, *, tokens: int, shapes: int | None, purpose: str) -> None:
        """`lengths` (N, 2); `purpose` keeps the draws of one kind of data apart from those of others."""
        refuse_none(tokens, shapes)
        planned = _free(lengths, tokens) if shapes is None else _boxed(lengths, tokens, shapes)
        self._group, self._cuts, self.shapes = planned  # shapes: of each batch
        self._lengths, self._purpose = lengths, purpose
        self._epochs: dict[tuple[int, int], tuple[Array, Array]] = {}

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.shapes)

    def padding(self) -> float:
        """The share of an epoch's cells that hold no token; the same in every epoch."""
        cells = sum(rows * (one + other) for rows, one, other in self.shapes)
        return 1 - int(self._lengths.sum()) / cells

    def chosen(self, seed: int, step: int, rank: int = 0, world: int = 1) -> tuple[Array, Shape]:
        """The numbers of the examples of a batch, and its shape; steps are counted over all epochs."""
        epoch, place = divmod(step * world + rank, len(self))
        order, places = self._epoch(seed, epoch)
        index = int(places[place])
        return order[self._cuts[index] : self._cuts[index + 1]], self.shapes[index]

    def first_epoch(self, seed: int) -> list[Shape]:
        """The shapes of the batches of the first epoch, in their order."""
        return [self.shapes[place] for place in self._epoch(seed, 0)[1]]

    def _epoch(self, seed: int, epoch: int) -> tuple[Array, Array]:
        """The examples in the order they are cut in, those of a group at random; and the order of the batches."""
        if (seed, epoch) not in self._epochs:
            drawn = np.random.default_rng(derive(seed, self._purpose, epoch))
            order = np.lexsort((drawn.random(len(self._group)), self._group))
            if len(self._epochs) > 1:  # processes side by side may stand in two epochs at once, never in three
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[seed, epoch] = order, drawn.permutation(len(self))
        return self._epochs[seed, epoch]


def refuse_none(tokens: int, shapes: int | None) -> None:
    if tokens < 1 or (shapes is not None and shapes < 1):
        raise UsageError(f"Tokens and shapes must be at least 1, got {tokens} and {shapes}.")


def _rows(tokens: int, one: int, other: int) -> int:
    return max(1, tokens // max(one, other))


def _free(lengths: Array, tokens: int) -> tuple[Array, Array, list[Shape]]:
    """Each example's group (its place among the kinds of lengths), where to cut the ordered ones, and the shapes."""
    one, other = _rounded(lengths).T
    turning = np.where(other % 2, one, -one)
    kinds, group, counts = np.unique(
        np.stack([other, turning], axis=1), axis=0, return_inverse=True, return_counts=True
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


def _rounded(lengths: Array) -> Array:
    """Lengths (N, 2) rounded up to 1, 2, 3 … and, where those are closer than STEP, to its powers."""
    longest = lengths.max(axis=0)
    powers = STEP ** np.arange(np.ceil(np.log(longest.max()) / np.log(STEP)) + 1)
    scale = np.unique(np.ceil(powers).astype(np.int64))
    return np.minimum(scale[np.searchsorted(scale, lengths)], longest)


def _boxed(lengths: Array, tokens: int, most: int) -> tuple[Array, Array, list[Shape]]:
    """The same with at most `most` shapes, found by splitting, as a decision tree does, what saves most cells.

    Within a box the examples are shared out evenly, so that hardly a row is left without one.
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
        batches = -(-box.examples // _rows(tokens, *box.widest))
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
