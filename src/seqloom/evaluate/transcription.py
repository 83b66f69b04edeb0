"""Error rates of transcriptions.

    error rate = (substitutions + deletions + insertions) / units of the references

The numerator is the edit distance, summed over all texts. The units are words, separated by white space, or characters.
The rate can exceed 1. White space at the ends of a text and repeated white space are ignored.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

METRICS = ("word_error_rate", "character_error_rate", "exact_match")


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the smallest number of substitutions, deletions and insertions that turn one sequence into the other.

    d(i, j) = min(d(i−1, j) + 1, d(i, j−1) + 1, d(i−1, j−1) + [a_i ≠ b_j])
    """
    numbers: dict[Hashable, int] = {}
    b = np.array([numbers.setdefault(unit, len(numbers)) for unit in second], dtype=np.int64)
    positions = np.arange(len(b) + 1)
    distances = positions  # of the empty sequence to each prefix of b
    for count, unit in enumerate(first, start=1):
        is_different = b != numbers.get(unit, -1)
        best = np.minimum(distances[1:] + 1, distances[:-1] + is_different)
        # d(i, j) also follows from d(i, k) + j − k for every k < j
        distances = np.minimum.accumulate(np.concatenate([[count], best]) - positions) + positions
    return int(distances[-1])


def error_rate(texts: Sequence[str], references: Sequence[str], units: Callable[[str], Sequence[str]]) -> float:
    """Return the error rate of texts in the units that `units` returns."""
    errors = sum(edit_distance(units(text), units(own)) for text, own in zip(texts, references, strict=True))
    return errors / max(1, sum(len(units(own)) for own in references))


def normalize_spaces(text: str) -> str:
    """Replace white space by single spaces, without white space at the ends."""
    return " ".join(text.split())


def score_transcriptions(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return all metrics of transcriptions, as fractions."""
    exact = sum(text.split() == own.split() for text, own in zip(texts, references, strict=True))
    return {
        "word_error_rate": error_rate(texts, references, str.split),
        "character_error_rate": error_rate(texts, references, normalize_spaces),
        "exact_match": exact / max(1, len(references)),
    }
