"""How words are spelled, for models that read it: rows of characters, and batches that have them.

A word is known by its number, that of its row; number 0 is no word, and its row has no characters. Characters are the
ids of an alphabet learned from the training words: 0 is none, 1 is one that training did not have.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.tree import Tree
from seqloom.data.buckets import Array, Shape
from seqloom.data.example_batches import ExampleBatches
from seqloom.data.pair_batches import Ragged
from seqloom.text import Characters, CharactersConfig

LONGEST = 32  # characters of a word; of a longer one both ends are read
STEP = 8  # rows are as long as the longest word of a batch, rounded up to a multiple: few different shapes
SPELLING = "spelling"  # of the numbers a batch has for each word


class Spellings:
    """The words met so far. It may be asked for more at any time."""

    def __init__(self, alphabet: Characters) -> None:
        self.alphabet = alphabet
        self._numbers = {"": 0}
        self._rows = np.zeros((1, LONGEST), dtype=np.int32)
        self._lengths = np.zeros(1, dtype=np.int64)

    @classmethod
    def learned(cls, words: Iterable[str]) -> "Spellings":
        """With the characters of these words as its alphabet."""
        return cls(Characters.train(CharactersConfig(), words))

    def numbers(self, words: Iterable[str]) -> list[int]:
        """The number of each word; a new word gets the next one."""
        return [self._numbers.setdefault(word, len(self._numbers)) for word in words]

    def characters(self, numbers: Tensor) -> Tensor:
        """Numbers (…) to characters (…, C)."""
        self._spell()
        places = numbers.numpy()
        longest = int(self._lengths[places].max(initial=1))
        rows = self._rows[places, : -(-longest // STEP) * STEP]
        return torch.from_numpy(rows.astype(np.int64))

    def _spell(self) -> None:
        """Rows for the words that have none yet."""
        if len(self._rows) == len(self._numbers):
            return
        new = list(self._numbers)[len(self._rows) :]
        rows, lengths = np.zeros((len(new), LONGEST), dtype=np.int32), np.zeros(len(new), dtype=np.int64)
        for place, word in enumerate(new):
            ids = self.alphabet.encode(_both_ends(word))
            rows[place, : len(ids)], lengths[place] = ids, len(ids)
        self._rows, self._lengths = np.concatenate([self._rows, rows]), np.concatenate([self._lengths, lengths])


def _both_ends(word: str) -> str:
    half = LONGEST // 2
    return word if len(word) <= LONGEST else word[:half] + word[-half:]


class SpelledBatches(ExampleBatches):
    """Batches that also say how each word is spelled, characters (B, W, C), or each token (B, S, C).

    `words` may have the numbers of the words' spellings under SPELLING; `spelled` has those of all tokens, END too.
    `was_cut` (N,) says of which texts only the beginning is read.
    """

    def __init__(
        self, texts: Ragged, *, spellings: Spellings | None = None, spelled: Ragged | None = None, **options: Any
    ) -> None:
        super().__init__(texts, **options)
        self.was_cut = self.texts.lengths < texts.lengths
        self.spellings = spellings
        self.spelled = spelled.ended(self.texts.lengths) if spelled is not None and self.cut else spelled

    def tree(self, chosen: Array, shape: Shape | None = None) -> Tree:
        found = super().tree(chosen, shape)
        numbers = found.pop(SPELLING, None)
        if self.spelled is not None:
            numbers, _ = self.spelled.padded(chosen, *found["tokens"].shape)
        if self.spellings is not None and numbers is not None:
            found["characters"] = self.spellings.characters(numbers)
        return found
