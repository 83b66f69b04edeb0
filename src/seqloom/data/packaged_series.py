"""Real series that ship inside statsmodels and vega_datasets. Their files are read as they are; neither is imported."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from seqloom.core.errors import ResourceError
from seqloom.data.series import Values
from seqloom.data.series_files import number_of
from seqloom.data.tables import read_table
from seqloom.data.times import Times, parse_times

Read = tuple[Values, Times, list[str]]  # values (T, C), times, names of the variables


@dataclass(frozen=True)
class Packaged:
    """A series of a package: how it is read, and its season where the calendar does not say."""

    package: str
    summary: str
    read: Callable[[], Read]
    season: int | None = None


def file_of(package: str, path: str) -> Path:
    """A file inside a package that need not be imported for it; ResourceError where it is not installed."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ResourceError(f"This series ships inside {package}: pip install 'seqloom[series]'.")
    return Path(found.submodule_search_locations[0]) / path


def version_of_package(package: str) -> str:
    return f"{package} {version(package)}"


def _table(package: str, path: str, time: str, columns: dict[str, str], form: str | None = None) -> Read:
    """Columns of a file by the names they are to have."""
    file = file_of(package, path)
    rows = read_table(file, {"time": time, **columns}, header=True)
    times = parse_times([cells["time"] for _, cells in rows], [line for line, _ in rows], str(file), form)
    values = np.array([[number_of(cells[name]) for name in columns] for _, cells in rows])
    return values, times, list(columns)


def _statsmodels(name: str, time: str, columns: dict[str, str]) -> Read:
    return _table("statsmodels", f"datasets/{name}/{name}.csv", time, columns)


def _weekly_co2() -> Read:
    return _statsmodels("co2", "date", {"co2": "co2"})


def _monthly_co2() -> Read:
    """Means of the weeks that begin in a month; a month without any is missing."""
    values, times, names = _weekly_co2()
    months = times.astype("datetime64[M]")
    every = np.arange(months[0], months[-1] + np.timedelta64(1, "M"))
    means = []
    for month in every:
        known = values[(months == month) & ~np.isnan(values[:, 0]), 0]
        means.append(known.mean() if len(known) else np.nan)
    return np.array(means).reshape(-1, 1), every.astype("datetime64[s]"), names


def _sea() -> Read:
    """A row for each year and a column for each month, read on from January to December."""
    months = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
    values, years, _ = _statsmodels("elnino", "YEAR", {month: month for month in months})
    first = np.datetime64(f"{int(years[0])}-01", "M")
    return values.reshape(-1, 1), (first + np.arange(values.size)).astype("datetime64[s]"), ["temperature"]


def _macro() -> Read:
    """Quarters of years, as the first day of each."""
    wanted = {"gdp": "realgdp", "consumption": "realcons", "investment": "realinv", "unemployment": "unemp"}
    values, years, _ = _quarters(wanted)
    return values, years, list(wanted)


def _quarters(columns: dict[str, str]) -> Read:
    file = file_of("statsmodels", "datasets/macrodata/macrodata.csv")
    rows = read_table(file, {"year": "year", "quarter": "quarter", **columns}, header=True)
    cells = [row for _, row in rows]
    times = [f"{int(float(row['year']))}-{3 * int(float(row['quarter'])) - 2:02d}" for row in cells]
    values = np.array([[number_of(row[name]) for name in columns] for row in cells])
    return values, np.array(times, dtype="datetime64[s]"), list(columns)


def _vega(name: str, time: str, columns: dict[str, str]) -> Read:
    return _table("vega_datasets", f"_data/{name}.csv", time, columns)


def _temperatures() -> Read:
    return _vega("seattle-temps", "date", {"temperature": "temp"})


def _weather() -> Read:
    columns = {"warmest": "temp_max", "coldest": "temp_min", "rain": "precipitation", "wind": "wind"}
    return _vega("seattle-weather", "date", columns)


def _employment() -> Read:
    return _vega("us-employment", "month", {"construction": "construction", "manufacturing": "manufacturing"})


def _stocks() -> Read:
    """A row for each month and share, put side by side; one that was not traded yet is missing."""
    file = file_of("vega_datasets", "_data/stocks.csv")
    rows = read_table(file, {"symbol": "symbol", "date": "date", "price": "price"}, header=True)
    symbols = sorted({cells["symbol"] for _, cells in rows})
    found: dict[str, dict[str, float]] = {}
    for _, cells in rows:
        found.setdefault(cells["date"], {})[cells["symbol"]] = float(cells["price"])
    dates = parse_times(list(found), list(range(2, len(found) + 2)), str(file), "%b %d %Y")
    values = np.array([[row.get(symbol, np.nan) for symbol in symbols] for row in found.values()])
    return values, dates, symbols


SERIES: dict[str, Packaged] = {
    "co2": Packaged("statsmodels", "CO2 at Mauna Loa, monthly means, 1958 to 2001", _monthly_co2),
    "co2-weekly": Packaged("statsmodels", "CO2 at Mauna Loa, weekly, 1958 to 2001", _weekly_co2),
    "sunspots": Packaged(
        "statsmodels",
        "sunspots, yearly, 1700 to 2008",
        lambda: _statsmodels("sunspots", "YEAR", {"sunspots": "SUNACTIVITY"}),
        season=11,
    ),
    "nile": Packaged(
        "statsmodels",
        "flow of the Nile at Aswan, yearly, 1871 to 1970",
        lambda: _statsmodels("nile", "year", {"flow": "volume"}),
    ),
    "sea": Packaged("statsmodels", "sea temperature off Peru (El Niño), monthly, 1950 to 2010", _sea),
    "macro": Packaged("statsmodels", "economy of the USA, quarterly, 1959 to 2009, four variables", _macro, season=1),
    "temperatures": Packaged("vega_datasets", "temperature in Seattle, hourly, 2010", _temperatures),
    "weather": Packaged("vega_datasets", "weather in Seattle, daily, 2012 to 2015, four variables", _weather, season=1),
    "employment": Packaged("vega_datasets", "employment in the USA, monthly, 2006 to 2015, two branches", _employment),
    "stocks": Packaged("vega_datasets", "five shares, monthly, 2000 to 2010", _stocks, season=1),
}
