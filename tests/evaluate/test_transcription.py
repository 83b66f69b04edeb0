"""Error rates against a table of edit distances, and the units of words and characters."""

import random

import pytest

from seqloom.evaluate.transcription import edit_distance, score_transcriptions


def table_distance(a: str, b: str) -> int:
    table = [[i + j if i * j == 0 else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            change = table[i - 1][j - 1] + (a[i - 1] != b[j - 1])
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, change)
    return table[-1][-1]


def test_edit_distances_match_those_of_the_table() -> None:
    draws = random.Random(1)
    pairs = [("".join(draws.choices("abc", k=draws.randrange(8))) for _ in range(2)) for _ in range(300)]
    for first, second in pairs:
        assert edit_distance(first, second) == table_distance(first, second)
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance(["a", "b"], ["b"]) == 1


def test_error_rates_count_all_texts_together() -> None:
    scores = score_transcriptions(["one two", " three  four", "x"], ["one too", "three four", ""])
    assert scores["word_error_rate"] == pytest.approx(2 / 4)  # one substitution and one insertion
    assert scores["character_error_rate"] == pytest.approx(2 / 17)
    assert scores["exact_match"] == pytest.approx(1 / 3)


def test_error_rate_can_exceed_1() -> None:
    assert score_transcriptions(["abc"], ["x"])["character_error_rate"] == 3
    assert score_transcriptions([""], ["abc"])["character_error_rate"] == 1
