"""A corpus: examples in splits that do not overlap, and their origin."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from seqloom.core.errors import DataError

SPLITS = ("train", "dev", "test")


class Fingerprinted(Protocol):
    """Data with a name, a version and a fingerprint: a corpus, or generated vectors."""

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


class Example:
    """Base class of examples: everything that differs between corpora of different forms.

    Subclasses set `form` and define `parts` (or `content`); the other methods have defaults.
    """

    form: ClassVar[str]  # as the module of a corpus names it: FORM

    def parts(self) -> Sequence[str]:
        """Return every string of this example, in an order that determines the example."""
        raise NotImplementedError

    def content(self) -> bytes:
        """Return the bytes that the fingerprint of a split is computed from."""
        return b"".join(map(frame, self.parts()))

    def version_content(self) -> bytes:
        """Return the bytes that the version of a corpus without one is computed from."""
        return self.content()

    def texts(self) -> Sequence[str]:
        """Return the texts that a model reads."""
        return self.parts()

    def labels(self) -> Sequence[str]:
        """Return the labels or tags that a model predicts."""
        return ()

    @staticmethod
    def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
        """Return each label once, in the order of a model's outputs."""
        return tuple(sorted(set(labels)))

    @classmethod
    def all_words(cls, examples: Sequence[Self]) -> list[str]:
        """Return the words of the examples; a text that occurs repeatedly is read once."""
        from seqloom.text.word_spans import split_words  # here, so that corpora can be listed without the tokenizers

        return [word for text in unique_texts(examples) for word in split_words(text)]

    @classmethod
    def sizes(cls, corpus: "Corpus[Self]", split: str) -> dict[str, int]:
        """Return examples, and words (between white space) and characters of the texts, each text counted once."""
        texts = corpus.texts(split)
        return {
            "examples": len(corpus.split(split)),
            "words": sum(len(text.split()) for text in texts),
            "characters": sum(map(len, texts)),
        }

    @classmethod
    def check(cls, corpus: "Corpus[Self]") -> "Corpus[Self]":
        """Return the corpus with notes on what cannot be learned; raise DataError if it cannot be used."""
        return corpus


ExampleT_co = TypeVar("ExampleT_co", covariant=True)


@dataclass(frozen=True)
class Corpus(Generic[ExampleT_co]):
    """Examples in splits that do not overlap, and their origin. What differs between forms is in `Example`."""

    name: str
    version: str  # of the source: two versions are never the same data
    licence: str
    description: str
    splits: Mapping[str, Sequence[ExampleT_co]]
    absent: Mapping[str, str] = field(default_factory=dict)  # why a split is missing
    notes: tuple[str, ...] = ()  # what a user should know about how it was read, such as skipped examples
    languages: tuple[str, str] = ("", "")  # tags of source and target, such as en and pt-BR; empty where unknown

    @property
    def example_type(self) -> Any:
        """The class of the examples: a subclass of `Example`, whose class methods take a corpus of its instances."""
        return next((type(example) for examples in self.splits.values() for example in examples), Example)

    def split(self, name: str) -> Sequence[ExampleT_co]:
        """Return the examples of a split; raise DataError with the reason if there are none."""
        if name in self.splits:
            return self.splits[name]
        if name in self.absent:
            raise DataError(f"The corpus {self.name} has no {name} split: {self.absent[name]}")
        raise DataError(f"The corpus {self.name} has no split '{name}'; it has {', '.join(self.splits)}.")

    def texts(self, split: str) -> list[str]:
        """Return the texts of a split, each once."""
        return unique_texts(self.split(split))

    def sizes(self, split: str) -> dict[str, int]:
        """Return the sizes of a split by name: examples, words and whatever else its form counts."""
        sizes: dict[str, int] = self.example_type.sizes(self, split)
        return sizes

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels or tags that a model can predict: those of train, sorted."""
        labels: tuple[str, ...] = self.example_type.sort_labels(_labels(self.split("train")))
        return labels

    def label_counts(self, split: str) -> dict[str, int]:
        """Return the frequency of each label, the most frequent first."""
        return by_count(_labels(self.split(split)))

    def unseen_labels(self, split: str) -> dict[str, int]:
        """Return the frequency of each label that train never has: no model can predict it, so it counts as wrong."""
        known = set(self.labels)
        return by_count(label for label in _labels(self.split(split)) if label not in known)

    def new_words(self, split: str) -> float:
        """Return the share of a split's words, repeated ones included, that never occur in train."""
        known = set(self.example_type.all_words(self.split("train")))
        words = self.example_type.all_words(self.split(split))
        return sum(word not in known for word in words) / max(1, len(words))

    def fingerprint(self) -> dict[str, str]:
        """Return the sha256 of each split: the content of its examples and the borders between them."""
        return {name: digest_examples(_as_examples(examples)) for name, examples in self.splits.items()}

    def checked(self) -> Self:
        """Return the corpus with notes on what cannot be learned; raise DataError if it cannot be used."""
        corpus: Self = self.example_type.check(self)
        return corpus


