"""Why a classifier says what it says: how much each word weighed.

    attention   α_j, where the pooling attends: how much of its answer it took from word j
    influence   x_jᵀ ∂s/∂x_j, gradient × input: what word j adds to the score s of the label, to first order

Shares of attention are from 0 to 1, and with that of the text's end their sum is 1; they say where the model looked,
not for what. Influences are for the label, or below 0 against it; for a bag of words they are exact.
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


@dataclass(frozen=True)
class Weight:
    text: str  # a word, or a character where the model reads characters
    start: int  # where it stands in the text
    end: int
    weight: float


@dataclass(frozen=True)
class Why:
    kind: Literal["attention", "influence"]
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
) -> list[Why]:
    """For each of these texts, which `batch` holds in their order, why the most probable label is that.

    `tokens` says where the tokens of each text stand in it, `before` how many special ones a row begins with.
    """
    weights, kind = token_weights(model, batch)
    found = []
    for text, spans, row, mask in zip(texts, tokens, weights.tolist(), batch["mask"].cpu(), strict=True):
        read = int(mask.sum()) - 1 - before  # without END, or the special tokens around
        own, around = row[before : before + read], sum(row[:before]) + row[before + read]
        found.append(Why(kind, by_word(text, spans[:read], own, tokenizer), around))
    return found


def token_weights(model: Any, batch: Tree) -> tuple[Tensor, Literal["attention", "influence"]]:
    """The weight of each token (B, S), on the CPU."""
    looked = model.attention(batch)
    if looked is not None:
        return looked.float().cpu(), "attention"
    with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers have no gradient outside of training
        return model.influence(batch).float().cpu(), "influence"


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
