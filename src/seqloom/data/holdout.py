"""Which pairs are held out for dev and test, where a corpus does not say: decided by the sentences themselves.

Pairs are put in groups that must stay together, and groups are taken in the order of a hash of their names. So the
choice is the same everywhere, is spread over a sorted file, and depends neither on a seed nor on the order of lines.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence


def held_out(groups: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """The split of each pair, given the name of its group: for every split whole groups until it has its size.

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


def linked(pairs: Sequence[tuple[str, str]]) -> list[str]:
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
