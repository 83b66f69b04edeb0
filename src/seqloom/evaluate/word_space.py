"""Words as points: which lie near a word, and which stands to c as b stands to a.

cos(x, y) = x · y / (‖x‖ ‖y‖)
a : b = c : ?        the word w, none of the three, with the largest cos(w, b − a + c), a, b, c of length 1 (3CosAdd)
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import counted, shown

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class NearWord:
    word: str
    score: float  # the cosine


@dataclass(frozen=True)
class WordSpace:
    """Words, the more frequent first, and their vectors; `lowercase` says that all words were made so."""

    words: Sequence[str]
    vectors: Array  # (V, D)
    lowercase: bool = False
    name: str = "this model"

    def __post_init__(self) -> None:
        if len(self.words) < 2:
            raise DataError(f"{self.name} has vectors of {counted(len(self.words), 'word')}: two or more are needed.")

    @cached_property
    def unit(self) -> Array:
        """The vectors, each of length 1; one that is zero stays so."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        found: Array = (self.vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return found

    @cached_property
    def places(self) -> dict[str, int]:
        return {word: place for place, word in reversed(list(enumerate(self.words)))}  # of twins the first

    @cached_property
    def folded(self) -> dict[str, int]:
        """Where a word stands whatever its case; of several spellings the most frequent."""
        return {word.casefold(): place for place, word in reversed(list(enumerate(self.words)))}

    def place(self, word: str) -> int:
        """Where a word stands; one that is not there is refused, with what is spelled like it."""
        for spelling in (word, word.lower()) if self.lowercase else (word,):
            if spelling in self.places:
                return self.places[spelling]
        raise UsageError(f"{self.name} has no vector of {shown(word)}{self._instead(word)}")

    def _instead(self, word: str) -> str:
        other_case = [self.words[self.folded[word.casefold()]]] if word.casefold() in self.folded else []
        near = [one for one in self.words if abs(len(one) - len(word)) <= 2 and one[:1].lower() == word[:1].lower()]
        close = dict.fromkeys([*other_case, *difflib.get_close_matches(word, near, n=5, cutoff=0.7)])
        if close:
            return f"; did you mean {', '.join(close)}?"
        return f", and nothing of its {counted(len(self.words), 'word')} is spelled like it."

    def vector(self, word: str) -> Array:
        found: Array = self.vectors[self.place(word)]
        return found

    def similar(self, word: str, top: int = 10) -> list[NearWord]:
        """The words whose vectors point most nearly the same way, best first."""
        place = self.place(word)
        return self._best(self.unit[place], [place], top)

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[NearWord]:
        """What stands to c as b stands to a, best first."""
        places = [self.place(word) for word in (a, b, c)]
        x, y, z = self.unit[places]
        return self._best(y - x + z, places, top)

    def _best(self, direction: Array, besides: Sequence[int], top: int) -> list[NearWord]:
        if top < 1:
            raise UsageError(f"top must be at least 1, got {top}.")
        length = np.linalg.norm(direction)
        scores = self.unit @ (direction / (length if length > 0 else 1))
        scores[list(besides)] = -np.inf
        order = np.argsort(-scores, kind="stable")[: min(top, len(scores) - len(set(besides)))]
        return [NearWord(self.words[place], float(scores[place])) for place in order]
