"""Why a classifier says what it says: how much each word weighed.

    attention   α_j, where the pooling attends: how much of its answer it took from word j
    influence   x_jᵀ ∂s/∂x_j, gradient × input: what word j adds to the score s of the label, to first order
    left out    p − p_{−j}: how much less probable the label would be had word j not been there

Shares of attention are from 0 to 1, and with that of the text's end their sum is 1; they say where the model looked,
not for what. Influences are for the label, or below 0 against it; for a bag of words they are exact. What is left out
is not a guess: the text is read again without the word; but of two words that say the same, neither is missed.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from seqloom.core.tree import Tree
from seqloom.text import Characters, Tokenizer, Words
from seqloom.text.spans import Span
from seqloom.text.word_spans import word_spans

WhyKind = Literal["attention", "influence", "left out"]


@dataclass(frozen=True)
class Weight:
    text: str  # a word, or a character where the model reads characters
    start: int  # where it stands in the text
    end: int
    weight: float


@dataclass(frozen=True)
class Why:
    kind: WhyKind
    words: list[Weight]
    end: float  # what the end of the text weighed, and special tokens around it

    def moved(self, places: int) -> "Why":
        """The same where so many letters stand before the text."""
        return replace(self, words=[replace(w, start=w.start + places, end=w.end + places) for w in self.words])


def explain(
    model: Any,
    batch: Tree,
    texts: Sequence[str],
    tokens: Sequence[Sequence[Span]],
    tokenizer: Tokenizer,
    before: int = 0,
    labels: Tensor | None = None,
    wanted: WhyKind | None = None,
) -> list[Why]:
    """For each of these texts, which `batch` holds in their order, why the most probable label is that, or why others
    are, where `labels` (B,) names them.

    `tokens` says where the tokens of each text stand in it, `before` how many special ones a row begins with.
    """
    weights, kind = token_weights(model, batch, labels, wanted)
    found = []
    for text, spans, row, mask in zip(texts, tokens, weights.tolist(), batch["mask"].cpu(), strict=True):
        read = int(mask.sum()) - 1 - before  # without END, or the special tokens around
        own, around = row[before : before + read], sum(row[:before]) + row[before + read]
        found.append(Why(kind, by_word(text, spans[:read], own, tokenizer), around))
    return found


def token_weights(
    model: Any, batch: Tree, labels: Tensor | None = None, wanted: WhyKind | None = None
) -> tuple[Tensor, WhyKind]:
    """The weight of each token (B, S), on the CPU: attention where the pooling attends, unless influence is wanted."""
    looked = None if wanted == "influence" else model.attention(batch)
    if looked is not None:
        return looked.float().cpu(), "attention"
    with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers have no gradient outside of training
        return model.influence(batch, labels).float().cpu(), "influence"


def without(text: str, words: Sequence[Weight]) -> list[str]:
    """The text once for each word, without that word and without the space that would stand twice."""
    found = []
    for word in words:
        before, after = text[: word.start], text[word.end :]
        found.append(before + (after.lstrip() if not before or before[-1].isspace() else after))
    return found


def by_word(text: str, tokens: Sequence[Span], weights: Sequence[float], tokenizer: Tokenizer) -> list[Weight]:
    """The weights of words: a word that is spelled in several tokens has their sum."""
    if isinstance(tokenizer, Words | Characters):
        return [Weight(text[a:b], a, b, weight) for (a, b), weight in zip(tokens, weights, strict=True)]
    words = [span for span in word_spans(text) if tokens and span[0] < tokens[-1][1]]
    ends, sums = [end for _, end in words], [0.0] * len(words)
    for (start, _), weight in zip(tokens, weights, strict=True):  # one may begin with the space before its word
        if words:
            sums[min(bisect_right(ends, start), len(words) - 1)] += weight
    return [Weight(text[a:b], a, b, total) for (a, b), total in zip(words, sums, strict=True)]
