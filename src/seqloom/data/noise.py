"""Noise for denoising objectives: a model learns to reconstruct corrupted texts.

spans (T5, 2019)     spans are replaced by sentinels; the target lists the spans after their sentinels and ends with
                     one more sentinel:
                         x_1 x_2 x_3 x_4 x_5 x_6 x_7   →   x_1 ⟨0⟩ x_4 x_5 ⟨1⟩ x_7   and   ⟨0⟩ x_2 x_3 ⟨1⟩ x_6 ⟨2⟩
bart (BART, 2019)    the target is the text; its source is corrupted by up to five operations, in this order:
                         permute_sentences   shuffle the sentences
                         rotate              start with a random token and move the tokens before it to the end
                         infill              replace spans by one [MASK] each, with lengths from a Poisson distribution;
                                             a span of length 0 inserts a [MASK]
                         mask                replace random tokens by [MASK]
                         delete              delete random tokens

Of n tokens, ⌊p · n + u⌋ are chosen, with u uniform in [0, 1), so that the expected fraction is p even
in short texts. Spans are never adjacent, and all their placements are equally likely. The sentinels are rows of the
embedding after [MASK]. Each text uses the first sentinels.

A document is divided into pieces of limited length, at the end of a sentence if possible. The noise of a piece depends
only on the seed, the epoch and the number of the piece. The lengths of the pieces determine the batches
(`seqloom.data.batching`). A batch is as wide as its longest corrupted text.
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
from seqloom.core.device import derive_seed
from seqloom.core.tokens import EXTRA, Specials
from seqloom.core.tree import Tree
from seqloom.data.batching import Array, Batches, LengthSampler, Ragged, Shape
from seqloom.data.collate import collate_parallel

MASKED = -1  # represents a [MASK] in a list of token positions


class NoisyText(NamedTuple):
    """A corrupted text and its target, both without END."""

    source: list[int]
    target: list[int]
    hidden: list[bool]  # whether a target token belongs to the text and is not in the source


@config
class SpansConfig:
    """The span corruption of T5."""

    kind: Literal["spans"] = "spans"
    # fraction of the tokens that are removed in spans, at least one token
    noise_density: Annotated[float, Gt(0), Lt(1)] = 0.15
    mean_span_length: Annotated[float, Ge(1), Lt(math.inf)] = 3.0  # mean length of a span in tokens
    sentinels: Annotated[int, Ge(2)] = 100  # number of sentinel tokens; a text with n spans uses n + 1 sentinels

    @property
    def extra(self) -> int:
        """The number of embedding rows in addition to the vocabulary."""
        return EXTRA + self.sentinels

    def max_lengths(self, tokens: int) -> tuple[int, int]:
        """Return the maximum lengths of source and target for a text of `tokens`, including END."""
        hidden = min(int(self.noise_density * tokens) + 1, tokens)
        return tokens + 1, hidden + min(int(hidden / self.mean_span_length) + 1, hidden) + 2


@config
class BARTNoiseConfig:
    """The five noise operations of BART."""

    kind: Literal["bart"] = "bart"
    permute_sentences: Probability = 1.0  # probability of shuffling the sentences of a text
    rotate: Probability = 0.0  # probability of rotating a text to start with a random token
    infill: Fraction = 0.3  # fraction of the tokens that are masked in spans; each span is replaced by one [MASK]
    # mean length of an infilled span in tokens, the λ of the Poisson distribution
    mean_span_length: Annotated[float, Ge(0.1), Lt(math.inf)] = 3.0
    mask: Fraction = 0.0  # fraction of the unmasked tokens that are each replaced by [MASK]
    delete: Fraction = 0.0  # fraction of the unmasked tokens that are deleted

    extra = EXTRA

    def problems(self) -> Iterator[str]:
        if not any((self.permute_sentences, self.rotate, self.infill, self.mask, self.delete)):
            yield "at least one of permute_sentences, rotate, infill, mask and delete must be greater than 0"

    def max_lengths(self, tokens: int) -> tuple[int, int]:
        return tokens + 2, tokens + 1  # infilling may insert one [MASK] more than it hides tokens


AnyNoiseConfig = SpansConfig | BARTNoiseConfig
NoiseConfig = Annotated[AnyNoiseConfig, Discriminator("kind")]


def add_noise(
    tokens: Sequence[int], sentences: Sequence[int], noise: AnyNoiseConfig, vocabulary: int, draws: Random
) -> NoisyText:
    """Corrupt a text; `vocabulary` is the tokenizer's size, and `sentences` contains the start of each sentence."""
    if isinstance(noise, SpansConfig):
        return hide_spans(tokens, noise, vocabulary, draws)
    return add_bart_noise(tokens, sentences, noise, vocabulary, draws)


