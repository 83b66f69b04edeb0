"""The user's own series with a label each: a CSV or TSV file in which every row is a series, as in the UCR archive."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.data.corpus import Corpus, FileConfig, digest
from seqloom.data.splits import load_files
from seqloom.data.tables import Column, Format

if TYPE_CHECKING:
    from seqloom.data.series import LabelledSeries

SUMMARY = "one's own series with a label each: a CSV or TSV file, a row for each series"
FORM = "series-labelled"


@config
class Config(FileConfig):
    corpus: Literal["series-rows"] = "series-rows"
    train: str  # a .csv or .tsv file, which may be .gz; every row a series, its steps in columns
    dev_fraction: Fraction = 0.15  # of the series of each label; 0 for no such split
    test_fraction: Fraction = 0.15
    label: Column = 1  # the column of the labels: its name, or its number, from 1
    header: bool | None = None  # whether the first line names the columns; if left out, when label is a name
    variables: PositiveInt = 1  # a row has all steps of the first variable, then all of the second, and so on
    format: Format | None = None  # if left out, as the names of the files end

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if isinstance(self.label, int) and self.label < 1:
            yield f"columns are counted from 1, got {self.label}"
        if self.header is False and isinstance(self.label, str):
            yield "without a header, label must be the number of a column, from 1"


def load(config: Config) -> "Corpus[LabelledSeries]":
    """Each label is held out evenly, and equal series stay in one split."""
    from seqloom.data.series_files import read_rows

    return load_files(
        config,
        lambda split, file: (
            read_rows(file, config.label, config.header, config.variables, config.format),
            list[str](),
        ),
        description=f"{config.train}: a series in every row",
        groups=lambda examples, _: [digest([example]) for example in examples],
        label=lambda example: example.label,
        version=lambda splits: f"sha256-{digest(one for split in splits.values() for one in split)[:12]}",
    )
