"""A hidden Markov tagger, estimated from tagged sentences by counting alone.

The tags of a sentence are a Markov chain (`seqloom.classical.hmm.tag_chain`), the words are what it emits
(`seqloom.classical.hmm.lexicon`). Transitions are interpolated from one, two and three tags (Brants' TnT, 2000):

    p(k | i, j) = λ_1 p̂(k) + λ_2 p̂(k | j) + λ_3 p̂(k | i, j)

The λ are found by deleted interpolation. Each trigram of tags gives its count to whichever would foretell it best, had
it not been seen: the largest of (c(k) − 1)/(n − 1), (c(jk) − 1)/(c(j) − 1) and (c(ijk) − 1)/(c(ij) − 1). With
`order: 2` the last is left out, and a tag depends on one before it.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.hmm import tag_chain as chain
from seqloom.classical.hmm.lexicon import (
    KINDS,
    SHAPES,
    Array,
    Counted,
    Endings,
    SuffixConfig,
    learn_endings,
    letter_kinds,
    shapes_of,
)
from seqloom.classical.hmm.tables import Tables
from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveFloat
from seqloom.core.iob import marks_spans, may_follow
from seqloom.core.tree import Expected, is_ascending, require

FORBIDDEN = -1e6  # log p of tags that may not follow each other: exp of it is 0, and sums of it stay finite
OWN = 2  # numbers below this are END and <unk>, no words of the vocabulary

Batch = dict[str, Tensor]  # as `seqloom.models.tagger` has it: tokens, first, words, characters, tags


@config
class HMMTaggerConfig:
    kind: Literal["hmm-tagger"] = "hmm-tagger"
    order: Annotated[int, Ge(2), Le(3)] = 3  # 3: a tag depends on the two before it; 2: on one
    word_smoothing: PositiveFloat = 2.0  # λ: what shape and ending count for beside what was seen of the word
    form_smoothing: PositiveFloat = 0.5  # μ: what the word counts for beside what was seen of it written like this
    characters: SuffixConfig | None = SuffixConfig()  # how words are judged by how they are written; null: not at all
    constrain: bool = True  # where tags mark spans, only sequences that are valid: no I-PER after O

    longest: ClassVar[int | None] = None  # it reads sentences of any length
    vectors: ClassVar[None] = None  # and no vectors

    def build(self, vocabulary: int, tags: int, characters: int = 0) -> "HMMTagger":
        return HMMTagger(self, vocabulary, tags, characters)


class HMMTagger(Tables):
    """Before it is estimated or loaded every tag is as likely as every other."""

    names = ("transition", "prior", "words", "form_keys", "forms", "keys", "borders", "chances", "kinds", "small")
    transition: Tensor  # log p(k | i, j) (K+1, K+1, K+1), the last is END
    prior: Tensor  # p(k) (K,)
    words: Tensor  # c(w, k) (V, K)
    form_keys: Tensor  # (n,) ascending: word · SHAPES + shape
    forms: Tensor  # c(w, form, k) (n, K)
    keys: Tensor  # of the endings, see `Endings`
    borders: Tensor
    chances: Tensor
    kinds: Tensor  # (A, KINDS) what each letter is
    small: Tensor  # (A,) its small letter

    def __init__(self, config: HMMTaggerConfig, vocabulary: int, tags: int, characters: int) -> None:
        self.config, self.vocabulary, self.tags, self.letters = config, vocabulary, tags, max(characters, 2)
        real = torch.float64
        self.transition = torch.full((tags + 1,) * 3, -math.log(tags + 1), dtype=real)
        self.prior = torch.full((tags,), 1 / tags, dtype=real)
        self.words = torch.zeros(vocabulary, tags, dtype=real)
        self.form_keys, self.forms = torch.zeros(0, dtype=torch.long), torch.zeros(0, tags, dtype=real)
        self.keys, self.borders = torch.zeros(0, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        self.chances = self.prior.repeat(SHAPES, 1)
        self.kinds = torch.zeros(self.letters, KINDS, dtype=torch.bool)
        self.small = torch.arange(self.letters)

    def expected(self) -> dict[str, Expected]:
        tags, letters, real = self.tags, self.letters, torch.float64
        return {
            "transition": Expected((tags + 1,) * 3, real, low=FORBIDDEN, high=1e-9),
            "prior": Expected((tags,), real, low=0, high=1 + 1e-9),
            "words": Expected((self.vocabulary, tags), real, low=0),
            "form_keys": Expected((None,), torch.int64, low=0, high=self.vocabulary * SHAPES - 1),
            "forms": Expected((None, tags), real, low=0),
            "keys": Expected((None,), torch.int64, low=0),
            "borders": Expected((None,), torch.int64, low=0),
            "chances": Expected((None, tags), real, low=0, high=1 + 1e-9),
            "kinds": Expected((letters, KINDS), torch.bool),
            "small": Expected((letters,), torch.int64, low=0, high=letters - 1),
        }

    def check(self, tables: Mapping[str, Tensor]) -> None:
        keys, borders = tables["form_keys"], tables["borders"].tolist()
        require(len(keys) == len(tables["forms"]), "form_keys and forms must have as many rows")
        require(is_ascending(keys), "form_keys must be ascending")
        levels = [tables["keys"][begin:end] for begin, end in pairwise(borders)]
        require(
            borders[:1] == [0] and borders == sorted(borders) and borders[-1] == len(tables["keys"]),
            "borders must divide keys into levels",
        )
        require(all(is_ascending(level) for level in levels), "keys must be ascending within each level")
        rows = SHAPES + len(tables["keys"])
        require(len(tables["chances"]) == rows, f"chances must have {rows} rows, one for each shape and key")

    # --- asking -----------------------------------------------------------------------------------------------------

    def emissions(self, batch: Batch) -> Tensor:
        """log b (B, W, K) but for what all tags share; 0 at padding."""
        real = batch["words"]
        words = batch["tokens"].gather(1, batch["first"])[real]  # (n,)
        chances = self._judged(words, batch, real)
        found = self.prior.new_zeros(*real.shape, self.tags)
        found[real] = chances.log() - self.prior.log()
        return found

    def _judged(self, words: Tensor, batch: Batch, real: Tensor) -> Tensor:
        """p(k | w) (n, K) of the real words."""
        if self.config.characters is None:
            return self._seen(self.words, words, self.chances[torch.zeros_like(words)], self.config.word_smoothing)
        characters = batch["characters"][real]
        first = torch.zeros_like(real)
        first[:, 0] = True
        shapes = shapes_of(characters, first[real], self.kinds)
        found = Endings(self.keys, self.borders, self.chances).of(shapes, characters, self.small)
        found = self._seen(self.words, words, found, self.config.word_smoothing)
        if not len(self.form_keys):
            return found
        wanted = words * SHAPES + shapes
        place = torch.searchsorted(self.form_keys, wanted).clamp(max=len(self.form_keys) - 1)
        known = (self.form_keys[place] == wanted).unsqueeze(1)
        smoothed = self._seen(self.forms, place, found, self.config.form_smoothing)
        return torch.where(known, smoothed, found)

    @staticmethod
    def _seen(counts: Tensor, place: Tensor, below: Tensor, smoothing: float) -> Tensor:
        own = counts[place]
        return (own + smoothing * below) / (own.sum(dim=1, keepdim=True) + smoothing)

    def log_likelihood(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B,) of the tags of each sentence given its words, and how many of its words are counted (B,)."""
        tags, words, emission = batch["tags"], batch["words"], self.emissions(batch)
        whole = ((tags >= 0) | ~words).all(dim=1)  # a tag below 0 was never seen in training
        total = chain.log_likelihood(self.transition, emission, words)
        found = chain.score(self.transition, emission, tags.clamp(min=0), words) - total
        return found.where(whole, 0), (words & whole.unsqueeze(1)).sum(dim=1)

    def predict(self, batch: Batch) -> Tensor:
        """The best tags of each sentence (B, W), all together; 0 at padding."""
        return chain.viterbi(self.transition, self.emissions(batch), batch["words"])

    def probabilities(self, batch: Batch) -> Tensor:
        """p (B, W, K) of every tag of every word, whatever the tags of the others; 0 at padding."""
        return chain.marginals(self.transition, self.emissions(batch), batch["words"])[0]

    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.predict(batch), self.probabilities(batch)

    # --- counting ---------------------------------------------------------------------------------------------------

    def count_transitions(self, sentences: Sequence[Sequence[int]], names: Sequence[str]) -> list[float]:
        """The λ of one, two and three tags."""
        end = self.tags
        whole = np.concatenate([[end, end, *tags, end] for tags in sentences])
        one, two, three = whole[:-2], whole[1:-1], whole[2:]
        inside = ~((two == end) & (one != end))  # the beginning of a sentence does not follow the end of another
        inside &= ~((three == end) & (two == end))
        size = end + 1
        counts = np.bincount(((one * size + two) * size + three)[inside], minlength=size**3).reshape(size, size, size)
        chances, weights = interpolated(counts.astype(float), self.config.order)
        with np.errstate(divide="ignore"):
            table = torch.from_numpy(np.log(chances)).clamp(min=FORBIDDEN)
        if self.config.constrain and marks_spans(names):
            around = [*names, None]
            allowed = torch.tensor([[may_follow(a, b, "IOB2") for b in around] for a in around])
            table = table.masked_fill(~allowed, FORBIDDEN)
        self.transition = table
        return weights

    def count_words(self, counted: Counted, alphabet: Sequence[str]) -> None:
        tags, vocabulary = self.tags, self.vocabulary
        known = counted.words >= OWN
        table = np.bincount((counted.words * tags + counted.tags)[known], minlength=vocabulary * tags)
        self.words = torch.from_numpy(table.reshape(vocabulary, tags).astype(float))
        prior = np.bincount(counted.tags, minlength=tags).astype(float)
        self.prior = torch.from_numpy(prior / prior.sum())
        often = self.words.sum(dim=1).numpy()[counted.words]
        if self.config.characters is None:
            base = np.bincount(counted.tags[often <= 1], minlength=tags) + 1e-3
            self.chances = torch.from_numpy(base / base.sum()).repeat(SHAPES, 1)
            return
        kinds, small = letter_kinds(alphabet)
        self.kinds, self.small = torch.from_numpy(kinds), torch.from_numpy(small)
        shapes = self._shapes(counted)
        endings = learn_endings(
            counted, shapes, small, often <= self.config.characters.rare, self.config.characters, tags
        )
        self.keys, self.borders, self.chances = endings.keys, endings.borders, endings.chances
        keys, place = np.unique((counted.words * SHAPES + shapes)[known], return_inverse=True)
        table = np.bincount(place * tags + counted.tags[known], minlength=len(keys) * tags)
        self.form_keys, self.forms = torch.from_numpy(keys), torch.from_numpy(table.reshape(-1, tags).astype(float))

    def _shapes(self, counted: Counted) -> Array:
        found: Array = shapes_of(
            torch.from_numpy(counted.characters), torch.from_numpy(counted.first), self.kinds
        ).numpy()
        return found