# --- T5 ---------------------------------------------------------------------------------------------------------------


def sentinels_of(noise: AnyNoiseConfig, vocabulary: int) -> range:
    """Return the ids of the sentinels."""
    return range(vocabulary + EXTRA, vocabulary + noise.extra)


def hide_spans(tokens: Sequence[int], noise: SpansConfig, vocabulary: int, draws: Random) -> NoisyText:
    n, sentinels = len(tokens), sentinels_of(noise, vocabulary)
    hidden = min(max(_round_randomly(noise.noise_density * n, draws), 1), n)
    max_count = min(hidden, n - hidden + 1, len(sentinels) - 1)
    count = min(max(_round_randomly(hidden / noise.mean_span_length, draws), 1), max_count)
    cuts = sorted(draws.sample(range(1, hidden), count - 1))  # every division of `hidden` into spans is equally likely
    lengths = [after - before for before, after in pairwise([0, *cuts, hidden])]
    source: list[int] = []
    target: list[int] = []
    end = 0
    for sentinel, start, length in zip(sentinels, _draw_starts(n, lengths, draws), lengths, strict=False):
        source += [*tokens[end:start], sentinel]
        end = start + length
        target += [sentinel, *tokens[start:end]]
    source += tokens[end:]
    target.append(sentinels[count])
    return NoisyText(source, target, [token < vocabulary for token in target])


def parse_spans(target: Sequence[int], sentinels: range) -> dict[int, list[int]]:
    """Return the spans in a target by sentinel number; if a sentinel is repeated, its first span is used."""
    spans: dict[int, list[int]] = {}
    span: list[int] = []  # tokens before the first sentinel are dropped
    for token in target:
        if token in sentinels:
            span = []
            spans.setdefault(token - sentinels[0], span)
        else:
            span.append(token)
    return spans


# --- BART -------------------------------------------------------------------------------------------------------------


def add_bart_noise(
    tokens: Sequence[int], sentences: Sequence[int], noise: BARTNoiseConfig, vocabulary: int, draws: Random
) -> NoisyText:
    n = len(tokens)
    order = list(range(n))  # positions of the source tokens in the text, or MASKED
    if draws.random() < noise.permute_sentences:
        parts = [order[start:end] for start, end in pairwise([*sentences, n])]
        draws.shuffle(parts)
        order = list(chain.from_iterable(parts))
    if draws.random() < noise.rotate:
        first = draws.randrange(n)
        order = order[first:] + order[:first]
    if noise.infill:
        lengths = _poisson_lengths(_round_randomly(noise.infill * n, draws), n, noise.mean_span_length, draws)
        infilled: list[int] = []  # the order with one MASKED for each span
        end = 0
        for start, length in zip(_draw_starts(n, lengths, draws), lengths, strict=True):
            infilled += [*order[end:start], MASKED]
            end = start + length
        order = infilled + order[end:]
    for index in _sample_tokens(order, noise.mask, draws):
        order[index] = MASKED
    deleted = set(_sample_tokens(order, noise.delete, draws))
    order = [position for index, position in enumerate(order) if index not in deleted]
    visible, mask = set(order), Specials.after(vocabulary).mask
    source = [mask if position == MASKED else tokens[position] for position in order]
    return NoisyText(source, list(tokens), [position not in visible for position in range(n)])


def _poisson_lengths(hidden: int, n: int, mean: float, draws: Random) -> list[int]:
    """Draw the lengths of spans that hide `hidden` of n tokens; the last span is truncated.

    The number of spans is limited, so that the spans fit and lengthen the text by at most one token.
    """
    lengths: list[int] = []
    remaining = hidden
    while remaining:
        count, product = 0, draws.random()  # Knuth's algorithm: multiply uniform numbers until below e^−mean
        while product > math.exp(-mean):
            count, product = count + 1, product * draws.random()
        lengths.append(min(count, remaining))
        remaining -= lengths[-1]
    while len(lengths) > min(n - hidden, hidden) + 1:
        lengths.remove(min(lengths))
    return lengths


