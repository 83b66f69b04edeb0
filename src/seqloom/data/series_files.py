"""Files with series: the user's tables, and the data of statsmodels and vega_datasets.

A time is a date (2024, 2024-03, 2024-03-01, 2024/03/01 13:00, 20240301) or a number. If all times have
the same UTC offset (+01:00), it is dropped; if offsets differ, times are converted to UTC.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from seqloom.core.errors import DataError, ResourceError
from seqloom.core.words import format_value
from seqloom.data.corpus import Fill, Gaps
from seqloom.data.files import expand_home
from seqloom.data.series import LabelledSeries, Series, Times, Values, arrange_series
from seqloom.data.tables import Column, Format, column_names, read_table

MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?", "."}  # cells that denote missing values
_COMPACT = re.compile(r"(?P<year>(?:1[5-9]|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_OFFSET = re.compile(r"([T ]\d\d(?::\d\d)*(?:\.\d+)?) ?(Z|[-+]\d\d:?\d\d)$")  # UTC offset after the time of day


def parse_number(cell: str) -> float:
    """Return the number in a cell, or NaN if it is missing; raise ValueError if it is not a finite number."""
    if cell.strip().lower() in MISSING:
        return math.nan
    if not math.isfinite(number := float(cell)):
        raise ValueError(f"{cell} is not finite")
    return number


def parse_numbers(cells: Sequence[str]) -> tuple[list[float], list[int]]:
    """Return the numbers in cells, or NaN if missing, and the indices of cells that are not finite numbers."""
    numbers, invalid = [], []
    for index, cell in enumerate(cells):
        try:
            numbers.append(parse_number(cell))
        except ValueError:
            numbers.append(math.nan)
            invalid.append(index)
    return numbers, invalid


# --- times ------------------------------------------------------------------------------------------------------------


def parse_times(texts: Sequence[str], lines: Sequence[int], where: str, form: str | None = None) -> Times:
    """Parse a column of times; raise DataError at the first time that is invalid or not later than the previous."""
    texts = [text.strip() for text in texts]
    if form is None:
        offsets = {match[2] if (match := _OFFSET.search(text)) else "" for text in texts}
        if len(offsets) == 1:
            texts = [_OFFSET.sub(r"\1", text) for text in texts]
        elif "" not in offsets:  # offsets differ, for example because of daylight saving time
            texts = [_in_utc(text) for text in texts]
    if form is None and all(_NUMBER.fullmatch(text) for text in texts) and not all(map(_is_compact, texts)):
        times: Times = np.asarray([float(text) for text in texts])
    else:
        dates = [_parse_date(text, line, where, form) for text, line in zip(texts, lines, strict=True)]
        times = np.asarray(dates, dtype="datetime64[s]")
    is_later = np.diff(times).astype(np.float64) > 0
    if not is_later.all():
        row = int(np.flatnonzero(~is_later)[0])
        problem, hint = "repeats the time of the line before it", "Keep one row for each time"
        if times[row] != times[row + 1]:
            problem, hint = "is earlier than the line before it", "Sort the rows by time"
        elif texts[row] != texts[row + 1]:
            problem, hint = "has the same time as the line before it, to the second", "Write finer times as numbers"
        raise DataError(f"Line {lines[row + 1]:,} of {where} {problem}: {format_value(texts[row + 1])}. {hint}.")
    return times


def _in_utc(text: str) -> str:
    try:
        return datetime.fromisoformat(text.replace("/", "-")).astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    except ValueError:
        return text  # the text is not a time, which `_parse_date` reports


def _is_compact(text: str) -> bool:
    match = _COMPACT.fullmatch(text)
    return match is not None and 1 <= int(match["month"]) <= 12 and 1 <= int(match["day"]) <= 31


def _parse_date(text: str, line: int, where: str, form: str | None) -> np.datetime64:
    try:
        if form is not None:
            return np.datetime64(datetime.strptime(text, form).replace(tzinfo=None), "s")
        if _is_compact(text):
            return np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:]}", "s")
        if not re.match(r"\d{4}", text):
            raise ValueError("it does not start with a year")
        if _OFFSET.search(text):
            raise ValueError("only some lines have a UTC offset")
        return np.datetime64(text.replace("/", "-"), "s")
    except ValueError as error:
        expected = f"in the format of data.time_format, {form}" if form else "such as 2024-03-01 or 2024-03-01 13:00"
        hint = "" if form else " For other formats set data.time_format, for example '%d.%m.%Y'."
        raise DataError(
            f"Line {line:,} of {where} must have a time {expected}; got {format_value(text)} ({error}).{hint}"
        ) from None


# --- a row for each time ----------------------------------------------------------------------------------------------


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
    """Return the series in a file, and notes on missing or excluded data.

    Times are in the first column by default, and values in all other columns with numbers.
    """
    names, time = column_names(path, form), 1 if time is None else time
    chosen: list[Column] = list(columns or ())
    if columns is None:
        time_index = time - 1 if isinstance(time, int) else names.index(time) if time in names else -1
        others = [index for index in range(len(names)) if index != time_index]
        if not others:
            raise DataError(f"{path} must have columns of times and of numbers, but has {format_value(list(names))}.")
        chosen = [names[index] if names.count(names[index]) == 1 else index + 1 for index in others]
    if missing := [column for column in chosen if isinstance(column, str) and column not in names]:
        expected = ("the column " if len(missing) == 1 else "the columns ") + ", ".join(map(repr, missing))
        raise DataError(
            f"The first line of {path} must name {expected} (data.columns), but has {format_value(list(names), 200)}."
        )
    rows = read_table(path, {"time": time, **{f"columns {n}": c for n, c in enumerate(chosen)}}, form=form, header=True)
    if not rows:
        raise DataError(f"{path} must contain a row for each time, but it has no rows below the header.")
    lines = [line for line, _ in rows]
    times = parse_times([cells["time"] for _, cells in rows], lines, str(path), time_format)
    numeric, left_out = {}, []
    for number, column in enumerate(chosen):
        name = names[column - 1] if isinstance(column, int) else column
        cells = [row[f"columns {number}"] for _, row in rows]
        numbers, invalid = parse_numbers(cells)
        if not invalid:
            numeric[name] = numbers
        elif columns is None and len(invalid) > len(cells) / 2:
            left_out.append(name)
        else:  # the column is requested, or only a few of its cells are not numbers
            line, cell = lines[invalid[0]], cells[invalid[0]]
            hint = "Write 3.5, not 3,5." if "," in cell else "Leave missing values blank."
            raise DataError(
                f"{format_value(name)} at line {line:,} of {path} must be a number; got {format_value(cell)}. {hint}"
            )
    if not numeric:
        raise DataError(f"{path} must have a column of numbers; {', '.join(left_out)} has none.")
    values: Values = np.array(list(numeric.values()), dtype=np.float64).T.copy()
    series, notes = arrange_series(values, times, list(numeric), name=path.name, season=season, gaps=gaps, fill=fill)
    if left_out:
        how = "has no numbers and was" if len(left_out) == 1 else "have no numbers and were"
        notes.insert(0, f"{', '.join(left_out)} of {path.name} {how} left out (data.columns)")
    return series, notes


# --- a series in every row --------------------------------------------------------------------------------------------


def read_rows(
    file: str, label: Column, header: bool | None = None, variables: int = 1, form: Format | None = None
) -> list[LabelledSeries]:
    """Read a file with one series per row and the label in column `label`.

    Blank columns at the end of a row are ignored, so series may have different lengths.
    """
    path = expand_home(Path(file))
    names = column_names(path, form)
    header = isinstance(label, str) if header is None else header
    if isinstance(label, int) and label <= len(names):
        index = label - 1
    elif isinstance(label, str) and label in names:
        index = names.index(label)
    else:
        columns = format_value(list(names), 100)
        raise DataError(f"{file} must have the column {label!r} (data.label), but has {len(names)}: {columns}.")
    examples = []
    rows = read_table(path, {str(number): number for number in range(1, len(names) + 1)}, form=form, header=header)
    for line, row in rows:
        where, cells = f"Line {line:,} of {file}", list(row.values())
        name = cells.pop(index).strip()
        numbers, invalid = parse_numbers(cells)
        if invalid:
            hint = " If it is a header, set data.header=true." if line == 1 else ""
            raise DataError(
                f"{where} must contain finite numbers and a label; got {format_value(cells[invalid[0]])}.{hint}"
            )
        if not name:
            raise DataError(f"{where} must have a label in column {index + 1} (data.label).")
        if len(numbers) % variables:
            raise DataError(f"{where} has {len(numbers)} numbers, not a multiple of data.variables={variables}.")
        values = np.array(numbers).reshape(variables, -1).T.copy()  # (T, C)
        observed = np.flatnonzero(~np.isnan(values).all(axis=1))
        if not len(observed):
            raise DataError(f"{where} must contain at least one number.")
        examples.append(LabelledSeries(values[: observed[-1] + 1], name))
    if not examples:
        raise DataError(f"{file} must contain one series per row, but has none.")
    return examples


# --- series inside packages -------------------------------------------------------------------------------------------

Read = tuple[Values, Times, list[str]]  # values (T, C), times, names of the variables
Rows = list[tuple[int, dict[str, str]]]


def arrange_columns(file: Path, rows: Rows) -> Read:
    """Read rows with a column `time`."""
    times = parse_times([cells["time"] for _, cells in rows], [line for line, _ in rows], str(file))
    names = [name for name in rows[0][1] if name != "time"]
    return np.array([[parse_number(cells[name]) for name in names] for _, cells in rows]), times, names


def arrange_months(file: Path, rows: Rows) -> Read:
    """Average weekly values by month; a month without values is missing."""
    values, times, names = arrange_columns(file, rows)
    months = times.astype("datetime64[M]")
    all_months = np.arange(months[0], months[-1] + np.timedelta64(1, "M"))
    means = []
    for month in all_months:
        observed = values[(months == month) & ~np.isnan(values[:, 0]), 0]
        means.append(observed.mean() if len(observed) else np.nan)
    return np.array(means).reshape(-1, 1), all_months.astype("datetime64[s]"), names


def arrange_years(file: Path, rows: Rows) -> Read:
    """Read a table with a row for each year and a column for each month."""
    values, years, _ = arrange_columns(file, rows)
    first = np.datetime64(f"{int(years[0])}-01", "M")
    return values.reshape(-1, 1), (first + np.arange(values.size)).astype("datetime64[s]"), ["temperature"]


def arrange_quarters(file: Path, rows: Rows) -> Read:
    """Read rows with columns `year` and `quarter`; a time is the first day of a quarter."""
    times = [f"{int(float(row['year']))}-{3 * int(float(row['quarter'])) - 2:02d}" for _, row in rows]
    names = [name for name in rows[0][1] if name not in ("year", "quarter")]
    values = np.array([[parse_number(row[name]) for name in names] for _, row in rows])
    return values, np.array(times, dtype="datetime64[s]"), names


def arrange_stocks(file: Path, rows: Rows) -> Read:
    """Convert rows with a month and a stock to one column per stock; values before the first trade are missing."""
    symbols = sorted({cells["symbol"] for _, cells in rows})
    prices: dict[str, dict[str, float]] = {}
    for _, cells in rows:
        prices.setdefault(cells["date"], {})[cells["symbol"]] = float(cells["price"])
    dates = parse_times(list(prices), list(range(2, len(prices) + 2)), str(file), "%b %d %Y")
    values = np.array([[row.get(symbol, np.nan) for symbol in symbols] for row in prices.values()])
    return values, dates, symbols


@dataclass(frozen=True)
class PackagedSeries:
    """A series in a file of an installed package, which is read without importing the package."""

    summary: str
    file: str  # path of the file, which starts with the package
    columns: Mapping[str, str]  # variable → column of the file
    arrange: Callable[[Path, Rows], Read] = arrange_columns
    season: int | None = None  # period in steps, if the time step does not determine it

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]

    def read(self) -> Read:
        """Read the series; raise ResourceError if the package is not installed."""
        package, _, file = self.file.partition("/")
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ResourceError(f"This series needs {package}: pip install 'seqloom[series]'.")
        path = Path(spec.submodule_search_locations[0]) / file
        return self.arrange(path, read_table(path, self.columns, header=True))


_CO2 = "statsmodels/datasets/co2/co2.csv"
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
SERIES: dict[str, PackagedSeries] = {
    "co2": PackagedSeries(
        "CO2 at Mauna Loa, monthly means, 1958 to 2001", _CO2, {"time": "date", "co2": "co2"}, arrange_months
    ),
    "co2-weekly": PackagedSeries("CO2 at Mauna Loa, weekly, 1958 to 2001", _CO2, {"time": "date", "co2": "co2"}),
    "sunspots": PackagedSeries(
        "sunspots, yearly, 1700 to 2008",
        "statsmodels/datasets/sunspots/sunspots.csv",
        {"time": "YEAR", "sunspots": "SUNACTIVITY"},
        season=11,
    ),
    "nile": PackagedSeries(
        "flow of the Nile at Aswan, yearly, 1871 to 1970",
        "statsmodels/datasets/nile/nile.csv",
        {"time": "year", "flow": "volume"},
    ),
    "sea": PackagedSeries(
        "sea temperature off Peru (El Niño), monthly, 1950 to 2010",
        "statsmodels/datasets/elnino/elnino.csv",
        {"time": "YEAR", **{month: month for month in _MONTHS}},
        arrange_years,
    ),
    "macro": PackagedSeries(
        "economy of the USA, quarterly, 1959 to 2009, four variables",
        "statsmodels/datasets/macrodata/macrodata.csv",
        {
            "year": "year",
            "quarter": "quarter",
            "gdp": "realgdp",
            "consumption": "realcons",
            "investment": "realinv",
            "unemployment": "unemp",
        },
        arrange_quarters,
        season=1,
    ),
    "temperatures": PackagedSeries(
        "temperature in Seattle, hourly, 2010",
        "vega_datasets/_data/seattle-temps.csv",
        {"time": "date", "temperature": "temp"},
    ),
    "weather": PackagedSeries(
        "weather in Seattle, daily, 2012 to 2015, four variables",
        "vega_datasets/_data/seattle-weather.csv",
        {"time": "date", "warmest": "temp_max", "coldest": "temp_min", "rain": "precipitation", "wind": "wind"},
        season=1,
    ),
    "employment": PackagedSeries(
        "employment in the USA, monthly, 2006 to 2015, two branches",
        "vega_datasets/_data/us-employment.csv",
        {"time": "month", "construction": "construction", "manufacturing": "manufacturing"},
    ),
    "stocks": PackagedSeries(
        "five stock prices, monthly, 2000 to 2010",
        "vega_datasets/_data/stocks.csv",
        {"symbol": "symbol", "date": "date", "price": "price"},
        arrange_stocks,
        season=1,
    ),
}
