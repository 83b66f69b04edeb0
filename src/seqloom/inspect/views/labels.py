"""Word weights of classifiers, tag lattices of taggers, and states of hidden Markov models.

Word weights:

    attention   α_j, the weight of word j in attention pooling
    influence   x_jᵀ ∂s/∂x_j, gradient × input: the contribution of word j to the score s of the label, to first order
    occlusion   p − p_{−j}: the decrease in the probability of the label if word j is removed

Attention weights are between 0 and 1. Together with the weights of END and special tokens, they sum to 1. They show
where the model attends, not how the attention affects the label. Influence is positive if a word supports the label and
negative otherwise; for a bag of words, it is exact. Occlusion reads the text again without the word. If two words have
the same meaning, the removal of one word changes little.

The tag lattice of a sentence, and the path that a tagger selects:

    posterior   p(y_t = k | x)                     the probability of a tag, for any tags of the other words
    pairs       p(y_t = j, y_{t+1} = k | x)        the probability of two successive tags
    best path   argmax_y p(y | x)                  by Viterbi; it may differ from the most probable tag of each word

Taggers with a CRF, taggers without a CRF and hidden Markov models have the same form: a score e_t(k) for every word and
tag, and a score A_ijk for a tag after two others. In a CRF, A does not depend on i. Without a CRF, A is 0, or −∞ if a
tag must not follow another tag. Then

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
from seqloom.models.classifier import TextClassifier
from seqloom.models.fine_tuned import FineTunedClassifier
from seqloom.models.tagger import TaggerBase
from seqloom.runs.trained import WritingModel
from seqloom.text import Characters, Tokenizer, Words
from seqloom.text.base import Span
from seqloom.text.word_spans import word_spans

WordWeightsKind = Literal["attention", "influence", "occlusion"]
FORBIDDEN_SCORE = -1e6  # score of a forbidden transition; sums of this score stay finite
NAMING_SYMBOLS = 3  # number of symbols in the name of a state
STATE_SYMBOLS = 12  # shown per state
DEV_TOKENS = 280  # number of dev tokens, if no text is given
VOWELS = frozenset("aeiou")
LETTER_KINDS = ("vowels", "consonants", "spaces", "others")

# --- word weights -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordWeight:
    """The weight of a word, or of a character if the model reads characters."""

    text: str
    start: int  # position in the text
    end: int
    weight: float


@dataclass(frozen=True)
class WordWeights:
    """The weights of all words of a text."""

    kind: WordWeightsKind
    words: list[WordWeight]
    end: float  # weight of END and special tokens together

    def shift(self, by: int) -> "WordWeights":
        """Shift the spans by a number of characters."""
        return replace(self, words=[replace(w, start=w.start + by, end=w.end + by) for w in self.words])


def explain(
    model: TextClassifier | FineTunedClassifier,
    batch: Tree,
    texts: Sequence[str],
    tokens: Sequence[Sequence[Span]],
    tokenizer: Tokenizer,
    before: int = 0,
    labels: Tensor | None = None,
    kind: WordWeightsKind | None = None,
) -> list[WordWeights]:
    """Compute the word weights for the most probable label of each text, or for `labels` (B,) if given.

    By default, the weights are attention if the model has attention pooling, and influence otherwise. `batch` contains
    the texts in order, `tokens` contains the spans of their tokens, and `before` is the number of special tokens at the
    start of each row.
    """
    result_kind: WordWeightsKind = "attention"
    weights = None if kind == "influence" else model.attention(batch)
    if weights is None:
        with torch.backends.cudnn.flags(enabled=False):  # cuDNN has no gradient in evaluation mode
            weights, result_kind = model.influence(batch, labels), "influence"
    reasons = []
    rows = weights.float().cpu().tolist()  # (B, S)
    for text, spans, row, mask in zip(texts, tokens, rows, batch["mask"].cpu(), strict=True):
        read = int(mask.sum()) - 1 - before  # without END or special tokens
        word_part, special_weight = row[before : before + read], sum(row[:before]) + row[before + read]
        reasons.append(WordWeights(result_kind, weigh_words(text, spans[:read], word_part, tokenizer), special_weight))
    return reasons


def weigh_words(text: str, tokens: Sequence[Span], weights: Sequence[float], tokenizer: Tokenizer) -> list[WordWeight]:
    """Sum the weights of the tokens of each word."""
    if isinstance(tokenizer, Words | Characters):
        return [WordWeight(text[a:b], a, b, weight) for (a, b), weight in zip(tokens, weights, strict=True)]
    words = [span for span in word_spans(text) if tokens and span[0] < tokens[-1][1]]
    ends, sums = [end for _, end in words], [0.0] * len(words)
    for (start, _), weight in zip(tokens, weights, strict=True):  # the span of a token may begin with a space
        if words:
            sums[min(bisect_right(ends, start), len(words) - 1)] += weight
    return [WordWeight(text[a:b], a, b, total) for (a, b), total in zip(words, sums, strict=True)]


def remove_each_word(text: str, words: Sequence[WordWeight]) -> list[str]:
    """Return one text per word, without the word and the double space that results."""
    shorter = []
    for word in words:
        before, after = text[: word.start], text[word.end :]
        shorter.append(before + (after.lstrip() if not before or before[-1].isspace() else after))
    return shorter


# --- tag lattices -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lattice:
    """The tag lattice of a sentence or of a part of it, with W words and K tags."""

    posterior: Array  # (W, K), each row sums to 1
    pairs: Array  # (W − 1, K, K); 0 between two parts of a long sentence
    best: list[int]  # tags of the best path
    log_prob: float  # log p(y | x) of the best path


@dataclass(frozen=True)
class TagPaths(Lattice):
    """The tag lattice of a sentence, with its words and the names of the tags."""

    words: list[str]
    tags: list[str]
    scoring: str  # description of how tags are scored
    unknown: list[str]  # parts of the text that are not in the vocabulary

    @property
    def most_probable(self) -> list[int]:
        """The tag with the largest posterior for each word."""
        return self.posterior.argmax(axis=1).tolist()

    @classmethod
    def of(
        cls, pieces: Sequence[Lattice], words: list[str], tags: list[str], scoring: str, unknown: list[str]
    ) -> "TagPaths":
        """Join the lattices of a sentence's parts. The probability of a tag pair across two parts is set to 0."""
        between = np.zeros((1, len(tags), len(tags)))
        pairs = [part for piece in pieces for part in (piece.pairs, between)][:-1]
        posterior = np.concatenate([piece.posterior for piece in pieces])
        best, log_prob = [tag for piece in pieces for tag in piece.best], sum(piece.log_prob for piece in pieces)
        return cls(posterior, np.concatenate(pairs), best, log_prob, words, tags, scoring, unknown)