@dataclass(frozen=True)
class TextCorpus(Corpus[str]):
    """A corpus whose examples are plain strings, one for each document."""

    asked: Callable[[str], Sequence[Asked]] | None = None  # what to ask of a document, where that is worth measuring

    def texts(self, split: str) -> list[str]:
        """Return the documents of a split; one that occurs twice counts twice."""
        return list(self.split(split))

    def counts(self, split: str) -> Counts:
        return Counts.of(self.split(split))

    def statistics(self) -> dict[str, Counts]:
        """The counts of every split that is there."""
        return {name: self.counts(name) for name in self.splits}

    def sizes(self, split: str) -> dict[str, int]:
        return asdict(self.counts(split))

    def fingerprint(self) -> dict[str, str]:
        """Return the sha256 of each split: documents and the borders between them."""
        return {name: digest(documents) for name, documents in self.splits.items()}

    def checked(self) -> Self:
        return self


def unique_texts(examples: Iterable[object]) -> list[str]:
    """Return the texts of the examples, each once, in their order."""
    return list(dict.fromkeys(text for example in _as_examples(examples) for text in example.texts()))


def by_count(items: Iterable[str]) -> dict[str, int]:
    """Return the frequency of each item, the most frequent first; ties are in alphabetical order."""
    counts = Counter(items)
    return {item: counts[item] for item in sorted(counts, key=lambda item: (-counts[item], item))}


def _labels(examples: Iterable[object]) -> Iterator[str]:
    return (label for example in _as_examples(examples) for label in example.labels())


def _as_examples(items: Iterable[object]) -> Iterator[Example]:
    """Yield the items of a split, which are examples in every corpus but a TextCorpus."""
    for item in items:
        assert isinstance(item, Example), f"a {type(item).__name__} is no example"
        yield item


# --- fingerprints and versions ----------------------------------------------------------------------------------------


def digest_all(contents: Iterable[bytes]) -> str:
    """Return the sha256 of contents one after the other."""
    result = hashlib.sha256()
    for content in contents:
        result.update(content)
    return result.hexdigest()


def digest_examples(examples: Iterable[Example]) -> str:
    """Return the sha256 of the content of examples."""
    return digest_all(example.content() for example in examples)


def digest(documents: Iterable[str]) -> str:
    """Return the sha256 of documents and the borders between them."""
    return digest_all(map(frame, documents))


def version_of(splits: Mapping[str, Sequence[Example]]) -> str:
    """Return a version for examples whose source has none: the beginning of the sha256 of their content."""
    return _combine(digest_all(example.version_content() for example in examples) for examples in splits.values())


def content_version(*parts: Iterable[str]) -> str:
    """Return a version for documents whose source has none: the beginning of their sha256."""
    return _combine(map(digest, parts))


def frame(text: str) -> bytes:
    """Return the bytes of a text after their number, so that texts in a row can be separated."""
    content = text.encode()
    return b"%d\n" % len(content) + content


def _combine(digests: Iterable[str]) -> str:
    return "sha256-" + hashlib.sha256("/".join(digests).encode()).hexdigest()[:12]
