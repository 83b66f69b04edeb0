"""Two texts and how they go together: whether the one follows from the other, how much alike they are; in splits.

What is said of a pair is a label. Where all labels are numbers, they may also be read as a score.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.labelled import Labelled


@dataclass(frozen=True)
class Matched(Labelled):
    """A pair; `text` is both."""

    form: ClassVar = "matched"

    first: str = ""
    second: str = ""

    @classmethod
    def of(cls, first: str, second: str, label: str) -> "Matched":
        return cls(f"{first}\n{second}", label, first, second)

    def parts(self) -> Sequence[str]:
        return self.first, self.second, self.label

    def texts(self) -> Sequence[str]:
        return self.first, self.second

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        """Return pairs, labels, words (between white space) and characters of both texts."""
        pairs = corpus.split(split)
        return {
            "pairs": len(pairs),
            "labels": len({pair.label for pair in pairs}),
            "words": sum(len(pair.text.split()) for pair in pairs),
            "characters": sum(len(pair.first) + len(pair.second) for pair in pairs),
        }

    @classmethod
    def check(cls, corpus: Corpus[Self]) -> Corpus[Self]:
        """Return the corpus as it is: its labels may be scores, so the task checks them."""
        return corpus


def scores_of(corpus: Corpus[Matched], split: str) -> list[float]:
    """Return the labels as numbers; the DataError names the first that is none."""
    return [score_of(pair, number, split) for number, pair in enumerate(corpus.split(split), start=1)]


def version_of_pairs(splits: Mapping[str, Sequence[Matched]]) -> str:
    """Return a version for pairs whose source has none: the beginning of the sha256 of their texts and labels."""
    return version_of({name: [Labelled(pair.text, pair.label) for pair in pairs] for name, pairs in splits.items()})


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
