"""One's own text: a file, a .gz file, or a folder of them."""

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import Fraction
from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, FileConfig, TextCorpus, version_of
from seqloom.data.files import expand_home, lines, read_files
from seqloom.data.splits import absent_splits, missing_shares

SUMMARY = "one's own UTF-8 text: a file, a .gz file, or a folder of .txt files"
FORM = "text"


@config
class Config(FileConfig):
    corpus: Literal["text"] = "text"
    train: str  # a file, a .gz file, or a folder of .txt and .txt.gz files
    dev_fraction: Fraction = 0.05  # of the characters, cut from the end of train; 0 for no such split
    test_fraction: Fraction = 0.05
    documents: Literal["file", "line", "paragraph"] = "file"  # what a document is; blank lines are never one


def load(config: Config) -> TextCorpus:
    """The splits as given; the others are cut from the end of the training text, at line borders, dev before test."""
    given = {split: file for split, (file,) in config.files().items()}
    files = {split: read_files(expand_home(Path(file))) for split, file in given.items()}
    splits = {split: _documents([text for _, text in found], config.documents) for split, found in files.items()}
    for one, other in combinations(given, 2):
        if shared := sorted({file.resolve() for file, _ in files[one]} & {file.resolve() for file, _ in files[other]}):
            raise DataError(f"data.{one} and data.{other} must not overlap, but both read {shared[0]}.")
        if splits[one] == splits[other]:
            raise DataError(
                f"data.{one} and data.{other} must differ, but {given[one]} and {given[other]} hold the same text."
            )
    shares, whole = missing_shares(config, splits), splits["train"]
    for split in sorted(shares, reverse=True):  # test comes last
        size = round(sum(map(len, whole)) * shares[split])
        splits["train"], splits[split] = _cut(splits["train"], size, config.documents == "file")
    if shares and not all(any(map(str.strip, splits[split])) for split in ("train", *shares)):
        unit = "line" if config.documents == "file" else config.documents
        count = sum(len(lines(text)) for text in whole) if unit == "line" else len(whole)
        raise DataError(
            f"{config.train} is too short: {' and '.join(shares)} are cut from its end, a {unit} at least, but it ends "
            f"after {unit} {count}.\n"
            f"Give more text, or files of their own: {', '.join(f'data.{split}' for split in shares)}."
        )
    return TextCorpus(
        name="text",
        version=version_of(splits),
        licence="the user's own",
        description=f"{config.train}; a {config.documents} is a document",
        splits={split: splits[split] for split in SPLITS if split in splits},
        absent=absent_splits(splits),
    )


def read_documents(path: Path, kind: str) -> list[str]:
    """The documents of one file, .gz file or folder, uncut."""
    return _documents([text for _, text in read_files(expand_home(path))], kind)


def _documents(texts: Sequence[str], kind: str) -> list[str]:
    if kind == "file":
        return [text.strip("\n") for text in texts]
    if kind == "line":
        return [line for text in texts for line in lines(text) if line.strip()]
    paragraphs = (paragraph.strip("\n") for text in texts for paragraph in re.split(r"\n(?:[^\S\n]*\n)+", text))
    return [paragraph for paragraph in paragraphs if paragraph.strip()]


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
