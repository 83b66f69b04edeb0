"""Attachment scores: worked examples, invalid trees, and the definition of the CoNLL 2018 shared task."""

import random

import pytest

from seqloom.core.dependency_trees import DependencyTree, write_tree
from seqloom.core.errors import DataError
from seqloom.evaluate.dependencies import attachment_scores

GOLD = "(root (nsubj John ) loves (obj (det the ) sea ) (punct . ) )"  # five words


def test_each_word_counts_once() -> None:
    wrong_relation = GOLD.replace("(obj", "(nsubj")
    wrong_head = "(root (nsubj John ) loves (obj sea (det the ) (punct . ) ) )"  # the full stop depends on "sea"
    one_wrong_head = GOLD.replace("sea ) (punct . )", "sea (punct . ) )")
    assert attachment_scores([GOLD], [GOLD]) == scores(100, 100, 1)
    assert attachment_scores([wrong_relation], [GOLD]) == scores(80, 100, 1)
    assert attachment_scores([one_wrong_head], [GOLD]) == scores(80, 80, 1)
    # "sea" becomes word 3 and "the" word 4, so words 3, 4 and 5 have other heads
    assert attachment_scores([wrong_head], [GOLD]) == scores(40, 40, 1)


def scores(labelled: float, unlabelled: float, valid: float) -> dict[str, float]:
    return {"labelled_attachment": labelled, "unlabelled_attachment": unlabelled, "valid_trees": valid}


def test_invalid_trees_have_no_correct_words() -> None:
    for invalid in ("", "no tree", GOLD[:-2], GOLD + " )", GOLD.replace("(punct . ) ", "")):
        assert attachment_scores([invalid, GOLD], [GOLD, GOLD]) == scores(50, 50, 0.5)


def test_words_are_weighted_equally_and_not_sentences() -> None:
    short = "(root Yes )"
    assert attachment_scores(["", GOLD], [short, GOLD]) == scores(100 * 5 / 6, 100 * 5 / 6, 0.5)


def test_subtypes_of_relations_are_ignored() -> None:
    assert attachment_scores([GOLD.replace("obj", "obj:x")], [GOLD]) == scores(100, 100, 1)


def test_random_trees_agree_with_a_comparison_of_columns() -> None:
    """Count words with equal head, and with equal head and relation, as columns of CoNLL-U files."""
    draw = random.Random(1)
    golds, predictions = ([random_tree(draw, count) for count in (3, 7, 5, 9)] for _ in range(2))
    columns = [
        (gold.heads[n], prediction.heads[n], gold.relations[n], prediction.relations[n])
        for gold, prediction in zip(golds, predictions, strict=True)
        for n in range(len(gold.heads))
    ]
    heads = sum(a == b for a, b, _, _ in columns)
    relations = sum((a, c) == (b, d) for a, b, c, d in columns)
    assert 0 < relations < heads < len(columns)
    texts = [[write_tree(tree, ["x"] * len(tree.heads)) or "" for tree in trees] for trees in (predictions, golds)]
    assert attachment_scores(*texts) == pytest.approx(
        scores(100 * relations / len(columns), 100 * heads / len(columns), 1)
    )


def random_tree(draw: random.Random, count: int) -> DependencyTree:
    """Draw heads until they form a projective tree."""
    while True:
        heads = tuple(draw.randint(0, count) for _ in range(count))
        tree = DependencyTree(heads, tuple(draw.choice(["a", "b"]) for _ in range(count)))
        if write_tree(tree, ["x"] * count):
            return tree


def test_reference_that_is_not_a_tree_is_rejected() -> None:
    with pytest.raises(DataError, match=r"dependency trees such as \(root .* reference 2 is 'a sentence'"):
        attachment_scores([GOLD, GOLD], [GOLD, "a sentence"])
