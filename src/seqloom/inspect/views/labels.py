"""Why a classifier says what it says: how much each word weighed.

    attention   α_j, where the pooling attends: how much of its answer it took from word j
    influence   x_jᵀ ∂s/∂x_j, gradient × input: what word j adds to the score s of the label, to first order
    left out    p − p_{−j}: how much less probable the label would be had word j not been there

Shares of attention are from 0 to 1, and with that of the text's end their sum is 1; they say where the model looked,
not for what. Influences are for the label, or below 0 against it; for a bag of words they are exact. What is left out
is not a guess: the text is read again without the word; but of two words that say the same, neither is missed.

All tags that a sentence could have, and the way through them that a tagger takes.

    posterior   p(y_t = k | x)                     how probable a tag is, whatever those of the other words
    pairs       p(y_t = j, y_{t+1} = k | x)        how probable a step from one tag to the next is
    best path   argmax_y p(y | x)                  by Viterbi; it need not go through the most probable tag of each word

A tagger without a CRF, one with a CRF and a hidden Markov model are read alike: each gives every word and tag a score
e_t(k) and every tag that follows two others a score A_ijk; a CRF's do not look at the first of them, and without a CRF
they are 0, or −∞ where a tag may not follow another. Then

    p(y | x) ∝ exp(Σ_t e_t(y_t) + Σ_t A(y_{t−2}, y_{t−1}, y_t))          END before the first word and after the last
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.hmm.discrete import HiddenMarkov
from seqloom.classical.hmm.tagger import HMMTagger
from seqloom.core.errors import DataError
from seqloom.core.tree import Tree
from seqloom.text import Characters, Tokenizer, Words
from seqloom.text.base import Span
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


# ---------------------------------------------------------------------------------------------------------------------

Array = np.ndarray[Any, Any]
NEVER = -1e6  # what a tag scores that may not follow another; sums of it stay finite


@dataclass(frozen=True)
class TagPaths:
    """W words, K tags."""

    words: list[str]
    tags: list[str]
    posterior: Array  # (W, K), each row sums to 1
    pairs: Array  # (W − 1, K, K); 0 where a long sentence was read in two pieces
    best: list[int]  # the tag of each word on the best path
    log_prob: float  # of the best path, log p(y | x)
    judged: str  # in words, how tags are judged
    unknown: list[str]  # pieces of the text the vocabulary does not have

    @property
    def likeliest(self) -> list[int]:
        """The most probable tag of each word by itself."""
        found: list[int] = self.posterior.argmax(axis=1).tolist()
        return found


@dataclass(frozen=True)
class Lattice:
    """Of one piece of a sentence."""

    posterior: Array  # (W, K)
    pairs: Array  # (W − 1, K, K)
    best: list[int]
    log_prob: float


@torch.no_grad()
def lattice_of(model: Any, batch: Tree, words: int) -> Lattice:
    """Of the only sentence of a batch, which has so many words."""
    best, posterior = (values[0, :words] for values in model.answer(batch))
    table, scores = potentials(model, batch)
    pairs, total = pairs_of(table, scores[:words])
    log_prob = score_of(table, scores, best.tolist()) - total
    return Lattice(posterior.double().cpu().numpy(), pairs, best.tolist(), log_prob)


def how(model: Any) -> str:
    if isinstance(model, HMMTagger):
        return f"hidden Markov model: a tag depends on the {'two' if model.config.order == 3 else 'one'} before it"
    if model.chain.learned:
        return "CRF: all tags of the sentence are judged together"
    if not bool(model.chain.allowed.all()):
        return "softmax: each word by itself, only sequences that are valid"
    return "softmax: each word by itself"


def potentials(model: Any, batch: Tree) -> tuple[Tensor, Tensor]:
    """A (K+1, K+1, K+1), whose last tag is END, and e (W, K) of the only sentence of a batch."""
    if isinstance(model, HMMTagger):
        return model.transition.double().clamp(min=NEVER), model.emissions(batch)[0].double()
    chain, scores = model.chain, model(batch)[0].double()
    start, moves, end = (part.double() for part in (chain.start, chain.transitions, chain.end))
    table = scores.new_zeros(chain.tags + 1, chain.tags + 1)
    table[:-1, :-1], table[-1, :-1], table[:-1, -1] = moves, start, end
    table = table.masked_fill(~chain.allowed, NEVER)
    return table.expand(chain.tags + 1, -1, -1), scores


def score_of(table: Tensor, scores: Tensor, tags: list[int]) -> float:
    """Σ_t e_t(y_t) + Σ_t A(y_{t−2}, y_{t−1}, y_t)"""
    end = scores.shape[1]
    around = torch.tensor([end, end, *tags, end])
    moves = table[around[:-2], around[1:-1], around[2:]].sum()
    return float(moves + scores[torch.arange(len(tags)), around[2:-1]].sum())


def pairs_of(table: Tensor, scores: Tensor) -> tuple[Array, float]:
    """p(y_t = j, y_{t+1} = k | x) (W − 1, K, K), and log Σ_y of all sequences; in log space

    forward   f_t(j, k) = e_t(k) + log Σ_i exp(f_{t−1}(i, j) + A_ijk)        backward   g_t(j, k) likewise from the end
    """
    words, tags = scores.shape
    forward = [scores.new_full((tags + 1, tags), -math.inf)]
    forward[0][tags] = table[tags, tags, :tags] + scores[0]
    for t in range(1, words):
        step = torch.logsumexp(forward[-1].unsqueeze(2) + table[:, :tags, :tags], dim=0) + scores[t]  # (K, K)
        forward.append(torch.cat([step, step.new_full((1, tags), -math.inf)]))
    after, found = table[:, :tags, tags], list[Tensor]()
    total = float(torch.logsumexp((forward[-1] + after).flatten(), dim=0))
    for t in range(words - 1, 0, -1):
        both = (forward[t] + after)[:tags]
        found.append(both.flatten().softmax(dim=0).view(tags, tags))
        after = torch.logsumexp(table[:, :tags, :tags] + (scores[t] + after[:tags]).unsqueeze(0), dim=2)
    return (torch.stack(found[::-1]) if found else scores.new_zeros(0, tags, tags)).numpy(), total


def joined(pieces: list[Lattice], words: list[str], tags: list[str], judged: str, unknown: list[str]) -> TagPaths:
    """A sentence that was read in several pieces; between two of them there are no pairs."""
    between = np.zeros((1, len(tags), len(tags)))
    pairs = [part for piece in pieces for part in (piece.pairs, between)][:-1]
    return TagPaths(
        words=words,
        tags=tags,
        posterior=np.concatenate([piece.posterior for piece in pieces]),
        pairs=np.concatenate(pairs),
        best=[tag for piece in pieces for tag in piece.best],
        log_prob=sum(piece.log_prob for piece in pieces),
        judged=judged,
        unknown=unknown,
    )


# --- states without names ---------------------------------------------------------------------------------------------

SAID = 3  # symbols by which a state is named


def state_paths(trained: Any, text: str) -> TagPaths:
    """The same of a hidden Markov model of plain text, whose states nobody named: what they say most often is shown."""
    model, tokenizer = trained.model, trained.tokenizer
    assert isinstance(model, HiddenMarkov)
    ids = tokenizer.encode(trained.as_taught(text))
    if not ids:
        raise DataError("There is nothing in this text that the model reads. Give it a word or two.")
    tokens, states = torch.tensor(ids), model.states
    scores = model.emitted(tokens[None])[0, :, :states]
    table = model.transition.clone()
    table[:, states] = 0  # a text may end anywhere
    pairs, total = pairs_of(table.expand(states + 1, -1, -1), scores)
    best = model.likeliest(tokens).tolist()
    return TagPaths(
        words=[tokenizer.token(number) for number in ids],
        tags=[f"{number}: {_said(row, tokenizer)}" for number, row in enumerate(model.emission[:states], start=1)],
        posterior=model.believed(tokens)[:, :states].numpy(),
        pairs=pairs,
        best=best,
        log_prob=score_of(table.expand(states + 1, -1, -1), scores, best) - total,
        judged="hidden Markov model without tags: its states were found, not taught",
        unknown=list(tokenizer.unknown_pieces(text)),
    )


def _said(row: Tensor, tokenizer: Any) -> str:
    return " ".join(tokenizer.token(number).strip() or "␣" for number in row.topk(min(SAID, len(row))).indices.tolist())
