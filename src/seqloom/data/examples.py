"""What corpora of examples with several texts share: choices, and questions with answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqloom.data.corpus import content_version, digest, find_split
from seqloom.data.labelled import new_share


@dataclass(frozen=True)
class ExampleCorpus:
    """An example has `texts()`, what is read of it, and `parts()`, all it says, in an order that tells them apart."""

    name: str
    version: str  # of the source: two versions are never the same data
    licence: str
    description: str
    splits: Mapping[str, Sequence[Any]]
    absent: Mapping[str, str] = field(default_factory=dict)  # why a split is not there
    notes: tuple[str, ...] = ()  # what a person should know of how it was read: examples left out, say

    def split(self, name: str) -> Sequence[Any]:
        """The examples of a split, or DataError with the reason there are none."""
        found: Sequence[Any] = find_split(self, name)
        return found

    def sizes(self, split: str) -> dict[str, int]:
        """Examples, and words (between white space) and characters of what is read; a text read twice counts once."""
        texts = self.texts(split)
        return {
            "examples": len(self.split(split)),
            "words": sum(len(text.split()) for text in texts),
            "characters": sum(map(len, texts)),
        }

    def texts(self, split: str) -> list[str]:
        """Everything there is to read, each text once."""
        return list(dict.fromkeys(text for example in self.split(split) for text in example.texts()))

    def new_words(self, split: str) -> float:
        """The share of a split's words, repeated ones too, that never occur in train: how hard it is."""
        from seqloom.text.word_spans import split_words  # here, so that corpora can be listed without the tokenizers

        return new_share(*([w for text in self.texts(name) for w in split_words(text)] for name in (split, "train")))

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split: all that its examples say, and the borders between them."""
        return {name: digest(_parts(examples)) for name, examples in self.splits.items()}


def version_of(splits: Mapping[str, Sequence[Any]]) -> str:
    """The version of examples that come without one: what they say."""
    return content_version(*map(_parts, splits.values()))


def _parts(examples: Sequence[Any]) -> list[str]:
    return [part for example in examples for part in example.parts()]
