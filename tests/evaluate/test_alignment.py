"""Words, links and the alignment error rate compared with manual counts and brute force."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.evaluate.alignment import (
    AlignmentCounts,
    ForcedPair,
    Word,
    alignment_error_rate,
    diagonal_links,
    from_pharaoh,
    group_words,
    hard_links,
    merge,
    score_alignments,
    to_pharaoh,
    token_slots,
    word_spans,
)


def spans(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans of tokens in the joined text."""
    ends = np.cumsum([0, *map(len, pieces)]).tolist()
    return list(pairwise(ends))


def join_words(pieces: Sequence[str]) -> list[str]:
    """Return the joined tokens of each word."""
    words = group_words("".join(pieces), spans(pieces))
    return ["".join(pieces[token] for token in word.tokens) for word in words]


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Sunday, November 15, 2026", ["Sunday", ",", "November", "15", ",", "2026"]),
        ("  l’année\u202f! ", ["l", "’", "année", "!"]),
        ("रविवार, 15 नवंबर", ["रविवार", ",", "15", "नवंबर"]),
        ("الأحد، 15 نوفمبر", ["الأحد", "،", "15", "نوفمبر"]),
        ("\u200fالأحد", ["\u200fالأحد"]),
        ("2026년 11월", ["2026년", "11월"]),
        ("2026年11月", ["2026", "年", "11", "月"]),
        ("ที่ 15", ["ที่", "15"]),
        ("cafe\u0301 👩\u200d👩\u200d👧👍🏽", ["cafe\u0301", "👩\u200d👩\u200d👧", "👍🏽"]),
        ("\u0301a b_c", ["\u0301a", "b_c"]),
        ("", []),
        (" \n\u2028", []),
    ],
)
def test_words_are_split_in_any_script(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in word_spans(text)] == words


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["Sun", "day", ",", " Nov", "ember", " 15"], ["Sunday", ",", " November", " 15"]),
        (["l", "’an", "née"], ["l", "’année"]),  # tokens are not split
        (["a, ", "b", " ", " c"], ["a, ", "b", "  c"]),  # white space belongs to the following word
        (["日曜", "日", "15"], ["日曜", "日", "15"]),
        (["2026", "年1", "1", "月"], ["2026", "年11", "月"]),
        (["a", " b c", " d"], ["a", " b c", " d"]),
        (["a", " ", "\n"], ["a \n"]),
        ([" ", " "], ["  "]),
        ([], []),
    ],
)
def test_tokens_are_grouped_into_words(pieces: list[str], words: list[str]) -> None:
    assert join_words(pieces) == words


def test_bytes_of_a_character_are_not_separated() -> None:
    words = group_words("né 日", [(0, 1), (1, 2), (1, 2), (2, 3), (3, 4), (3, 4), (3, 4)], end="</s>")
    assert words == [Word("né", (0, 1, 2)), Word("日", (3, 4, 5, 6)), Word("</s>", (7,))]


@given(st.lists(st.text(alphabet="ab ,日\u0301\n", min_size=1, max_size=4), max_size=8))
def test_every_token_has_one_word_and_words_remain_in_order(pieces: list[str]) -> None:
    words = group_words("".join(pieces), spans(pieces), end="</s>")
    assert [token for word in words for token in word.tokens] == list(range(len(pieces) + 1))
    if len(words) > 2:
        assert all(word.text == word.text.strip() for word in words)


def test_merging_sums_over_source_tokens_and_averages_over_target_tokens() -> None:
    weights = np.array([[0.5, 0.2, 0.3], [0.1, 0.5, 0.4], [0.0, 0.0, 1.0]])
    target, source = [Word("xy", (0, 1)), Word("</s>", (2,))], [Word("ab", (0, 1)), Word("</s>", (2,))]
    np.testing.assert_allclose(merge(weights, target, source), [[0.65, 0.35], [0.0, 1.0]])


