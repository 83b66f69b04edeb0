"""Encodings of words: their definitions, and that bags of words lose the order, unlike a recurrent network (C01)."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.inspect.views.inputs import (
    UNKNOWN,
    Encoded,
    Size,
    compare,
    cosine,
    dense_table,
    encode,
    last_states,
    nonzero_columns,
    splitter,
    vocabulary_from_list,
    vocabulary_of,
    vocabulary_of_tokenizer,
)
from seqloom.text import WordsConfig, train_tokenizer

BEAR = ["Market falls into bear territory", "Bear falls into market territory"]
words = st.lists(st.sampled_from(["the", "market", "falls", "into", "bear", "territory"]), min_size=1, max_size=12)


def encoded(*texts: str, keep_case: bool = False) -> list[Encoded]:
    return encode(texts, vocabulary_of(texts, "these", splitter(keep_case), unknown=False))


# --- definitions ------------------------------------------------------------------------------------------------------


def test_short_text_has_known_encodings_and_sizes() -> None:
    (text,) = encoded("the market falls")
    assert list(text.vocabulary.words) == ["falls", "market", "the"]  # equal counts are in alphabetical order
    assert text.columns == [2, 1, 0]
    np.testing.assert_array_equal(text.one_hot([0, 1, 2]), [[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    assert text.counts == text.tf_idf == {0: 1, 1: 1, 2: 1}
    assert text.sizes([8, 16]) == [
        Size("one-hot", (3, 3), 3, 0),
        Size("counts", (3,), 3, 0),
        Size("tf-idf", (3,), 3, 0),
        Size("dense", (3, 8), 24, 24),
        Size("dense", (3, 16), 48, 48),
    ]
    large = {size.encoding: size.numbers for size in text.sizes([8], 100_000)}
    assert large == {"one-hot": 300_000, "counts": 100_000, "tf-idf": 100_000, "dense": 24}
    assert text.sizes([8], 100_000)[-1].parameters == 800_000


@given(st.lists(words, min_size=1, max_size=5))
def test_counts_are_sum_of_one_hot_rows(texts: list[list[str]]) -> None:
    for text in encoded(*map(" ".join, texts)):
        columns = list(range(len(text.vocabulary)))
        matrix = text.one_hot(columns)
        assert matrix.shape == (len(text.words), len(columns)) == text.sizes([])[0].shape
        np.testing.assert_array_equal(matrix.sum(axis=1), 1)
        np.testing.assert_array_equal(matrix.sum(axis=0), [text.counts.get(column, 0) for column in columns])
        table = dense_table(text.vocabulary, 5)
        np.testing.assert_allclose(matrix @ table, table[text.columns])  # a lookup equals a matrix product
        assert [text.vocabulary.words[column] for column in text.columns] == [word.text for word in text.words]


@given(st.lists(words, min_size=1, max_size=6))
def test_counts_and_tf_idf_match_scikit_learn(texts: list[list[str]]) -> None:
    extract = pytest.importorskip("sklearn.feature_extraction.text")
    given_texts = list(map(" ".join, texts))
    texts_encoded = encoded(*given_texts)
    options: dict[str, Any] = {"analyzer": splitter(), "vocabulary": list(texts_encoded[0].vocabulary.words)}
    theirs = extract.CountVectorizer(**options).fit_transform(given_texts).toarray()
    weighted = extract.TfidfVectorizer(**options, norm=None).fit_transform(given_texts).toarray()
    columns = range(len(texts_encoded[0].vocabulary))
    np.testing.assert_array_equal(
        [[text.counts.get(column, 0) for column in columns] for text in texts_encoded], theirs
    )
    np.testing.assert_allclose([[text.tf_idf.get(column, 0) for column in columns] for text in texts_encoded], weighted)


def test_rare_words_have_larger_idf() -> None:
    vocabulary = vocabulary_of(["the cat", "the dog", "the the owl"], "three", splitter())
    assert list(vocabulary.words) == [UNKNOWN, "the", "cat", "dog", "owl"]
    assert list(vocabulary.frequency) == [0, 3, 1, 1, 1] and vocabulary.documents == 3
    np.testing.assert_allclose(vocabulary.idf, [np.log(4) + 1, 1, *[np.log(2) + 1] * 3])


# --- word order (C01) -------------------------------------------------------------------------------------------------


def test_bags_of_words_ignore_order_and_recurrent_networks_do_not() -> None:
    first, second = encoded(*BEAR)
    assert first.counts == second.counts and first.tf_idf == second.tf_idf and first.columns != second.columns
    comparison = compare([first, second], 0, 1, width=8)
    assert (
        comparison.first_difference == 0
        and comparison.same_counts
        and comparison.same_mean
        and not comparison.same_state
    )
    assert comparison.counts == pytest.approx(1) and comparison.tf_idf == pytest.approx(1)
    assert comparison.state > 0.01
    draw = np.random.default_rng(0)
    for _ in range(100):  # any function of the bags gives the same value for both texts
        weights = draw.normal(size=(len(first.vocabulary), 7))
        bags = [np.array([text.counts.get(column, 0) for column in range(len(weights))]) for text in (first, second)]
        np.testing.assert_array_equal(np.tanh(bags[0] @ weights), np.tanh(bags[1] @ weights))


def test_recurrent_network_learns_order_and_bag_of_words_does_not() -> None:
    """After training on both texts, the loss with bags is that of guessing, and the loss with word order is 0."""
    import torch
    from torch import nn

    from seqloom.nn.cells import Elman
    from seqloom.nn.recurrent import Recurrent

    torch.manual_seed(0)
    ids = torch.tensor([text.columns for text in encoded(*BEAR)])  # (2, T)
    rows, labels = nn.functional.one_hot(ids).float(), torch.tensor([0, 1])
    network, head, linear = Recurrent(Elman(5, 8)), nn.Linear(8, 2), nn.Linear(5, 2)
    readers: dict[str, Any] = {
        "bag": lambda: linear(rows.sum(dim=1)),
        "sequence": lambda: head(network(rows)[1]["h"]),
    }
    losses = {}
    for name, read in readers.items():
        optimizer = torch.optim.Adam([*network.parameters(), *head.parameters(), *linear.parameters()], lr=0.05)
        for _ in range(60):
            loss = nn.functional.cross_entropy(read(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert losses["bag"] == pytest.approx(np.log(2), abs=1e-3) and losses["bag"] >= np.log(2) - 1e-6
    assert losses["sequence"] < 0.01


def test_case_sensitive_bags_of_words_differ() -> None:
    first, second = encoded(*BEAR, keep_case=True)
    comparison = compare([first, second], 0, 1, width=8)
    assert not comparison.same_counts and not comparison.same_mean and comparison.counts < 0.9


@given(words, st.randoms(use_true_random=False))
def test_permuted_texts_have_same_bag(text: list[str], draw: random.Random) -> None:
    mixed = draw.sample(text, len(text))
    first, second = encoded(" ".join(text), " ".join(mixed))
    comparison = compare([first, second], 0, 1, width=6)
    assert comparison.same_counts and comparison.same_mean and first.tf_idf == second.tf_idf
    assert (comparison.first_difference is None) == (text == mixed)
    assert comparison.same_state == (text == mixed)
    if comparison.first_difference is not None:
        assert (
            text[: comparison.first_difference] == mixed[: comparison.first_difference]
            and text[comparison.first_difference] != mixed[comparison.first_difference]
        )


def test_additional_word_is_the_first_difference() -> None:
    comparison = compare(encoded("a b", "a b c"), 0, 1, width=4)
    assert comparison.first_difference == 2 and not comparison.same_counts


def test_last_state_matches_manual_elman_network() -> None:
    import torch

    from seqloom.nn.cells import Elman

    (text,) = encoded("the market falls into the sea")
    table = dense_table(text.vocabulary, 5)
    torch.manual_seed(0)
    cell = Elman(5, 5).double()
    before = torch.get_rng_state()
    (state,) = last_states([text], table, seed=0)
    assert torch.equal(before, torch.get_rng_state())  # the global random state is unchanged
    w, u = cell.weight_x.detach().numpy(), cell.weight_h.detach().numpy()
    assert cell.bias_h is not None
    b, h = (cell.bias_x + cell.bias_h).detach().numpy(), np.zeros(5)
    for column in text.columns:
        h = np.tanh(w @ table[column] + u @ h + b)
    np.testing.assert_allclose(state, h, atol=1e-12)


def test_cosine_of_sparse_vectors_matches_manual_values() -> None:
    assert cosine({0: 1, 1: 2}, {0: 2, 1: 4}) == pytest.approx(1) and cosine({0: 1}, {1: 5}) == 0
    assert cosine({0: 3, 2: 4}, {0: 1}) == pytest.approx(0.6)


# --- words and vocabularies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The market falls!", ["the", "market", "falls", "!"]),
        ("रविवार को", ["रविवार", "को"]),
        ("日曜日", ["日", "曜", "日"]),
        ("일요일 아침", ["일요일", "아침"]),
        ("👩\u200d👩\u200d👧 ok", ["👩\u200d👩\u200d👧", "ok"]),
        ("a <unk> <unk>.", ["a", UNKNOWN, UNKNOWN, "."]),
        (" \t\n", []),
    ],
)
def test_words_are_split_in_any_script(text: str, expected: list[str]) -> None:
    assert splitter()(text) == expected


def test_unknown_words_share_one_column() -> None:
    vocabulary = vocabulary_of(["the market", "<unk> falls"], "corpus", splitter())
    (text,) = encode(["The bear falls, <unk> bear"], vocabulary)
    assert vocabulary.words[0] == UNKNOWN and list(vocabulary.words).count(UNKNOWN) == 1
    assert text.counts[0] == 4 and text.unknown() == ["bear", ",", UNKNOWN]
    listed = vocabulary_from_list(["falls", "bear", "falls"], "a list", ["The bear falls"], splitter())
    assert list(listed.words) == [UNKNOWN, "falls", "bear"] and list(listed.frequency) == [1, 1, 1]
    assert encode(["The bear falls"], listed)[0].columns == [0, 2, 1]


def test_vocabulary_has_the_columns_of_the_tokenizer() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["the market falls", "the bear"])
    texts = ["the market rises", "falls"]
    vocabulary = vocabulary_of_tokenizer(tokenizer, "mine", texts)
    first, _ = encode(texts, vocabulary)
    assert len(vocabulary) == len(tokenizer) and vocabulary.unknown == tokenizer.unknown
    assert first.columns == tokenizer.encode(texts[0]) and first.unknown() == [UNKNOWN]
    assert vocabulary.frequency[tokenizer.encode("the")[0]] == 1 and vocabulary.documents == 2


def test_number_of_nonzero_columns_is_limited() -> None:
    texts = encoded(" ".join(f"w{number}" for number in range(50)), "w49 w48")
    assert len(nonzero_columns(texts)) == 50 and len(nonzero_columns(texts, 20)) == 20
    assert {texts[0].vocabulary.words[column] for column in nonzero_columns(texts, 60)} >= {"w49", "w0"}


def test_text_without_words_is_rejected() -> None:
    with pytest.raises(DataError, match="text 2 has none: ' '"):
        encoded("a", " ")


def test_long_texts_are_stored_sparsely() -> None:
    first, second = encoded(" ".join(f"w{number}" for number in range(20_000)), "w0")
    assert first.sizes([8])[0].numbers == 400_000_000  # sizes are computed without allocating memory
    assert compare([first, second], 0, 1, width=8).first_difference == 1
