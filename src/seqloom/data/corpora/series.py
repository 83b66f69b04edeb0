"""Real series that ship inside statsmodels and vega_datasets: carbon dioxide, sunspots, the Nile, weather, shares."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.corpus import Corpus, SeriesConfig

if TYPE_CHECKING:
    from seqloom.data.series import Series

SUMMARY = "real series, from CO2 to shares, that ship inside statsmodels and vega_datasets; no download"
FORM = "series"
Name = Literal[
    "co2", "co2-weekly", "sunspots", "nile", "sea", "macro", "temperatures", "weather", "employment", "stocks"
]


@config
class Config(SeriesConfig):
    corpus: Literal["series"] = "series"
    series: Name = "co2"
    columns: tuple[str, ...] | None = None  # those of its variables to keep; null is all

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.columns is not None and (not self.columns or len(set(self.columns)) < len(self.columns)):
            yield f"columns must name variables, each once, or be null for all; got {list(self.columns)}"


def load(config: Config) -> "Corpus[Series]":
    from seqloom.data.series import absent_splits, arranged, in_splits
    from seqloom.data.series_files import SERIES, version_of_package

    packaged = SERIES[config.series]
    values, times, columns = packaged.read()
    if config.columns is not None:
        values = values[:, [_place(config.series, column, columns) for column in config.columns]]
        columns = list(config.columns)
    season = packaged.season if config.season is None else config.season
    series, notes = arranged(
        values, times, columns, name=config.series, season=season, gaps=config.gaps, fill=config.fill
    )
    splits = in_splits([series], config.dev_fraction, config.test_fraction)
    return Corpus(
        name=f"series {config.series}",
        version=version_of_package(packaged.package),
        licence="BSD-3-Clause (as shipped in the package)",
        description=f"{packaged.summary}; season of {series.season}",
        splits=splits,
        absent=absent_splits(splits),
        notes=tuple(notes),
    )


def _place(name: str, column: str, columns: list[str]) -> int:
    if column not in columns:
        raise UsageError(f"The series {name} has no variable {column!r}: {did_you_mean(column, columns)}.")
    return columns.index(column)
