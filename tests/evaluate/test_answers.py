"""Exact match and F1 of answers compared with SQuAD's definition, and general properties."""

import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.evaluate.answers import exact, f1, normalize_answer, report

WORDS = st.lists(st.sampled_from(["a", "the", "an", "red", "Red!", "fox", "fox.", "—", "theatre", "an-d"]), max_size=6)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The Denver Broncos", "denver broncos"),
        ("a  an the", ""),
        ("U.S.A.", "usa"),
        ("theatre, an act", "theatre act"),
        ("Levi's Stadium", "levis stadium"),
        ("the-best", "thebest"),  # punctuation is removed first, so there is no article
        ("50–10", "50–10"),  # only ASCII punctuation is removed
        ("  \n\t", ""),
        ("An apple a day", "apple day"),
        ("«the»", "« »"),
    ],
)
def test_case_articles_and_ascii_punctuation_are_removed(answer: str, expected: str) -> None:
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("predicted", "expected", "score"),
    [
        ("Denver Broncos", "the Denver Broncos!", 1.0),
        ("Broncos", "Denver Broncos", 2 / 3),  # precision 1, recall 1/2
        ("the very big red fox", "red fox", 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("red red fox", "red fox fox", 2 * (2 / 3) * (2 / 3) / (4 / 3)),  # the multiset intersection counts
        ("cat", "red fox", 0.0),
        ("", "red fox", 0.0),
        ("the", "a", 0.0),  # both are empty; SQuAD 1.1 counts no common word
        ("October 1973", "1973 in October", 2 * 1 * (2 / 3) / (5 / 3)),
    ],
)
def test_f1_counts_common_words(predicted: str, expected: str, score: float) -> None:
    assert f1(predicted, expected) == pytest.approx(score, abs=1e-15)


def test_answers_without_words_match_exactly_but_have_f1_zero() -> None:
    assert exact("the", "a") == 1.0 and f1("the", "a") == 0.0


def test_each_metric_uses_its_best_reference() -> None:
    result = report(["big fox", "cat"], [["the big fox!", "fox"], ["dog", "the red cat"]])
    assert result.exact == [1.0, 0.0]
    assert result.f1 == [1.0, pytest.approx(2 / 3)]
    assert result.metrics == {"answer_f1": pytest.approx(5 / 6), "answer_exact": 0.5}
    low, high = result.intervals["answer_exact"]
    assert 0 < low < 0.5 < high < 1
    assert result.intervals["answer_f1"].low <= result.metrics["answer_f1"] <= result.intervals["answer_f1"].high
    intervals = {name: list(interval) for name, interval in result.intervals.items()}
    assert result.to_dict() == {**result.metrics, "intervals": intervals} and intervals.keys() == result.metrics.keys()


def reference_f1(predicted: str, expected: str) -> float:
    """Compute F1 word by word."""
    left = normalize_answer(expected).split()
    common = 0
    for word in normalize_answer(predicted).split():
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = (
        common / len(normalize_answer(predicted).split()),
        common / len(normalize_answer(expected).split()),
    )
    return 2 * precision * recall / (precision + recall)


@given(WORDS, WORDS)
def test_f1_matches_the_reference(first_words: list[str], second_words: list[str]) -> None:
    predicted, expected = " ".join(first_words), " ".join(second_words)
    assert f1(predicted, expected) == pytest.approx(reference_f1(predicted, expected), abs=1e-12)
    assert f1(predicted, expected) == pytest.approx(f1(expected, predicted), abs=1e-12)
    assert 0 <= f1(predicted, expected) <= 1
    assert f1(predicted.upper(), expected) == f1(predicted, expected)
    assert f1(" ".join(reversed(first_words)), expected) == pytest.approx(f1(predicted, expected), abs=1e-12)
    same = Counter(normalize_answer(predicted).split()) == Counter(normalize_answer(expected).split())
    assert (f1(predicted, expected) == 1) == (same and bool(normalize_answer(predicted)))
    assert exact(predicted, expected) <= (same or not normalize_answer(predicted))


@given(st.text(max_size=20))
def test_normalizing_twice_has_no_effect(text: str) -> None:
    result = normalize_answer(text)
    assert normalize_answer(result) == result or not result.isascii()
    assert not set(result) & set(string.punctuation)
    assert result == " ".join(result.split())


def test_different_numbers_of_answers_are_rejected() -> None:
    cases: list[tuple[list[str], list[list[str]]]] = [([], []), (["a"], []), (["a"], [[]])]
    for predicted, expected in cases:
        with pytest.raises(DataError, match="Every question needs an answer"):
            report(predicted, expected)
