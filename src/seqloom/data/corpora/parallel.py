"""The user's own sentence pairs: two files, line by line, or a table with a tab between the columns."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import Fraction
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, FilesConfig
from seqloom.data.examples import ParallelExample
from seqloom.data.files import expand_home, read_parallel
from seqloom.data.splits import Read, check_files, complete_examples, load_files
from seqloom.data.tables import read_columns

SUMMARY = "one's own sentence pairs: two UTF-8 files line by line, or a tab-separated table"
FORM = "parallel"
Files = str | tuple[str, str]
_NO_LANGUAGE = {"txt", "tsv", "tab", "gz", "csv", "raw", "tok", "bpe", "src", "tgt", "trg"}


@config
class Config(FilesConfig):
    corpus: Literal["parallel"] = "parallel"
    train: Files  # two files, [source, target], or one with a tab between source and target; any may be .gz
    dev: Files | None = None  # the same; without it, dev_fraction is held out from train
    test: Files | None = None  # likewise
    dev_fraction: Fraction = 0.05  # of the pairs; 0 for no such split
    test_fraction: Fraction = 0.05
    columns: tuple[int, int] | tuple[str, str] = (1, 2)  # of a table: numbers from 1, or names in its first line
    source: str = ""  # language tags, such as en and pt-BR; empty: those the names of the files end in, if they do
    target: str = ""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if any(isinstance(column, int) and column < 1 for column in self.columns):
            yield f"columns are counted from 1, got {list(self.columns)}"
        if self.columns[0] == self.columns[1]:
            yield f"columns must be two different ones, got {self.columns[0]} twice"
        for split, files in self.files().items():
            if len(files) == 2 and files[0] == files[1]:
                yield f"{split} must be two different files, got {files[0]} twice"


def load(config: Config) -> Corpus[ParallelExample]:
    """Pairs with the same source sentence stay in one split."""
    check_files(config)
    source, target = languages(config)
    return load_files(
        config,
        lambda split, *files: read_pairs(files, config.columns),
        description=f"{' and '.join(config.files()['train'])}, {source or 'source'} to {target or 'target'}",
        groups=lambda pairs, _: [pair.source for pair in pairs],
        repeats=("source sentences", lambda pair: pair.source),
        languages=(source, target),
    )


def read_pairs(files: Sequence[str], columns: Sequence[int] | Sequence[str]) -> Read[ParallelExample]:
    """Return the pairs with text on both sides, and a note on the others."""
    paths = [expand_home(Path(file)) for file in files]
    first, rows = read_columns(paths[0], columns) if len(paths) == 1 else (1, zip(*read_parallel(*paths), strict=True))
    pairs = (ParallelExample(source.strip(), target.strip()) for source, target in rows)
    return complete_examples(
        " and ".join(files),
        enumerate(pairs, start=first),
        {"a blank side": lambda pair: not (pair.source and pair.target)},
        required="sentence pairs",
        blank="every line has a blank side",
    )


def languages(config: Config) -> tuple[str, str]:
    """The tags as given, or as the files' names end (a.en, a.de.gz) or the table's columns are called."""
    guesses = {split: _guess(files, config.columns) for split, files in config.files().items()}
    train = guesses["train"]
    for split, guess in guesses.items():
        if all(guess) and guess == train[::-1]:
            raise DataError(
                f"data.train goes from {train[0]} to {train[1]} and data.{split} from {guess[0]} to {guess[1]}, by "
                f"their names. Name the files in the same order: {' and '.join(config.files()[split])}."
            )
    return config.source or train[0], config.target or train[1]


def _guess(files: Sequence[str], columns: Sequence[int] | Sequence[str]) -> tuple[str, str]:
    """Return the languages that columns or files are named after: corpus.en, corpus.en.gz, corpus.en.txt end in en."""
    names = [str(column) for column in columns]
    if len(files) == 2:
        suffixes = [[suffix.lstrip(".") for suffix in Path(file).suffixes] for file in files]
        names = [next((end for end in reversed(ends) if end not in _NO_LANGUAGE), "") for ends in suffixes]
    source, target = (name if is_language(name) else "" for name in names)
    return (source, target) if source and target and source != target else ("", "")


def is_language(text: str) -> bool:
    """Whether this looks like a language tag: en, pt-BR, zh_Hant."""
    return re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*", text) is not None
