"""Spans of tokens in texts of any script."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.text import BytePairConfig, CharactersConfig, Tokenizer, WordsConfig, train_tokenizer

TEXTS = [
    "Sunday, November 15, 2026",
    "रविवार, 15 नवंबर 2026",
    "الأحد، 15 نوفمبر 2026",
    "2026년 11월 15일 일요일",
    "2026年11月15日日曜日",
    "วันอาทิตย์ที่ 15 พฤศจิกายน พ.ศ. 2569",
    "cafe\u0301 q\u0323\u0307 👩\u200d👩\u200d👧 👍🏽 🇫🇷",
    "14\u202fh\u00a030\n  İstanbul  <unk>, naïve\u2028end ",
]
KINDS: dict[str, Any] = {
    "characters": CharactersConfig(),
    "words": WordsConfig(),
    "punctuation": WordsConfig(split="punctuation", lowercase=True, min_count=2),
    "bytes": BytePairConfig(size=257),  # without merges, every token is a byte
    "byte-pair": BytePairConfig(size=300),
}
TOKENIZERS = {name: train_tokenizer(config, TEXTS) for name, config in KINDS.items()}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def check_spans(tokenizer: Tokenizer, text: str) -> None:
    spans = tokenizer.spans(text)
    assert len(spans) == len(tokenizer.encode(text))
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(spans))
    covered = {position for start, end in spans for position in range(start, end)}
    assert all(position in covered or text[position].isspace() for position in range(len(text)))


@pytest.mark.parametrize("text", TEXTS)
def test_every_character_belongs_to_a_token(tokenizer: Tokenizer, text: str) -> None:
    check_spans(tokenizer, text)


@given(st.text())
def test_spans_of_any_text_are_valid(text: str) -> None:
    for tokenizer in TOKENIZERS.values():
        check_spans(tokenizer, text)


@given(st.text())
def test_bytes_have_span_of_their_character(text: str) -> None:
    expected = [(position, position + 1) for position, letter in enumerate(text) for _ in letter.encode()]
    assert TOKENIZERS["bytes"].spans(text) == expected


@given(st.text())
def test_byte_pair_spans_match_byte_counts(text: str) -> None:
    """Token k covers the bytes after tokens 0 … k−1 and the characters that contain these bytes."""
    tokenizer: Any = TOKENIZERS["byte-pair"]
    owners = [position for position, letter in enumerate(text) for _ in letter.encode()]
    offset, expected = 0, []
    for token in tokenizer.encode(text):
        size = len(tokenizer._bytes[token])
        expected.append((owners[offset], owners[offset + size - 1] + 1))
        offset += size
    assert tokenizer.spans(text) == expected


@given(st.text())
def test_unknown_characters_have_spans(text: str) -> None:
    assert TOKENIZERS["characters"].spans(text) == [(position, position + 1) for position in range(len(text))]


def test_spans_refer_to_text_that_decoding_normalizes() -> None:
    text = "  Der  Zebra-Tag,\n <unk> 2026\u202f! "
    for name, pieces in {
        "words": ["Der", "Zebra-Tag,", "\n", "<unk>", "2026", "!"],
        "punctuation": ["Der", "Zebra", "-", "Tag", ",", "\n", "<unk>", "2026", "!"],
    }.items():
        assert [text[start:end] for start, end in TOKENIZERS[name].spans(text)] == pieces


def test_spans_are_correct_if_lowercasing_changes_length() -> None:
    text = "İİ, İstanbul"
    spans = TOKENIZERS["punctuation"].spans(text)
    assert re.sub(r"\s", "", text[spans[0][0] : spans[-1][1]]) == "İİ,İstanbul"
    assert spans[-1] == (4, 12)


def test_generated_tokens_have_spans() -> None:
    """Generated tokens may differ from the encoding of their text, and may not be valid UTF-8."""
    tokenizer = TOKENIZERS["bytes"]
    assert tokenizer.decoded_spans(tokenizer.encode("né日")) == [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3)]
    broken = [*tokenizer.encode("日")[:2], *tokenizer.encode("ab"), 0]
    assert tokenizer.decode(broken) == "\ufffdab"
    assert tokenizer.decoded_spans(broken) == [(0, 1), (0, 1), (0, 2), (2, 3), (3, 3)]


def test_long_line_has_a_span_per_byte() -> None:
    assert len(TOKENIZERS["bytes"].spans("日a" * 20_000)) == 80_000
