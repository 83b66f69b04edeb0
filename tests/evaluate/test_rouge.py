"""ROUGE equals the published formula, values of the package rouge-score, and brute force."""

import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from seqloom.evaluate.rouge import common_subsequence, rouge, rouge_l, rouge_n, words


def test_words_are_lowercase_runs_of_letters_and_digits() -> None:
    assert words("Return the file's *full* path_name, v2.0 (é).") == [
        *("return", "the", "file", "s", "full", "path", "name", "v2", "0", "é")
    ]


def test_rouge_l_distinguishes_summaries_with_equal_rouge_2() -> None:
    """Lin (2004) compares two summaries with equal ROUGE-2, which ROUGE-L distinguishes: recall 3/4 and 2/4."""
    reference = ["police", "killed", "the", "gunman"]
    first, second = ["police", "kill", "the", "gunman"], ["the", "gunman", "kill", "police"]
    assert rouge_n(first, reference, 2) == rouge_n(second, reference, 2) == pytest.approx(1 / 3)
    assert rouge_l(first, reference) == pytest.approx(3 / 4)
    assert rouge_l(second, reference) == pytest.approx(2 / 4)


def brute_force(summary: Sequence[str], reference: Sequence[str], n: int) -> float:
    """Match n-grams one by one, and compute F1 from precision and recall."""
    grams = [tuple(summary[i : i + n]) for i in range(len(summary) - n + 1)]
    remaining = [tuple(reference[i : i + n]) for i in range(len(reference) - n + 1)]
    expected, matches = len(remaining), 0
    for gram in grams:
        if gram in remaining:
            remaining.remove(gram)
            matches += 1
    if not matches:
        return 0.0
    precision, recall = matches / len(grams), matches / expected
    return 2 * precision * recall / (precision + recall)


def longest(first: Sequence[str], second: Sequence[str]) -> int:
    """Try all subsequences of the first text, longest first."""

    def is_subsequence(part: Sequence[str]) -> bool:
        remaining = iter(second)
        return all(word in remaining for word in part)

    return next(size for size in range(len(first), -1, -1) if any(map(is_subsequence, combinations(first, size))))


def test_scores_match_brute_force() -> None:
    draw = random.Random(0)
    for _ in range(200):
        first, second = (draw.choices("abcd", k=draw.randint(0, 8)) for _ in range(2))
        for n in (1, 2):
            assert rouge_n(first, second, n) == pytest.approx(brute_force(first, second, n))
        assert common_subsequence(first, second) == longest(first, second)


def test_blank_texts_have_the_score_zero() -> None:
    assert rouge(["", "a", ""], ["a", "", ""]) == {"rouge_1": 0.0, "rouge_2": 0.0, "rouge_l": 0.0}
    assert rouge(["Same text."], ["same text"]) == {"rouge_1": 100.0, "rouge_2": 100.0, "rouge_l": 100.0}


@pytest.mark.parametrize(
    ("summary", "reference", "expected"),
    [  # F1 of rouge-score 0.1.2 without stemming, times 100
        (
            "Return the absolute value of a number.",
            "Return the absolute value of the argument.",
            (71.428571, 66.666667, 71.428571),
        ),
        (
            "The file is opened and the file is read.",
            "Open a file, then read the whole file.",
            (47.058824, 0.0, 35.294118),
        ),
        ("a a a b c", "a b a c a d", (90.909091, 22.222222, 54.545455)),
        (
            "Create a new thread object; args is the argument tuple.",
            "This constructor should always be called with keyword arguments: args is a tuple.",
            (34.782609, 9.52381, 26.086957),
        ),
        (
            "v2.0 of path_name's docs",
            "Path name's documentation (version 2.0)",
            (57.142857, 33.333333, 42.857143),
        ),
        ("nothing in common", "42", (0.0, 0.0, 0.0)),
    ],
)
def test_scores_match_the_package_rouge_score(
    summary: str, reference: str, expected: tuple[float, float, float]
) -> None:
    assert tuple(rouge([summary], [reference]).values()) == pytest.approx(expected, abs=1e-6)
