"""The copy baseline compared with a direct computation of its formula."""

import math
import random

import pytest

from seqloom.core.errors import DataError
from seqloom.data.copy_baseline import copy_baseline
from seqloom.data.examples import ParallelExample


def trigrams(text: str) -> set[str]:
    marked = "\n" + text + "\n"
    return {marked[start : start + 3] for start in range(max(1, len(marked) - 2))}


def reference_translation(train: list[ParallelExample], source: str) -> str:
    sets = [trigrams(pair.source) for pair in train]
    all_trigrams = set().union(*sets)
    weight = {
        gram: math.log(len(train) / sum(gram in trigram_set for trigram_set in sets)) + 1 for gram in all_trigrams
    }

    def similarity(trigram_set: set[str]) -> float:
        shared = sum(weight[gram] ** 2 for gram in trigram_set & trigrams(source))
        return shared / math.sqrt(sum(weight[gram] ** 2 for gram in trigram_set))

    scores = [similarity(trigram_set) for trigram_set in sets]
    best = max(scores)
    return next(pair.target for pair, score in zip(train, scores, strict=True) if math.isclose(score, best))


def test_similarity_matches_formula() -> None:
    draw = random.Random(3)
    lines = ["".join(draw.choice("abc ") for _ in range(draw.randrange(0, 9))) for _ in range(120)]
    train = [ParallelExample(line, f"target {number}") for number, line in enumerate(lines[:80])]
    sources = lines[80:]
    assert copy_baseline(train, sources) == [reference_translation(train, source) for source in sources]


def test_copy_baseline_returns_known_target_or_first_target() -> None:
    train = [
        ParallelExample("three o'clock", "trois heures"),
        ParallelExample("four o'clock", "quatre heures"),
        ParallelExample("ab", "ba"),
    ]
    assert copy_baseline(train, ["four o'clock", "five o'clock!", "ab", "東京"]) == [
        "quatre heures",
        copy_baseline(train, ["five o'clock!"])[0],
        "ba",
        "trois heures",
    ]
    assert copy_baseline(train, []) == []


def test_copy_baseline_needs_training_pairs() -> None:
    with pytest.raises(DataError, match="at least one training pair"):
        copy_baseline([], ["a"])
