import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.text import Characters, CharactersConfig, train_tokenizer


def test_alphabet_is_sorted_after_special_tokens() -> None:
    tokenizer = train_tokenizer(CharactersConfig(), ["hello", "é\n"])
    assert [tokenizer.token(id) for id in range(len(tokenizer))] == ["</s>", "<unk>", "\n", "e", "h", "l", "o", "é"]


def test_unknown_characters_are_encoded_as_unk() -> None:
    tokenizer = train_tokenizer(CharactersConfig(), ["abc"])
    assert tokenizer.encode("axbx") == [2, 1, 3, 1]
    assert tokenizer.decode(tokenizer.encode("axb")) == "a\ufffdb"
    assert tokenizer.unknown_pieces("xaybx") == ["x", "y"]


def test_literal_unk_and_end_tokens_are_plain_characters() -> None:
    tokenizer = train_tokenizer(CharactersConfig(), ["<unk></s>"])
    assert tokenizer.decode(tokenizer.encode("<unk></s>")) == "<unk></s>"
    assert len(tokenizer.encode("<unk>")) == 5


@given(st.text(min_size=1))
def test_text_within_alphabet_round_trips(text: str) -> None:
    tokenizer = Characters(sorted(set(text)))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text)
    assert tokenizer.unknown_pieces(text) == []


@pytest.mark.parametrize("order", [["ab", "c"], ["c", "ab"], ["cba"]])
def test_alphabet_is_independent_of_text_order(order: list[str]) -> None:
    assert train_tokenizer(CharactersConfig(), order).encode("abc") == [2, 3, 4]
