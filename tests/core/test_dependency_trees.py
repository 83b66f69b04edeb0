"""Dependency trees as bracketed text: writing, reading, and texts that are not trees."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.dependency_trees import DependencyTree, escape, read_tree, right_branching, write_tree

WORDS = ["John", "loves", "the", "sea"]
SEA = DependencyTree((2, 0, 4, 2), ("nsubj", "root", "det", "obj"))
TEXT = "(root (nsubj John ) loves (obj (det the ) sea ) )"


def test_tree_is_written_with_nested_brackets() -> None:
    assert write_tree(SEA, WORDS) == TEXT
    assert read_tree(TEXT) == SEA


def descendants(heads: tuple[int, ...], number: int) -> set[int]:
    """Return the words that reach a word by their heads, including the word."""
    return {number}.union(*(descendants(heads, other) for other, head in enumerate(heads, 1) if head == number))


def test_exactly_the_projective_trees_can_be_written() -> None:
    """Enumerate all heads of four words; by the definition, every subtree of a projective tree is a span."""
    projective = crossing = 0
    for heads in product(range(5), repeat=4):
        is_tree = heads.count(0) == 1 and descendants_of_root(heads) == {1, 2, 3, 4}
        is_projective = is_tree and all(
            len(below := descendants(heads, number)) == max(below) - min(below) + 1 for number in range(1, 5)
        )
        tree = DependencyTree(heads, ("a", "b", "c", "d"))
        text = write_tree(tree, WORDS)
        assert (text is not None) == is_projective
        assert text is None or read_tree(text) == tree
        projective, crossing = projective + is_projective, crossing + (is_tree and not is_projective)
    assert (projective, crossing) == (30, 34)  # 64 rooted labelled trees of four words


def descendants_of_root(heads: tuple[int, ...]) -> set[int]:
    """Return the words that reach the root, without following a cycle."""
    reached: set[int] = {number for number, head in enumerate(heads, 1) if head == 0}
    while more := {number for number, head in enumerate(heads, 1) if head in reached} - reached:
        reached |= more
    return reached


@pytest.mark.parametrize(
    "text",
    [
        "",
        "John",
        ")",
        "(root",
        "(root )",
        "(root John",
        "( John )",
        "(root John loves )",
        "(root John ) )",
        "(root John ) (root John )",
        "(root (nsubj ) loves )",
        "(root John ) loves",
        "John (root loves )",
    ],
)
def test_text_that_is_no_tree_is_not_read(text: str) -> None:
    assert read_tree(text) is None


@given(st.lists(st.sampled_from(["(root", "(obj", ")", "a", "b"]), max_size=12))
def test_text_is_read_only_if_writing_reproduces_it(tokens: list[str]) -> None:
    """A text is a tree if and only if the tree that it describes is written as the same text."""
    tree = read_tree(" ".join(tokens))
    if tree is not None:
        leaves = [token for token in tokens if token in ("a", "b")]
        assert write_tree(tree, leaves) == " ".join(tokens)


def test_brackets_among_the_words_are_escaped() -> None:
    words = ["(", "sic", ")", "(-:", ":)", "10 000"]
    assert [escape(word) for word in words] == ["-LRB-", "sic", "-RRB-", "-LRB--:", ":)", "10_000"]
    tree = DependencyTree((2, 0, 2, 2, 2, 2), ("punct", "root", "punct", "x", "x", "num"))
    assert read_tree(write_tree(tree, words) or "") == tree


def test_right_branching_tree_attaches_each_word_to_the_preceding_word() -> None:
    text = right_branching(WORDS[:3], "punct")
    assert text == "(root John (punct loves (punct the ) ) )"
    assert read_tree(text) == DependencyTree((0, 1, 2), ("root", "punct", "punct"))
    assert right_branching(["word"], "punct") == "(root word )"
