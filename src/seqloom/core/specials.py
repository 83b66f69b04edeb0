"""Tokens that models have beside their tokenizer's.

    [CLS]   where a whole text is summed up        [SEP]   after a text, before the next        [MASK]   hides a token

They are rows of the model's embedding after the V of its tokenizer. No text encodes to them, and no model predicts
them: it has V outputs. `seqloom.text.specials` has the forms in which texts stand between them.
"""

from dataclasses import dataclass
from typing import Self

CLASSIFY_TEXT, SEPARATE_TEXT, MASK_TEXT = "[CLS]", "[SEP]", "[MASK]"
EXTRA = 3  # how many there are


@dataclass(frozen=True)
class Specials:
    """The ids of the special tokens."""

    classify: int
    separate: int
    mask: int

    @classmethod
    def after(cls, vocabulary: int) -> Self:
        """The rows that follow a tokenizer's `vocabulary` tokens."""
        return cls(vocabulary, vocabulary + 1, vocabulary + 2)

    @property
    def names(self) -> dict[int, str]:
        return {self.classify: CLASSIFY_TEXT, self.separate: SEPARATE_TEXT, self.mask: MASK_TEXT}
