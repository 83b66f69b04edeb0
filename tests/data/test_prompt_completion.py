"""Texts with an answer after them: what is cut of a text that is too long."""

import pytest

from seqloom.data.collate import shorten_prompt
from seqloom.text import BytePairConfig, Tokenizer, WordsConfig, train_tokenizer

BYTES = train_tokenizer(BytePairConfig(size=257), ["a"])  # a token for each byte
WORDS = train_tokenizer(WordsConfig(), ["a b c"])


@pytest.mark.parametrize(
    ("tokenizer", "text", "over", "left"),
    [
        (WORDS, "a  b c", 1, "a  b"),
        (WORDS, "a b c", 9, "a"),
        (WORDS, "a", 3, "a"),
        (WORDS, "", 3, ""),
        (BYTES, "abc", 2, "a"),
        (BYTES, "ab🙂", 1, "ab"),  # four tokens; without one of them it is no character
        (BYTES, "a🙂🙂", 5, "a"),
        (BYTES, "🙂🙂", 7, "🙂"),
        (BYTES, "🙂", 1, "🙂"),
    ],
)
def test_characters_are_cut_anywhere(tokenizer: Tokenizer, text: str, over: int, left: str) -> None:
    assert shorten_prompt(tokenizer, text, over) == left
