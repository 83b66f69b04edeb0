"""Words in texts of any script, and the way back from tokens to them."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.text import BytePairConfig, CharactersConfig, Tokenizer, TokenizerConfig, WordsConfig, train_tokenizer
from seqloom.text.word_spans import first_tokens, join_words, split_words, word_spans

ENGLAND = "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"  # a flag spelled with invisible letters
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
def test_equals_worked_example(text: str, words: str) -> None:
    assert "|".join(split_words(text)) == words


@given(st.text(max_size=60))
def test_visible_characters_are_covered_by_words(text: str) -> None:
    spans = word_spans(text)
    assert all(start < end for start, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    inside = {place for start, end in spans for place in range(start, end)}
    assert not any(text[place].isspace() for place in inside)
    assert all(place in inside for place, letter in enumerate(text) if letter.isalnum() or letter in "!?.,;:-'\"")


@given(st.text(max_size=40))
def test_splitting_is_idempotent(text: str) -> None:
    """A tagger that reads its own words back, with spaces between, does not fall apart: nothing new is cut or lost."""
    words = split_words(text)
    again = split_words(" ".join(words))
    assert "".join(again) == "".join(words)


@pytest.mark.parametrize("piece", ["a", "a.", "-.", "a's", "'", "1,", "#", "@a", "\U0001f600", "a\u200d", "www."])
def test_long_texts_are_fast(piece: str) -> None:
    text = piece * 100_000
    began = time.perf_counter()
    word_spans(text)
    assert time.perf_counter() - began < 5


def test_a_text_of_100_000_words() -> None:
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
    for place, (start, end) in zip(first, spans, strict=True):
        assert tokens[place][0] < end and start < tokens[place][1]  # it has a character of the word
        assert place == 0 or tokens[place - 1][1] <= start or tokens[place - 1][0] < start  # and none before it has
        assert all(token_end <= start for _, token_end in tokens[:place])
    assert len(set(first)) == len(words)  # no token belongs to two


def test_words_without_tokens() -> None:
    """Only white space has none; it must not take the place of another."""
    assert first_tokens([(0, 1), (4, 5)], [(0, 1), (2, 3), (4, 5)]) == [0, 1, 1]
    assert first_tokens([(0, 1)], [(0, 1), (2, 3)]) == [0, 0]
    assert first_tokens([], []) == []


@given(st.lists(st.text("ab 1'", min_size=1, max_size=4), max_size=6))
def test_joined_words(words: list[str]) -> None:
    text, spans = join_words(words)
    assert text == " ".join(words)
    assert [text[start:end] for start, end in spans] == words
