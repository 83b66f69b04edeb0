"""Sentence pairs from your own files: two files aligned by line, a table, or a translation memory."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import Fraction
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, FilesConfig
from seqloom.data.examples import ParallelExample
from seqloom.data.files import expand_home, read_parallel
from seqloom.data.splits import Read, check_files, complete_examples, load_files
from seqloom.data.tables import TRANSLATIONS, column_names, format_of, read_columns, read_table

SUMMARY = "your own sentence pairs: two files aligned by line, a table, or a TMX, XLIFF or PO file"
FORM = "parallel"
Files = str | tuple[str, str]
_NOT_LANGUAGES = {"txt", "tsv", "tab", "gz", "csv", "raw", "tok", "bpe", "src", "tgt", "trg"}


@config
class Config(FilesConfig):
    corpus: Literal["parallel"] = "parallel"
    train: Files  # two files, [source, target], or one table or translation memory; optionally compressed (.gz or .zst)
    dev: Files | None = None  # files as for train; null: dev_fraction is held out from train
    test: Files | None = None  # files as for train; null: test_fraction is held out from train
    dev_fraction: Fraction = 0.05  # fraction of the pairs; 0 for no dev split
    test_fraction: Fraction = 0.05  # fraction of the pairs; 0 for no test split
    columns: tuple[int, int] | tuple[str, str] = (1, 2)  # columns of a table: numbers counted from 1, or names
    source: str = ""  # language tag of the source, such as en or pt-BR; empty: the file extension, if it is a tag
    target: str = ""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if any(isinstance(column, int) and column < 1 for column in self.columns):
            yield f"column numbers start at 1; got {list(self.columns)}"
        if self.columns[0] == self.columns[1]:
            yield f"columns must be different; got {self.columns[0]} twice"
        for split, files in self.files().items():
            if len(files) == 2 and files[0] == files[1]:
                yield f"{split} must be two different files; got {files[0]} twice"


def load(config: Config) -> Corpus[ParallelExample]:
    """Load the pairs; all pairs with the same source sentence are in the same split."""
    check_files(config)
    source, target = languages(config)
    return load_files(
        config,
        lambda split, *files: read_pairs(files, choose_columns(config, files)),
        description=f"{' and '.join(config.files()['train'])}, {source or 'source'} to {target or 'target'}",
        groups=lambda pairs, _: [pair.source for pair in pairs],
        repeats=("source sentences", lambda pair: pair.source),
        languages=(source, target),
    )


def choose_columns(config: Config, files: Sequence[str]) -> tuple[int, int] | tuple[str, str]:
    """Return the columns to read; in a translation memory, the columns of the config's or the file's languages."""
    path = expand_home(Path(files[0]))
    if len(files) == 2 or config.columns != (1, 2) or format_of(path) not in TRANSLATIONS:
        return config.columns
    names = column_names(path)
    if config.source and config.target:
        return config.source, config.target
    if len(names) != 2:
        raise DataError(
            f"{path} must have two languages; got {', '.join(names)}. Choose two of them: --column SOURCE "
            "--label TARGET, or data.columns=[SOURCE, TARGET] in a recipe."
        )
    return names[0], names[1]


def read_pairs(files: Sequence[str], columns: Sequence[int] | Sequence[str]) -> Read[ParallelExample]:
    """Return the pairs with text on both sides, and a note on the skipped pairs."""
    paths = [expand_home(Path(file)) for file in files]
    rows: Iterable[tuple[int, Sequence[str]]]
    if len(paths) == 2:
        rows = enumerate(zip(*read_parallel(*paths), strict=True), start=1)
    elif (format_of(paths[0]) or "tsv") == "tsv":  # rows of TSV files may have additional columns
        first, cells = read_columns(paths[0], columns)
        rows = enumerate(cells, start=first)
    else:
        table = read_table(paths[0], {"source": columns[0], "target": columns[1]})
        rows = ((number, (row["source"], row["target"])) for number, row in table)
    pairs = ((number, ParallelExample(source.strip(), target.strip())) for number, (source, target) in rows)
    return complete_examples(
        " and ".join(files),
        pairs,
        {"a blank side": lambda pair: not (pair.source and pair.target)},
        required="sentence pairs",
        blank="every line has a blank side",
    )


def languages(config: Config) -> tuple[str, str]:
    """Return the configured language tags, or the tags in the file extensions (a.en, a.de.gz) or column names."""
    files = config.files().items()
    guesses = {split: _guess_languages(names, choose_columns(config, names)) for split, names in files}
    train = guesses["train"]
    for split, guess in guesses.items():
        if all(guess) and guess == train[::-1]:
            raise DataError(
                f"By the file names, data.train goes from {train[0]} to {train[1]}, but data.{split} goes from "
                f"{guess[0]} to {guess[1]}. Swap the files: {' and '.join(config.files()[split])}."
            )
    return config.source or train[0], config.target or train[1]


def _guess_languages(files: Sequence[str], columns: Sequence[int] | Sequence[str]) -> tuple[str, str]:
    """Return the languages in the names of columns or files: en for corpus.en, corpus.en.gz or corpus.en.txt."""
    names = [str(column) for column in columns]
    if len(files) == 2:
        suffixes = [[suffix.lstrip(".") for suffix in Path(file).suffixes] for file in files]
        names = [next((end for end in reversed(ends) if end not in _NOT_LANGUAGES), "") for ends in suffixes]
    source, target = (name if is_language(name) else "" for name in names)
    return (source, target) if source and target and source != target else ("", "")


def is_language(text: str) -> bool:
    """Return whether a text looks like a language tag: en, pt-BR, zh_Hant."""
    return re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*", text) is not None
