"""A parallel corpus: sentences and their translations, in splits that do not overlap."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from seqloom.data.corpus import Corpus, Counts, Example

Span = tuple[int, int]  # characters, from the first to the one after the last
Link = tuple[Span, Span]  # this part of the source says what that part of the target says


@dataclass(frozen=True)
class Pair(Example):
    """A sentence and its translation, each one line."""

    form: ClassVar = "pairs"

    source: str
    target: str
    kind: str = ""  # what sort of phrase it is, where the corpus knows
    links: tuple[Link, ...] = ()  # which part says what, where the corpus knows

    def parts(self) -> Sequence[str]:
        return self.source, self.target

    @classmethod
    def sizes(cls, corpus: Corpus["Pair"], split: str) -> dict[str, int]:
        """Return pairs, and words and characters of both sides, without the ends of sentences."""
        sides = side_counts(corpus.split(split))
        sizes = {"pairs": sides["source"].documents}
        for side, counts in sides.items():
            sizes[f"{side}_words"] = counts.words - counts.documents
            sizes[f"{side}_characters"] = counts.characters - counts.documents
        return sizes


def side_counts(pairs: Sequence[Pair]) -> dict[str, Counts]:
    """Return the counts of both sides; `documents` are the pairs."""
    return {
        "source": Counts.of([pair.source for pair in pairs]),
        "target": Counts.of([pair.target for pair in pairs]),
    }


def share_of(pairs: Sequence[Pair], share: float, seed: int) -> list[Pair]:
    """So large a share of the pairs, at least one, in their order.

    Which they are, a hash of what they say decides, and the seed: a smaller share is part of a larger one.
    """
    keys = [hashlib.sha256(f"{seed}/{pair.source}/{pair.target}".encode()).digest() for pair in pairs]
    kept = sorted(range(len(pairs)), key=keys.__getitem__)[: max(1, round(share * len(pairs)))]
    return [pairs[place] for place in sorted(kept)]
