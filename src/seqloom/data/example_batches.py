"""Texts as padded batches, with a label each, or a tag for each word: texts of like length together.

How they fall into batches is told in `buckets.py`; a text's lengths are its tokens, END included, and its words, where
these are wanted. What a batch holds:

    tokens (B, S), mask (B, S)                    the texts; padding is 0 and False
    a name of `values` (B,)                       a number for each text: its label; IGNORE in rows without a text
    a name of `words` (B, W), words (B, W)        a number for each word: its tag, its first token; padding is 0, False

Rows without a text, all of whose masks are False, come only where `shapes` says how many shapes there may be.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree
from seqloom.data.buckets import Array, Buckets, Shape, refuse_none
from seqloom.data.pair_batches import Ragged

IGNORE = -100  # what cross entropy passes over, as torch has it
FIRST = "first"  # of `words`: the place of each word's first token


class ExampleBatches:
    """The texts of a split as batches: a pure function of seed, step, rank and world."""

    def __init__(
        self,
        texts: Iterable[Sequence[int]] | Ragged,
        *,
        tokens: int,
        shapes: int | None = None,
        max_length: int | None = None,
        values: Mapping[str, Sequence[int]] | None = None,
        words: Mapping[str, Ragged] | None = None,
    ):
        """A text longer than `max_length` tokens is cut there, END after it; its words are cut too, by their `first`.

        `texts` has END at the end of each, `words` has none. `cut` counts the texts that were, `words_cut` the words.
        """
        refuse_none(tokens, shapes)
        if max_length is not None and max_length < 2:
            raise UsageError(f"max_length must leave room for a token and its end: at least 2, got {max_length}.")
        texts = texts if isinstance(texts, Ragged) else Ragged.of(texts)
        if not len(texts):
            raise DataError("There is no text to read: the split is empty.")
        self.tokens, self.values = tokens, {name: np.asarray(own) for name, own in (values or {}).items()}
        lengths = np.minimum(texts.lengths, max_length or np.iinfo(np.int64).max)
        self.cut = int((lengths < texts.lengths).sum())
        self.texts = texts.ended(lengths) if self.cut else texts
        self.words, self.words_cut = _cut_words(words or {}, lengths)
        widths = next(iter(self.words.values())).lengths if self.words else lengths
        self._buckets = Buckets(np.stack([lengths, widths], axis=1), tokens=tokens, shapes=shapes, purpose="examples")

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def steps_per_epoch(self) -> int:
        return len(self._buckets)

    def shapes(self) -> set[tuple[int, ...]]:
        """Every shape a batch can have: (B, S), or (B, S, W) where words are wanted."""
        return {shape if self.words else shape[:2] for shape in self._buckets.shapes}

    def padding(self) -> float:
        """The share of an epoch's cells that hold nothing; the same in every epoch."""
        return self._buckets.padding()

    def members(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Array:
        """The numbers of the texts that make up this batch."""
        return self._buckets.chosen(seed, step, rank, world)[0]

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.tree(*self._buckets.chosen(seed, step, rank, world))

    def tree(self, chosen: Array, shape: Shape | None = None) -> Tree:
        """The batch of these texts, padded to a shape (B, S, W), or to the longest."""
        rows, width, wide = shape or (len(chosen), int(self.texts.lengths[chosen].max()), self._most_words(chosen))
        tokens, mask = self.texts.padded(chosen, rows, width)
        found = {"tokens": tokens, "mask": mask}
        for name, values in self.values.items():
            found[name] = torch.full((rows,), IGNORE, dtype=torch.int64)
            found[name][: len(chosen)] = torch.from_numpy(values[chosen])
        for name, numbers in self.words.items():
            found[name], found["words"] = numbers.padded(chosen, rows, wide)
        return found

    def largest_step(self, seed: int) -> int:
        """Which batch of the first epoch has most cells, those between its tokens (attention) counted."""
        shapes = self._buckets.first_epoch(seed)
        return int(np.argmax([rows * (width * width + width) for rows, width, _ in shapes]))

    def every(self) -> Iterator[tuple[Array, Tree]]:
        """Each text once: its batches, with the numbers of the texts in them."""
        for step in range(self.steps_per_epoch):
            yield self.members(0, step), self.batch(0, step)

    def _most_words(self, chosen: Array) -> int:
        return max((int(numbers.lengths[chosen].max()) for numbers in self.words.values()), default=0)


def _cut_words(words: Mapping[str, Ragged], lengths: Array) -> tuple[dict[str, Ragged], int]:
    """Only the words whose first token was read, before the END of their text; and how many were not."""
    if not words:
        return {}, 0
    first = words[FIRST]
    read = first.ids < np.repeat(lengths - 1, first.lengths)
    if read.all():
        return dict(words), 0
    counts = np.add.reduceat(read, first.starts[:-1]).astype(np.int64)
    return {name: numbers.shortened(counts) for name, numbers in words.items()}, int((~read).sum())