@torch.no_grad()
def lattice_of(model: TaggerBase | HMMTagger, batch: Tree, words: int) -> Lattice:
    """Compute the lattice of a batch with a single sentence of `words` words."""
    best, posterior = (values[0, :words] for values in model.predict_with_probabilities(batch))
    table, scores = potentials(model, batch)
    pairs, total = pairs_of(table, scores[:words])
    log_prob = score_of(table, scores, best.tolist()) - total
    return Lattice(posterior.double().cpu().numpy(), pairs, best.tolist(), log_prob)


def describe_tagger(model: TaggerBase | HMMTagger) -> str:
    """Describe how a tagger scores tags."""
    if isinstance(model, HMMTagger):
        return f"hidden Markov model: a tag depends on the {'two tags' if model.config.order == 3 else 'tag'} before it"
    if model.chain.learned:
        return "CRF: scores the whole tag sequence"
    if not bool(model.chain.allowed.all()):
        return "softmax: scores each word independently, but allows only valid sequences"
    return "softmax: scores each word independently"


def potentials(model: TaggerBase | HMMTagger, batch: Tree) -> tuple[Tensor, Tensor]:
    """Return A (K+1, K+1, K+1), whose last tag is END, and e (W, K) for a batch with one sentence."""
    if isinstance(model, HMMTagger):
        return model.transition.double().clamp(min=FORBIDDEN_SCORE), model.emissions(batch)[0].double()
    chain, scores = model.chain, model(batch)[0].double()
    table = scores.new_zeros(chain.tags + 1, chain.tags + 1)
    table[:-1, :-1], table[-1, :-1], table[:-1, -1] = chain.transitions.double(), chain.start, chain.end
    return table.masked_fill(~chain.allowed, FORBIDDEN_SCORE).expand(chain.tags + 1, -1, -1), scores


def score_of(table: Tensor, scores: Tensor, tags: list[int]) -> float:
    """Return the score of a tag sequence, Σ_t e_t(y_t) + Σ_t A(y_{t−2}, y_{t−1}, y_t)."""
    end = scores.shape[1]
    padded_tags = torch.tensor([end, end, *tags, end])
    moves = table[padded_tags[:-2], padded_tags[1:-1], padded_tags[2:]].sum()
    return float(moves + scores[torch.arange(len(tags)), padded_tags[2:-1]].sum())


