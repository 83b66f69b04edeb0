"""A series from your own CSV, TSV or JSON Lines file with a column of times and columns of numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, FilesConfig, SeriesConfig
from seqloom.data.files import expand_home
from seqloom.data.splits import check_files
from seqloom.data.tables import Column, Format

if TYPE_CHECKING:
    from seqloom.data.series import Series

SUMMARY = "your own series: a CSV, TSV or JSON Lines file with a column of times and columns of numbers"
FORM = "series"


@config
class Config(SeriesConfig, FilesConfig):
    file_keys: ClassVar = ("file",)

    corpus: Literal["series-file"] = "series-file"
    # a .csv, .tsv, .jsonl or .parquet file, optionally compressed (.gz or .zst); the first line of a table names the
    # columns
    file: str
    time: Column | None = None  # column of the times: its name, or its number, counted from 1; null: the first column
    columns: tuple[Column, ...] | None = None  # columns of the values; null: all other numeric columns
    time_format: str | None = None  # format of the times for strptime; null accepts 2024-03-01, 20240301 and numbers
    format: Format | None = None  # format of the file; null: derived from the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        columns = [column for column in (self.time, *(self.columns or ())) if column is not None]
        if self.columns is not None and not self.columns:
            yield "columns must name at least one column, or be null for all with numbers"
        if any(isinstance(column, int) and column < 1 for column in columns):
            yield f"column numbers start at 1; got {columns}"
        if len(set(columns)) < len(columns):
            yield f"time and columns must be different columns; got {columns}"


def load(config: Config) -> "Corpus[Series]":
    from seqloom.data.series import split_series
    from seqloom.data.series_files import read_series

    check_files(config)
    series, notes = read_series(
        expand_home(Path(config.file)),
        time=config.time,
        columns=config.columns,
        form=config.format,
        time_format=config.time_format,
        season=config.season,
        gaps=config.gaps,
        fill=config.fill,
    )
    description = f"{config.file}: {', '.join(series.columns)}, every {series.clock.describe()}"
    return split_series(config, series, notes, description=description, licence="the user's own")
