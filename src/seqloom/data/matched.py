"""Two texts and how they go together: whether the one follows from the other, how much alike they are; in splits.

What is said of a pair is a label. Where all labels are numbers, they may also be read as a score.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import digest, find_split
from seqloom.data.labelled import Labelled, LabelledCorpus


@dataclass(frozen=True)
class Matched(Labelled):
    """A pair; `text` is both."""

    first: str = ""
    second: str = ""

    @classmethod
    def of(cls, first: str, second: str, label: str) -> "Matched":
        return cls(f"{first}\n{second}", label, first, second)


@dataclass(frozen=True)
class MatchedCorpus(LabelledCorpus):
    splits: Mapping[str, Sequence[Matched]]

    def split(self, name: str) -> Sequence[Matched]:
        """The pairs of a split, or DataError with the reason there are none."""
        found: Sequence[Matched] = find_split(self, name)
        return found

    def scores(self, split: str) -> list[float]:
        """The labels as numbers; DataError names the first that is none."""
        return [score_of(pair, number, split) for number, pair in enumerate(self.split(split), start=1)]

    def sizes(self, split: str) -> dict[str, int]:
        """Pairs, labels, words (between white space) and characters of both texts."""
        found, pairs = super().sizes(split), self.split(split)
        characters = sum(len(pair.first) + len(pair.second) for pair in pairs)
        return {
            "pairs": found["examples"],
            "labels": found["labels"],
            "words": found["words"],
            "characters": characters,
        }

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split: both texts, labels and the borders between them."""
        return {
            name: digest([part for pair in pairs for part in (pair.first, pair.second, pair.label)])
            for name, pairs in self.splits.items()
        }


def score_of(pair: Matched, number: int, split: str) -> float:
    try:
        score = float(pair.label)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(
            f"With target=score every label must be a number; that of pair {number:,} of {split} is "
            f"{shown(pair.label)}. Set target=class, or name the column of the scores: data.label=…"
        )
    return score
