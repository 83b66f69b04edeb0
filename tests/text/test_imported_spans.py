"""Spans of tokens in the original text, for tokenizers that lowercase the text and remove accents."""

import json
import unicodedata
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.small_bert import wordpiece
from tokenizers import Tokenizer as Library
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import BPE

from seqloom.data.text_inputs import SentenceReader, tokens_covering
from seqloom.text import Imported
from seqloom.text.imported import include_marks
from seqloom.text.word_spans import first_tokens, split_words, word_spans

TEXTS = [
    "Café crème, Cafe\u0301 cre\u0300me!",
    "हिन्दी में लिखा, सभी",
    "👩\u200d🚀 and 👍🏽 in New York 🇫🇷.",
    "İstanbul, straße ŒUVRE Å\u0327ngstrom ﬁne",
    "北京市 Tokyo東京 한국어",
    "שָׁלוֹם عَرَبِيّ สวัสดี",
    "a\u200bb\u200d c\u0000d \u0301 don't",
]


def byte_level() -> Imported:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(BPE({letter: number for number, letter in enumerate(["<|end|>", *letters])}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens(["<|end|>"])
    return Imported(json.loads(library.to_str()), 0, [], 257)


TOKENIZERS = {"uncased": wordpiece(True), "cased": wordpiece(False), "bytes": byte_level()}


def check_spans(tokenizer: Imported, text: str) -> None:
    spans = tokenizer.spans(text)
    assert len(spans) == len(tokenizer.encode(text))
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(spans))
    for word, first in zip(word_spans(text), first_tokens(spans, word_spans(text)), strict=True):
        covering = [number for number, (start, end) in enumerate(spans) if start < word[1] and end > word[0]]
        assert not covering or first == covering[0]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_first_tokens_cover_words(name: str, text: str) -> None:
    check_spans(TOKENIZERS[name], text)


@given(st.text())
def test_spans_of_any_text_are_valid(text: str) -> None:
    for tokenizer in TOKENIZERS.values():
        check_spans(tokenizer, text)


@given(st.text(st.characters(categories=["L", "M", "N", "Zs", "P"])))
def test_spans_match_token_text(text: str) -> None:
    """The normalized characters of a span contain the token, even if characters before it were removed."""
    tokenizer = TOKENIZERS["uncased"]
    normalizer = normalizers.BertNormalizer(lowercase=True)
    for token, (start, end) in zip(tokenizer.encode(text), tokenizer.spans(text), strict=True):
        token_text = tokenizer.token(token).removeprefix("##")
        if token != tokenizer.unknown and not text[start:end].isspace():
            normalized = normalizer.normalize_str(text[start:end]).strip()
            # Longer if one letter became several letters
            assert token_text in normalized, (token_text, text[start:end])


def test_combining_marks_stay_with_their_letter() -> None:
    tokenizer = TOKENIZERS["uncased"]
    text = "Cafe\u0301 हिन्दी"
    texts = [text[start:end] for start, end in tokenizer.spans(text)]
    assert texts == ["Cafe\u0301", "ह", "ि", "न\u094d", "द", "ी"]
    assert include_marks("e\u0301\u0323x\u0301", [(0, 1), (3, 4)]) == [(0, 3), (3, 5)]
    # A mark after a space does not belong to a token
    assert include_marks("e \u0301x", [(0, 1), (3, 4)]) == [(0, 1), (3, 4)]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_answer_spans_round_trip(name: str, text: str) -> None:
    """The tokens that cover a word restore the word with its marks."""
    spans = TOKENIZERS[name].spans(text)
    for start, end in word_spans(text):
        if (tokens := tokens_covering(spans, start, end)) is not None and any(map(str.isalnum, text[start:end])):
            restored = text[spans[tokens[0]][0] : spans[tokens[1]][1]]
            assert text[start:end].strip("\u200d") in restored and len(restored) <= end - start + 8
            if name != "bytes" and not any(is_han(letter) for letter in text) and "'" not in text:
                assert unicodedata.normalize("NFC", restored) == unicodedata.normalize(
                    "NFC", text[start:end].strip("\u200d")
                )


def is_han(letter: str) -> bool:
    return "\u4e00" <= letter <= "\u9fff"


@pytest.mark.parametrize("text", TEXTS)
def test_tagger_has_first_token_of_every_word(text: str) -> None:
    words = split_words(text)
    reader = SentenceReader(TOKENIZERS["uncased"], None, None)
    (piece,) = reader.pieces([words])
    joined = " ".join(words)
    spans = TOKENIZERS["uncased"].spans(joined)
    start = 0
    for word, first in zip(words, piece.first, strict=True):
        if any(character.isalnum() for character in word):
            assert start <= spans[first][0] < start + len(word), word
        start += len(word) + 1


def test_word_without_token_uses_neighbouring_token() -> None:
    reader = SentenceReader(TOKENIZERS["uncased"], None, None)
    (piece,) = reader.pieces([["the", "\u0301", "cafe", "\ufffd"]])
    assert piece.first == [0, 1, 1, 1] and len(piece.tokens) == 2
    (empty,) = reader.pieces([["\u0301"]])
    assert empty.first == [0] and empty.tokens == []


def test_unknown_text_is_displayed_unchanged() -> None:
    tokenizer: Any = TOKENIZERS["uncased"]
    assert tokenizer.unknown_pieces("👩\u200d🚀 and 👍🏽") == ["👩\u200d🚀", "👍🏽"]


def test_continuation_is_joined_to_its_word() -> None:
    tokenizer: Any = TOKENIZERS["uncased"]
    (continuation,) = (id for id in range(len(tokenizer)) if tokenizer.token(id) == "##eme")
    (word,) = tokenizer.encode("york")
    assert tokenizer.append_token("La Cr ", continuation) == "La Creme"
    assert tokenizer.append_token("New ", word) == "New york"
    assert TOKENIZERS["bytes"].append_token("a", TOKENIZERS["bytes"].encode("#")[0]) == "a#"
