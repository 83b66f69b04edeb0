"""A hidden Markov tagger, estimated from tagged sentences by counting alone.

The tags of a sentence are a Markov chain (`seqloom.classical.hmm.tag_chain`), and words are emitted
by it. Transitions are interpolated from one, two and three tags (Brants' TnT, 2000):

    p(k | i, j) = λ_1 p̂(k) + λ_2 p̂(k | j) + λ_3 p̂(k | i, j)

The λ are found by deleted interpolation. Each trigram of tags gives its count to whichever would
foretell it best, had it not been seen: the largest of (c(k) − 1)/(n − 1), (c(jk) − 1)/(c(j) − 1)
and (c(ijk) − 1)/(c(ij) − 1). With `order: 2` the last is left out, and a tag depends on one before
it.

p(tag | word) comes from counts, each level smoothed by the one below:

    p_0(k)     = c(k) / n                                                    of rare words, whatever they look like
    p_m(k)     = (c_m(k) + θ p_{m−1}(k)) / (n_m + θ)                         of its shape, of its last 1, 2 … letters
    p_word(k)  = (c(w, k) + λ p_m(k)) / (c(w) + λ)
    p_form(k)  = (c(w, form, k) + μ p_word(k)) / (c(w, form) + μ)            the word written like this

A word that was never seen has no counts of its own: its ending and its shape speak for it. A level
that was never seen is passed over, c = n = 0. By Bayes' rule and without p(w), which is the same
for all tags, the model emits

    b(w | k) ∝ p(k | w) / p(k)

Shape: capitals (none, the first letter at the beginning of a sentence, the first elsewhere, all),
digits (none, some, nothing else), a hyphen. Endings are kept as a tree: the letter n places from
the end is a child of the ending of n − 1 letters, found by bisection among sorted keys, (number of
the parent)·(letters) + letter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.classical.hmm import tag_chain as chain
from seqloom.classical.tensor_model import TensorModel
from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveFloat, PositiveInt
from seqloom.core.iob import marks_spans, may_follow
from seqloom.core.tree import is_ascending, require

FORBIDDEN = -1e6  # log p of tags that may not follow each other: exp of it is 0, and sums of it stay finite
OWN = 2  # numbers below this are END and <unk>, no words of the vocabulary
CAPITALS, DIGITS = 4, 3
SHAPES = CAPITALS * DIGITS * 2
UPPER, LOWER, DIGIT, NUMERIC, HYPHEN = range(5)  # what a letter may be; NUMERIC stands in numbers, digits or not
KINDS = 5

Batch = dict[str, Tensor]  # as `seqloom.models.tagger` has it: tokens, first, words, characters, tags
Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
Bools = NDArray[np.bool_]


@config
class SuffixConfig:
    """How words are judged by how they are written."""

    length: PositiveInt = 10  # letters of the longest ending
    rare: PositiveInt = 20  # endings are learned from words seen at most so often: new words are like those
    min_count: PositiveInt = 2  # endings seen less often are left out
    smoothing: PositiveFloat = 10.0  # θ: what a shorter ending counts for beside a longer one


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


@dataclass(frozen=True)
class TaggedWords:
    """The words of the training sentences, all of them one after the other (n,)."""

    words: Ints  # numbers of the vocabulary; below 2 they are none of its own
    tags: Ints
    characters: Ints  # (n, C)
    first: Bools  # whether a sentence begins here


class HMMTagger(TensorModel):
    """A tagger of counts. Before it is estimated or loaded every tag is as likely as every other."""

    names = ("transition", "prior", "words", "form_keys", "forms", "keys", "borders", "chances", "kinds", "small")
    resizable = ("form_keys", "forms", "keys", "borders", "chances")
    transition: Tensor  # log p(k | i, j) (K+1, K+1, K+1), the last is END
    prior: Tensor  # p(k) (K,)
    words: Tensor  # c(w, k) (V, K)
    form_keys: Tensor  # (n,) ascending: word · SHAPES + shape
    forms: Tensor  # c(w, form, k) (n, K)
    keys: Tensor  # of the endings (m,) ascending within each level
    borders: Tensor  # (levels + 1,) where the endings of 1, 2 … letters begin among the keys
    chances: Tensor  # p_m of every shape and ending (SHAPES + m, K)
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
        self.bounds = {
            **dict.fromkeys(("words", "forms", "keys", "borders"), (0, None)),
            **dict.fromkeys(("prior", "chances"), (0, 1 + 1e-9)),
            "transition": (FORBIDDEN, 1e-9),
            "form_keys": (0, vocabulary * SHAPES - 1),
            "small": (0, self.letters - 1),
        }

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        keys, borders = tensors["form_keys"], tensors["borders"].tolist()
        require(len(keys) == len(tensors["forms"]), "form_keys and forms must have as many rows")
        require(is_ascending(keys), "form_keys must be ascending")
        levels = [tensors["keys"][begin:end] for begin, end in pairwise(borders)]
        require(
            borders[:1] == [0] and borders == sorted(borders) and borders[-1] == len(tensors["keys"]),
            "borders must divide keys into levels",
        )
        require(all(is_ascending(level) for level in levels), "keys must be ascending within each level")
        rows = SHAPES + len(tensors["keys"])
        require(len(tensors["chances"]) == rows, f"chances must have {rows} rows, one for each shape and key")

    # --- asking -----------------------------------------------------------------------------------------------------

    def emissions(self, batch: Batch) -> Tensor:
        """log b (B, W, K) but for what all tags share; 0 at padding."""
        real = batch["words"]
        words = batch["tokens"].gather(1, batch["first"])[real]  # (n,)
        emission = self.prior.new_zeros(*real.shape, self.tags)
        emission[real] = self._tag_probabilities(words, batch, real).log() - self.prior.log()
        return emission

    def _tag_probabilities(self, words: Tensor, batch: Batch, real: Tensor) -> Tensor:
        """p(k | w) (n, K) of the real words."""

        def smoothed(counts: Tensor, rows: Tensor, below: Tensor, smoothing: float) -> Tensor:
            own = counts[rows]
            return (own + smoothing * below) / (own.sum(dim=1, keepdim=True) + smoothing)

        if self.config.characters is None:
            return smoothed(self.words, words, self.chances[torch.zeros_like(words)], self.config.word_smoothing)
        characters = batch["characters"][real]
        first = torch.zeros_like(real)
        first[:, 0] = True
        shapes = shapes_of(characters, first[real], self.kinds)
        chances = smoothed(self.words, words, self._ending_chances(shapes, characters), self.config.word_smoothing)
        if not len(self.form_keys):
            return chances
        wanted = words * SHAPES + shapes
        row = torch.searchsorted(self.form_keys, wanted).clamp(max=len(self.form_keys) - 1)
        known = (self.form_keys[row] == wanted).unsqueeze(1)
        return torch.where(known, smoothed(self.forms, row, chances, self.config.form_smoothing), chances)

    def _ending_chances(self, shapes: Tensor, characters: Tensor) -> Tensor:
        """p_m (n, K) of words (n,) of these shapes and letters (n, C)."""
        node, lengths = shapes, (characters > 0).sum(dim=1)
        alive = torch.ones_like(node, dtype=torch.bool)
        for level, (begin, end) in enumerate(pairwise(self.borders.tolist()), start=1):
            if begin == end:
                break
            position = (lengths - level).clamp(min=0)
            letter = self.small[characters.gather(1, position.unsqueeze(1)).squeeze(1)]
            wanted, keys = node * len(self.small) + letter, self.keys[begin:end]
            child = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            alive = alive & (lengths >= level) & (keys[child] == wanted)
            node = torch.where(alive, SHAPES + begin + child, node)
        return self.chances[node]

    def log_likelihood(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B,) of the tags of each sentence given its words, and how many of its words are counted (B,)."""
        tags, words, emission = batch["tags"], batch["words"], self.emissions(batch)
        whole = ((tags >= 0) | ~words).all(dim=1)  # a tag below 0 was never seen in training
        total = chain.log_likelihood(self.transition, emission, words)
        log_p = chain.score(self.transition, emission, tags.clamp(min=0), words) - total
        return log_p.where(whole, 0), (words & whole.unsqueeze(1)).sum(dim=1)

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
        """Count the tags of sentences; return the λ of one, two and three tags."""
        end = self.tags
        whole = np.concatenate([[end, end, *tags, end] for tags in sentences])
        one, two, three = whole[:-2], whole[1:-1], whole[2:]
        inside = ~((two == end) & (one != end))  # the beginning of a sentence does not follow the end of another
        inside &= ~((three == end) & (two == end))
        size = end + 1
        counts = np.bincount(((one * size + two) * size + three)[inside], minlength=size**3).reshape(size, size, size)
        chances, weights = interpolate_counts(counts.astype(float), self.config.order)
        with np.errstate(divide="ignore"):
            table = torch.from_numpy(np.log(chances)).clamp(min=FORBIDDEN)
        if self.config.constrain and marks_spans(names):
            around = [*names, None]
            allowed = torch.tensor([[may_follow(a, b, "IOB2") for b in around] for a in around])
            table = table.masked_fill(~allowed, FORBIDDEN)
        self.transition = table
        return weights

    def count_words(self, counted: TaggedWords, alphabet: Sequence[str]) -> None:
        """Count the tags of words, of their forms and of their endings."""
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
        characters, first = torch.from_numpy(counted.characters), torch.from_numpy(counted.first)
        shapes = shapes_of(characters, first, self.kinds).numpy()
        self._learn_endings(counted, shapes, small, often <= self.config.characters.rare, self.config.characters)
        keys, row = np.unique((counted.words * SHAPES + shapes)[known], return_inverse=True)
        table = np.bincount(row * tags + counted.tags[known], minlength=len(keys) * tags)
        self.form_keys, self.forms = torch.from_numpy(keys), torch.from_numpy(table.reshape(-1, tags).astype(float))

    def _learn_endings(
        self, counted: TaggedWords, shapes: Ints, small: Ints, rare: Bools, config: SuffixConfig
    ) -> None:
        """Set keys, borders and chances, from rare words alone."""
        tags, theta = self.tags, config.smoothing

        def smoothed(counts: Ints, parents: Reals) -> Reals:
            return (counts + theta * parents) / (counts.sum(axis=-1, keepdims=True) + theta)

        own, characters, node = counted.tags[rare], counted.characters[rare], shapes[rare]
        lengths = (characters > 0).sum(axis=1)
        base = np.bincount(own, minlength=tags) + 1e-3  # a tag that no rare word has is not quite impossible
        by_shape = np.bincount(node * tags + own, minlength=SHAPES * tags).reshape(SHAPES, tags)
        keys, borders, chances = [np.empty(0, np.int64)], [0], [smoothed(by_shape, base / base.sum())]
        alive = np.arange(len(own))
        for level in range(1, config.length + 1):
            alive = alive[lengths[alive] >= level]
            wanted = node[alive] * len(small) + small[characters[alive, lengths[alive] - level]]
            unique, row, count = np.unique(wanted, return_inverse=True, return_counts=True)
            kept = count >= config.min_count
            alive, row = alive[kept[row]], (np.cumsum(kept) - 1)[row][kept[row]]
            table = np.bincount(row * tags + own[alive], minlength=kept.sum() * tags).reshape(-1, tags)
            parents = np.concatenate(chances)[unique[kept] // len(small)]
            chances.append(smoothed(table, parents))
            keys.append(unique[kept])
            node[alive] = SHAPES + borders[-1] + row
            borders.append(borders[-1] + int(kept.sum()))
        tables = (np.concatenate(keys), np.array(borders), np.concatenate(chances))
        self.keys, self.borders, self.chances = (torch.from_numpy(table) for table in tables)


def letter_kinds(alphabet: Sequence[str]) -> tuple[Bools, Ints]:
    """What each letter is (A, KINDS), and its small letter's number (A,); the first two are none and unknown."""
    numbers = {letter: number for number, letter in enumerate(alphabet, start=2)}
    kinds, small = np.zeros((len(alphabet) + 2, KINDS), dtype=bool), np.arange(len(alphabet) + 2)
    for letter, number in numbers.items():
        kinds[number] = letter.isupper(), letter.islower(), letter.isdigit(), letter in ".,:/%-", letter == "-"
        kinds[number, NUMERIC] |= kinds[number, DIGIT]
        small[number] = numbers.get(letter.lower(), number)
    return kinds, small


def shapes_of(characters: Tensor, first: Tensor, kinds: Tensor) -> Tensor:
    """The number of each word's shape (…); characters (…, C), 0 after the last; `first` where a sentence begins."""
    real = characters > 0
    own = kinds[characters] & real.unsqueeze(-1)  # (…, C, KINDS)
    has, begins = own.any(dim=-2), own[..., 0, UPPER]
    every = begins & ~has[..., LOWER] & (real.sum(dim=-1) > 1)
    capital = torch.where(every, 3, torch.where(begins, torch.where(first, 1, 2), 0))
    number = has[..., DIGIT] & (own[..., NUMERIC] == real).all(dim=-1)
    digit = torch.where(number, 2, has[..., DIGIT].long())
    return (capital * DIGITS + digit) * 2 + has[..., HYPHEN]


def interpolate_counts(counts: Reals, order: int) -> tuple[Reals, list[float]]:
    """p(k | i, j) (K+1, K+1, K+1) of counts of three tags, and the λ of one, two and three."""
    pairs = counts.sum(axis=0)  # c(j, k); the END before a sentence is counted once, as the second of two
    singles = pairs.sum(axis=0)  # c(k)
    before, pairs_before = pairs.sum(axis=1), counts.sum(axis=2)
    weights = np.zeros(3)
    for i, j, k in zip(*np.nonzero(counts), strict=True):
        seen_of = [(singles[k], singles.sum()), (pairs[j, k], before[j]), (counts[i, j, k], pairs_before[i, j])]
        left = [(count - 1) / (total - 1) if total > 1 else 0.0 for count, total in seen_of[:order]]
        weights[int(np.argmax(left))] += counts[i, j, k]
    weights /= weights.sum()
    weights = np.maximum(weights, 1e-3)  # no order is ever left out: there is always something to fall back on
    weights[2] *= order == 3
    weights /= weights.sum()

    def normalised(table: Reals) -> Reals:
        total = table.sum(axis=-1, keepdims=True)
        return table / np.where(total > 0, total, 1)

    parts = (singles / singles.sum(), normalised(pairs), normalised(counts))
    # where a context was never seen, its share goes to the shorter ones
    seen_pair, seen = before[:, None] > 0, pairs_before[:, :, None] > 0
    two = (weights[0] * parts[0] + weights[1] * np.where(seen_pair, parts[1], parts[0])) / (weights[0] + weights[1])
    chances = (1 - weights[2]) * two[None] + weights[2] * np.where(seen, parts[2], two[None])
    return chances, [float(weight) for weight in weights]