@given(st.data())
def test_merged_rows_sum_to_one(data: st.DataObject) -> None:
    pieces = st.lists(st.sampled_from(["a", " b", "c", ",", "日"]), min_size=1, max_size=6)
    target, source = data.draw(pieces), data.draw(pieces)
    weights = np.random.default_rng(0).dirichlet(np.ones(len(source) + 1), len(target) + 1)
    merged = merge(weights, *(group_words("".join(side), spans(side), "</s>") for side in (target, source)))
    np.testing.assert_allclose(merged.sum(axis=1), 1)


# --- links ----------------------------------------------------------------------------------------------------------


def test_hard_links_have_the_largest_weight_or_exceed_the_threshold() -> None:
    weights = np.array([[0.4, 0.5, 0.1], [0.3, 0.3, 0.4], [0.5, 0.5, 0.0]])
    assert hard_links(weights) == [(1, 0), (2, 1), (0, 2)]
    assert hard_links(weights, 0.5) == [(0, 2), (1, 0), (1, 2)]
    assert hard_links(weights[:, :0]) == hard_links(weights[:0]) == []


@given(st.sets(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_links_survive_a_pharaoh_round_trip(links: set[tuple[int, int]]) -> None:
    assert set(from_pharaoh(to_pharaoh(links))) == links


def test_pharaoh_links_are_sorted_and_any_white_space_is_read() -> None:
    assert to_pharaoh([(2, 1), (0, 0), (1, 12)]) == "0-0 1-12 2-1"
    assert from_pharaoh(" 0-0\t2-1\n") == [(0, 0), (2, 1)]
    assert from_pharaoh("") == [] and to_pharaoh([]) == ""


@pytest.mark.parametrize("line", ["0-0 1", "1:2", "-1-2", "0--1", "a-b", "1-2-3", "²-1"])
def test_malformed_alignments_are_rejected(line: str) -> None:
    with pytest.raises(DataError, match="0-0 1-2"):
        from_pharaoh(line)


def test_alignment_error_rate_matches_its_definition() -> None:
    sure, possible = [(0, 0), (1, 1)], [(1, 2), (2, 2)]
    assert alignment_error_rate(sure, sure, possible) == 0
    assert alignment_error_rate([*sure, *possible], sure, possible) == 0  # possible links are not errors
    assert alignment_error_rate([(0, 0), (2, 1)], sure, possible) == 1 - (1 + 1) / 4
    assert alignment_error_rate([(0, 0), (2, 2), (3, 3)], sure, possible) == pytest.approx(1 - (1 + 2) / 5)
    assert alignment_error_rate([], sure, possible) == 1
    assert alignment_error_rate([], []) == 0


def test_diagonal_links_scale_with_both_lengths() -> None:
    assert diagonal_links(4, 4) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert diagonal_links(4, 2) == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert diagonal_links(2, 4) == [(1, 0), (3, 1)]
    assert diagonal_links(0, 3) == diagonal_links(3, 0) == []


# --- slots ----------------------------------------------------------------------------------------------------------

SOURCE = ["Sun", "day", ",", " Nov", "ember", " 15"]  # "Sunday, November 15"
TARGET = ["nov", "ember", " 15", ".,", " vas", "árnap"]
LINKS = [((0, 6), (14, 22)), ((8, 16), (0, 8)), ((17, 19), (9, 11))]  # weekday, month, day
PERFECT = {0: 3, 1: 4, 2: 5, 3: 2, 4: 0, 5: 1, 6: 6}  # target token → source token


def example(choices: dict[int, int]) -> ForcedPair:
    weights = np.full((7, 7), 0.01)
    for target, source in choices.items():
        weights[target, source] = 0.94
    return ForcedPair(weights, spans(SOURCE), spans(TARGET), LINKS)


def test_slots_contain_the_tokens_of_linked_spans() -> None:
    slots = token_slots(spans(SOURCE), spans(TARGET), LINKS)
    actual = [(set(sources), set(targets)) for sources, targets in slots.slots]
    assert actual == [({0, 1}, {4, 5}), ({3, 4}, {0, 1}), ({5}, {2})]
    assert slots.targets == {0, 1, 2, 4, 5}
    assert slots.sure == {(5, 2)}
    assert slots.possible == {(0, 4), (0, 5), (1, 4), (1, 5), (3, 0), (3, 1), (4, 0), (4, 1), (5, 2)}


def test_perfect_attention_has_no_alignment_error() -> None:
    metrics = score_alignments([example(PERFECT)] * 2)
    assert metrics["alignment_error_rate"] == 0 and metrics["alignment_accuracy"] == metrics["alignment_slots"] == 1
    assert metrics["alignment_error_rate_diagonal"] == 1  # the order is reversed


@pytest.mark.parametrize(
    ("change", "error", "accuracy", "slots"),
    [
        ({3: 0}, 0, 1, 1),  # the comma does not belong to a slot
        ({1: 3, 4: 1}, 0, 1, 1),  # another token of the same slot
        ({0: 2}, 1 - 5 / 6, 4 / 5, 2 / 3),
        ({2: 0}, 1 - 4 / 6, 4 / 5, 2 / 3),  # a missed sure link counts twice
        ({0: 6}, 1 - 5 / 6, 4 / 5, 2 / 3),  # END is not in a slot
        ({0: 0, 1: 0}, 1 - 4 / 6, 3 / 5, 2 / 3),
        (dict.fromkeys(range(6), 2), 1, 0, 0),
    ],
)
def test_wrong_links_lower_the_metrics_by_known_amounts(
    change: dict[int, int], error: float, accuracy: float, slots: float
) -> None:
    metrics = score_alignments([example({**PERFECT, **change})])
    assert metrics["alignment_error_rate"] == pytest.approx(error)
    assert metrics["alignment_accuracy"] == pytest.approx(accuracy)
    assert metrics["alignment_slots"] == pytest.approx(slots)


def test_shifted_rows_have_a_high_alignment_error() -> None:
    """Negative control: weights shifted by one step give a high error."""
    shifted = {target + 1: source for target, source in PERFECT.items() if target < 6}
    assert score_alignments([example(shifted)])["alignment_error_rate"] > 0.5


def test_chance_level_matches_random_links() -> None:
    draw, slots = np.random.default_rng(1), token_slots(spans(SOURCE), spans(TARGET), LINKS)
    total = sum(
        (AlignmentCounts.of(slots, [(int(draw.integers(6)), t) for t in range(6)]) for _ in range(4000)),
        AlignmentCounts(),
    )
    expected = AlignmentCounts.by_chance(slots, 6)
    assert expected.error_rate == pytest.approx(1 - (1 / 6 + 9 / 6) / 6)
    assert total.error_rate == pytest.approx(expected.error_rate, abs=0.01)
    assert total.correct_slots / total.slots == pytest.approx(expected.correct_slots / expected.slots, abs=0.02)


@given(st.lists(st.lists(st.integers(0, 6), min_size=7, max_size=7), min_size=1, max_size=4))
def test_corpus_error_rate_matches_the_formula_over_all_links(choices: list[list[int]]) -> None:
    examples: list[Any] = [example(dict(enumerate(row))) for row in choices]
    slots = token_slots(spans(SOURCE), spans(TARGET), LINKS)
    all_links: list[set[tuple[Any, Any]]] = [set(), set(), set()]
    for number, row in enumerate(choices):
        links = {(source, target) for target, source in enumerate(row) if target in slots.targets}
        for total, links_of_pair in zip(all_links, (links, slots.sure, slots.possible), strict=True):
            total.update(((number, s), (number, t)) for s, t in links_of_pair)
    assert score_alignments(examples)["alignment_error_rate"] == pytest.approx(alignment_error_rate(*all_links))


def test_pairs_without_slots_have_no_metrics() -> None:
    assert score_alignments([]) == score_alignments([example(PERFECT)._replace(links=())]) == {}
    both = score_alignments([example(PERFECT), example(PERFECT)._replace(links=())])
    assert both == score_alignments([example(PERFECT)])
