"""Labelled or scored pairs of texts from your own TSV, CSV or JSON Lines files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import SentencePairExample
from seqloom.data.files import expand_home
from seqloom.data.splits import Read, complete_examples, link_groups, load_files
from seqloom.data.tables import Column, Format, column_problems, read_table

SUMMARY = "your own pairs of texts with labels or scores: a TSV, CSV or JSON Lines file"
FORM = "sentence-pair"


@config
class Config(FileConfig):
    corpus: Literal["sentence-pairs"] = "sentence-pairs"
    train: str  # a .tsv, .csv, .jsonl or .parquet file, optionally compressed (.gz or .zst)
    first: Column = "first"  # column of the first text: its name, or its number, counted from 1
    second: Column = "second"  # column of the second text
    label: Column = "label"  # column of the label or score
    # whether the first line contains the column names; null: true if columns are given by name
    header: bool | None = None
    format: Format | None = None  # format of the files; null: derived from the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from column_problems(self.columns, self.header, self.format, self.files())

    @property
    def columns(self) -> dict[str, Column]:
        return {"first": self.first, "second": self.second, "label": self.label}


def load(config: Config) -> Corpus[SentencePairExample]:
    """Load the pairs; dev and test are stratified by class, and pairs with a common text share a split if possible."""
    return load_files(
        config,
        lambda split, file: read_pairs(config, file),
        description=f"{config.train}: {config.first} and {config.second} → {config.label}",
        groups=group_pairs,
        strata=lambda pairs: ["" if is_fraction(pair.label) else pair.label for pair in pairs],
        repeats=("pairs", lambda pair: pair.text),
    )


def read_pairs(config: Config, file: str) -> Read[SentencePairExample]:
    """Return the pairs that have both texts and a label, and notes on the skipped pairs."""
    rows = read_table(expand_home(Path(file)), config.columns, form=config.format, header=config.header)
    cells = ((line, [row[name].strip() for name in config.columns]) for line, row in rows)
    return complete_examples(
        file,
        ((line, SentencePairExample.of(*parts)) for line, parts in cells),
        {"a blank text": lambda pair: not all(pair.texts()), "no label": lambda pair: not pair.label},
        required="pairs of texts with labels",
        blank="every row has a blank text or label",
    )


def group_pairs(pairs: Sequence[SentencePairExample], held_out: int) -> list[str]:
    """Group pairs that share a text, directly or indirectly; if this yields too few groups, group by first text."""
    groups = link_groups([(pair.first, pair.second) for pair in pairs])
    return groups if len(set(groups)) > held_out else [pair.first for pair in pairs]


def is_fraction(label: str) -> bool:
    """Return whether a label is a number on a scale, such as 3.8, which rarely repeats."""
    try:
        return not float(label).is_integer()
    except ValueError:
        return False
