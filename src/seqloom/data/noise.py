"""Noise: a text is damaged, and a model learns to say what it was.

spans (T5, 2019)     some spans are hidden, each behind a sentinel of its own; the target says what they were, and ends
                     with one sentinel more:
                         x_1 x_2 x_3 x_4 x_5 x_6 x_7   →   x_1 ⟨0⟩ x_4 x_5 ⟨1⟩ x_7   and   ⟨0⟩ x_2 x_3 ⟨1⟩ x_6 ⟨2⟩
bart (BART, 2019)    the target is the text itself; its source is damaged in up to five ways, in this order:
                         permuted    its sentences stand in any order
                         rotated     it begins with another token, and what stood before that comes last
                         infilled    one [MASK] stands for each span, its length drawn from a Poisson distribution;
                                     where the length is 0, a [MASK] stands that hides nothing
                         masked      a [MASK] stands for each of some tokens
                         deleted     some tokens are left out, and nothing shows where

Shares are met on average, however short a text is: of n tokens ⌊share · n + u⌋ are chosen, u drawn
from [0, 1). Spans do not touch, and every way of placing them is equally likely. Of the sentinels,
rows of the embedding after [MASK], a text uses the first few.

A document is cut into pieces of at most so many tokens, where a sentence ends, if any does. How a
piece is damaged is drawn from the seed, the epoch and the piece's number alone; which pieces are
read together is fixed by their lengths, as `seqloom.data.batching` says. A batch is as wide as its
damaged texts have come to be.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from random import Random
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction, Ge, Gt, Lt, Probability
from seqloom.core.device import derive
from seqloom.core.tokens import EXTRA, Specials
from seqloom.core.tree import Tree
from seqloom.data.batching import Array, Batches, LengthSampler, Ragged, Shape
from seqloom.data.collate import collate_parallel

MASKED = -1  # among the places of tokens: a [MASK]


class Noised(NamedTuple):
    """What is read and what is to be said, both without END."""

    source: list[int]
    target: list[int]
    hidden: list[bool]  # which tokens of the target are the text's own and do not stand in the source


@config
class SpansConfig:
    """T5's: spans behind sentinels."""

    kind: Literal["spans"] = "spans"
    noise_density: Annotated[float, Gt(0), Lt(1)] = 0.15  # of the tokens is hidden, and at least one token of a text
    mean_span_length: Annotated[float, Ge(1), Lt(math.inf)] = 3.0  # of a span, in tokens
    sentinels: Annotated[int, Ge(2)] = 100  # one more than the spans a text can have: the last of every target

    @property
    def extra(self) -> int:
        """How many rows of embeddings it needs beyond the tokenizer's."""
        return EXTRA + self.sentinels

    def longest(self, tokens: int) -> tuple[int, int]:
        """The most tokens of the source and of the target of a text of so many, END included in both."""
        hidden = min(int(self.noise_density * tokens) + 1, tokens)
        return tokens + 1, hidden + min(int(hidden / self.mean_span_length) + 1, hidden) + 2


@config
class BARTNoiseConfig:
    """BART's five ways."""

    kind: Literal["bart"] = "bart"
    permute_sentences: Probability = 1.0  # chance that the sentences of a text stand in any order
    rotate: Probability = 0.0  # chance that a text begins with any of its tokens
    infill: Fraction = 0.3  # share of the tokens that lie in spans behind one [MASK] each
    mean_span_length: Annotated[float, Ge(0.1), Lt(math.inf)] = 3.0  # of such a span, in tokens, the λ of Poisson
    mask: Fraction = 0.0  # share of the tokens, of those still there, behind a [MASK] of their own
    delete: Fraction = 0.0  # share of the tokens, of those still there, that are left out

    extra = EXTRA

    def problems(self) -> Iterator[str]:
        if not any((self.permute_sentences, self.rotate, self.infill, self.mask, self.delete)):
            yield "a text is not damaged at all: set permuted, rotated, infilled, masked or deleted above 0"

    def longest(self, tokens: int) -> tuple[int, int]:
        return tokens + 2, tokens + 1  # there may be one [MASK] more than tokens are hidden


AnyNoiseConfig = SpansConfig | BARTNoiseConfig
NoiseConfig = Annotated[AnyNoiseConfig, Discriminator("kind")]


def add_noise(
    tokens: Sequence[int], sentences: Sequence[int], noise: AnyNoiseConfig, vocabulary: int, draws: Random
) -> Noised:
    """A text of a tokenizer of `vocabulary` tokens, damaged; `sentences` is where each of its sentences begins."""
    if isinstance(noise, SpansConfig):
        return hide_spans(tokens, noise, vocabulary, draws)
    return damage(tokens, sentences, noise, vocabulary, draws)


# --- T5 ---------------------------------------------------------------------------------------------------------------


def sentinels_of(noise: AnyNoiseConfig, vocabulary: int) -> range:
    """The ids of the sentinels."""
    return range(vocabulary + EXTRA, vocabulary + noise.extra)


