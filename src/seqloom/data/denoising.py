"""Batches of damaged texts and what they were.

A document is cut into pieces of at most so many tokens, where a sentence ends, if any does. How a piece is damaged is
drawn from the seed, the epoch and the piece's number alone; which pieces are read together is fixed by their lengths,
as `seqloom.data.batching` says. A batch is as wide as its damaged texts have come to be.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from random import Random

import numpy as np
import torch

from seqloom.core.seeding import derive
from seqloom.core.tree import Tree
from seqloom.data.batching import Array, Batches, LengthSampler, Ragged, Shape
from seqloom.data.collate import collate_parallel
from seqloom.data.noise import AnyNoiseConfig, Noised, add_noise


@dataclass(frozen=True)
class Piece:
    """A text that is damaged as a whole."""

    tokens: Sequence[int]
    sentences: Sequence[int]  # where each of its sentences begins; 0 first


def cut_pieces(documents: Iterable[Sequence[Sequence[int]]], room: int) -> list[Piece]:
    """Documents, each its sentences in tokens, in pieces of at most `room` tokens; what has no token is left out."""
    found: list[Piece] = []
    for document in documents:
        held: list[Sequence[int]] = []
        for sentence in (part[start : start + room] for part in document for start in range(0, len(part), room)):
            if sum(map(len, held)) + len(sentence) > room:
                found.append(join_sentences(held))
                held = []
            held.append(sentence)
        if held:
            found.append(join_sentences(held))
    return found


def join_sentences(sentences: Sequence[Sequence[int]]) -> Piece:
    """One text of these sentences."""
    starts = list(accumulate(map(len, sentences), initial=0))
    return Piece(list(chain.from_iterable(sentences)), starts[:-1])


class DenoisingBatches(Batches):
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
        lengths = np.array([len(texts[number].tokens) + 1 for number in self.numbers.tolist()], dtype=np.int64)
        self.total = int(lengths.sum())  # END included
        both = np.stack([lengths, lengths], axis=1)
        self.sampler = LengthSampler(both, tokens=tokens, shapes=None, purpose="noised", members=self.numbers)

    def only(self, numbers: Sequence[int], tokens: int) -> "DenoisingBatches":
        """Return batches of some of the texts, damaged as they are among all."""
        return DenoisingBatches(self.texts, self.noise, vocabulary=self.vocabulary, tokens=tokens, numbers=numbers)

    def damage(self, number: int, seed: int, epoch: int) -> Noised:
        """Return a text as this epoch shows it."""
        text, draws = self.texts[number], Random(derive(seed, "noise", epoch, number))
        return add_noise(text.tokens, text.sentences, self.noise, self.vocabulary, draws)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        epoch = (step * world + rank) // self.steps_per_epoch
        members, _ = self.sampler.choose(seed, step, rank, world)
        return self.collate(members, seed=seed, epoch=epoch)

    def collate(self, members: Array, shape: Shape | None = None, seed: int = 0, epoch: int = 0) -> Tree:
        """Return what an encoder–decoder learns from, and `hidden` (B, T): which targets the source does not show."""
        texts = [self.damage(number, seed, epoch) for number in members.tolist()]
        sources, targets = Ragged.of(text.source for text in texts), Ragged.of(text.target for text in texts)
        batch = collate_parallel(sources, targets, np.arange(len(texts)))
        hidden = np.zeros(batch["targets"].shape, dtype=bool)
        for row, text in enumerate(texts):
            hidden[row, : len(text.hidden)] = text.hidden
        tokens = int(batch["target_mask"].sum())  # counted here, where nothing waits for a GPU
        return {**batch, "hidden": torch.from_numpy(hidden), "read": tokens}
