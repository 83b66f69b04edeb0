"""Why a classifier says what it says, every tag that a sentence could have, and the states of hidden Markov models.

How much each word weighed:

    attention   α_j, where the pooling attends: how much of its answer it took from word j
    influence   x_jᵀ ∂s/∂x_j, gradient × input: what word j adds to the score s of the label, to first order
    left out    p − p_{−j}: how much less probable the label would be had word j not been there

Shares of attention are from 0 to 1, and with that of the text's end their sum is 1; they say where the model looked,
not for what. Influences are for the label, or below 0 against it; for a bag of words they are exact. What is left out
is not a guess: the text is read again without the word; but of two words that say the same, neither is missed.

All tags that a sentence could have, and the way through them that a tagger takes:

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
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.hmm import HiddenMarkov
from seqloom.classical.hmm.gaussian import GaussianHMM
from seqloom.classical.hmm.tagger import HMMTagger
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree
from seqloom.inspect.capture import TrainedModel
from seqloom.inspect.values import Array
from seqloom.models.classifier import Classifier
from seqloom.models.fine_tuned import FineTunedClassifier
from seqloom.models.tagger import TaggerBase
from seqloom.runs.trained import WritingModel
from seqloom.text import Characters, Tokenizer, Words
from seqloom.text.base import Span
from seqloom.text.word_spans import word_spans

WordWeightsKind = Literal["attention", "influence", "occlusion"]
NEVER = -1e6  # what a tag scores that may not follow another; sums of it stay finite
NAMING_SYMBOLS = 3  # by which a state is named
STATE_SYMBOLS = 12  # of a state that are shown
DEV_TOKENS = 280  # of the dev split that are shown, where no text is given
VOWELS = frozenset("aeiou")
LETTERS = ("vowels", "consonants", "spaces", "others")

# --- why a label ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordWeight:
    """A word, or a character where the model reads characters, and how much it weighed."""

    text: str
    start: int  # where it stands in the text
    end: int
    weight: float


@dataclass(frozen=True)
class WordWeights:
    """How much each word of a text weighed."""

    kind: WordWeightsKind
    words: list[WordWeight]
    end: float  # what the end of the text weighed, and special tokens around it

    def shift(self, by: int) -> "WordWeights":
        """The same where so many letters stand before the text."""
        return replace(self, words=[replace(w, start=w.start + by, end=w.end + by) for w in self.words])


def explain(
    model: Classifier | FineTunedClassifier,
    batch: Tree,
    texts: Sequence[str],
    tokens: Sequence[Sequence[Span]],
    tokenizer: Tokenizer,
    before: int = 0,
    labels: Tensor | None = None,
    wanted: WordWeightsKind | None = None,
) -> list[WordWeights]:
    """Explain the most probable label of each text, or those that `labels` (B,) names, by attention where the pooling
    attends, unless influence is wanted.

    `batch` holds the texts in their order, `tokens` says where the tokens of each stand in it, `before` how many
    special ones a row begins with.
    """
    kind: WordWeightsKind = "attention"
    weights = None if wanted == "influence" else model.attention(batch)
    if weights is None:
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers have no gradient outside of training
            weights, kind = model.influence(batch, labels), "influence"
    reasons = []
    rows = weights.float().cpu().tolist()  # (B, S)
    for text, spans, row, mask in zip(texts, tokens, rows, batch["mask"].cpu(), strict=True):
        read = int(mask.sum()) - 1 - before  # without END, or the special tokens around
        own, around = row[before : before + read], sum(row[:before]) + row[before + read]
        reasons.append(WordWeights(kind, weigh_words(text, spans[:read], own, tokenizer), around))
    return reasons


def weigh_words(text: str, tokens: Sequence[Span], weights: Sequence[float], tokenizer: Tokenizer) -> list[WordWeight]:
    """The weights of words: a word that is spelled in several tokens has their sum."""
    if isinstance(tokenizer, Words | Characters):
        return [WordWeight(text[a:b], a, b, weight) for (a, b), weight in zip(tokens, weights, strict=True)]
    words = [span for span in word_spans(text) if tokens and span[0] < tokens[-1][1]]
    ends, sums = [end for _, end in words], [0.0] * len(words)
    for (start, _), weight in zip(tokens, weights, strict=True):  # one may begin with the space before its word
        if words:
            sums[min(bisect_right(ends, start), len(words) - 1)] += weight
    return [WordWeight(text[a:b], a, b, total) for (a, b), total in zip(words, sums, strict=True)]


def remove_each_word(text: str, words: Sequence[WordWeight]) -> list[str]:
    """The text once for each word, without that word and without the space that would stand twice."""
    shorter = []
    for word in words:
        before, after = text[: word.start], text[word.end :]
        shorter.append(before + (after.lstrip() if not before or before[-1].isspace() else after))
    return shorter


# --- paths through tags -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lattice:
    """The tags of a sentence, or of one piece of it: W words, K tags."""

    posterior: Array  # (W, K), each row sums to 1
    pairs: Array  # (W − 1, K, K); 0 where a long sentence was read in two pieces
    best: list[int]  # the tag of each word on the best path
    log_prob: float  # of the best path, log p(y | x)


@dataclass(frozen=True)
class TagPaths(Lattice):
    """The tags of a sentence, in words."""

    words: list[str]
    tags: list[str]
    scoring: str  # in words, how tags are judged
    unknown: list[str]  # pieces of the text the vocabulary does not have

    @property
    def most_probable(self) -> list[int]:
        """The most probable tag of each word by itself."""
        return self.posterior.argmax(axis=1).tolist()

    @classmethod
    def of(
        cls, pieces: Sequence[Lattice], words: list[str], tags: list[str], scoring: str, unknown: list[str]
    ) -> "TagPaths":
        """Of a sentence that was read in several pieces; between two of them there are no pairs."""
        between = np.zeros((1, len(tags), len(tags)))
        pairs = [part for piece in pieces for part in (piece.pairs, between)][:-1]
        posterior = np.concatenate([piece.posterior for piece in pieces])
        best, log_prob = [tag for piece in pieces for tag in piece.best], sum(piece.log_prob for piece in pieces)
        return cls(posterior, np.concatenate(pairs), best, log_prob, words, tags, scoring, unknown)


@torch.no_grad()
def lattice_of(model: TaggerBase | HMMTagger, batch: Tree, words: int) -> Lattice:
    """Of the only sentence of a batch, which has so many words."""
    best, posterior = (values[0, :words] for values in model.predict_with_probabilities(batch))
    table, scores = potentials(model, batch)
    pairs, total = pairs_of(table, scores[:words])
    log_prob = score_of(table, scores, best.tolist()) - total
    return Lattice(posterior.double().cpu().numpy(), pairs, best.tolist(), log_prob)


def describe_tagger(model: TaggerBase | HMMTagger) -> str:
    """How a tagger judges tags, in words."""
    if isinstance(model, HMMTagger):
        return f"hidden Markov model: a tag depends on the {'two' if model.config.order == 3 else 'one'} before it"
    if model.chain.learned:
        return "CRF: all tags of the sentence are judged together"
    if not bool(model.chain.allowed.all()):
        return "softmax: each word by itself, only sequences that are valid"
    return "softmax: each word by itself"


def potentials(model: TaggerBase | HMMTagger, batch: Tree) -> tuple[Tensor, Tensor]:
    """A (K+1, K+1, K+1), whose last tag is END, and e (W, K) of the only sentence of a batch."""
    if isinstance(model, HMMTagger):
        return model.transition.double().clamp(min=NEVER), model.emissions(batch)[0].double()
    chain, scores = model.chain, model(batch)[0].double()
    table = scores.new_zeros(chain.tags + 1, chain.tags + 1)
    table[:-1, :-1], table[-1, :-1], table[:-1, -1] = chain.transitions.double(), chain.start, chain.end
    return table.masked_fill(~chain.allowed, NEVER).expand(chain.tags + 1, -1, -1), scores


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
    after, pairs = table[:, :tags, tags], list[Tensor]()
    total = float(torch.logsumexp((forward[-1] + after).flatten(), dim=0))
    for t in range(words - 1, 0, -1):
        both = (forward[t] + after)[:tags]
        pairs.append(both.flatten().softmax(dim=0).view(tags, tags))
        after = torch.logsumexp(table[:, :tags, :tags] + (scores[t] + after[:tags]).unsqueeze(0), dim=2)
    return (torch.stack(pairs[::-1]) if pairs else scores.new_zeros(0, tags, tags)).numpy(), total


def state_paths(trained: TrainedModel, text: str) -> TagPaths:
    """The same of a hidden Markov model of plain text, whose states nobody named: what they say most often is shown."""
    model, tokenizer = trained.model, trained.tokenizer
    assert isinstance(model, HiddenMarkov)
    tokens, states = _read_ids(trained, text), model.states
    scores = model.emission_log_probs(tokens[None])[0, :, :states]
    table = model.transition.clone()
    table[:, states] = 0  # a text may end anywhere
    table = table.expand(states + 1, -1, -1)
    pairs, total = pairs_of(table, scores)
    best, names = model.likeliest_states(tokens).tolist(), []
    for number, row in enumerate(model.emission[:states], start=1):
        symbols = row.topk(min(NAMING_SYMBOLS, len(row))).indices.tolist()
        names.append(f"{number}: {' '.join(tokenizer.token(symbol).strip() or '␣' for symbol in symbols)}")
    return TagPaths(
        words=[tokenizer.token(number) for number in tokens.tolist()],
        tags=names,
        posterior=model.state_posteriors(tokens)[:, :states].numpy(),
        pairs=pairs,
        best=best,
        log_prob=score_of(table, scores, best) - total,
        scoring="hidden Markov model without tags: its states were found, not taught",
        unknown=list(tokenizer.unknown_pieces(text)),
    )


def _read_ids(trained: TrainedModel, text: str) -> Tensor:
    """The tokens of a text, in the form of the training texts (T,)."""
    assert isinstance(trained, WritingModel)
    ids = trained.tokenizer.encode(trained.to_training_format(text))
    if not ids:
        raise DataError("There is nothing in this text that the model reads. Give it a word or two.")
    return torch.tensor(ids)


# --- states of hidden Markov models -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextStates:
    """Of a model of text; its states are numbered from 1, END is none of them."""

    emissions: list[list[tuple[str, float]]]  # of each state the most probable symbols
    transition: Array  # (N+1, N+1), the last is END
    tokens: list[str]  # of the text that was read
    path: list[int]  # the likeliest state of each of them, from 0
    belief: list[float]  # how probable that state is, once all is read
    fractions: list[float]  # how much of the measured text each state said
    letter_kinds: dict[str, list[float]] | None  # of letters: by kind the share that each state said of it
    measured_on: str  # what shares and kinds were measured on

    @property
    def states(self) -> int:
        return len(self.emissions)


@dataclass(frozen=True)
class SeriesStates:
    """Of a model of series."""

    columns: list[str]
    means: Array  # (N, C), in the units of the data
    deviations: Array  # (N, C)
    transition: Array  # (N, N)
    fractions: list[float]
    values: Array  # (T, C)
    times: list[str]
    path: list[int]
    train: int  # steps that it learned from; what comes after them it had not seen

    @property
    def states(self) -> int:
        return len(self.means)

    def describe_duration(self, state: int) -> str:
        """How many steps a state lasts on average, 1 / (1 − A_kk)."""
        steps = 1 / max(1 - float(self.transition[state, state]), 1e-12)
        return f"{steps:.1f} steps at a time" if steps < len(self.path) else "never left again"


def states_view(
    trained: TrainedModel, text: str | None = None, *, top: int = STATE_SYMBOLS
) -> TextStates | SeriesStates:
    """What each state says, which follows which, and where a hidden Markov model was in a text or a series."""
    model = trained.model
    if isinstance(model, GaussianHMM):
        if text is not None:
            raise UsageError(f"{trained.name} is of a series, not of a text; leave the text out.")
        return _series_states(trained, model)
    if isinstance(model, HiddenMarkov):
        return _text_states(trained, model, text, top)
    raise UsageError(
        f"Only hidden Markov models have states (tasks hmm and hmm-series); {trained.name} is {trained.description} "
        f"of kind {trained.run.recipe['model']['kind']}."
    )


def _text_states(trained: TrainedModel, model: HiddenMarkov, text: str | None, top: int) -> TextStates:
    tokenizer = trained.tokenizer
    if text is None:
        stream, measured = trained.task().stream("dev"), f"{trained.run.data['corpus']}, dev"
        shown = stream[:DEV_TOKENS]
        ends = (shown == 0).nonzero().flatten().tolist()
        shown = shown[: next((end for end in ends if end >= DEV_TOKENS // 4), None)]
        shown = shown[shown != 0]
    else:
        shown = stream = _read_ids(trained, text)
        measured = "this text"
    everywhere = model.likeliest_states(stream)
    inside = everywhere < model.states  # END is no state of theirs
    counts = torch.bincount(everywhere[inside], minlength=model.states).double()
    path, belief, emissions, kinds = model.likeliest_states(shown), model.state_posteriors(shown), [], None
    for row in model.emission[: model.states]:
        values, numbers = row.exp().topk(min(top, len(row)))
        emissions.append(
            [(tokenizer.token(n), value) for n, value in zip(numbers.tolist(), values.tolist(), strict=True)]
        )
    if isinstance(tokenizer, Characters):  # what share of the vowels, and of the others, each state said
        kind = torch.tensor([LETTERS.index(kind_of(tokenizer.token(number))) for number in range(len(tokenizer))])
        cells = kind[stream[inside]] * model.states + everywhere[inside]
        table = torch.bincount(cells, minlength=len(LETTERS) * model.states).view(-1, model.states).double()
        kinds = {name: (row / row.sum()).tolist() for name, row in zip(LETTERS, table, strict=True) if row.sum() > 0}
    return TextStates(
        emissions=emissions,
        transition=model.transition.exp().numpy(),
        tokens=[tokenizer.token(number) for number in shown.tolist()],
        path=path.tolist(),
        belief=belief.gather(1, path.unsqueeze(1)).squeeze(1).tolist(),
        fractions=(counts / counts.sum()).tolist(),
        letter_kinds=kinds,
        measured_on=measured,
    )


def kind_of(letter: str) -> str:
    """One of `LETTERS`."""
    if letter.isspace():
        return "spaces"
    if len(letter) != 1 or not letter.isalpha():
        return "others"
    return "vowels" if letter.lower() in VOWELS else "consonants"


def _series_states(trained: TrainedModel, model: GaussianHMM) -> SeriesStates:
    corpus = trained.task().corpus
    last = next(name for name in ("test", "dev", "train") if name in corpus.splits)
    series, train = corpus.split(last)[0], len(corpus.split("train")[0])
    path = model.likeliest_states(torch.from_numpy(series.values))
    spread = model.covariances.diagonal(dim1=1, dim2=2).sqrt() * model.scale
    counts = torch.bincount(path, minlength=model.states).double()
    return SeriesStates(
        columns=list(series.columns),
        means=(model.means * model.scale + model.center).numpy(),
        deviations=spread.numpy(),
        transition=model.transition.exp().numpy(),
        fractions=(counts / counts.sum()).tolist(),
        values=series.values,
        times=series.time_labels(),
        path=path.tolist(),
        train=train,
    )


def state_segments(path: Sequence[int]) -> list[tuple[int, int, int]]:
    """State, first position and the position after the last of each stretch in one state."""
    borders = [0, *(t for t in range(1, len(path)) if path[t] != path[t - 1]), len(path)]
    return [(path[a], a, b) for a, b in pairwise(borders) if a < b]
