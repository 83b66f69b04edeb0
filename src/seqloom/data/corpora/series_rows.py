"""One's own series with a label each: a CSV or TSV file in which every row is a series, as in the UCR archive."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.data import own_files
from seqloom.data.corpus import Corpus
from seqloom.data.tables import Column, Format

if TYPE_CHECKING:
    from seqloom.data.labelled_series import LabelledSeries

SUMMARY = "one's own series with a label each: a CSV or TSV file, a row for each series"
FORM = "series-labelled"


@config
class Config:
    corpus: Literal["series-rows"] = "series-rows"
    train: str  # a .csv or .tsv file, which may be .gz; every row a series, its steps in columns
    dev: str | None = None  # the same; without it, dev_fraction is held out from train
    test: str | None = None  # likewise
    dev_fraction: float = 0.15  # of the series, and of those of each label; 0 for no such split
    test_fraction: float = 0.15
    label: Column = 1  # the column of the labels: its name, or its number, from 1
    header: bool | None = None  # whether the first line names the columns; if left out, when label is a name
    variables: int = 1  # how many there are: a row has all steps of the first, then all of the second, and so on
    format: Format | None = None  # if left out, as the names of the files end

    def problems(self) -> Iterator[str]:
        yield from own_files.fraction_problems(self)
        if self.variables < 1:
            yield f"variables must be at least 1, got {self.variables}"
        if isinstance(self.label, int) and self.label < 1:
            yield f"columns are counted from 1, got {self.label}"
        if self.header is False and isinstance(self.label, str):
            yield "without a header, label must be the number of a column, from 1"

    def located(self, recipe_folder: Path) -> "Config":
        whole = own_files.whole_paths(self, recipe_folder)
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> "Corpus[LabelledSeries]":
    from seqloom.data.labelled_rows import read_rows

    return read_rows(config)
