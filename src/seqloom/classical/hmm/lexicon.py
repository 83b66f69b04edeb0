"""What a hidden Markov tagger thinks of a word: p(tag | word), from counts, each level smoothed by the one below.

    p_0(k)     = c(k) / n                                                    of rare words, whatever they look like
    p_m(k)     = (c_m(k) + θ p_{m−1}(k)) / (n_m + θ)                         of its shape, of its last 1, 2 … letters
    p_word(k)  = (c(w, k) + λ p_m(k)) / (c(w) + λ)
    p_form(k)  = (c(w, form, k) + μ p_word(k)) / (c(w, form) + μ)            the word written like this

A word that was never seen has no counts of its own: its ending and its shape speak for it. A rare one has few, and is
judged by both. A level that was never seen is passed over, c = n = 0. What the model emits is then, by Bayes' rule and
without p(w), which is the same for all tags,

    b(w | k) ∝ p(k | w) / p(k)

Shape: capitals (none, the first letter at the beginning of a sentence, the first elsewhere, all), digits (none, some,
nothing else), a hyphen. Endings are kept as a tree: what stands `n` letters from the end is a child of the ending of
n − 1 letters, found by bisection among sorted keys, (number of the parent)·(letters) + letter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import PositiveFloat, PositiveInt

Array = NDArray[Any]
CAPITALS, DIGITS = 4, 3
SHAPES = CAPITALS * DIGITS * 2
UPPER, LOWER, DIGIT, NUMERIC, HYPHEN = range(5)  # what a letter may be; NUMERIC stands in numbers, digits or not
KINDS = 5


@config
class SuffixConfig:
    """How words are judged by how they are written."""

    length: PositiveInt = 10  # letters of the longest ending
    rare: PositiveInt = 20  # endings are learned from words seen at most so often: new words are like those
    min_count: PositiveInt = 2  # endings seen less often are left out
    smoothing: PositiveFloat = 10.0  # θ: what a shorter ending counts for beside a longer one


def letter_kinds(alphabet: Sequence[str]) -> tuple[Array, Array]:
    """What each letter is (A, KINDS), and its small letter's number (A,); the first two are none and unknown."""
    numbers = {letter: place for place, letter in enumerate(alphabet, start=2)}
    kinds, small = np.zeros((len(alphabet) + 2, KINDS), dtype=bool), np.arange(len(alphabet) + 2)
    for letter, place in numbers.items():
        kinds[place] = letter.isupper(), letter.islower(), letter.isdigit(), letter in ".,:/%-", letter == "-"
        kinds[place, NUMERIC] |= kinds[place, DIGIT]
        small[place] = numbers.get(letter.lower(), place)
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


@dataclass(frozen=True)
class Counted:
    """The words of the training sentences, all of them one after the other (n,)."""

    words: Array  # numbers of the vocabulary; below 2 they are none of its own
    tags: Array
    characters: Array  # (n, C)
    first: Array  # whether a sentence begins here


class Endings:
    """p_m of every shape and ending: a tree."""

    def __init__(self, keys: Tensor, borders: Tensor, chances: Tensor) -> None:
        self.keys = keys  # (m,) ascending within each level
        self.borders = borders  # (levels + 1,) where the endings of 1, 2 … letters begin among the keys
        self.chances = chances  # (SHAPES + m, K)

    def of(self, shapes: Tensor, characters: Tensor, small: Tensor) -> Tensor:
        """p_m (n, K) of words (n,) of these shapes and letters (n, C)."""
        letters, node = len(small), shapes
        lengths = (characters > 0).sum(dim=1)
        alive = torch.ones_like(node, dtype=torch.bool)
        borders = self.borders.tolist()
        for level, (begin, end) in enumerate(pairwise(borders), start=1):
            if begin == end:
                break
            place = (lengths - level).clamp(min=0)
            wanted = node * letters + small[characters.gather(1, place.unsqueeze(1)).squeeze(1)]
            keys = self.keys[begin:end]
            found = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            alive = alive & (lengths >= level) & (keys[found] == wanted)
            node = torch.where(alive, SHAPES + begin + found, node)
        return self.chances[node]


def learn_endings(
    counted: Counted, shapes: Array, small: Array, rare: Array, config: SuffixConfig, tags: int
) -> Endings:
    """From rare words alone."""
    own, characters, node = counted.tags[rare], counted.characters[rare], shapes[rare]
    lengths = (characters > 0).sum(axis=1)
    base = np.bincount(own, minlength=tags) + 1e-3  # a tag that no rare word has is not quite impossible
    roots = _below(
        np.bincount(node * tags + own, minlength=SHAPES * tags).reshape(SHAPES, tags), base / base.sum(), config
    )
    keys, borders, chances = [np.empty(0, np.int64)], [0], [roots]
    alive = np.arange(len(own))
    for level in range(1, config.length + 1):
        alive = alive[lengths[alive] >= level]
        wanted = node[alive] * len(small) + small[characters[alive, lengths[alive] - level]]
        found, place, count = np.unique(wanted, return_inverse=True, return_counts=True)
        kept = count >= config.min_count
        alive, place = alive[kept[place]], (np.cumsum(kept) - 1)[place][kept[place]]
        table = np.bincount(place * tags + own[alive], minlength=kept.sum() * tags).reshape(-1, tags)
        parents = np.concatenate(chances)[found[kept] // len(small)]
        chances.append(_below(table, parents, config))
        keys.append(found[kept])
        node[alive] = SHAPES + borders[-1] + place
        borders.append(borders[-1] + int(kept.sum()))
    tables = (np.concatenate(keys), np.array(borders), np.concatenate(chances))
    return Endings(*(torch.from_numpy(one) for one in tables))


def _below(counts: Array, parents: Array, config: SuffixConfig) -> Array:
    theta = config.smoothing
    found: Array = (counts + theta * parents) / (counts.sum(axis=-1, keepdims=True) + theta)
    return found
