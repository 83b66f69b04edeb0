"""Real time series from statsmodels and vega_datasets: carbon dioxide, sunspots, the Nile, weather, stocks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.corpus import Corpus, SeriesConfig

if TYPE_CHECKING:
    from seqloom.data.series import Series

SUMMARY = "real series, from CO2 to stock prices, from statsmodels and vega_datasets; no download"
FORM = "series"
Name = Literal[
    "co2", "co2-weekly", "sunspots", "nile", "sea", "macro", "temperatures", "weather", "employment", "stocks"
]


@config
class Config(SeriesConfig):
    corpus: Literal["series"] = "series"
    series: Name = "co2"
    columns: tuple[str, ...] | None = None  # variables to use; null: all

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.columns is not None and (not self.columns or len(set(self.columns)) < len(self.columns)):
            yield f"columns must be different variables, or null for all; got {list(self.columns)}"


def load(config: Config) -> "Corpus[Series]":
    import importlib.metadata

    from seqloom.data.series import arrange_series, split_series
    from seqloom.data.series_files import SERIES

    packaged = SERIES[config.series]
    values, times, names = packaged.read()
    columns = names if config.columns is None else list(config.columns)
    for column in columns:
        if column not in names:
            raise UsageError(f"The series {config.series} has no variable {column!r}: {did_you_mean(column, names)}.")
    series, notes = arrange_series(
        values[:, [names.index(column) for column in columns]],
        times,
        columns,
        name=config.series,
        season=packaged.season if config.season is None else config.season,
        gaps=config.gaps,
        fill=config.fill,
    )
    return split_series(
        config,
        series,
        notes,
        name=f"series {config.series}",
        description=f"{packaged.summary}; season of {series.season}",
        licence="BSD-3-Clause (as shipped in the package)",
        version=f"{packaged.package} {importlib.metadata.version(packaged.package)}",
    )
