"""Bags of words compared with their definition and scikit-learn."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.nn.pooling import Bag, BagConfig, counts_in_row

V = 7
KINDS: list[Any] = ["one-hot", "counts", "tf-idf", "mean"]
TEXTS = [[2, 2, 5, 0, 2], [1], [3, 6, 3, 6], [], [5, 4, 3, 2, 1, 0]]
FOUND_IN = torch.tensor([sum(token in text for text in TEXTS) for token in range(V)])


def padded(texts: list[list[int]], filler: int = 3) -> tuple[Tensor, Tensor]:
    longest = max(1, *map(len, texts))
    tokens = torch.tensor([[*text, *[filler] * (longest - len(text))] for text in texts])
    return tokens, torch.arange(longest) < torch.tensor([len(text) for text in texts]).unsqueeze(1)


def bag_of(kind: Any) -> Bag:
    bag = BagConfig(weights=kind).build(V).double()
    bag.set_documents(FOUND_IN, len(TEXTS))
    return bag


def expected_vector(kind: str, text: list[int]) -> list[float]:
    """Return b by the definition in the module's docstring."""
    n = Counter(text)
    if kind == "one-hot":
        return [float(v in n) for v in range(V)]
    if kind == "counts":
        return [float(n[v]) for v in range(V)]
    if kind == "mean":
        return [n[v] / max(1, len(text)) for v in range(V)]
    N = len(TEXTS)
    idf = [math.log((1 + N) / (1 + sum(v in text for text in TEXTS))) + 1 for v in range(V)]
    raw = [n[v] * idf[v] for v in range(V)]
    norm = math.sqrt(sum(value**2 for value in raw)) or 1
    return [value / norm for value in raw]


@pytest.mark.parametrize("kind", KINDS)
def test_vector_matches_its_equation(kind) -> None:
    expected = torch.tensor([expected_vector(kind, text) for text in TEXTS], dtype=torch.float64)
    torch.testing.assert_close(bag_of(kind).vector(*padded(TEXTS)), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["one-hot", "counts", "tf-idf"])
def test_vector_matches_scikit_learn(kind) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    options = {"analyzer": lambda tokens: tokens, "vocabulary": list(range(V)), "lowercase": False}
    makers = {
        "one-hot": text.CountVectorizer(binary=True, **options),
        "counts": text.CountVectorizer(**options),
        "tf-idf": text.TfidfVectorizer(**options),
    }
    expected = makers[kind].fit_transform(TEXTS).toarray()
    np.testing.assert_allclose(bag_of(kind).vector(*padded(TEXTS)).numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_layer_computes_vector_times_matrix(kind) -> None:
    """Σ_j w_j E[x_j] = Eᵀ b holds for any tokens at padding."""
    bag, (tokens, mask) = bag_of(kind), padded(TEXTS)
    matrix = torch.randn(V, 4, dtype=torch.float64)
    torch.testing.assert_close(bag(matrix[tokens], tokens, mask), bag.vector(tokens, mask) @ matrix, atol=1e-10, rtol=0)
    assert not bag.position_weights(tokens, mask)[~mask].any()
    other, _ = padded(TEXTS, filler=2)
    torch.testing.assert_close(bag(matrix[other], other, mask), bag(matrix[tokens], tokens, mask), atol=0, rtol=0)


@given(st.lists(st.lists(st.integers(0, V - 1), max_size=12), min_size=1, max_size=5))
def test_tokens_are_counted_per_row_without_padding(texts) -> None:
    tokens, mask = padded(texts)
    expected = [[text.count(token) for token in text] for text in texts]
    result = counts_in_row(tokens, mask)
    assert [row[: len(text)] for row, text in zip(result.tolist(), texts, strict=True)] == expected
    assert not result[~mask].any()


@given(st.permutations(range(6)), st.sampled_from(KINDS))
def test_bag_of_words_ignores_word_order(order, kind) -> None:
    bag, text = bag_of(kind), [2, 2, 5, 0, 2, 4]
    vectors = [bag.vector(*padded([words])) for words in (text, [text[position] for position in order])]
    torch.testing.assert_close(*vectors, atol=1e-12, rtol=0)


def test_rare_words_have_larger_weights_in_the_state_dict() -> None:
    small = Bag("tf-idf", 3)
    small.set_documents(torch.tensor([100, 1, 0]), 100)
    assert small.idf[0] == 1 and small.idf[0] < small.idf[1] < small.idf[2]
    bag, other = bag_of("tf-idf"), Bag("tf-idf", V).double()
    assert torch.equal(other.idf, torch.ones(V).double())  # before the document counts are set
    other.load_state_dict(bag.state_dict())
    assert torch.equal(other.idf, bag.idf) and not torch.equal(bag.idf, torch.ones(V).double())
    assert bag_of("counts").state_dict() == {}


def test_unknown_kind_is_rejected() -> None:
    with pytest.raises(UsageError, match="tf-idf"):
        build(BagConfig, {"weights": "tfidf"})
