"""Files with series: the user's own tables, and series that ship inside statsmodels and vega_datasets."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from seqloom.core.errors import DataError, ResourceError
from seqloom.core.words import shown
from seqloom.data.corpus import Fill, Gaps
from seqloom.data.files import expand_home
from seqloom.data.series import LabelledSeries, Series, Times, Values, arranged, parse_times
from seqloom.data.tables import Column, Format, column_names, read_table

MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?", "."}  # written for a value that is not there


def read_series(
    path: Path,
    *,
    time: Column | None = None,
    columns: Sequence[Column] | None = None,
    form: Format | None = None,
    time_format: str | None = None,
    season: int | None = None,
    gaps: Gaps | None = None,
    fill: Fill = "mask",
) -> tuple[Series, list[str]]:
    """The series of a file, and notes on how it was read. Without `columns`, all that hold numbers."""
    names = column_names(path, form)
    time, chosen = _chosen(path, names, time, columns)
    _refuse_unknown(path, names, chosen)
    rows = read_table(path, {"time": time, **{f"columns {n}": c for n, c in enumerate(chosen)}}, form=form, header=True)
    if not rows:
        raise DataError(f"{path} must hold a row for each time; there is nothing below the names of its columns.")
    lines = [line for line, _ in rows]
    times = parse_times([cells["time"] for _, cells in rows], lines, str(path), time_format)
    kept, left = {}, []
    for number, column in enumerate(chosen):
        name = names[column - 1] if isinstance(column, int) else column
        cells = [row[f"columns {number}"] for _, row in rows]
        wrong = [place for place, cell in enumerate(cells) if not is_number(cell)]
        if not wrong:
            kept[name] = [number_of(cell) for cell in cells]
        elif columns is None and len(wrong) > len(cells) / 2:
            left.append(name)
        else:  # it was asked for, or it holds numbers but for a few cells, which nobody meant
            raise _no_number(path, lines[wrong[0]], name, cells[wrong[0]])
    if not kept:
        raise DataError(f"{path} must have a column of numbers beside its times; {', '.join(left) or 'it'} has none.")
    values: Values = np.array(list(kept.values()), dtype=np.float64).T.copy()
    series, notes = arranged(values, times, list(kept), name=path.name, season=season, gaps=gaps, fill=fill)
    if left:
        how = "holds no numbers and was" if len(left) == 1 else "hold no numbers and were"
        notes.insert(0, f"{', '.join(left)} of {path.name} {how} left out (data.columns)")
    return series, notes


def _refuse_unknown(path: Path, names: Sequence[str], chosen: Sequence[Column]) -> None:
    """Columns asked for that the file does not have."""
    lacking = [column for column in chosen if isinstance(column, str) and column not in names]
    if lacking:
        them = ("the column " if len(lacking) == 1 else "the columns ") + ", ".join(map(repr, lacking))
        raise DataError(f"The first line of {path} must name {them} (data.columns); it has {shown(list(names), 200)}.")


def _chosen(
    path: Path, names: Sequence[str], time: Column | None, columns: Sequence[Column] | None
) -> tuple[Column, list[Column]]:
    """The column of times, the first unless told; and those of values, all others unless told."""
    time = 1 if time is None else time
    if columns is not None:
        return time, list(columns)
    own = time - 1 if isinstance(time, int) else names.index(time) if time in names else -1
    others: list[Column] = [number + 1 for number in range(len(names)) if number != own]
    if not others:
        raise DataError(f"{path} must have a column of times and one of numbers at least; it has {shown(list(names))}.")
    return time, [names[n - 1] if isinstance(n, int) and names.count(names[n - 1]) == 1 else n for n in others]


def number_of(cell: str) -> float:
    """What a cell says, NaN where it is missing; ValueError if that is no finite number."""
    if cell.strip().lower() in MISSING:
        return math.nan
    if not math.isfinite(number := float(cell)):
        raise ValueError(f"{cell} is not finite")
    return number


def is_number(cell: str) -> bool:
    """A finite one, or missing."""
    try:
        number_of(cell)
    except ValueError:
        return False
    return True


def _no_number(path: Path, line: int, name: str, cell: str) -> DataError:
    hint = " Write 3.5, not 3,5." if "," in cell else " Leave it blank where it is missing."
    return DataError(f"{shown(name)} at line {line:,} of {path} must be a number; got {shown(cell)}.{hint}")


# --- a series in every row --------------------------------------------------------------------------------------------


def read_rows(
    file: str, label: Column, header: bool | None = None, variables: int = 1, form: Format | None = None
) -> list[LabelledSeries]:
    """Return the series of a file in which every row is one, with the label in column `label`."""
    path = expand_home(Path(file))
    names = column_names(path, form)
    header = isinstance(label, str) if header is None else header
    if isinstance(label, int) and label <= len(names):
        index = label - 1
    elif isinstance(label, str) and label in names:
        index = names.index(label)
    else:
        have = shown(list(names), 100)
        raise DataError(f"{file} has no column {label!r} for the labels (data.label); it has {len(names)}: {have}.")
    columns = {str(number): number for number in range(1, len(names) + 1)}
    rows = read_table(path, columns, form=form, header=header)
    found = [_read_row(file, line, list(cells.values()), index, variables) for line, cells in rows]
    if not found:
        raise DataError(f"{file} must hold a series in every row; it has none.")
    return found


def _read_row(file: str, line: int, cells: Sequence[str], label: int, variables: int) -> LabelledSeries:
    """Read a row. Blank columns at its end are no steps: series may be of different lengths."""
    others = [cell for column, cell in enumerate(cells) if column != label]
    wrong = [cell for cell in others if not is_number(cell)]
    if wrong:
        hint = " If it names the columns: data.header=true." if line == 1 else ""
        raise DataError(
            f"Line {line:,} of {file} must hold finite numbers beside its label; got {shown(wrong[0])}.{hint}"
        )
    if not cells[label].strip():
        raise DataError(f"Line {line:,} of {file} has no label, which is to stand in column {label + 1} (data.label).")
    numbers = np.array([number_of(cell) for cell in others])
    if len(numbers) % variables:
        raise DataError(
            f"Line {line:,} of {file} has {len(numbers)} numbers, which are not as many for each of data.variables="
            f"{variables}."
        )
    values = numbers.reshape(variables, -1).T.copy()  # (T, C)
    known = np.flatnonzero(~np.isnan(values).all(axis=1))
    if not len(known):
        raise DataError(f"Line {line:,} of {file} has no number at all.")
    return LabelledSeries(values[: known[-1] + 1], cells[label].strip())


# --- packaged series --------------------------------------------------------------------------------


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
