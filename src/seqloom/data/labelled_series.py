"""Series with a label each: what a whole sequence of numbers is, in splits that do not overlap."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import find_split
from seqloom.data.labelled import by_count, sorted_labels
from seqloom.data.series import Values


@dataclass(frozen=True)
class LabelledSeries:
    """Values (T, C), NaN where one is missing, and what they are."""

    values: Values
    label: str

    @property
    def text(self) -> str:
        """Its numbers, a step after the other, for whoever looks at it."""
        return " | ".join(" ".join("-" if np.isnan(one) else f"{one:g}" for one in step) for step in self.values)


@dataclass(frozen=True)
class LabelledSeriesCorpus:
    name: str
    version: str  # of the source: two versions are never the same data
    licence: str
    description: str
    splits: Mapping[str, Sequence[LabelledSeries]]
    absent: Mapping[str, str] = field(default_factory=dict)  # why a split is not there
    notes: tuple[str, ...] = ()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What a model can say: the labels of train, sorted; numbers by their value."""
        return sorted_labels(example.label for example in self.split("train"))

    @property
    def variables(self) -> int:
        return self.splits["train"][0].values.shape[1]

    def split(self, name: str) -> Sequence[LabelledSeries]:
        found: Sequence[LabelledSeries] = find_split(self, name)
        return found

    def label_counts(self, split: str) -> dict[str, int]:
        """How many series each label has, the most frequent first."""
        return by_count(example.label for example in self.split(split))

    def sizes(self, split: str) -> dict[str, int]:
        found = self.split(split)
        return {
            "series": len(found),
            "labels": len({example.label for example in found}),
            "steps": sum(len(example.values) for example in found),
            "variables": self.variables,
        }

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split: values and labels."""
        return {name: digest(examples) for name, examples in self.splits.items()}


def digest(examples: Sequence[LabelledSeries]) -> str:
    result = hashlib.sha256()
    for one in examples:
        result.update(f"{one.label}\n{one.values.shape}\n".encode())
        result.update(np.nan_to_num(one.values, nan=np.inf).astype("<f8").tobytes())
    return result.hexdigest()


def checked_series_labels(corpus: LabelledSeriesCorpus) -> LabelledSeriesCorpus:
    """The same; DataError if there is nothing to tell apart."""
    if len(corpus.labels) < 2:
        raise DataError(
            f"The corpus {corpus.name} must have at least two labels to tell apart, but all its training series are "
            f"{shown(corpus.labels[0])}. Give examples of others, and check which column holds the labels."
        )
    return corpus
