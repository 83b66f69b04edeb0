"""One's own series: a CSV, TSV or JSON Lines file with a column of times and columns of numbers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus
from seqloom.data.readers import located, placed
from seqloom.data.series_choices import Fill, Gaps, column_problems, fraction_problems, season_problems
from seqloom.data.tables import Column, Format

if TYPE_CHECKING:
    from seqloom.data.series import Series

SUMMARY = "one's own series: a CSV, TSV or JSON Lines file with a column of times and columns of numbers"
FORM = "series"


@config
class Config:
    corpus: Literal["series-file"] = "series-file"
    file: str  # a .csv, .tsv or .jsonl file, which may be .gz; its first line names the columns
    time: Column | None = None  # the column of the times: its name, or its number, from 1; null is the first
    columns: tuple[Column, ...] | None = None  # those of the values; null is all others that hold numbers
    time_format: str | None = None  # how times are written, as strptime has it; null is 2024-03-01, 20240301, a number
    season: int | None = None  # steps after which things repeat themselves; null is what the times suggest
    gaps: Gaps | None = None  # insert: missing rows are missing values; ignore: a row is a step; null: by their share
    fill: Fill = "mask"  # missing values: mask leaves them out; previous, season: models see made-up ones
    dev_fraction: float = 0.15  # of the steps: what comes before test
    test_fraction: float = 0.15  # of the steps: what comes last
    format: Format | None = None  # if left out, as the name of the file ends

    def problems(self) -> Iterator[str]:
        yield from fraction_problems(self.dev_fraction, self.test_fraction)
        yield from column_problems(self.time, self.columns)
        yield from season_problems(self.season)

    def located(self, recipe_folder: Path) -> "Config":
        """The same with a whole path. What is not in the current folder may lie beside the recipe that names it."""
        return replace(self, file=located(self.file, recipe_folder))


def load(config: Config) -> "Corpus[Series]":
    from seqloom.data.series import absent_splits, in_splits, version_of
    from seqloom.data.series_files import read_series

    path = placed(Path(config.file))
    if not path.exists():
        raise DataError(
            f"{config.file} does not exist. Check the name, data.file=…, and from which folder the command is run."
        )
    series, notes = read_series(
        path,
        time=config.time,
        columns=config.columns,
        form=config.format,
        time_format=config.time_format,
        season=config.season,
        gaps=config.gaps,
        fill=config.fill,
    )
    splits = in_splits([series], config.dev_fraction, config.test_fraction)
    return Corpus(
        name="series-file",
        version=version_of([series]),
        licence="the user's own",
        description=f"{config.file}: {', '.join(series.columns)}, every {series.clock.said()}",
        splits=splits,
        absent=absent_splits(splits),
        notes=tuple(notes),
    )