def pairs_of(table: Tensor, scores: Tensor) -> tuple[Array, float]:
    """Return p(y_t = j, y_{t+1} = k | x) (W − 1, K, K), and the logsumexp of the scores of all tag sequences.

    forward   f_t(j, k) = e_t(k) + log Σ_i exp(f_{t−1}(i, j) + A_ijk)        backward   g_t(j, k) similarly from the end
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
    """Compute the lattice of a hidden Markov model of text. States are named by their most probable symbols."""
    model, tokenizer = trained.model, trained.tokenizer
    assert isinstance(model, HiddenMarkov)
    tokens, states = _read_ids(trained, text), model.states
    scores = model.emission_log_probs(tokens[None])[0, :, :states]
    table = model.transition.clone()
    table[:, states] = 0  # a text may end after any token
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
        scoring="hidden Markov model without tags: the states are learned without supervision",
        unknown=list(tokenizer.unknown_pieces(text)),
    )


def _read_ids(trained: TrainedModel, text: str) -> Tensor:
    """Return the tokens (T,) of a text that is normalized like the training texts."""
    assert isinstance(trained, WritingModel)
    ids = trained.tokenizer.encode(trained.to_training_format(text))
    if not ids:
        raise DataError("The text has no tokens that the model knows. Give at least one word.")
    return torch.tensor(ids)


# --- states of hidden Markov models -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextStates:
    """The states of a hidden Markov model of text, numbered from 1, without END."""

    emissions: list[list[tuple[str, float]]]  # the most probable symbols of each state
    transition: Array  # (N+1, N+1), END last
    tokens: list[str]
    path: list[int]  # most probable state of each token, counted from 0
    posterior: list[float]  # posterior probability of that state
    fractions: list[float]  # fraction of the measured text's tokens in each state
    letter_kinds: dict[str, list[float]] | None  # only for letters: for each kind, the fraction emitted by each state
    measured_on: str  # the text measured in `fractions` and `letter_kinds`

    @property
    def states(self) -> int:
        return len(self.emissions)


@dataclass(frozen=True)
class SeriesStates:
    """The states of a hidden Markov model of series."""

    columns: list[str]
    means: Array  # (N, C), in the units of the data
    deviations: Array  # (N, C)
    transition: Array  # (N, N)
    fractions: list[float]
    values: Array  # (T, C)
    times: list[str]
    path: list[int]
    train: int  # training steps; later steps are unseen

    @property
    def states(self) -> int:
        return len(self.means)

    def describe_duration(self, state: int) -> str:
        """Describe the mean duration of a state, 1 / (1 − A_kk) steps."""
        steps = 1 / max(1 - float(self.transition[state, state]), 1e-12)
        return f"{steps:.1f} steps on average" if steps < len(self.path) else "never left"


def states_view(
    trained: TrainedModel, text: str | None = None, *, top: int = STATE_SYMBOLS
) -> TextStates | SeriesStates:
    """Return the emissions, the transitions, and the most probable states for a text or series."""
    model = trained.model
    if isinstance(model, GaussianHMM):
        if text is not None:
            raise UsageError(f"{trained.name} is a model of series and reads no text; leave the text out.")
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
    all_states = model.likeliest_states(stream)
    inside = all_states < model.states  # END is not a hidden state
    counts = torch.bincount(all_states[inside], minlength=model.states).double()
    path, posterior, emissions, kinds = model.likeliest_states(shown), model.state_posteriors(shown), [], None
    for row in model.emission[: model.states]:
        values, numbers = row.exp().topk(min(top, len(row)))
        emissions.append(
            [(tokenizer.token(n), value) for n, value in zip(numbers.tolist(), values.tolist(), strict=True)]
        )
    if isinstance(tokenizer, Characters):  # fraction of each kind emitted by each state
        kind = torch.tensor([LETTER_KINDS.index(kind_of(tokenizer.token(number))) for number in range(len(tokenizer))])
        cells = kind[stream[inside]] * model.states + all_states[inside]
        table = torch.bincount(cells, minlength=len(LETTER_KINDS) * model.states).view(-1, model.states).double()
        rows = zip(LETTER_KINDS, table, strict=True)
        kinds = {name: (row / row.sum()).tolist() for name, row in rows if row.sum() > 0}
    return TextStates(
        emissions=emissions,
        transition=model.transition.exp().numpy(),
        tokens=[tokenizer.token(number) for number in shown.tolist()],
        path=path.tolist(),
        posterior=posterior.gather(1, path.unsqueeze(1)).squeeze(1).tolist(),
        fractions=(counts / counts.sum()).tolist(),
        letter_kinds=kinds,
        measured_on=measured,
    )


def kind_of(letter: str) -> str:
    """Return the kind of a character, one of `LETTER_KINDS`."""
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
    """Return the state, the start and the end (exclusive) of each run of equal states."""
    borders = [0, *(t for t in range(1, len(path)) if path[t] != path[t - 1]), len(path)]
    return [(path[a], a, b) for a, b in pairwise(borders) if a < b]