def interpolated(counts: Array, order: int) -> tuple[Array, list[float]]:
    """p(k | i, j) (K+1, K+1, K+1) of counts of three tags, and the λ of one, two and three."""
    pairs = counts.sum(axis=0)  # c(j, k); the END before a sentence is counted once, as the second of two
    singles = pairs.sum(axis=0)  # c(k)
    before, pairs_before = pairs.sum(axis=1), counts.sum(axis=2)
    weights = np.zeros(3)
    for i, j, k in zip(*np.nonzero(counts), strict=True):
        left = [
            _left_out(singles[k], singles.sum()),
            _left_out(pairs[j, k], before[j]),
            _left_out(counts[i, j, k], pairs_before[i, j]) if order == 3 else -1.0,
        ]
        weights[int(np.argmax(left))] += counts[i, j, k]
    weights /= weights.sum()
    weights = np.maximum(weights, 1e-3)  # no order is ever left out: there is always something to fall back on
    weights[2] *= order == 3
    weights /= weights.sum()
    parts = (singles / singles.sum(), _normalised(pairs), _normalised(counts))
    # where a context was never seen, its share goes to the shorter ones
    seen_pair, seen = before[:, None] > 0, pairs_before[:, :, None] > 0
    two = (weights[0] * parts[0] + weights[1] * np.where(seen_pair, parts[1], parts[0])) / (weights[0] + weights[1])
    found = (1 - weights[2]) * two[None] + weights[2] * np.where(seen, parts[2], two[None])
    return found, [float(weight) for weight in weights]


def _left_out(count: float, total: float) -> float:
    return (count - 1) / (total - 1) if total > 1 else 0.0


def _normalised(counts: Array) -> Array:
    total = counts.sum(axis=-1, keepdims=True)
    found: Array = counts / np.where(total > 0, total, 1)
    return found
