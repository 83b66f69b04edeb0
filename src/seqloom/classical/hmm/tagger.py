"""A hidden Markov tagger, estimated by counting tagged sentences.

The tags of a sentence are a Markov chain (`seqloom.classical.hmm.tag_chain`) that emits the words.
Transitions interpolate tag unigrams, bigrams and trigrams (TnT; Brants, 2000):

    p(k | i, j) = λ_1 p̂(k) + λ_2 p̂(k | j) + λ_3 p̂(k | i, j)

Deleted interpolation estimates the weights λ. Each tag trigram adds its count to the order that predicts
the trigram best when one occurrence is removed: the order with the largest of (c(k) − 1)/(n − 1),
(c(jk) − 1)/(c(j) − 1) and (c(ijk) − 1)/(c(ij) − 1). With `order: 2`, there is no trigram term.

p(tag | word) is estimated from counts; each level is smoothed by the previous level:

    p_0(k)     = c(k) / n                                                    all rare words
    p_m(k)     = (c_m(k) + θ p_{m−1}(k)) / (n_m + θ)                         shape, then suffixes of 1, 2 … letters
    p_word(k)  = (c(w, k) + λ p_m(k)) / (c(w) + λ)
    p_form(k)  = (c(w, form, k) + μ p_word(k)) / (c(w, form) + μ)            the word in this spelling

An unseen word has c = 0, so its suffix and shape determine the result. An unseen level is skipped. By
Bayes' rule, and without p(w), which is the same for all tags, the emission is

    b(w | k) ∝ p(k | w) / p(k)

A shape combines capitals (none, first letter at the beginning of a sentence, first letter elsewhere, all), digits
(none, some, only) and hyphens (with or without). Suffixes form a tree: the parent of a suffix of n letters is the
suffix of its last n − 1 letters. The key of a suffix is (index of the parent)·(number of letters) + letter. The keys
are sorted and searched by bisection.
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

FORBIDDEN = -1e6  # log p of invalid transitions; its exponential is 0, and sums of it are finite
FIRST_WORD = 2  # id of the first word; the lower ids are END and <unk>
CAPITALS, DIGITS = 4, 3
SHAPES = CAPITALS * DIGITS * 2
UPPER, LOWER, DIGIT, NUMERIC, HYPHEN = range(5)  # kinds of letters; NUMERIC: digits and punctuation in numbers
KINDS = 5

Batch = dict[str, Tensor]  # the entries of `seqloom.models.tagger`: tokens, first, words, characters, tags
Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
Bools = NDArray[np.bool_]


@config
class SuffixConfig:
    """Settings of the suffix model for rare and unseen words."""

    length: PositiveInt = 10  # maximum length of a suffix in letters
    rare: PositiveInt = 20  # suffixes are learned from words with at most this count, which resemble unseen words
    min_count: PositiveInt = 2  # suffixes with a lower count are dropped
    smoothing: PositiveFloat = 10.0  # θ: weight of a shorter suffix relative to a longer suffix


@config
class HMMTaggerConfig:
    kind: Literal["hmm-tagger"] = "hmm-tagger"
    order: Annotated[int, Ge(2), Le(3)] = 3  # 3: a tag depends on the two previous tags; 2: only on the previous tag
    word_smoothing: PositiveFloat = 2.0  # λ: weight of shape and suffix relative to the counts of the word
    form_smoothing: PositiveFloat = 0.5  # μ: weight of the word relative to the counts of its spelling
    characters: SuffixConfig | None = SuffixConfig()  # model of shapes and suffixes; null: none
    constrain: bool = True  # for span tags, allow only valid sequences: no I-PER after O

    longest: ClassVar[int | None] = None  # no maximum sentence length
    vectors: ClassVar[None] = None  # no word vectors

    def build(self, vocabulary: int, tags: int, characters: int = 0) -> "HMMTagger":
        return HMMTagger(self, vocabulary, tags, characters)


@dataclass(frozen=True)
class TaggedWords:
    """The words of all training sentences, concatenated (n,)."""

    words: Ints  # word ids; ids below `FIRST_WORD` are special tokens
    tags: Ints
    characters: Ints  # (n, C)
    first: Bools  # whether the word begins a sentence


class HMMTagger(TensorModel):
    """A tagger estimated by counting; initially all tags are equally likely."""

    resizable = ("form_keys", "form_counts", "suffix_keys", "suffix_offsets", "suffix_probs")
    names = ("transition", "prior", "word_counts", *resizable, "letter_kinds", "lowercase")
    transition: Tensor  # log p(k | i, j) (K+1, K+1, K+1); the last tag is END
    prior: Tensor  # p(k) (K,)
    word_counts: Tensor  # c(w, k) (V, K)
    form_keys: Tensor  # (n,) in ascending order: word · SHAPES + shape
    form_counts: Tensor  # c(w, form, k) (n, K)
    suffix_keys: Tensor  # (m,) in ascending order for each suffix length
    suffix_offsets: Tensor  # (lengths + 1,) index of the first key of the suffixes of 1, 2 … letters
    suffix_probs: Tensor  # p_m of every shape and suffix (SHAPES + m, K)
    letter_kinds: Tensor  # (A, KINDS) whether a letter is of a kind
    lowercase: Tensor  # (A,) id of the lowercase letter

    def __init__(self, config: HMMTaggerConfig, vocabulary: int, tags: int, characters: int) -> None:
        self.config, self.vocabulary, self.tags, self.letters = config, vocabulary, tags, max(characters, 2)
        real = torch.float64
        self.transition = torch.full((tags + 1,) * 3, -math.log(tags + 1), dtype=real)
        self.prior = torch.full((tags,), 1 / tags, dtype=real)
        self.word_counts = torch.zeros(vocabulary, tags, dtype=real)
        self.form_keys, self.form_counts = torch.zeros(0, dtype=torch.long), torch.zeros(0, tags, dtype=real)
        self.suffix_keys, self.suffix_offsets = torch.zeros(0, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        self.suffix_probs = self.prior.repeat(SHAPES, 1)
        self.letter_kinds = torch.zeros(self.letters, KINDS, dtype=torch.bool)
        self.lowercase = torch.arange(self.letters)
        self.bounds = {
            **dict.fromkeys(("word_counts", "form_counts", "suffix_keys", "suffix_offsets"), (0, None)),
            **dict.fromkeys(("prior", "suffix_probs"), (0, 1 + 1e-9)),
            "transition": (FORBIDDEN, 1e-9),
            "form_keys": (0, vocabulary * SHAPES - 1),
            "lowercase": (0, self.letters - 1),
        }

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        form_keys, keys = tensors["form_keys"], tensors["suffix_keys"]
        require(len(form_keys) == len(tensors["form_counts"]), "form_keys and form_counts must have the same length")
        require(is_ascending(form_keys), "form_keys must be ascending")
        offsets = tensors["suffix_offsets"].tolist()
        require(
            offsets[:1] == [0] and offsets == sorted(offsets) and offsets[-1] == len(keys),
            "suffix_offsets must divide suffix_keys by length",
        )
        ascending = all(is_ascending(keys[begin:end]) for begin, end in pairwise(offsets))
        require(ascending, "suffix_keys must be ascending within each length")
        rows = SHAPES + len(keys)
        require(len(tensors["suffix_probs"]) == rows, f"suffix_probs must have {rows} rows, one per shape and suffix")

    # --- inference --------------------------------------------------------------------------------------------------

    def emissions(self, batch: Batch) -> Tensor:
        """Return log b (B, W, K) up to a constant per word, and 0 at padding."""
        real = batch["words"]
        words = batch["tokens"].gather(1, batch["first"])[real]  # (n,)
        emission = self.prior.new_zeros(*real.shape, self.tags)
        emission[real] = self._tag_probabilities(words, batch, real).log() - self.prior.log()
        return emission

    def _tag_probabilities(self, words: Tensor, batch: Batch, real: Tensor) -> Tensor:
        """Return p(k | w) (n, K) for the real words."""

        def smooth(counts: Tensor, parents: Tensor, smoothing: float) -> Tensor:
            return (counts + smoothing * parents) / (counts.sum(dim=1, keepdim=True) + smoothing)

        counts, smoothing = self.word_counts[words], self.config.word_smoothing
        if self.config.characters is None:
            return smooth(counts, self.suffix_probs[torch.zeros_like(words)], smoothing)
        characters = batch["characters"][real]
        first = torch.zeros_like(real)
        first[:, 0] = True
        shapes = word_shapes(characters, first[real], self.letter_kinds)
        word_probs = smooth(counts, self._suffix_probs(shapes, characters), smoothing)
        if not len(self.form_keys):
            return word_probs
        keys = words * SHAPES + shapes
        row = torch.searchsorted(self.form_keys, keys).clamp(max=len(self.form_keys) - 1)
        is_known = (self.form_keys[row] == keys).unsqueeze(1)
        form_probs = smooth(self.form_counts[row], word_probs, self.config.form_smoothing)
        return torch.where(is_known, form_probs, word_probs)

    def _suffix_probs(self, shapes: Tensor, characters: Tensor) -> Tensor:
        """Return p_m (n, K) for words with these shapes (n,) and letters (n, C)."""
        node, lengths = shapes, (characters > 0).sum(dim=1)
        is_known = torch.ones_like(node, dtype=torch.bool)
        for length, (begin, end) in enumerate(pairwise(self.suffix_offsets.tolist()), start=1):
            if begin == end:
                break
            position = (lengths - length).clamp(min=0)
            letter = self.lowercase[characters.gather(1, position.unsqueeze(1)).squeeze(1)]
            key, keys = node * len(self.lowercase) + letter, self.suffix_keys[begin:end]
            child = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
            is_known = is_known & (lengths >= length) & (keys[child] == key)
            node = torch.where(is_known, SHAPES + begin + child, node)
        return self.suffix_probs[node]

    def log_likelihood(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log p (B,) of the tags of each sentence given its words, and the number of words counted (B,)."""
        tags, words, emission = batch["tags"], batch["words"], self.emissions(batch)
        is_scored = ((tags >= 0) | ~words).all(dim=1)  # a negative tag does not occur in training
        total = chain.log_likelihood(self.transition, emission, words)
        log_p = chain.score(self.transition, emission, tags.clamp(min=0), words) - total
        return log_p.where(is_scored, 0), (words & is_scored.unsqueeze(1)).sum(dim=1)

    def predict(self, batch: Batch) -> Tensor:
        """Return the most likely tag sequences (B, W), with 0 at padding."""
        return chain.viterbi(self.transition, self.emissions(batch), batch["words"])

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the marginal probabilities (B, W, K) of each word's tags, with 0 at padding."""
        return chain.marginals(self.transition, self.emissions(batch), batch["words"])[0]

    def predict_with_probabilities(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.predict(batch), self.probabilities(batch)

    # --- estimation -------------------------------------------------------------------------------------------------

    def count_transitions(self, sentences: Sequence[Sequence[int]], names: Sequence[str]) -> list[float]:
        """Estimate the transitions from tagged sentences; return λ_1, λ_2 and λ_3."""
        end = self.tags
        stream = np.concatenate([[end, end, *tags, end] for tags in sentences])
        one, two, three = stream[:-2], stream[1:-1], stream[2:]
        inside = ~((two == end) & (one != end))  # drop trigrams that cross two sentences
        inside &= ~((three == end) & (two == end))
        size = end + 1
        counts = np.bincount(((one * size + two) * size + three)[inside], minlength=size**3).reshape(size, size, size)
        probabilities, weights = interpolate_counts(counts.astype(float), self.config.order)
        with np.errstate(divide="ignore"):
            table = torch.from_numpy(np.log(probabilities)).clamp(min=FORBIDDEN)
        if self.config.constrain and marks_spans(names):
            tags_and_end = [*names, None]
            allowed = torch.tensor([[may_follow(a, b, "IOB2") for b in tags_and_end] for a in tags_and_end])
            table = table.masked_fill(~allowed, FORBIDDEN)
        self.transition = table
        return weights

    def count_words(self, counted: TaggedWords, alphabet: Sequence[str]) -> None:
        """Estimate the tag probabilities of words, of their forms and of their suffixes."""
        tags, vocabulary = self.tags, self.vocabulary
        in_vocabulary = counted.words >= FIRST_WORD
        table = np.bincount((counted.words * tags + counted.tags)[in_vocabulary], minlength=vocabulary * tags)
        self.word_counts = torch.from_numpy(table.reshape(vocabulary, tags).astype(float))
        prior = np.bincount(counted.tags, minlength=tags).astype(float)
        self.prior = torch.from_numpy(prior / prior.sum())
        frequency = self.word_counts.sum(dim=1).numpy()[counted.words]
        if self.config.characters is None:
            base = np.bincount(counted.tags[frequency <= 1], minlength=tags) + 1e-3
            self.suffix_probs = torch.from_numpy(base / base.sum()).repeat(SHAPES, 1)
            return
        kinds, lowercase = classify_letters(alphabet)
        self.letter_kinds, self.lowercase = torch.from_numpy(kinds), torch.from_numpy(lowercase)
        characters, first = torch.from_numpy(counted.characters), torch.from_numpy(counted.first)
        shapes = word_shapes(characters, first, self.letter_kinds).numpy()
        is_rare = frequency <= self.config.characters.rare
        self._count_suffixes(counted, shapes, lowercase, is_rare, self.config.characters)
        keys, row = np.unique((counted.words * SHAPES + shapes)[in_vocabulary], return_inverse=True)
        table = np.bincount(row * tags + counted.tags[in_vocabulary], minlength=len(keys) * tags)
        self.form_keys = torch.from_numpy(keys)
        self.form_counts = torch.from_numpy(table.reshape(-1, tags).astype(float))

    def _count_suffixes(
        self, counted: TaggedWords, shapes: Ints, lowercase: Ints, is_rare: Bools, config: SuffixConfig
    ) -> None:
        """Estimate the suffix tree from rare words."""
        tags, theta, letters = self.tags, config.smoothing, len(lowercase)

        def smooth(counts: Ints, parents: Reals) -> Reals:
            return (counts + theta * parents) / (counts.sum(axis=-1, keepdims=True) + theta)

        rare_tags, characters, node = counted.tags[is_rare], counted.characters[is_rare], shapes[is_rare]
        lengths = (characters > 0).sum(axis=1)
        base = np.bincount(rare_tags, minlength=tags) + 1e-3  # every tag has a positive probability
        by_shape = np.bincount(node * tags + rare_tags, minlength=SHAPES * tags).reshape(SHAPES, tags)
        keys, offsets, probabilities = [np.empty(0, np.int64)], [0], [smooth(by_shape, base / base.sum())]
        active = np.arange(len(rare_tags))  # words whose suffix is in the tree
        for length in range(1, config.length + 1):
            active = active[lengths[active] >= length]
            suffixes = node[active] * letters + lowercase[characters[active, lengths[active] - length]]
            unique, row, count = np.unique(suffixes, return_inverse=True, return_counts=True)
            kept = count >= config.min_count
            active, row = active[kept[row]], (np.cumsum(kept) - 1)[row][kept[row]]
            table = np.bincount(row * tags + rare_tags[active], minlength=kept.sum() * tags).reshape(-1, tags)
            parents = np.concatenate(probabilities)[unique[kept] // letters]
            probabilities.append(smooth(table, parents))
            keys.append(unique[kept])
            node[active] = SHAPES + offsets[-1] + row
            offsets.append(offsets[-1] + int(kept.sum()))
        tables = (np.concatenate(keys), np.array(offsets), np.concatenate(probabilities))
        self.suffix_keys, self.suffix_offsets, self.suffix_probs = (torch.from_numpy(table) for table in tables)


def classify_letters(alphabet: Sequence[str]) -> tuple[Bools, Ints]:
    """Return the kinds (A, KINDS) and the lowercase id (A,) of each letter; ids 0 and 1 are padding and unknown."""
    ids = {letter: number for number, letter in enumerate(alphabet, start=2)}
    kinds, lowercase = np.zeros((len(alphabet) + 2, KINDS), dtype=bool), np.arange(len(alphabet) + 2)
    for letter, number in ids.items():
        kinds[number] = letter.isupper(), letter.islower(), letter.isdigit(), letter in ".,:/%-", letter == "-"
        kinds[number, NUMERIC] |= kinds[number, DIGIT]
        lowercase[number] = ids.get(letter.lower(), number)
    return kinds, lowercase


def word_shapes(characters: Tensor, first: Tensor, letter_kinds: Tensor) -> Tensor:
    """Return the shape id of words (…) with characters (…, C), padded by 0; `first` marks sentence beginnings."""
    real = characters > 0
    kinds = letter_kinds[characters] & real.unsqueeze(-1)  # (…, C, KINDS)
    has, is_capitalized = kinds.any(dim=-2), kinds[..., 0, UPPER]
    is_upper = is_capitalized & ~has[..., LOWER] & (real.sum(dim=-1) > 1)
    capital = torch.where(is_upper, 3, torch.where(is_capitalized, torch.where(first, 1, 2), 0))
    is_number = has[..., DIGIT] & (kinds[..., NUMERIC] == real).all(dim=-1)
    digit = torch.where(is_number, 2, has[..., DIGIT].long())
    return (capital * DIGITS + digit) * 2 + has[..., HYPHEN]


def interpolate_counts(counts: Reals, order: int) -> tuple[Reals, list[float]]:
    """Return p(k | i, j) (K+1, K+1, K+1) from counts of tag trigrams, and λ_1, λ_2 and λ_3."""
    pairs = counts.sum(axis=0)  # c(j, k); of the two ENDs before a sentence, only the second is counted
    singles = pairs.sum(axis=0)  # c(k)
    before, pairs_before = pairs.sum(axis=1), counts.sum(axis=2)
    weights = np.zeros(3)
    for i, j, k in zip(*np.nonzero(counts), strict=True):
        ratios = [(singles[k], singles.sum()), (pairs[j, k], before[j]), (counts[i, j, k], pairs_before[i, j])]
        held_out = [(count - 1) / (total - 1) if total > 1 else 0.0 for count, total in ratios[:order]]
        weights[int(np.argmax(held_out))] += counts[i, j, k]
    weights /= weights.sum()
    weights = np.maximum(weights, 1e-3)  # every order keeps a positive weight, so that it can serve as a fallback
    weights[2] *= order == 3
    weights /= weights.sum()

    def normalize(table: Reals) -> Reals:
        total = table.sum(axis=-1, keepdims=True)
        return table / np.where(total > 0, total, 1)

    unigram, bigram, trigram = singles / singles.sum(), normalize(pairs), normalize(counts)
    # The weight of an unseen context is given to the shorter contexts.
    seen_pair, seen = before[:, None] > 0, pairs_before[:, :, None] > 0
    two = (weights[0] * unigram + weights[1] * np.where(seen_pair, bigram, unigram)) / (weights[0] + weights[1])
    probabilities = (1 - weights[2]) * two[None] + weights[2] * np.where(seen, trigram, two[None])
    return probabilities, [float(weight) for weight in weights]
