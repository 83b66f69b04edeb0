"""A parallel corpus: sentences and their translations, in splits that do not overlap."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seqloom.data.corpus import Counts, content_version, digest, find_split

Span = tuple[int, int]  # characters, from the first to the one after the last
Link = tuple[Span, Span]  # this part of the source says what that part of the target says


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation, each one line."""

    source: str
    target: str
    kind: str = ""  # what sort of phrase it is, where the corpus knows
    links: tuple[Link, ...] = ()  # which part says what, where the corpus knows


@dataclass(frozen=True)
class ParallelCorpus:
    name: str
    version: str  # of the source: two versions are never the same data
    licence: str
    description: str
    source: str  # language tags, such as en and pt-BR; empty where unknown
    target: str
    splits: Mapping[str, Sequence[Pair]]
    absent: Mapping[str, str] = field(default_factory=dict)  # why a split is not there
    notes: tuple[str, ...] = ()  # what a person should know of how it was read: pairs left out, say

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of a split, or DataError with the reason there are none."""
        found: Sequence[Pair] = find_split(self, name)
        return found

    def counts(self, split: str) -> dict[str, Counts]:
        """The counts of both sides; `documents` are the pairs."""
        pairs = self.split(split)
        return {
            "source": Counts.of([pair.source for pair in pairs]),
            "target": Counts.of([pair.target for pair in pairs]),
        }

    def sizes(self, split: str) -> dict[str, int]:
        """Pairs, words and characters for a reader: of the sentences alone, their ends not counted."""
        sides = self.counts(split)
        found = {"pairs": sides["source"].documents}
        for side, counts in sides.items():
            found[f"{side}_words"] = counts.words - counts.documents
            found[f"{side}_characters"] = counts.characters - counts.documents
        return found

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split: both sides and the borders between them."""
        return {name: digest(_texts(pairs)) for name, pairs in self.splits.items()}


def share_of(pairs: Sequence[Pair], share: float, seed: int) -> list[Pair]:
    """So large a share of the pairs, at least one, in their order.

    Which they are, a hash of what they say decides, and the seed: a smaller share is part of a larger one.
    """
    keys = [hashlib.sha256(f"{seed}/{pair.source}/{pair.target}".encode()).digest() for pair in pairs]
    kept = sorted(range(len(pairs)), key=keys.__getitem__)[: max(1, round(share * len(pairs)))]
    return [pairs[place] for place in sorted(kept)]


def version_of(splits: Mapping[str, Sequence[Pair]]) -> str:
    """The version of pairs that come without one: what they say."""
    return content_version(*map(_texts, splits.values()))


def _texts(pairs: Sequence[Pair]) -> list[str]:
    return [text for pair in pairs for text in (pair.source, pair.target)]
