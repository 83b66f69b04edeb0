"""One's own pairs of texts with a label or a score each: a table with named columns, as TSV, CSV or JSON Lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data import own_files
from seqloom.data.corpus import Corpus
from seqloom.data.holdout import held_out_evenly, linked
from seqloom.data.matched import Matched, version_of_pairs
from seqloom.data.readers import placed
from seqloom.data.tables import Column, Format, column_problems, read_table

SUMMARY = "one's own pairs of texts with a label or a score each: a TSV, CSV or JSON Lines file"
FORM = "matched"


@config
class Config:
    corpus: Literal["table-pairs"] = "table-pairs"
    train: str  # a .tsv, .csv or .jsonl file, which may be .gz
    dev: str | None = None  # the same; without it, dev_fraction is held out from train
    test: str | None = None  # likewise
    dev_fraction: float = 0.1  # of the pairs, and of those of each label; 0 for no such split
    test_fraction: float = 0.1
    first: Column = "first"  # the column of the first texts: its name, or its number, from 1
    second: Column = "second"  # the column of the second texts
    label: Column = "label"  # the column of the labels, or of the scores
    header: bool | None = None  # whether the first line names the columns; if left out, when they are given by name
    format: Format | None = None  # if left out, as the names of the files end

    def problems(self) -> Iterator[str]:
        yield from own_files.fraction_problems(self)
        files = own_files.given(self).values()
        yield from column_problems(self.columns, self.header, self.format, files)

    @property
    def columns(self) -> dict[str, Column]:
        return {"first": self.first, "second": self.second, "label": self.label}

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        whole = own_files.whole_paths(self, recipe_folder)
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> Corpus[Matched]:
    """The splits as given; what is missing of dev and test is held out from train, evenly from every label."""
    files = own_files.given(config)
    own_files.check_files(files)
    splits: dict[str, list[Matched]] = {}
    notes: list[str] = []
    for name, file in files.items():
        splits[name], more = read_pairs(config, file)
        notes += more
    notes += own_files.repeats({name: [pair.text for pair in pairs] for name, pairs in splits.items()}, "pairs")
    splits = _complete(config, splits)
    return Corpus(
        name="table-pairs",
        version=version_of_pairs(splits),
        licence="the user's own",
        description=f"{config.train}: {config.first} and {config.second} → {config.label}",
        splits=splits,
        absent=own_files.absent(splits),
        notes=tuple(notes),
    )


def read_pairs(config: Config, file: str) -> tuple[list[Matched], list[str]]:
    """The pairs of a file that have both texts and a label, and notes on the others."""
    rows = read_table(placed(Path(file)), config.columns, form=config.format, header=config.header)
    found = [
        (line, Matched.of(cells["first"].strip(), cells["second"].strip(), cells["label"].strip()))
        for line, cells in rows
    ]
    pairs = [pair for _, pair in found if pair.first and pair.second and pair.label]
    if not pairs:
        lacking = "every row has a blank text or label" if found else "there is nothing below the names of its columns"
        raise DataError(f"{file} must hold pairs of texts with labels, but {lacking}.")
    blank = [line for line, pair in found if not (pair.first and pair.second)]
    unlabelled = [line for line, pair in found if pair.first and pair.second and not pair.label]
    return pairs, [
        *own_files.left_out(blank, "a blank text", file),
        *own_files.left_out(unlabelled, "no label", file),
    ]


def _complete(config: Config, splits: Mapping[str, Sequence[Matched]]) -> dict[str, list[Matched]]:
    """Hold out what is missing; pairs that share a text, directly or through others, stay together where they can.

    Where that would leave a split empty, because all hang together, only the same first texts do.
    """
    pairs, shares = splits["train"], own_files.missing_shares(config, splits)
    groups = linked([(pair.first, pair.second) for pair in pairs])
    if len(set(groups)) <= len(shares):
        groups = [pair.first for pair in pairs]
    chosen = held_out_evenly(groups, [pair.label for pair in pairs], shares)
    return own_files.share_out(config, splits, chosen, len(set(groups)))
