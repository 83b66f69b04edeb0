"""A corpus: examples in splits that do not overlap, their origin, and the options that corpora share."""

import codecs
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.core.errors import ChangedDataError, DataError
from seqloom.data.files import locate_file

SPLITS = ("train", "dev", "test")
T = TypeVar("T")
ExampleT_co = TypeVar("ExampleT_co", covariant=True)


class Fingerprinted(Protocol):
    """Data with a name, a version and a fingerprint: a corpus, or generated vectors."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def fingerprint(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class TextCounts:
    """The denominators of metrics per word, character and byte, with the end of each document counted as one unit.

    With these counts, the test split of PTB has 82,430 words, as published, and every prediction of a
    language model is counted.
    """

    documents: int
    words: int  # Σ (words separated by white space + 1)
    characters: int  # Σ (characters + 1)
    bytes: int  # Σ (bytes of UTF-8 + 1)

    @classmethod
    def of(cls, documents: Sequence[str]) -> "TextCounts":
        from seqloom.text.base import cut_at_spaces  # imported here, so listing corpora imports no tokenizers

        ends = len(documents)
        return cls(
            documents=ends,
            words=ends + sum(len(piece.split()) for document in documents for piece in cut_at_spaces(document)),
            characters=ends + sum(map(len, documents)),
            bytes=ends + sum(len(document.encode()) for document in documents),
        )


@dataclass(frozen=True)
class ProbedSpan:
    """A span of characters that a model may predict from the preceding text, and the span's group in the metrics."""

    start: int
    end: int
    group: str


class Example:
    """Base class of examples; its methods define how the forms of corpora differ.

    Subclasses set `form`, name the fields of texts and label, and override other methods if needed.
    """

    form: ClassVar[str]  # equal to FORM in the modules of the corpora
    unit: ClassVar = "examples"  # the key of the number of examples in `sizes`
    text_fields: ClassVar[tuple[str, ...]] = ()  # the fields that a model reads
    label_field: ClassVar[str] = ""  # the field that a model predicts
    counts_repeats: ClassVar = False  # whether each occurrence of a repeated text is counted

    def texts(self) -> Sequence[str]:
        """Return the texts that a model reads."""
        return [getattr(self, name) for name in self.text_fields]

    def labels(self) -> Sequence[str]:
        """Return the labels or tags that a model predicts."""
        return [getattr(self, self.label_field)] if self.label_field else []

    def parts(self) -> Sequence[str]:
        """Return strings that identify this example."""
        return [*self.texts(), *self.labels()]

    def content(self) -> bytes:
        """Return the bytes from which the fingerprint of a split is computed."""
        return b"".join(map(frame, self.parts()))

    def version_content(self) -> bytes:
        """Return the bytes from which the version of a corpus is computed if its source has no version."""
        return self.content()

    @staticmethod
    def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
        """Return the distinct labels in the order of a model's outputs: alphabetical, or numerical if possible."""
        unique = set(labels)
        if all(re.fullmatch(r"[-+]?\d+(\.\d+)?", label) for label in unique):
            return tuple(sorted(unique, key=lambda label: (float(label), label)))
        return tuple(sorted(unique))

    @classmethod
    def all_texts(cls, examples: Iterable["Example"]) -> list[str]:
        """Return the texts of the examples in order, without repetitions unless `counts_repeats`."""
        texts = (text for example in examples for text in example.texts())
        return list(texts) if cls.counts_repeats else list(dict.fromkeys(texts))

    @classmethod
    def all_words(cls, examples: Sequence[Self]) -> list[str]:
        """Return the words of the examples."""
        from seqloom.text.word_spans import split_words  # imported here, so listing corpora imports no tokenizers

        return [word for text in cls.all_texts(examples) for word in split_words(text)]

    @classmethod
    def sizes(cls, corpus: "Corpus[Self]", split: str) -> dict[str, int]:
        """Return the numbers of examples, labels (if any), words separated by white space, and characters."""
        texts = cls.all_texts(corpus.split(split))
        labels = {"labels": len(corpus.label_counts(split))} if cls.label_field else {}
        words, characters = sum(len(text.split()) for text in texts), sum(map(len, texts))
        return {cls.unit: len(corpus.split(split)), **labels, "words": words, "characters": characters}

    @classmethod
    def check(cls, corpus: "Corpus[Self]") -> "Corpus[Self]":
        """Return the corpus with notes on labels that cannot be learned; raise DataError if the corpus is unusable."""
        return corpus


