"""A corpus: documents in splits that do not overlap, and where they came from."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from seqloom.core.errors import DataError

SPLITS = ("train", "dev", "test")


class Fingerprinted(Protocol):
    """A corpus of any kind: data that can be told from other data."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def fingerprint(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Counts:
    """What a figure per word, per character or per byte is divided by: the end of each document counts as one.

    So PTB's test has 82,430 words, as published, and every prediction a language model makes is accounted for.
    """

    documents: int
    words: int  # Σ (words between white space + 1)
    characters: int  # Σ (characters + 1)
    bytes: int  # Σ (bytes of UTF-8 + 1)

    @classmethod
    def of(cls, documents: Sequence[str]) -> "Counts":
        from seqloom.text.pieces import cut_at_spaces  # here, so that corpora can be listed without the tokenizers

        ends = len(documents)
        return cls(
            documents=ends,
            words=ends + sum(len(piece.split()) for document in documents for piece in cut_at_spaces(document)),
            characters=ends + sum(map(len, documents)),
            bytes=ends + sum(len(document.encode()) for document in documents),
        )


@dataclass(frozen=True)
class Asked:
    """A part of a document that what stands before it may tell: its characters, and what such parts are counted as."""

    start: int
    end: int
    group: str


@dataclass(frozen=True)
class Corpus:
    name: str
    version: str  # of the source: two versions are never the same data
    licence: str
    description: str
    splits: Mapping[str, Sequence[str]]  # documents by split
    absent: Mapping[str, str] = field(default_factory=dict)  # why a split is not there
    asked: Callable[[str], Sequence[Asked]] | None = None  # what to ask of a document, where that is worth measuring

    def split(self, name: str) -> Sequence[str]:
        """The documents of a split, or DataError with the reason there are none."""
        found: Sequence[str] = find_split(self, name)
        return found

    def counts(self, split: str) -> Counts:
        return Counts.of(self.split(split))

    def statistics(self) -> dict[str, Counts]:
        """The counts of every split that is there."""
        return {name: self.counts(name) for name in self.splits}

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split: documents and the borders between them."""
        return {name: digest(documents) for name, documents in self.splits.items()}


def find_split(corpus: Any, name: str) -> Any:
    """A split of a corpus of any kind."""
    if name in corpus.splits:
        return corpus.splits[name]
    if name in corpus.absent:
        raise DataError(f"The corpus {corpus.name} has no {name} split: {corpus.absent[name]}")
    raise DataError(f"The corpus {corpus.name} has no split '{name}'; it has {', '.join(corpus.splits)}.")


def digest(documents: Sequence[str]) -> str:
    result = hashlib.sha256()
    for document in documents:
        content = document.encode()
        result.update(b"%d\n" % len(content))
        result.update(content)
    return result.hexdigest()


def content_version(*parts: Sequence[str]) -> str:
    """A version for a source that carries none: the beginning of the sha256 of its documents."""
    return "sha256-" + hashlib.sha256("/".join(map(digest, parts)).encode()).hexdigest()[:12]
