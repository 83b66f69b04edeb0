"""Splitting texts of any script into words, and finding the first token of every word."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.text import BytePairConfig, CharactersConfig, Tokenizer, TokenizerConfig, WordsConfig, train_tokenizer
from seqloom.text.word_spans import first_tokens, join_words, split_words, word_spans

ENGLAND = (
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"  # a flag encoded with invisible tag characters
)
CASES = {
    "Pankaj lives in Munich.": "Pankaj|lives|in|Munich|.",
    "Pankaj's dog doesn't bark; I'd've known…": "Pankaj|'s|dog|does|n't|bark|;|I|'d|'ve|known|…",
    "Pankaj’s can’t": "Pankaj|’s|ca|n’t",
    "Dr. J. R. O'Hara of the U.S. (b. 1961)": "Dr.|J.|R.|O'Hara|of|the|U.S.|(|b|.|1961|)",
    "plan b. Then": "plan|b|.|Then",
    "at 10:30, 1,000.50 or 3/4?!": "at|10:30|,|1,000.50|or|3/4|?|!",
    "wait... what!!! --no": "wait|...|what|!!!|--|no",
    "Jean-Luc l'homme col·lecció": "Jean|-|Luc|l'homme|col·lecció",
    "me@x.org, https://a.b/c?d=1). @you #tag C# #1": "me@x.org|,|https://a.b/c?d=1|)|.|@you|#tag|C|#|#|1",
    "नमस्ते दुनिया, मैं हिन्दी हूँ।": "नमस्ते|दुनिया|,|मैं|हिन्दी|हूँ|।",
    "مرحباً بِكُم في القاهرة؟": "مرحباً|بِكُم|في|القاهرة|؟",
    "می‌خواهم": "می‌خواهم",
    "안녕하세요 세계! 서울에서": "안녕하세요|세계|!|서울에서",
    "שלום, צה״ל": "שלום|,|צה״ל",
    "我住在北京。": "我住在北京|。",
    "e\u0301a\u0323 co\u00adop": "e\u0301a\u0323|co\u00adop",
    "👩‍👩‍👧 🇩🇪🇫🇷 👍🏽❤️ok 1️⃣ 😀😀": "👩‍👩‍👧|🇩🇪|🇫🇷|👍🏽|❤️|ok|1️⃣|😀|😀",
    f"{ENGLAND}!": f"{ENGLAND}|!",
    "\u200fa\u200f \u200b\x00b\ufeff": "a|b",
    " \n\t ": "",
    "": "",
}


@pytest.mark.parametrize(("text", "words"), CASES.items())
def test_words_match_worked_examples(text: str, words: str) -> None:
    assert "|".join(split_words(text)) == words


@given(st.text(max_size=60))
def test_visible_characters_are_covered_by_words(text: str) -> None:
    spans = word_spans(text)
    assert all(start < end for start, end in spans)
    assert all(left[1] <= right[0] for left, right in pairwise(spans))
    inside = {position for start, end in spans for position in range(start, end)}
    assert not any(text[position].isspace() for position in inside)
    assert all(position in inside for position, letter in enumerate(text) if letter.isalnum() or letter in "!?.,;:-'\"")


@given(st.text(max_size=40))
def test_splitting_joined_words_loses_no_data(text: str) -> None:
    """If the words are joined and split again, no character is lost."""
    words = split_words(text)
    repeated = split_words(" ".join(words))
    assert "".join(repeated) == "".join(words)


@pytest.mark.parametrize("piece", ["a", "a.", "-.", "a's", "'", "1,", "#", "@a", "\U0001f600", "a\u200d", "www."])
def test_long_texts_are_split_quickly(piece: str) -> None:
    text = piece * 100_000
    began = time.perf_counter()
    word_spans(text)
    assert time.perf_counter() - began < 5


def test_text_of_100_000_words_is_split() -> None:
    assert len(word_spans("Munich, " * 50_000)) == 100_000


# --- tokens -----------------------------------------------------------------------------------------------------------

TEXTS = [*CASES, "नमस्ते सेकंड मिनट", "مرحبا بالعالم", "한국어 문장 하나", "emoji 👩‍👩‍👧 here 🇩🇪"]


def tokenizers() -> list[Tokenizer]:
    configs: list[TokenizerConfig] = [
        CharactersConfig(),
        WordsConfig(),
        WordsConfig(split="punctuation", lowercase=True),
        BytePairConfig(size=300),
        BytePairConfig(size=600),
    ]
    return [train_tokenizer(config, TEXTS) for config in configs]


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=lambda tokenizer: f"{tokenizer.kind}-{len(tokenizer)}")
@pytest.mark.parametrize("text", [text for text in TEXTS if text.strip()])
def test_every_word_has_a_first_token(tokenizer: Tokenizer, text: str) -> None:
    words = split_words(text)
    joined, spans = join_words(words)
    assert [joined[start:end] for start, end in spans] == words
    tokens = tokenizer.spans(joined)
    first = first_tokens(tokens, spans)
    assert first == sorted(first) and first[0] == 0
    for token, (start, end) in zip(first, spans, strict=True):
        assert tokens[token][0] < end and start < tokens[token][1]  # the token contains a character of the word
        # No earlier token contains a character of the word
        assert token == 0 or tokens[token - 1][1] <= start or tokens[token - 1][0] < start
        assert all(token_end <= start for _, token_end in tokens[:token])
    assert len(set(first)) == len(words)  # no token is assigned to two words


def test_word_without_token_uses_neighbouring_token() -> None:
    """A word without a token is assigned the next or the last token."""
    assert first_tokens([(0, 1), (4, 5)], [(0, 1), (2, 3), (4, 5)]) == [0, 1, 1]
    assert first_tokens([(0, 1)], [(0, 1), (2, 3)]) == [0, 0]
    assert first_tokens([], []) == []


@given(st.lists(st.text("ab 1'", min_size=1, max_size=4), max_size=6))
def test_joined_words_have_spans(words: list[str]) -> None:
    text, spans = join_words(words)
    assert text == " ".join(words)
    assert [text[start:end] for start, end in spans] == words