@dataclass(frozen=True)
class Corpus(Generic[ExampleT_co]):
    """Examples in splits that do not overlap, and their origin."""

    name: str
    description: str
    splits: Mapping[str, Sequence[ExampleT_co]]
    licence: str = "none needed: generated by seqloom"
    version: str = ""  # the version of the source; if empty, a hash of the content
    absent: Mapping[str, str] = field(default_factory=dict)  # reasons for missing splits
    notes: tuple[str, ...] = ()  # messages for the user, for instance on skipped examples
    languages: tuple[str, str] = ("", "")  # tags of source and target, such as en and pt-BR; empty if unknown
    changed: Mapping[str, str] = field(default_factory=dict)  # errors for splits that differ from those of a run
    changes: tuple[str, ...] = ()  # notes on differences from the data of a run

    def __post_init__(self) -> None:
        if not self.version:
            object.__setattr__(self, "version", version_of(self.splits))

    @property
    def example_type(self) -> Any:
        """The class of the examples, a subclass of `Example`."""
        return next((type(example) for examples in self.splits.values() for example in examples), Example)

    def split(self, name: str) -> Sequence[ExampleT_co]:
        """Return the examples of a split; if there are none, raise DataError with the reason."""
        if name in self.splits:
            return self.splits[name]
        if name in self.changed:
            raise ChangedDataError(self.changed[name])
        if name in self.absent:
            raise DataError(f"The corpus {self.name} has no {name} split: {self.absent[name]}")
        raise DataError(f"The corpus {self.name} has no split '{name}'. Its splits are {', '.join(self.splits)}.")

    def texts(self, split: str) -> list[str]:
        """Return the distinct texts of a split."""
        return list(dict.fromkeys(text for example in _as_examples(self.split(split)) for text in example.texts()))

    def sizes(self, split: str) -> dict[str, int]:
        """Return the sizes of a split by name, such as examples and words."""
        sizes: dict[str, int] = self.example_type.sizes(self, split)
        return sizes

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The sorted labels or tags of train, which a model can predict."""
        labels: tuple[str, ...] = self.example_type.sort_labels(self._labels("train"))
        return labels

    def label_counts(self, split: str) -> dict[str, int]:
        """Return the frequency of each label, most frequent first."""
        return by_count(self._labels(split))

    def unseen_labels(self, split: str) -> dict[str, int]:
        """Return the frequency of each label that does not occur in train; a model cannot predict these labels."""
        known = set(self.labels)
        return by_count(label for label in self._labels(split) if label not in known)

    def _labels(self, split: str) -> Iterator[str]:
        return (label for example in _as_examples(self.split(split)) for label in example.labels())

    def new_words(self, split: str) -> float:
        """Return the fraction of a split's words, including repetitions, that do not occur in train."""
        known = set(self.example_type.all_words(self.split("train")))
        words = self.example_type.all_words(self.split(split))
        return sum(word not in known for word in words) / max(1, len(words))

    def fingerprint(self) -> dict[str, str]:
        """Return the sha256 of each split: the content of its examples and the boundaries between them."""
        return {name: digest(examples) for name, examples in self.splits.items()}

    def checked(self) -> Self:
        """Return the corpus with notes on labels that cannot be learned; raise DataError if the corpus is unusable."""
        corpus: Self = self.example_type.check(self)
        return corpus


@dataclass(frozen=True)
class TextCorpus(Corpus[str]):
    """A corpus whose examples are plain strings, one for each document."""

    probe: Callable[[str], Sequence[ProbedSpan]] | None = None  # returns the spans of a document to measure separately

    def texts(self, split: str) -> list[str]:
        """Return the documents of a split, including repetitions."""
        return list(self.split(split))

    def counts(self, split: str) -> TextCounts:
        return TextCounts.of(self.split(split))

    def sizes(self, split: str) -> dict[str, int]:
        return asdict(self.counts(split))

    def checked(self) -> Self:
        return self


def by_count(items: Iterable[str]) -> dict[str, int]:
    """Return the frequency of each item, most frequent first; ties are sorted alphabetically."""
    counts = Counter(items)
    return {item: counts[item] for item in sorted(counts, key=lambda item: (-counts[item], item))}


def _as_examples(items: Iterable[object]) -> Iterator[Example]:
    """Check that the items of a split are examples, as in every corpus except TextCorpus."""
    for item in items:
        assert isinstance(item, Example), f"a {type(item).__name__} is not an example"
        yield item


# --- fingerprints and versions ----------------------------------------------------------------------------------------


def frame(text: str) -> bytes:
    """Return the length and the bytes of a text, so that concatenated texts remain distinguishable."""
    content = text.encode()
    return b"%d\n" % len(content) + content


def digest(items: Iterable[object], content: Callable[[Example], bytes] = lambda example: example.content()) -> str:
    """Return the sha256 of documents or of the content of examples, including the boundaries between them."""
    result = hashlib.sha256()
    for item in items:
        result.update(frame(item) if isinstance(item, str) else content(*_as_examples([item])))
    return result.hexdigest()


