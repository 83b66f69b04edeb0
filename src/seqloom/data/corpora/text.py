"""One's own text: a file, a .gz file, or a folder of them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import TextCorpus, content_version
from seqloom.data.readers import lines, located, placed, read_files

SUMMARY = "one's own UTF-8 text: a file, a .gz file, or a folder of .txt files"
FORM = "text"


@config
class Config:
    corpus: Literal["text"] = "text"
    train: str  # a file, a .gz file, or a folder of .txt and .txt.gz files
    dev: str | None = None  # the same; without it, dev_fraction is cut from the end of train
    test: str | None = None  # likewise
    dev_fraction: float = 0.05  # of the characters; 0 for no such split
    test_fraction: float = 0.05
    documents: Literal["file", "line", "paragraph"] = "file"  # what a document is; blank lines are never one

    def __post_init__(self) -> None:
        if min(self.dev_fraction, self.test_fraction) < 0 or self.dev_fraction + self.test_fraction >= 1:
            raise ValueError("dev_fraction and test_fraction must be at least 0 and together less than 1")

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        dev, test = (name and located(name, recipe_folder) for name in (self.dev, self.test))
        return replace(self, train=located(self.train, recipe_folder), dev=dev, test=test)


def load(config: Config) -> TextCorpus:
    """The splits as given; the others are cut from the end of the training text, at line borders, dev before test."""
    given = {name: path for name in ("train", "dev", "test") if (path := getattr(config, name)) is not None}
    files = {name: read_files(placed(Path(path))) for name, path in given.items()}
    _check_files(given, {name: {file.resolve() for file, _ in found} for name, found in files.items()})
    splits = {name: _documents([text for _, text in found], config.documents) for name, found in files.items()}
    _check_same(given, splits)
    splits = _complete(config, splits)
    return TextCorpus(
        name="text",
        version=content_version(*splits.values()),
        licence="the user's own",
        description=f"{config.train}; a {config.documents} is a document",
        splits={name: splits[name] for name in ("train", "dev", "test") if name in splits},
        absent={
            name: f"data.{name}_fraction is 0 and data.{name} names no file."
            for name in ("dev", "test")
            if name not in splits
        },
    )


def read_documents(path: Path, kind: str) -> list[str]:
    """The documents of one file, .gz file or folder, uncut."""
    return _documents([text for _, text in read_files(placed(path))], kind)


def _documents(texts: Sequence[str], kind: str) -> list[str]:
    if kind == "file":
        return [text.strip("\n") for text in texts]
    if kind == "line":
        return [line for text in texts for line in lines(text) if line.strip()]
    paragraphs = (paragraph.strip("\n") for text in texts for paragraph in re.split(r"\n(?:[^\S\n]*\n)+", text))
    return [paragraph for paragraph in paragraphs if paragraph.strip()]


def _complete(config: Config, splits: dict[str, list[str]]) -> dict[str, list[str]]:
    """Cut what is missing from the end of the training text."""
    fractions = {"test": config.test_fraction, "dev": config.dev_fraction}
    missing = [name for name in fractions if name not in splits and fractions[name] > 0]
    rest, made = splits["train"], dict(splits)
    whole = sum(map(len, rest))
    for name in missing:
        rest, made[name] = _cut(rest, round(whole * fractions[name]), config.documents == "file")
    made["train"] = rest
    if missing and not all(any(map(str.strip, made[name])) for name in ("train", *missing)):
        raise _too_short(config, splits["train"], sorted(missing))
    return made


def _too_short(config: Config, documents: Sequence[str], missing: list[str]) -> DataError:
    unit = "line" if config.documents == "file" else config.documents
    count = sum(len(lines(text)) for text in documents) if unit == "line" else len(documents)
    return DataError(
        f"{config.train} is too short: {' and '.join(missing)} are cut from its end, a {unit} at least, but it ends "
        f"after {unit} {count}.\n"
        f"Give more text, or files of their own: {', '.join(f'data.{name}' for name in missing)}."
    )


def _cut(documents: Sequence[str], size: int, inside: bool) -> tuple[list[str], list[str]]:
    """About the last `size` characters apart from the rest: the border is the nearest one that leaves something.

    Borders lie between documents and, `inside` them, after each line.
    """
    if not documents:
        return [], []
    index = len(documents) - 1
    while index > 0 and len(documents[index]) < size:
        size -= len(documents[index])
        index -= 1
    document, later = documents[index], list(documents[index + 1 :])
    place = max(len(document) - size, 0)
    before = document.rfind("\n", 0, place) + 1 if inside else 0
    after = (document.find("\n", place) + 1 if inside else 0) or len(document)
    something = bool(later) or after < len(document)
    border = after if something and after - place <= place - before else before
    head, tail = document[:border], document[border:]
    return [*documents[:index], *filter(None, [head])], [*filter(None, [tail]), *later]


def _check_files(given: dict[str, str], files: dict[str, set[Path]]) -> None:
    for one, other in combinations(given, 2):
        if shared := sorted(files[one] & files[other]):
            raise DataError(f"data.{one} and data.{other} must not overlap, but both read {shared[0]}.")


def _check_same(given: dict[str, str], splits: dict[str, list[str]]) -> None:
    for one, other in combinations(given, 2):
        if splits[one] == splits[other]:
            raise DataError(
                f"data.{one} and data.{other} must differ, but {given[one]} and {given[other]} hold the same text."
            )
