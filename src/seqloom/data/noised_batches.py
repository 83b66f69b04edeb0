"""Batches of damaged texts and what they were.

A document is cut into pieces of at most so many tokens, where a sentence ends, if any does. How a piece is damaged is
drawn from the seed, the epoch and the piece's number alone; which pieces are read together is fixed by their lengths,
as `seqloom.data.buckets` says. A batch is as wide as its damaged texts have come to be.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from random import Random

import numpy as np
import torch

from seqloom.core.seeding import derive
from seqloom.core.tree import Tree
from seqloom.data.buckets import Array, Buckets
from seqloom.data.noise import AnyNoiseConfig, Noised, noised
from seqloom.data.pair_batches import Ragged, pair_tree


@dataclass(frozen=True)
class Piece:
    """A text that is damaged as a whole."""

    tokens: Sequence[int]
    sentences: Sequence[int]  # where each of its sentences begins; 0 first


def pieces(documents: Iterable[Sequence[Sequence[int]]], room: int) -> list[Piece]:
    """Documents, each its sentences in tokens, in pieces of at most `room` tokens; what has no token is left out."""
    found: list[Piece] = []
    for document in documents:
        held: list[Sequence[int]] = []
        for sentence in _cut(document, room):
            if sum(map(len, held)) + len(sentence) > room:
                found.append(joined(held))
                held = []
            held.append(sentence)
        if held:
            found.append(joined(held))
    return found


def _cut(document: Sequence[Sequence[int]], room: int) -> Iterator[Sequence[int]]:
    """Its sentences; one that has no room is cut."""
    for sentence in document:
        yield from (sentence[start : start + room] for start in range(0, len(sentence), room))


def joined(sentences: Sequence[Sequence[int]]) -> Piece:
    """One text of these sentences."""
    starts = list(accumulate(map(len, sentences), initial=0))
    return Piece(list(chain.from_iterable(sentences)), starts[:-1])


class NoisedBatches:
    """`texts` of a tokenizer of `vocabulary` tokens, or those of them that are named, read about `tokens` at a time."""

    def __init__(
        self,
        texts: Sequence[Piece],
        noise: AnyNoiseConfig,
        *,
        vocabulary: int,
        tokens: int,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.texts, self.noise, self.vocabulary = texts, noise, vocabulary
        self.numbers = np.arange(len(texts)) if numbers is None else np.array(numbers)
        lengths = np.array(
            [len(texts[number].tokens) + 1 for number in self.numbers.tolist()], dtype=np.int64
        )  # END included
        self.total = int(lengths.sum())
        self._buckets = Buckets(np.stack([lengths, lengths], axis=1), tokens=tokens, shapes=None, purpose="noised")

    def only(self, numbers: Sequence[int], tokens: int) -> "NoisedBatches":
        """Some of the texts, damaged as they are among all."""
        return NoisedBatches(self.texts, self.noise, vocabulary=self.vocabulary, tokens=tokens, numbers=numbers)

    @property
    def steps_per_epoch(self) -> int:
        return len(self._buckets)

    def noised(self, number: int, seed: int, epoch: int) -> Noised:
        """A text as this epoch shows it."""
        text, draws = self.texts[number], Random(derive(seed, "noise", epoch, number))
        return noised(text.tokens, text.sentences, self.noise, self.vocabulary, draws)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """The batch of this step: a pure function of its arguments."""
        epoch = (step * world + rank) // self.steps_per_epoch
        return _tree([self.noised(number, seed, epoch) for number in self.members(seed, step, rank, world).tolist()])

    def members(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Array:
        """The numbers of the texts that make up this batch."""
        found: Array = self.numbers[self._buckets.chosen(seed, step, rank, world)[0]]
        return found

    def largest_step(self, seed: int) -> int:
        """Which batch of the first epoch has most cells, those of attention counted."""
        return int(np.argmax([rows * width * (width + 2) for rows, width, _ in self._buckets.first_epoch(seed)]))

    def every(self, seed: int) -> Iterator[tuple[Array, Tree]]:
        """Each text once, as the first epoch of a seed shows it: batches, with the numbers of the texts in them."""
        for step in range(self.steps_per_epoch):
            yield self.members(seed, step), self.batch(seed, step)


def _tree(texts: Sequence[Noised]) -> Tree:
    """What an encoder–decoder learns from, and `hidden` (B, T): which targets the source does not show."""
    sources, targets = Ragged.of(text.source for text in texts), Ragged.of(text.target for text in texts)
    batch = pair_tree(sources, targets, np.arange(len(texts)))
    hidden = np.zeros(batch["targets"].shape, dtype=bool)
    for row, text in enumerate(texts):
        hidden[row, : len(text.hidden)] = text.hidden
    tokens = int(batch["target_mask"].sum())  # counted here, where nothing waits for a GPU
    return {**batch, "hidden": torch.from_numpy(hidden), "read": tokens}
