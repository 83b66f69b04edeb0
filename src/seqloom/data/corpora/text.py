"""Your own text: a file, optionally compressed with .gz or .zst, or a folder of such files."""

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import Fraction
from seqloom.core.errors import DataError
from seqloom.core.words import format_count
from seqloom.data.corpus import SPLITS, FileConfig, TextCorpus, version_of
from seqloom.data.files import expand_home, read_files, split_lines
from seqloom.data.splits import absent_splits, first_count, missing_fractions

SUMMARY = "your own text: a file, optionally compressed, or a folder of .txt files"
FORM = "text"


@config
class Config(FileConfig):
    corpus: Literal["text"] = "text"
    train: str  # a text file, or a folder of .txt files; files may be compressed with .gz or .zst
    dev_fraction: Fraction = 0.05  # fraction of the characters, taken from the end of train; 0 for no dev split
    test_fraction: Fraction = 0.05  # fraction of the characters, taken from the end of train; 0 for no test split
    documents: Literal["file", "line", "paragraph"] = "file"  # what counts as a document; blank lines are skipped
    # dev and test are the training text, unless they have files; for a text that is too short to be divided
    reuse_train: bool = False


class TooShortTextError(DataError):
    """A text from which dev and test cannot be cut."""


def load(config: Config) -> TextCorpus:
    """Load the given splits; missing splits are cut from the end of train at line ends, dev before test."""
    paths = {split: file for split, (file,) in config.files().items()}
    files = {split: read_files(expand_home(Path(file))) for split, file in paths.items()}
    splits = {split: _documents([text for _, text in pairs], config.documents) for split, pairs in files.items()}
    for split in paths:
        splits[split] = _cut_after(splits[split], first_count(split, paths, lambda c: c["characters"] - c["documents"]))
    for a, b in combinations(paths, 2):
        if shared := sorted({file.resolve() for file, _ in files[a]} & {file.resolve() for file, _ in files[b]}):
            raise DataError(f"data.{a} and data.{b} must not overlap, but both read {shared[0]}.")
        if splits[a] == splits[b]:
            raise DataError(f"data.{a} and data.{b} must differ, but {paths[a]} and {paths[b]} contain the same text.")
    fractions, train = missing_fractions(config, splits), splits["train"]
    notes: list[str] = []
    if config.reuse_train and fractions:
        repeat, their = ("repeat", "their") if len(fractions) > 1 else ("repeats", "its")
        notes.append(f"{' and '.join(fractions)} {repeat} the training text, so {their} metrics measure memorization")
        splits |= dict.fromkeys(fractions, train)
        fractions = {}
    for split in sorted(fractions, reverse=True):  # test is cut first, because it is the end of train
        size = round(sum(map(len, train)) * fractions[split])
        splits["train"], splits[split] = _cut_end(splits["train"], size, config.documents == "file")
    if fractions and not all(any(map(str.strip, splits[split])) for split in ("train", *fractions)):
        unit = "line" if config.documents == "file" else config.documents
        count = sum(len(split_lines(text)) for text in train) if unit == "line" else len(train)
        need = f"needs at least one {unit}" if len(fractions) == 1 else f"need at least one {unit} each"
        raise TooShortTextError(
            f"{config.train} is too short: {' and '.join(fractions)} {need} from its end, but it has only "
            f"{format_count(count, unit)}.\n"
            f"Provide more text, or separate files: {', '.join(f'data.{split}' for split in fractions)}. "
            "data.reuse_train=true evaluates on the training text."
        )
    return TextCorpus(
        name="text",
        version=version_of(splits),
        licence="the user's own",
        description=f"{config.train}; a {config.documents} is a document",
        splits={split: splits[split] for split in SPLITS if split in splits},
        absent=absent_splits(splits),
        notes=tuple(notes),
    )


def read_documents(path: Path, kind: str) -> list[str]:
    """Read the documents of a file or a folder."""
    return _documents([text for _, text in read_files(expand_home(path))], kind)


def _documents(texts: Sequence[str], kind: str) -> list[str]:
    if kind == "file":
        return [text.strip("\n") for text in texts]
    if kind == "line":
        return [line for text in texts for line in split_lines(text) if line.strip()]
    paragraphs = (paragraph.strip("\n") for text in texts for paragraph in re.split(r"\n(?:[^\S\n]*\n)+", text))
    return [paragraph for paragraph in paragraphs if paragraph.strip()]


def _cut_after(documents: Sequence[str], size: int | None) -> list[str]:
    """Return the first `size` characters, or all characters if `size` is None."""
    kept: list[str] = []
    for document in documents:
        if size is not None and size <= 0:
            break
        kept.append(document[:size])
        size = None if size is None else size - len(document)
    return kept


def _cut_end(documents: Sequence[str], size: int, inside: bool) -> tuple[list[str], list[str]]:
    """Separate about the last `size` characters, at the nearest boundary that leaves no part empty.

    Boundaries are the ends of documents and, if `inside`, the ends of lines.
    """
    if not documents:
        return [], []
    index = len(documents) - 1
    while index > 0 and len(documents[index]) < size:
        size -= len(documents[index])
        index -= 1
    document, later = documents[index], list(documents[index + 1 :])
    position = max(len(document) - size, 0)
    before = document.rfind("\n", 0, position) + 1 if inside else 0
    after = (document.find("\n", position) + 1 if inside else 0) or len(document)
    leaves_text = bool(later) or after < len(document)
    border = after if leaves_text and after - position <= position - before else before
    head, tail = document[:border], document[border:]
    return [*documents[:index], *filter(None, [head])], [*filter(None, [tail]), *later]
