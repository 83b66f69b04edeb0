"""The copy baseline of translators: the target of the most similar training source."""

import math
from collections.abc import Sequence

import numpy as np

from seqloom.core.errors import DataError
from seqloom.data.examples import ParallelExample

GRAM_SIZE = 3  # number of characters


def copy_baseline(train: Sequence[ParallelExample], sources: Sequence[str]) -> list[str]:
    """Return the target of the most similar training source for each source; a tie selects the first training source.

    A model that generalizes exceeds this baseline. The similarity is the cosine between the sets of character trigrams,
    weighted by inverse document frequency:
    cos(a, b) = Σ_{g ∈ a ∩ b} w_g² / (|a| |b|) with w_g = ln(N / n_g) + 1, where n_g of N training sources contain g.
    """
    if not train:
        raise DataError("The copy baseline needs at least one training pair.")
    row_lists: dict[str, list[int]] = {}  # the rows that contain each gram, in ascending order
    for row, pair in enumerate(train):
        for gram in _grams(pair.source):
            row_lists.setdefault(gram, []).append(row)
    row_arrays = {gram: np.array(rows) for gram, rows in sorted(row_lists.items())}
    squared_weights = {gram: (math.log(len(train) / len(rows)) + 1) ** 2 for gram, rows in row_arrays.items()}
    squared_lengths = np.zeros(len(train))
    for gram, rows in row_arrays.items():
        squared_lengths[rows] += squared_weights[gram]
    # The length |source| is the same for every row, so it is left out.
    inverse_lengths, targets = 1 / np.sqrt(squared_lengths), []
    for source in sources:
        scores = np.zeros(len(train))
        for gram in sorted(_grams(source) & row_arrays.keys()):  # sorted, so that sums do not depend on set order
            scores[row_arrays[gram]] += squared_weights[gram]
        targets.append(train[int((scores * inverse_lengths).argmax())].target)
    return targets


def _grams(text: str) -> set[str]:
    """Return the character trigrams of a text, with a delimiter at both ends."""
    delimited = f"\n{text}\n"
    return {delimited[start : start + GRAM_SIZE] for start in range(max(1, len(delimited) - GRAM_SIZE + 1))}
