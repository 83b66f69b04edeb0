"""How words are spelled, for models that read it: rows of characters.

A word is known by its number, that of its row; number 0 is no word, and its row has no characters. Characters are the
ids of an alphabet learned from the training words: 0 is none, 1 is one that training did not have.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from seqloom.text import Characters, CharactersConfig

LONGEST = 32  # characters of a word; of a longer one both ends are read
STEP = 8  # rows are as long as the longest word of a batch, rounded up to a multiple: few different shapes


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
            ends = word if len(word) <= LONGEST else word[: LONGEST // 2] + word[-LONGEST // 2 :]
            ids = self.alphabet.encode(ends)
            rows[place, : len(ids)], lengths[place] = ids, len(ids)
        self._rows, self._lengths = np.concatenate([self._rows, rows]), np.concatenate([self._lengths, lengths])
