"""Labelled series from your own CSV or TSV files with one series per row, as in the UCR archive."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.data.corpus import Corpus, FileConfig, digest
from seqloom.data.splits import load_files
from seqloom.data.tables import Column, Format

if TYPE_CHECKING:
    from seqloom.data.series import LabelledSeries

SUMMARY = "your own labelled series: a CSV or TSV file with one series per row"
FORM = "series-labelled"


@config
class Config(FileConfig):
    corpus: Literal["series-rows"] = "series-rows"
    # a .csv, .tsv or .parquet file, optionally compressed (.gz or .zst); each row is a series with its steps in columns
    train: str
    dev_fraction: Fraction = 0.15  # fraction of the series of each label; 0 for no dev split
    test_fraction: Fraction = 0.15  # fraction of the series of each label; 0 for no test split
    label: Column = 1  # column of the label: its name, or its number, counted from 1
    header: bool | None = None  # whether the first line contains the column names; null: true if label is a name
    # number of variables; a row lists all steps of the first variable, then of the second, and so on
    variables: PositiveInt = 1
    format: Format | None = None  # format of the files; null: derived from the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if isinstance(self.label, int) and self.label < 1:
            yield f"column numbers start at 1; got {self.label}"
        if self.header is False and isinstance(self.label, str):
            yield "without a header, label must be a column number from 1"


def load(config: Config) -> "Corpus[LabelledSeries]":
    """Load the series; dev and test are stratified by label, and equal series are in the same split."""
    from seqloom.data.series_files import read_rows

    return load_files(
        config,
        lambda split, file: (
            read_rows(file, config.label, config.header, config.variables, config.format),
            list[str](),
        ),
        description=f"{config.train}: a series in every row",
        groups=lambda examples, _: [digest([example]) for example in examples],
        strata=lambda examples: [example.label for example in examples],
        version=lambda splits: f"sha256-{digest(series for split in splits.values() for series in split)[:12]}",
    )
