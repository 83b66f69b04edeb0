"""Texts with a label each: sentiment, topic, language, nationality; in splits that do not overlap."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import content_version, digest, find_split

MOSTLY_ALONE = 0.5  # of the labels have one example only: more looks like the wrong column


@dataclass(frozen=True)
class Labelled:
    """A text and what it is."""

    text: str
    label: str


@dataclass(frozen=True)
class LabelledCorpus:
    name: str
    version: str  # of the source: two versions are never the same data
    licence: str
    description: str
    splits: Mapping[str, Sequence[Labelled]]
    absent: Mapping[str, str] = field(default_factory=dict)  # why a split is not there
    notes: tuple[str, ...] = ()  # what a person should know of how it was read: examples left out, say

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What a model can say: the labels of train, sorted; numbers by their value."""
        return sorted_labels(example.label for example in self.split("train"))

    def split(self, name: str) -> Sequence[Labelled]:
        """The examples of a split, or DataError with the reason there are none."""
        found: Sequence[Labelled] = find_split(self, name)
        return found

    def label_counts(self, split: str) -> dict[str, int]:
        """How many examples each label has, the most frequent first."""
        return by_count(example.label for example in self.split(split))

    def unseen_labels(self, split: str) -> dict[str, int]:
        """The labels of a split that train never has: no model can say them, so they count as wrong."""
        return {label: count for label, count in self.label_counts(split).items() if label not in self.labels}

    def sizes(self, split: str) -> dict[str, int]:
        """Examples, labels, words (between white space) and characters."""
        examples = self.split(split)
        return {
            "examples": len(examples),
            "labels": len({example.label for example in examples}),
            "words": sum(len(example.text.split()) for example in examples),
            "characters": sum(len(example.text) for example in examples),
        }

    def new_words(self, split: str) -> float:
        """The share of a split's words, repeated ones too, that never occur in train: how hard it is."""
        return new_share(*(_words(self.split(name)) for name in (split, "train")))

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split: texts, labels and the borders between them."""
        return {name: digest(_texts(examples)) for name, examples in self.splits.items()}


AnyLabelled = TypeVar("AnyLabelled", bound=LabelledCorpus)


def checked_labels(corpus: AnyLabelled) -> AnyLabelled:
    """The same with a note on labels that cannot be learned; DataError if there is nothing to tell apart."""
    if len(corpus.labels) < 2:
        raise DataError(
            f"The corpus {corpus.name} must have at least two labels to tell apart, but all its "
            f"training examples are {shown(corpus.labels[0])}. Give examples of others, and check which column holds "
            "the labels."
        )
    notes = [_unseen(split, corpus.unseen_labels(split)) for split in corpus.splits]
    counts = corpus.label_counts("train")
    alone = sum(count == 1 for count in counts.values())
    if alone > MOSTLY_ALONE * len(counts) and len(counts) > 2:
        notes.append(f"{alone:,} of the {len(counts):,} labels have only one training example: check their column")
    return replace(corpus, notes=(*corpus.notes, *filter(None, notes)))


def _unseen(split: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    examples, labels = sum(counts.values()), ", ".join(counts)
    have, they = ("example has a label", "it counts") if examples == 1 else ("examples have labels", "they count")
    shortened = labels if len(labels) <= 60 else f"{labels[:59]}…"
    return f"{examples:,} {split} {have} that train never has ({shortened}): {they} as wrong"


def share_of(examples: Sequence[Labelled], share: float, seed: int) -> list[Labelled]:
    """So large a share of the examples of each label, at least one, in their order.

    Which they are, a hash of their texts decides, and the seed: a smaller share is part of a larger one.
    """
    places: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        places.setdefault(example.label, []).append(place)
    kept: set[int] = set()
    for own in places.values():
        own.sort(key=lambda place: hashlib.sha256(f"{seed}/{examples[place].text}".encode()).digest())
        kept.update(own[: max(1, round(share * len(own)))])
    return [example for place, example in enumerate(examples) if place in kept]


def version_of(splits: Mapping[str, Sequence[Labelled]]) -> str:
    """The version of examples that come without one: what they say."""
    return content_version(*map(_texts, splits.values()))


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order of the alphabet; where all are numbers, 2 before 10."""
    found = set(labels)
    if all(re.fullmatch(r"[-+]?\d+(\.\d+)?", label) for label in found):
        return tuple(sorted(found, key=lambda label: (float(label), label)))
    return tuple(sorted(found))


def by_count(items: Iterable[str]) -> dict[str, int]:
    """How often each occurs, the most frequent first; equally frequent ones in the order of the alphabet."""
    counts = Counter(items)
    return {item: counts[item] for item in sorted(counts, key=lambda item: (-counts[item], item))}


def new_share(words: Iterable[str], known: Iterable[str]) -> float:
    """The share of `words` that are not among the known ones."""
    seen, found = set(known), list(words)
    return sum(word not in seen for word in found) / max(1, len(found))


def _words(examples: Sequence[Labelled]) -> list[str]:
    from seqloom.text.word_spans import split_words  # here, so that corpora can be listed without the tokenizers

    return [word for example in examples for word in split_words(example.text)]


def _texts(examples: Sequence[Labelled]) -> list[str]:
    return [text for example in examples for text in (example.text, example.label)]
