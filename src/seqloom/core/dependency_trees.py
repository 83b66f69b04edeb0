"""Dependency trees as bracketed text.

    (root (nsubj John ) loves (obj (det the ) sea ) )

A bracket opens with the relation of a word to its head, and contains the word and the brackets of its dependents in the
order of the sentence. The outermost bracket contains the word without a head. Only a projective tree can be written
in this form, because every bracket is a span of consecutive words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

EXAMPLE = "(root (nsubj John ) sleeps )"
ESCAPES = {"(": "-LRB-", ")": "-RRB-"}  # brackets among the words, as in the Penn Treebank


@dataclass(frozen=True)
class DependencyTree:
    """The head of each word and the relation of the word to its head."""

    heads: tuple[int, ...]  # numbers of words, counted from 1; 0 for the root
    relations: tuple[str, ...]


def write_tree(tree: DependencyTree, words: Sequence[str]) -> str | None:
    """Write a tree as text, or return None if the heads are not a projective tree."""
    first, last, sizes = [*range(len(words))], [*range(len(words))], [0] * len(words)  # of the subtree of each word
    for start in range(len(words)):
        index, steps = start, 0
        while index >= 0:  # visit the word and the words above it
            first[index], last[index] = min(first[index], start), max(last[index], start)
            sizes[index] += 1
            index, steps = tree.heads[index] - 1, steps + 1
            if steps > len(words):
                return None  # a cycle
    is_projective = all(b - a + 1 == size for a, b, size in zip(first, last, sizes, strict=True))
    if not is_projective or tree.heads.count(0) != 1:
        return None
    tokens: list[str] = []
    for index, word in enumerate(words):
        opened = [other for other in range(len(words)) if first[other] == index]
        opened.sort(key=lambda other: -last[other])  # a larger bracket opens first
        tokens += [f"({tree.relations[other]}" for other in opened]
        tokens += [escape(word), *[")"] * last.count(index)]
    return " ".join(tokens)


def escape(word: str) -> str:
    """Return a word that cannot be confused with the brackets of a tree."""
    word = "_".join(word.split())
    return ESCAPES[word[0]] + word[1:] if word[:1] == "(" or word == ")" else word


def read_tree(text: str) -> DependencyTree | None:
    """Read a tree, or return None if the text is not a tree with one word in every bracket."""
    heads: list[int] = []
    relations: list[str] = []
    brackets: list[Bracket] = []
    is_complete = False
    for token in text.split():
        if is_complete:
            return None
        if token.startswith("(") and len(token) > 1:
            brackets.append(Bracket(token[1:], [], None))
        elif not brackets:
            return None
        elif token != ")":
            if brackets[-1].word is not None:
                return None
            heads.append(0)
            relations.append(brackets[-1].relation)
            brackets[-1].word = len(heads)
        else:
            closed = brackets.pop()
            if closed.word is None:
                return None
            for dependent in closed.dependents:
                heads[dependent - 1] = closed.word
            if brackets:
                brackets[-1].dependents.append(closed.word)
            is_complete = not brackets
    return DependencyTree(tuple(heads), tuple(relations)) if is_complete else None


@dataclass
class Bracket:
    """An open bracket: a relation, the dependents so far, and the number of the word."""

    relation: str
    dependents: list[int]
    word: int | None


def right_branching(words: Sequence[str], relation: str) -> str:
    """Write the tree in which the head of every word is the preceding word."""
    relations = ["root", *[relation] * (len(words) - 1)]
    return write_tree(DependencyTree(tuple(range(len(words))), tuple(relations)), words) or ""
