"""Which examples are held out for dev and test, where a corpus does not say: decided by the examples themselves.

Examples are put in groups that must stay together, and groups are taken in the order of a hash of their names. So the
choice is the same everywhere, is spread over a sorted file, and depends neither on a seed nor on the order of lines.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from seqloom.data.corpus import Example

T = TypeVar("T")
ExampleT = TypeVar("ExampleT", bound=Example)


def normal_form(text: str) -> str:
    """The words of a text, without case, digits, punctuation and symbols: "7:05 PM, Monday" becomes "pm monday".

    Texts with the same normal form are near duplicates, which must not be divided between train and a held-out split.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if unicodedata.category(c)[0] in "LM" else " " for c in folded).split())


def split_of_group(group: bytes, shares: Mapping[str, float]) -> str:
    """The split of a group, from a hash of its name or content: each split gets about its share of the groups.

    For corpora whose groups are not known in advance. What is left is "train".
    """
    place = int.from_bytes(hashlib.sha256(group).digest()[:8], "big") / 2**64
    end = 0.0
    for split, share in shares.items():
        end += share
        if place < end:
            return split
    return "train"


def divide(examples: Iterable[T], chosen: Iterable[str], splits: Iterable[str]) -> dict[str, list[T]]:
    """Return the examples of each split, given the split chosen for each example."""
    divided: dict[str, list[T]] = {split: [] for split in splits}
    for example, split in zip(examples, chosen, strict=True):
        divided[split].append(example)
    return divided


def hold_out(groups: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """The split of each example, given the name of its group: for every split whole groups until it has its size.

    What is left is "train".
    """
    counts = Counter(groups)
    waiting = sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest(), reverse=True)
    split_of: dict[str, str] = {}
    for split, size in sizes.items():
        while size > 0 and waiting:
            name = waiting.pop()
            split_of[name] = split
            size -= counts[name]
    return [split_of.get(name, "train") for name in groups]


def link_groups(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Group names such that pairs that share either side, directly or through others, are in one group.

    A group is called after the first of its first sides in the order of the alphabet.
    """
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]  # so that the next way up is shorter
            node = parent[node]
        return node

    for one, other in pairs:
        parent[root((0, one))] = root((1, other))
    names: dict[tuple[int, str], str] = {}
    for one, _ in pairs:
        names[root((0, one))] = min(one, names.get(root((0, one)), one))
    return [names[root((0, one))] for one, _ in pairs]


def hold_out_evenly(groups: Sequence[str], labels: Sequence[str], shares: Mapping[str, float]) -> list[str]:
    """The same by shares, with about the same mixture of labels in every split.

    Each label is shared out by itself, so one that is too rare to be held out stays in "train". A group goes with the
    label it has first. A split that would be empty gets a group of the label that has most left.
    """
    label_of: dict[str, str] = {}
    for group, label in zip(groups, labels, strict=True):
        label_of.setdefault(group, label)
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(label_of[group], []).append(place)
    sizes = {label: {name: round(share * len(own)) for name, share in shares.items()} for label, own in members.items()}
    for name in shares:
        if members and not any(sizes[label][name] for label in sizes):
            most = max(sorted(members), key=lambda label: len(members[label]) - sum(sizes[label].values()))
            sizes[most][name] = 1
    chosen = ["train"] * len(groups)
    for label, own in members.items():
        for place, split in zip(own, hold_out([groups[place] for place in own], sizes[label]), strict=True):
            chosen[place] = split
    return chosen


def split_glue(
    train: Sequence[ExampleT], test: Sequence[ExampleT], group: Callable[[ExampleT], str], dev_share: float
) -> dict[str, list[ExampleT]]:
    """Return the splits of a GLUE set, whose own test labels are not published: its dev part is test.

    Dev is held out evenly from train, whole groups at a time; training examples with a group of test are left out.
    """
    tested = {group(example) for example in test}
    rest = [example for example in train if group(example) not in tested]
    labels = [example.labels()[0] for example in rest]
    chosen = hold_out_evenly([group(example) for example in rest], labels, {"dev": dev_share})
    return {**divide(rest, chosen, ("train", "dev")), "test": list(test)}
