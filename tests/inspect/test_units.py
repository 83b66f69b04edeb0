"""Ranked units and classes of tokens."""

from typing import Any

import numpy as np
import pytest

from seqloom.core.errors import UsageError
from seqloom.inspect.views.cells import correlations, rank, token_classes

VALUES = np.array([[0.0, 5.0, 1.0], [0.1, 5.0, -9.0], [0.0, 5.0, 1.0], [0.3, 5.0, 1.0]])


def marked(text: str | list[str], name: str, **options: Any) -> str:
    marks = token_classes(list(text), **options)[name]
    return "".join("x" if mark else "." for mark in marks)


def test_units_are_ranked() -> None:
    assert rank(VALUES, "variance").units == [2, 0, 1]
    assert rank(VALUES, "size").units == [1, 2, 0]
    assert rank(VALUES, "mean").units == [1, 0, 2]
    assert rank(VALUES, "number").units == [0, 1, 2]
    assert rank(VALUES, "variance").scores.tolist() == pytest.approx(
        [np.var([0, 0.1, 0, 0.3]), 0, np.var([1, -9, 1, 1])]
    )


def test_correlation_matches_the_pearson_coefficient() -> None:
    random = np.random.default_rng(1)
    values, marks = random.normal(size=(50, 4)), (random.random(50) > 0.6).astype(float)
    values[:, 2] = 3 - 2 * marks
    correlation = correlations(values, marks)
    np.testing.assert_allclose(correlation, [np.corrcoef(values[:, k], marks)[0, 1] for k in range(4)], atol=1e-12)
    ranked = rank(values, "correlation", marks)
    assert ranked.units[0] == 2 and ranked.scores[2] == pytest.approx(-1)
    assert correlations(np.ones((5, 1)), np.array([0.0, 1, 0, 1, 0])) == [0]


def test_invalid_rankings_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"ranked by 'varience'.*variance"):
        rank(VALUES, "varience")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a class of tokens"):
        rank(VALUES, "correlation")


def test_tokens_are_assigned_to_their_classes() -> None:
    text = 'It\'s (a 2) "No" x'
    assert marked(text, "space") == "....x..x..x....x."
    assert marked(text, "capital letter") == "x...........x...."
    assert marked(text, "digit") == "........x........"
    assert marked(text, "starts a word") == "x..x..x.x...x...x"
    assert marked(text, "inside brackets") == ".....xxxxx......."
    assert marked(text, "inside quotes") == "...........xxxx.."
    assert marked(text, "contains o", containing="o") == ".............x..."
    np.testing.assert_array_equal(token_classes(list(text))["position in the text"], np.arange(17))
    np.testing.assert_array_equal(token_classes(list("ab\ncd"))["position in the line"], [0, 1, 2, 0, 1])


def test_special_tokens_have_no_class_and_space_symbols_start_words() -> None:
    tokens = ["</s>", "▁The", "▁cat", "s", "<unk>", "."]
    assert marked(tokens, "starts a word") == ".xx..."
    assert marked(tokens, "space") == ".xx..."
    assert marked(tokens, "letter") == ".xxx.."
    assert marked(tokens, "punctuation") == ".....x"


def test_constant_classes_are_omitted() -> None:
    assert set(token_classes(list("aaa"))) == {"starts a word", "position in the text"}
    assert token_classes(["a"]) == {}
