"""Texts with a label each: sentiment, topic, language, nationality; in splits that do not overlap."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import Corpus, Example

MOSTLY_ALONE = 0.5  # of the labels have one example only: more looks like the wrong column


@dataclass(frozen=True)
class Labelled(Example):
    """A text and its label."""

    form: ClassVar = "labelled"

    text: str
    label: str

    def parts(self) -> Sequence[str]:
        return self.text, self.label

    def texts(self) -> Sequence[str]:
        return (self.text,)

    def labels(self) -> Sequence[str]:
        return (self.label,)

    @staticmethod
    def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
        return sorted_labels(labels)

    @classmethod
    def all_words(cls, examples: Sequence[Self]) -> list[str]:
        from seqloom.text.word_spans import split_words  # here, so that corpora can be listed without the tokenizers

        return [word for example in examples for word in split_words(example.text)]

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        """Return examples, labels, words (between white space) and characters."""
        examples = corpus.split(split)
        return {
            "examples": len(examples),
            "labels": len({example.label for example in examples}),
            "words": sum(len(example.text.split()) for example in examples),
            "characters": sum(len(example.text) for example in examples),
        }

    @classmethod
    def check(cls, corpus: Corpus[Self]) -> Corpus[Self]:
        return check_labels(corpus)


AnyLabelled = TypeVar("AnyLabelled", bound=Labelled)


def check_labels(corpus: Corpus[AnyLabelled]) -> Corpus[AnyLabelled]:
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


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order of the alphabet; where all are numbers, 2 before 10."""
    found = set(labels)
    if all(re.fullmatch(r"[-+]?\d+(\.\d+)?", label) for label in found):
        return tuple(sorted(found, key=lambda label: (float(label), label)))
    return tuple(sorted(found))
