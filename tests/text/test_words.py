import time
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.text import Tokenizer, Words, WordsConfig, train_tokenizer
from seqloom.text.vocabularies import GLUE, normalize


def tokens_of(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token(id) for id in range(len(tokenizer))]


def test_words_are_sorted_by_count_then_text() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["b a c c", "d\nb"])
    assert tokens_of(tokenizer) == ["</s>", "<unk>", "b", "c", "\n", "a", "d"]


def test_vocabulary_is_independent_of_text_order() -> None:
    first, second = (train_tokenizer(WordsConfig(), texts) for texts in (["x y", "y z"], ["y z", "x y"]))
    assert tokens_of(first) == tokens_of(second)


def test_min_count_and_max_size_limit_vocabulary() -> None:
    texts = ["a a a b b c"]
    assert tokens_of(train_tokenizer(WordsConfig(min_count=2), texts)) == ["</s>", "<unk>", "a", "b"]
    assert tokens_of(train_tokenizer(WordsConfig(max_size=3), texts)) == ["</s>", "<unk>", "a"]
    with pytest.raises(DataError, match="No word occurs 4 times"):
        train_tokenizer(WordsConfig(min_count=4), texts)


def test_literal_unk_is_the_unknown_word() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["the <unk> of <unk>"])
    assert tokens_of(tokenizer) == ["</s>", "<unk>", "of", "the"]
    assert tokenizer.encode("<unk> of zebras") == [1, 2, 1]
    assert tokenizer.decode([3, 1]) == "the <unk>"
    assert tokenizer.unknown_pieces("<unk> of zebras and zebras") == ["zebras", "and"]


def test_literal_end_token_is_an_ordinary_word() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["a </s> a"])
    assert tokenizer.encode("</s>") == [3]
    assert tokenizer.decode([2, 3, 2]) == "a </s> a"


def test_newline_is_a_token_and_other_white_space_is_not() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["a b\n\nc"])
    text = "  a \t b \r\n\n c\u00a0"
    assert [tokenizer.token(id) for id in tokenizer.encode(text)] == ["a", "b", "\n", "\n", "c"]
    assert tokenizer.decode(tokenizer.encode(text)) == "a b\n\nc" == normalize(text)


def test_no_space_follows_the_end_token() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["a b"])
    assert tokenizer.decode([2, 3, 0, 2, 3]) == "a ba b"


def test_lowercase_merges_words() -> None:
    tokenizer = train_tokenizer(WordsConfig(lowercase=True), ["The THE the"])
    assert tokens_of(tokenizer) == ["</s>", "<unk>", "the"]
    assert tokenizer.encode("tHe") == [2]


def test_punctuation_is_split_into_glued_pieces() -> None:
    text = 'He didn\'t (really) say: "no..." ￭ x￭y snake_case'
    tokenizer = train_tokenizer(WordsConfig(split="punctuation"), [text])
    pieces = [tokenizer.token(id).replace(GLUE, "+") for id in tokenizer.encode(text)]
    assert pieces == [
        *("He", "didn", "+'", "+t", "(", "+really", "+)", "say", "+:", '"', "+no", "+.", "+.", "+.", '+"'),
        *("+", "x", "++", "+y", "snake_case"),
    ]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_combining_marks_stay_with_their_letters() -> None:
    text = "हिन्दी cafe\u0301 می\u200cخواهم"
    tokenizer = train_tokenizer(WordsConfig(split="punctuation"), [text])
    assert len(tokenizer.encode(text)) == 3


def test_unk_before_punctuation_round_trips() -> None:
    tokenizer = train_tokenizer(WordsConfig(split="punctuation"), ["<unk>, a <unk>"])
    assert tokens_of(tokenizer) == ["</s>", "<unk>", "a", GLUE + ","]
    assert tokenizer.decode(tokenizer.encode("a <unk>, a")) == "a <unk>, a"


def test_unknown_pieces_omit_glue_marker() -> None:
    tokenizer = train_tokenizer(WordsConfig(split="punctuation"), ["a b"])
    assert tokenizer.unknown_pieces("a, b!") == [",", "!"]


@given(st.text() | st.text(alphabet="ab <unk>/s.,'\n\t\r￭é\u0301\u2028"))
@example("<unk>")
@example("a<unk>")
@example("<unk><unk>")
@example("￭￭ ￭a\n￭,")
@pytest.mark.parametrize("split", ["whitespace", "punctuation"])
def test_text_round_trips_up_to_white_space(split: Literal["whitespace", "punctuation"], text: str) -> None:
    config = WordsConfig(split=split)
    try:
        tokenizer = train_tokenizer(config, [text + " x"])
    except DataError:
        pytest.fail("the word x must be learned")
    assert tokenizer.decode(tokenizer.encode(text)) == normalize(text)
    assert tokenizer.unknown_pieces(text) == []


@pytest.mark.parametrize("split", ["whitespace", "punctuation"])
def test_many_words_are_encoded_quickly(split: Literal["whitespace", "punctuation"]) -> None:
    """Two million words take a few seconds. This test encodes a tenth of them with a generous time limit."""
    documents = [" ".join(f"w{(i * j) % 997}," for i in range(100)) for j in range(2000)]
    tokenizer = Words.train(WordsConfig(split=split), documents)
    began = time.perf_counter()
    count = sum(map(len, tokenizer.encode_batch(documents)))
    assert count >= 200_000
    assert time.perf_counter() - began < 2
