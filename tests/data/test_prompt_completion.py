"""Shortening of prompts that are too long."""

import pytest

from seqloom.data.collate import shorten_prompt
from seqloom.text import BytePairConfig, Tokenizer, WordsConfig, train_tokenizer

BYTES = train_tokenizer(BytePairConfig(size=257), ["a"])  # every byte is a token
WORDS = train_tokenizer(WordsConfig(), ["a b c"])


@pytest.mark.parametrize(
    ("tokenizer", "text", "excess", "expected"),
    [
        (WORDS, "a  b c", 1, "a  b"),
        (WORDS, "a b c", 9, "a"),
        (WORDS, "a", 3, "a"),
        (WORDS, "", 3, ""),
        (BYTES, "abc", 2, "a"),
        (BYTES, "ab🙂", 1, "ab"),  # the four tokens of the last character are all removed
        (BYTES, "a🙂🙂", 5, "a"),
        (BYTES, "🙂🙂", 7, "🙂"),
        (BYTES, "🙂", 1, "🙂"),
    ],
)
def test_prompt_is_shortened_to_complete_characters(
    tokenizer: Tokenizer, text: str, excess: int, expected: str
) -> None:
    assert shorten_prompt(tokenizer, text, excess) == expected
