"""Series with a label each: what a whole sequence of numbers is, in splits that do not overlap."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import Corpus, Example
from seqloom.data.labelled import sorted_labels
from seqloom.data.series import Values, array_bytes


@dataclass(frozen=True)
class LabelledSeries(Example):
    """Values (T, C), NaN where one is missing, and their label."""

    form: ClassVar = "series-labelled"

    values: Values
    label: str

    @property
    def text(self) -> str:
        """Its numbers, a step after the other, for whoever looks at it."""
        return " | ".join(" ".join("-" if np.isnan(one) else f"{one:g}" for one in step) for step in self.values)

    def content(self) -> bytes:
        return f"{self.label}\n{self.values.shape}\n".encode() + array_bytes(self.values)

    def labels(self) -> Sequence[str]:
        return (self.label,)

    @staticmethod
    def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
        return sorted_labels(labels)

    @classmethod
    def sizes(cls, corpus: Corpus["LabelledSeries"], split: str) -> dict[str, int]:
        examples = corpus.split(split)
        return {
            "series": len(examples),
            "labels": len({example.label for example in examples}),
            "steps": sum(len(example.values) for example in examples),
            "variables": variables_of(corpus),
        }

    @classmethod
    def check(cls, corpus: Corpus["LabelledSeries"]) -> Corpus["LabelledSeries"]:
        return check_series_labels(corpus)


def variables_of(corpus: Corpus[LabelledSeries]) -> int:
    return corpus.split("train")[0].values.shape[1]


def check_series_labels(corpus: Corpus[LabelledSeries]) -> Corpus[LabelledSeries]:
    """The same; DataError if there is nothing to tell apart."""
    if len(corpus.labels) < 2:
        raise DataError(
            f"The corpus {corpus.name} must have at least two labels to tell apart, but all its training series are "
            f"{shown(corpus.labels[0])}. Give examples of others, and check which column holds the labels."
        )
    return corpus