def _sample_tokens(order: Sequence[int], fraction: float, draws: Random) -> list[int]:
    """Sample the indices of a fraction of the tokens that are not masked."""
    if not fraction:
        return []
    unmasked = [index for index, position in enumerate(order) if position != MASKED]
    return draws.sample(unmasked, _round_randomly(fraction * len(unmasked), draws))


# --- both -------------------------------------------------------------------------------------------------------------


def _round_randomly(number: float, draws: Random) -> int:
    """Round up or down at random, so that the expectation is `number`."""
    return int(number + draws.random())


def _draw_starts(n: int, lengths: Sequence[int], draws: Random) -> list[int]:
    """Draw the starts of spans among n tokens, with at least one token between any two spans."""
    visible = sorted(draws.sample(range(n - sum(lengths) + 1), len(lengths)))  # visible tokens before each span
    return [before + hidden for before, hidden in zip(visible, accumulate([0, *lengths]), strict=False)]


# --- denoising --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextPiece:
    """A text to corrupt."""

    tokens: Sequence[int]
    sentences: Sequence[int]  # the start of each sentence; the first is 0


def cut_pieces(documents: Iterable[Sequence[Sequence[int]]], room: int) -> list[TextPiece]:
    """Divide documents, given as tokens of sentences, into pieces of at most `room` tokens; skip empty documents."""
    pieces: list[TextPiece] = []
    for document in documents:
        sentences: list[Sequence[int]] = []
        for sentence in (part[start : start + room] for part in document for start in range(0, len(part), room)):
            if sum(map(len, sentences)) + len(sentence) > room:
                pieces.append(join_sentences(sentences))
                sentences = []
            sentences.append(sentence)
        if sentences:
            pieces.append(join_sentences(sentences))
    return pieces


def join_sentences(sentences: Sequence[Sequence[int]]) -> TextPiece:
    """Join sentences into one text."""
    starts = list(accumulate(map(len, sentences), initial=0))
    return TextPiece(list(chain.from_iterable(sentences)), starts[:-1])


class DenoisingBatches(Batches):
    """Batches of about `tokens` tokens of corrupted texts; `numbers` selects the texts (default: all)."""

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
        self.total = int(lengths.sum())  # number of tokens, including END
        both = np.stack([lengths, lengths], axis=1)
        self.sampler = LengthSampler(both, tokens=tokens, shapes=None, purpose="noised", members=self.numbers)

    def only(self, numbers: Sequence[int], tokens: int) -> "DenoisingBatches":
        """Return batches of some of the texts, with the same noise."""
        return DenoisingBatches(self.texts, self.noise, vocabulary=self.vocabulary, tokens=tokens, numbers=numbers)

    def corrupt(self, number: int, seed: int, epoch: int) -> NoisyText:
        """Return a text with the noise of an epoch."""
        text, draws = self.texts[number], Random(derive_seed(seed, "noise", epoch, number))
        return add_noise(text.tokens, text.sentences, self.noise, self.vocabulary, draws)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        epoch = (step * world + rank) // self.steps_per_epoch
        members, _ = self.sampler.choose(seed, step, rank, world)
        return self.collate(members, seed=seed, epoch=epoch)

    def collate(self, members: Array, shape: Shape | None = None, seed: int = 0, epoch: int = 0) -> Tree:
        """Return a parallel batch with `hidden` (B, T), which marks the targets that are not in the source."""
        texts = [self.corrupt(number, seed, epoch) for number in members.tolist()]
        sources, targets = Ragged.of(text.source for text in texts), Ragged.of(text.target for text in texts)
        batch = collate_parallel(sources, targets, np.arange(len(texts)))
        hidden = np.zeros(batch["targets"].shape, dtype=bool)
        for row, text in enumerate(texts):
            hidden[row, : len(text.hidden)] = text.hidden
        tokens = int(batch["target_mask"].sum())  # counted here to avoid a GPU synchronization
        return {**batch, "hidden": torch.from_numpy(hidden), "read": tokens}
