"""Baselines of text-to-text tasks: predictions that need no model.

Their functions import other modules on first use, because every recipe of a translator imports this module.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from seqloom.data.examples import ParallelExample

BaselineName = Literal["nearest", "lead", "most-frequent", "right-branching"]
Pairs = Sequence[ParallelExample]


class Baseline(NamedTuple):
    """A baseline: its description, and a function that predicts targets from training pairs and sources."""

    description: str
    predict: Callable[[Pairs, Sequence[str]], list[str]]


def nearest_targets(train: Pairs, sources: Sequence[str]) -> list[str]:
    """Return the target of the most similar training source."""
    from seqloom.data.copy_baseline import copy_baseline

    return copy_baseline(train, sources)


def first_sentences(train: Pairs, sources: Sequence[str]) -> list[str]:
    """Return the first sentence of each source."""
    from seqloom.text.base import split_sentences

    return [next(iter(split_sentences(source)), "") for source in sources]


def most_frequent_target(train: Pairs, sources: Sequence[str]) -> list[str]:
    """Return the most frequent training target for each source; a tie selects the first target."""
    return [Counter(pair.target for pair in train).most_common(1)[0][0]] * len(sources)


def right_branching_trees(train: Pairs, sources: Sequence[str]) -> list[str]:
    """Return trees in which the head of a word is the preceding word, with the most frequent relation of train."""
    from seqloom.core.dependency_trees import read_tree, right_branching

    trees = [tree for pair in train if (tree := read_tree(pair.target)) is not None]
    relations = Counter(relation for tree in trees for relation in tree.relations if relation != "root")
    relation = relations.most_common(1)[0][0] if relations else "dep"
    return [right_branching(source.split(), relation) for source in sources]


BASELINES: dict[BaselineName, Baseline] = {
    "nearest": Baseline("the target of the most similar training source", nearest_targets),
    "lead": Baseline("the first sentence of the source", first_sentences),
    "most-frequent": Baseline("the most frequent training target", most_frequent_target),
    "right-branching": Baseline("trees in which the head of each word is the preceding word", right_branching_trees),
}
