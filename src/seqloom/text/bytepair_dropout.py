"""Byte-pair dropout (Provilkov et al., 2020): a model learns that one word may be spelled in several ways.

A word begins as its bytes. At each turn every pair of neighbours that may be joined is passed over with chance p; of
those left, the one learned first is joined; when none is left, the word is done. With p = 0 that is the plain
segmentation, with p = 1 the bytes. Only training reads text so: what is evaluated or translated is segmented plainly.

The `tokenizers` library can do this too, but draws from a generator nobody can seed. Here the texts of a step are a
function of seed and step: a word has `VARIANTS` segmentations, each drawn from the seed, the word and its number when
it is first needed, and each time the word is read the step's own draws say which. So a word is rarely worked out anew.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from seqloom.core.seeding import derive
from seqloom.text.bytepair import BytePair

VARIANTS = 32  # segmentations of a word among which a step chooses

Joins = Mapping[tuple[int, int], tuple[int, int]]
Word = tuple[int, ...]


def segment(word: Sequence[int], joins: Joins, rate: float, draw: Callable[[], float]) -> Word:
    """The bytes of a word, joined as far as chance allows; `draw` gives numbers from 0 up to 1."""
    pieces = list(word)
    while True:
        possible = [
            (*joins[pair], place)
            for place, pair in enumerate(pairwise(pieces))
            if pair in joins and (not rate or draw() >= rate)
        ]
        if not possible:
            return tuple(pieces)
        _, joined, place = min(possible, key=lambda one: (one[0], one[2]))  # of equals the leftmost
        pieces[place : place + 2] = [joined]


class DropoutTexts:
    """Texts that are segmented anew at each reading."""

    def __init__(self, tokenizer: BytePair, texts: Iterable[str], rate: float):
        self.rate, self._joins = rate, tokenizer.joins()
        numbers: dict[Word, int] = {}
        found = [
            np.array([numbers.setdefault(word, len(numbers)) for word in tokenizer.words(text)], dtype=np.int32)
            for text in texts
        ]
        self._texts, self._words = found, list(numbers)
        self._seed: int | None = None
        self._variants: list[list[Word | None]] = []

    def draw(self, chosen: Iterable[int], seed: int, *path: int | str) -> list[list[int]]:
        """The chosen texts as ids, a pure function of the arguments: `path` says which reading it is."""
        if seed != self._seed:
            self._seed, self._variants = seed, [[None] * VARIANTS for _ in self._words]
        drawn = np.random.default_rng(derive(seed, "byte-pair dropout", *path))
        return [self._read(self._texts[index], drawn) for index in chosen]

    def _read(self, words: np.ndarray, drawn: np.random.Generator) -> list[int]:
        ids: list[int] = []
        for word, number in zip(words.tolist(), drawn.integers(VARIANTS, size=len(words)).tolist(), strict=True):
            ids += self._variants[word][number] or self._variant(word, number)
        return ids

    def _variant(self, word: int, number: int) -> Word:
        draw = random.Random(f"{self._seed}/{number}/{self._words[word]}").random
        made = self._variants[word][number] = segment(self._words[word], self._joins, self.rate, draw)
        return made