def version_of(splits: Mapping[str, Sequence[object]]) -> str:
    """Return a version for data without a version: the first digits of the sha256 of its content."""
    digests = (digest(items, lambda example: example.version_content()) for items in splits.values())
    return "sha256-" + hashlib.sha256("/".join(digests).encode()).hexdigest()[:12]


# --- shared options ---------------------------------------------------------------------------------------------------

Fill = Literal["mask", "previous", "season"]  # replacements of missing values
Gaps = Literal["insert", "ignore"]  # insert a missing row as a step of missing values, or ignore it


@config
class HoldoutConfig:
    """The fractions of the data held out for dev and test."""

    corpus: str
    dev_fraction: Fraction = 0.1  # fraction of the examples held out from train; 0 for no dev split
    test_fraction: Fraction = 0.1  # fraction of the examples held out from train; 0 for no test split

    def problems(self) -> Iterator[str]:
        if self.dev_fraction + self.test_fraction >= 1:
            yield "the sum of dev_fraction and test_fraction must be less than 1"


@config
class FilesConfig(HoldoutConfig):
    """Base class of configs with files of the user, one or two for each key in `file_keys`."""

    file_keys: ClassVar[tuple[str, ...]] = SPLITS
    folder_keys: ClassVar[tuple[str, ...]] = ()  # keys of folders that contain files which the other files name
    encoding: str = "utf-8"  # encoding of the files, such as cp1252 (Windows) or shift_jis

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            yield f"encoding must be the name of a text encoding, such as utf-8 or cp1252; got {self.encoding!r}"

    def files(self) -> dict[str, tuple[str, ...]]:
        """Return the files by key; keys without files are omitted."""
        return self._paths(self.file_keys)

    def _paths(self, keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
        paths = {key: getattr(self, key) for key in keys}
        return {key: (path,) if isinstance(path, str) else path for key, path in paths.items() if path is not None}

    def locate(self, recipe_folder: Path) -> Self:
        """Return this config with absolute paths; files are looked up in the current folder, then in the recipe's."""
        located: dict[str, Any] = {}
        for key, files in self._paths((*self.file_keys, *self.folder_keys)).items():
            paths = tuple(locate_file(file, recipe_folder) for file in files)
            located[key] = paths[0] if isinstance(getattr(self, key), str) else paths
        return replace(self, **located)

    def relocate(self, path: Path) -> Self:
        """Return this config with its files moved to `path`: the only file, or a folder that contains all files."""
        paths = self._paths((*self.file_keys, *self.folder_keys))
        old = {key: [Path(file) for file in files] for key, files in paths.items()}
        places = [file for files in old.values() for file in files]
        root = Path(os.path.commonpath([file.parent for file in places]))
        moved: dict[str, Any] = {}
        for key, files in old.items():
            new = [path / file.relative_to(root) for file in files]
            if len(places) == 1 and not new[0].exists():
                new = [path]
            if lost := [file for file in new if not file.exists()]:
                raise DataError(
                    f"{lost[0]} does not exist. --data must name the data file, or the folder that contains "
                    f"{' and '.join(str(file.relative_to(root)) for file in places)}."
                )
            moved[key] = str(new[0]) if isinstance(getattr(self, key), str) else tuple(map(str, new))
        return replace(self, **moved)


@config
class FileConfig(FilesConfig):
    """A file for train; dev and test are files or fractions held out from train."""

    train: str
    dev: str | None = None  # a file as for train; null: dev_fraction is held out from train
    test: str | None = None  # a file as for train; null: test_fraction is held out from train


@config
class GeneratedConfig:
    """The number of generated examples of each split."""

    corpus: str
    train: PositiveInt
    dev: PositiveInt
    test: PositiveInt
    seed: int = 0  # seed of the generated examples; independent of the training seed

    def counts(self) -> dict[str, int]:
        return {"train": self.train, "dev": self.dev, "test": self.test}

    def draw(self, take: Callable[[str, int], list[T]]) -> dict[str, list[T]]:
        """Draw the examples of each split with `take(split, count)`."""
        return {split: take(split, count) for split, count in self.counts().items()}


@config
class SeriesConfig(HoldoutConfig):
    """Options for reading a series; test is the end of the series, and dev is the part before test."""

    # period of the series in steps; null: the known period of the series, or of its time step
    season: PositiveInt | None = None
    gaps: Gaps | None = None  # insert missing rows as missing values, or ignore them; null: depends on their number
    fill: Fill = "mask"  # missing values: mask excludes them; previous and season replace them by earlier values
    dev_fraction: Fraction = 0.15  # fraction of the steps; 0 for no dev split
    test_fraction: Fraction = 0.15  # fraction of the steps; 0 for no test split