def hide_spans(tokens: Sequence[int], noise: SpansConfig, vocabulary: int, draws: Random) -> Noised:
    n, sentinels = len(tokens), sentinels_of(noise, vocabulary)
    hidden = min(max(_round(noise.noise_density * n, draws), 1), n)
    most = min(hidden, n - hidden + 1, len(sentinels) - 1)
    count = min(max(_round(hidden / noise.mean_span_length, draws), 1), most)
    cuts = sorted(draws.sample(range(1, hidden), count - 1))  # every sum of `count` numbers is equally likely
    lengths = [after - before for before, after in pairwise([0, *cuts, hidden])]
    source: list[int] = []
    target: list[int] = []
    end = 0
    for sentinel, start, length in zip(sentinels, _place(n, lengths, draws), lengths, strict=False):
        source += [*tokens[end:start], sentinel]
        end = start + length
        target += [sentinel, *tokens[start:end]]
    source += tokens[end:]
    target.append(sentinels[count])
    return Noised(source, target, [token < vocabulary for token in target])


def spans_told(said: Sequence[int], sentinels: range) -> dict[int, list[int]]:
    """What a target says of each span, by the number of its sentinel; of one that is named twice, the first."""
    found: dict[int, list[int]] = {}
    span: list[int] = []  # what stands before the first sentinel belongs to none
    for token in said:
        if token in sentinels:
            span = []
            found.setdefault(token - sentinels[0], span)
        else:
            span.append(token)
    return found


# --- BART -------------------------------------------------------------------------------------------------------------


def damage(
    tokens: Sequence[int], sentences: Sequence[int], noise: BARTNoiseConfig, vocabulary: int, draws: Random
) -> Noised:
    n = len(tokens)
    shown = list(range(n))  # which token stands where, or MASKED
    if draws.random() < noise.permute_sentences:
        parts = [shown[start:end] for start, end in pairwise([*sentences, n])]
        draws.shuffle(parts)
        shown = list(chain.from_iterable(parts))
    if draws.random() < noise.rotate:
        first = draws.randrange(n)
        shown = shown[first:] + shown[:first]
    if noise.infill:
        lengths = _poisson_lengths(_round(noise.infill * n, draws), n, noise.mean_span_length, draws)
        infilled: list[int] = []  # with one MASKED for each span
        end = 0
        for start, length in zip(_place(n, lengths, draws), lengths, strict=True):
            infilled += [*shown[end:start], MASKED]
            end = start + length
        shown = infilled + shown[end:]
    for place in _some(shown, noise.mask, draws):
        shown[place] = MASKED
    gone = set(_some(shown, noise.delete, draws))
    shown = [token for place, token in enumerate(shown) if place not in gone]
    seen, mask = set(shown), Specials.after(vocabulary).mask
    source = [mask if place == MASKED else tokens[place] for place in shown]
    return Noised(source, list(tokens), [place not in seen for place in range(n)])


def _poisson_lengths(hidden: int, n: int, mean: float, draws: Random) -> list[int]:
    """Lengths of spans that hide so many of n tokens, the last cut short; no more spans than have room, and no more
    than one that makes the text longer."""
    lengths: list[int] = []
    left = hidden
    while left:
        count, product = 0, draws.random()  # numbers of [0, 1) until their product is below e^−mean, less one
        while product > math.exp(-mean):
            count, product = count + 1, product * draws.random()
        lengths.append(min(count, left))
        left -= lengths[-1]
    while len(lengths) > min(n - hidden, hidden) + 1:
        lengths.remove(min(lengths))
    return lengths


def _some(shown: Sequence[int], share: float, draws: Random) -> list[int]:
    """Places of some of the tokens that are still there."""
    if not share:
        return []
    there = [place for place, token in enumerate(shown) if token != MASKED]
    return draws.sample(there, _round(share * len(there), draws))


# --- both -------------------------------------------------------------------------------------------------------------


def _round(number: float, draws: Random) -> int:
    """Up or down, so that it is met on average."""
    return int(number + draws.random())


def _place(n: int, lengths: Sequence[int], draws: Random) -> list[int]:
    """Where spans of these lengths begin among n tokens: at least one token stands between any two."""
    kept = sorted(draws.sample(range(n - sum(lengths) + 1), len(lengths)))  # how many tokens stand before each
    return [before + hidden for before, hidden in zip(kept, accumulate([0, *lengths]), strict=False)]


# --- denoising --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextPiece:
    """A text that is damaged as a whole."""

    tokens: Sequence[int]
    sentences: Sequence[int]  # where each of its sentences begins; 0 first


def cut_pieces(documents: Iterable[Sequence[Sequence[int]]], room: int) -> list[TextPiece]:
    """Documents, each its sentences in tokens, in pieces of at most `room` tokens; what has no token is left out."""
    found: list[TextPiece] = []
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


def join_sentences(sentences: Sequence[Sequence[int]]) -> TextPiece:
    """One text of these sentences."""
    starts = list(accumulate(map(len, sentences), initial=0))
    return TextPiece(list(chain.from_iterable(sentences)), starts[:-1])


class DenoisingBatches(Batches):
    """`texts` of a tokenizer of `vocabulary` tokens, or those of them that are named, read about `tokens` at a time."""

    def __init__(
        self,
        texts: Sequence[TextPiece],
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
