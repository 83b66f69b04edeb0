"""Time series of one or several variables, with consecutive splits.

Test is the end of a series, and dev is the part before test. Each split includes its history, from which it is
forecast; `begins` is the first row of the split itself. Missing rows are filled with NaN, so that all steps are equally
long.

The distance between times is counted in months if all times are on the same day of the month, or all on the last day.
The distance is counted in weekdays if consecutive days skip Saturdays and Sundays, and otherwise in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.words import format_count, format_value
from seqloom.data.corpus import SPLITS, Corpus, Example, Fill, Gaps, SeriesConfig, digest, frame
from seqloom.data.examples import refuse_single_label
from seqloom.data.splits import first_count

Values = NDArray[np.float64]
Times = NDArray[np.datetime64] | NDArray[np.float64]
Unit = Literal["months", "weekdays", "seconds", "numbers"]
DAY = 86_400  # number of seconds
WEEK = 5  # number of weekdays
MIN_VALUES = 8  # minimum length of a series
_SEASONS = {60: 60, 300: 288, 600: 144, 900: 96, 1800: 48, 3600: 24, DAY: 7, 7 * DAY: 52}  # step in seconds → season


# --- times ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clock:
    """The time step of a series, or the most frequent step if times are not `regular`."""

    unit: Unit
    step: float
    regular: bool = True
    month_ends: bool = False

    @classmethod
    def of_steps(cls, unit: Unit, steps: NDArray[np.float64], month_ends: bool = False) -> "Clock":
        """Return the clock of the most frequent step; it is regular if all other steps are multiples of this step."""
        lengths, counts = np.unique(np.round(steps, 9), return_counts=True)
        step = float(lengths[counts.argmax()])
        is_regular = bool(np.allclose(lengths / step, np.round(lengths / step), atol=1e-6))
        return cls(unit, step, is_regular, month_ends)

    @property
    def season(self) -> int:
        """The usual period in steps: a year of months, a week of days, a day of hours."""
        if self.unit == "months":
            return int(12 / self.step) if 12 % self.step == 0 else 1
        if self.unit == "weekdays":
            return WEEK
        return _SEASONS.get(int(self.step), 1) if self.unit == "seconds" else 1

    def after(self, times: Times, count: int) -> Times:
        """Return the `count` times after the last time. If a month lacks the day, the last day of the month is used."""
        ahead = np.arange(1, count + 1)
        if self.unit == "numbers":
            return np.asarray(times[-1] + self.step * ahead, dtype=np.float64)
        last: np.datetime64 = np.datetime64(times[-1], "s")
        if self.unit == "seconds":
            return last + (self.step * ahead).astype("timedelta64[s]")
        day = last.astype("datetime64[D]")
        time_of_day = last - day.astype("datetime64[s]")
        if self.unit == "weekdays":
            return np.busday_offset(day, ahead).astype("datetime64[s]") + time_of_day
        month, months = last.astype("datetime64[M]"), (self.step * ahead).astype("timedelta64[M]")
        first_days = (month + months).astype("datetime64[D]")
        next_month = (month + months + np.timedelta64(1, "M")).astype("datetime64[D]")
        last_days = (next_month - first_days).astype(np.int64) - 1
        day_of_month = (day - month.astype("datetime64[D]")).astype(np.int64)
        days = first_days + (last_days if self.month_ends else np.minimum(day_of_month, last_days))
        return days.astype("datetime64[s]") + time_of_day

    def count(self, times: Times) -> NDArray[np.float64]:
        """Return the distance of each time from the first time, in units."""
        if self.unit == "weekdays":
            days = times.astype("datetime64[D]")
            return np.busday_count(days[0], days).astype(np.float64)
        units = times.astype("datetime64[M]") if self.unit == "months" else times
        return (units - units[0]).astype(np.float64)

    def steps(self, times: Times) -> NDArray[np.int64]:
        """Return the number of steps of a regular clock from the first time to each time."""
        return np.round(self.count(times) / self.step).astype(np.int64)

    def describe(self) -> str:
        """Return a text such as `1 month`, `7 days` or `0.5`."""
        if self.unit == "numbers":
            return f"{self.step:g}"
        name, size = self.unit[:-1], 1
        if self.unit == "seconds":
            units = {"day": DAY, "hour": 3600, "minute": 60, "second": 1}
            name, size = next((name, size) for name, size in units.items() if self.step % size == 0)
        count = self.step / size
        return f"{count:g} {name}{'' if count == 1 else 's'}"


def clock_of(times: Times) -> Clock:
    """Return the clock of the most frequent step."""
    if len(times) < 2:
        return Clock("numbers", 1.0)
    if times.dtype.kind != "M":
        return Clock.of_steps("numbers", np.diff(times))
    days = times.astype("datetime64[D]")
    month = times.astype("datetime64[M]")
    in_month = (days - month.astype("datetime64[D]")).astype(np.int64)
    is_last = ((month + np.timedelta64(1, "M")).astype("datetime64[D]") - days).astype(np.int64) == 1
    has_same_time = len(np.unique(times - days.astype("datetime64[s]"))) == 1
    if has_same_time and (len(np.unique(in_month)) == 1 or is_last.all()):
        return Clock.of_steps("months", np.diff(month).astype(np.float64), month_ends=bool(is_last.all()))
    clock = Clock.of_steps("seconds", np.diff(times).astype(np.float64))
    if clock.step == DAY and has_same_time and len(times) > WEEK and np.is_busday(days).all():
        return Clock.of_steps("weekdays", np.diff(Clock("weekdays", 1).count(times)))
    return clock


def labels_of(times: Times) -> list[str]:
    """Format times with only the required precision."""
    if times.dtype.kind != "M":
        return [f"{time:.12g}" for time in times]
    days = times.astype("datetime64[D]")
    if (times != days).any():
        minutes = times.astype("datetime64[m]")
        return [str(time).replace("T", " ") for time in (times if (times != minutes).any() else minutes)]
    is_monthly = len(times) > 1 and (days == days.astype("datetime64[M]")).all()
    return [str(day) for day in (days.astype("datetime64[M]") if is_monthly else days)]


# --- series -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series(Example):
    """A series of C variables: `values` (T, C), with NaN for missing values."""

    form: ClassVar = "series"

    values: Values
    times: Times  # (T,)
    columns: tuple[str, ...]
    season: int = 1  # period in steps; 1 for none
    name: str = "series"
    begins: int = 0  # earlier rows are history
    clock: Clock = field(default_factory=lambda: Clock("numbers", 1.0))
    fill: Fill = "mask"  # the replacement of missing values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The observed values (T, C)."""
        return ~np.isnan(self.values)

    def visible(self) -> tuple[Values, NDArray[np.bool_]]:
        """Return the inputs of a model: values without NaN, and a mask of the valid values, both (T, C).

        With `fill`, a missing value is replaced by the previous value or the value of the previous season.
        Only earlier values are used, so that a forecast never uses values that it predicts.
        """
        values = self.values.copy()
        for column in values.T if self.fill != "mask" else ():
            for t in np.flatnonzero(np.isnan(column)):
                is_seasonal = self.fill == "season" and t >= self.season and not np.isnan(column[t - self.season])
                lag = self.season if is_seasonal else 1
                column[t] = column[t - lag] if t >= lag else np.nan
        return np.nan_to_num(values), ~np.isnan(values)

    @property
    def new_steps(self) -> int:
        """The number of rows after the history."""
        return len(self) - self.begins

    def until(self, end: int, begins: int = 0) -> "Series":
        """Return the series up to row `end`."""
        return replace(self, values=self.values[:end], times=self.times[:end], begins=begins)

    def ahead(self, start: int, steps: int) -> Values:
        """Return the values (steps, C) of `steps` rows from `start`, with NaN beyond the end."""
        values = np.full((steps, len(self.columns)), np.nan)
        available = self.values[start : start + steps]
        values[: len(available)] = available
        return values

    def time_labels(self) -> list[str]:
        return labels_of(self.times)

    def content(self) -> bytes:
        """Return the name, the times and the values, including the history."""
        head = [self.name, *self.columns, *self.time_labels(), str(self.begins), str(self.season)]
        return frame("\n".join(head)) + array_bytes(self.values)

    @classmethod
    def sizes(cls, corpus: Corpus["Series"], split: str) -> dict[str, int]:
        """Return the numbers of series, steps after the history, variables and missing values."""
        examples = corpus.split(split)
        return {
            "series": len(examples),
            "steps": sum(series.new_steps for series in examples),
            "variables": len(columns_of(corpus)),
            "missing": sum(int((~series.mask[series.begins :]).sum()) for series in examples),
        }

    def future(self, horizon: int) -> Times:
        """Return the next `horizon` times."""
        return self.clock.after(self.times, horizon)


def columns_of(corpus: Corpus[Series]) -> tuple[str, ...]:
    """Return the names of the variables."""
    return corpus.split("train")[0].columns


def season_of(corpus: Corpus[Series]) -> int:
    return corpus.split("train")[0].season


def array_bytes(values: Values) -> bytes:
    """Return values as platform-independent bytes; missing values are infinite."""
    return np.nan_to_num(values, nan=np.inf).astype("<f8").tobytes()


def arrange_series(
    values: Values,
    times: Times,
    columns: Sequence[str],
    *,
    name: str,
    season: int | None = None,
    gaps: Gaps | None = None,
    fill: Fill = "mask",
) -> tuple[Series, list[str]]:
    """Return a series of rows in chronological order, and notes on missing rows and values.

    Missing rows are inserted as NaN, unless too many rows are missing or times are irregular.
    """
    clock, notes = clock_of(times), []
    steps = len(times) - 1
    missing_rows = int(clock.steps(times)[-1]) - steps if clock.regular and steps else 0
    if clock.regular and missing_rows and (gaps == "insert" or (gaps is None and missing_rows <= steps / 4)):
        indices = clock.steps(times)
        all_values = np.full((int(indices[-1]) + 1, values.shape[1]), np.nan)
        all_values[indices] = values
        all_times = np.concatenate([times[:1], clock.after(times[:1], int(indices[-1]))])
        all_times[indices] = times
        values, times = all_values, all_times
        notes.append(
            f"{name} lacks {format_count(missing_rows, 'row')} for a regular step of {clock.describe()}; the rows are "
            "inserted with missing values (data.gaps)"
        )
    elif not clock.regular and gaps == "insert":
        raise DataError(
            f"data.gaps=insert needs regular times, but those of {name} are not multiples of the most frequent step, "
            f"{clock.describe()}. Set data.gaps=ignore, which makes every row one step."
        )
    elif missing_rows or not clock.regular:
        longest = replace(clock, step=float(np.diff(clock.count(times)).max())).describe()
        notes.append(
            f"the times of {name} are irregular, mostly {clock.describe()} apart and at most {longest}: every row is "
            "one step (data.gaps)"
        )
    # If rows are missing, a calendar period is not a fixed number of rows.
    period = clock.season if clock.regular and int(clock.steps(times)[-1]) == len(times) - 1 else 1
    series = Series(values, times, tuple(columns), season or period, name, clock=clock, fill=fill)
    for column, observed in zip(series.columns, series.mask.T, strict=True):
        if not observed.any():
            raise DataError(
                f"The column {format_value(column)} of {name} must have values. Exclude it with data.columns."
            )
    if len(series) < MIN_VALUES:
        raise DataError(f"{name} must have at least {MIN_VALUES} rows, but has {len(series)}.")
    if missing := int((~series.mask).sum()):
        how = "they are ignored" if fill == "mask" else f"they are replaced for models (data.fill={fill})"
        notes.append(f"{missing:,} of the {series.values.size:,} values of {name} are missing: {how}")
    return series, notes


def split_series(
    config: SeriesConfig,
    series: Series,
    notes: Sequence[str],
    *,
    description: str,
    licence: str,
    name: str = "",
    version: str = "",
) -> Corpus[Series]:
    """Divide a series into train, dev and test, in chronological order; each split includes its history."""
    if (size := first_count("train", (), lambda counts: counts["steps"])) is not None:
        series = series.until(min(size, len(series)))
    last = len(series) - round(config.test_fraction * len(series))
    first = last - round(config.dev_fraction * len(series))
    if first < MIN_VALUES:
        raise DataError(
            f"{series.name} is too short: train needs at least {MIN_VALUES} rows, but only {first} of {len(series)} "
            "remain for it. Provide more rows, or lower data.dev_fraction and data.test_fraction."
        )
    for column, observed in zip(series.columns, series.mask[:first].T, strict=True):
        if not observed.any():
            raise DataError(
                f"The column {format_value(column)} of {series.name} must have values in train, its first "
                f"{first:,} rows. "
                "Exclude it with data.columns, or lower data.dev_fraction and data.test_fraction."
            )
    if first < last and not series.mask[first:last].any():
        raise DataError(
            f"The dev split of {series.name}, rows {first + 1:,} to {last:,}, must contain values. Change "
            "data.dev_fraction and data.test_fraction, or truncate the series."
        )
    borders = {"train": (0, first), "dev": (first, last), "test": (last, len(series))}
    return Corpus(
        name=name or config.corpus,
        version=version or f"sha256-{digest([series])[:12]}",
        licence=licence,
        description=description,
        splits={split: [series.until(end, begins)] for split, (begins, end) in borders.items() if end > begins},
        absent={
            split: f"data.{split}_fraction is too small for a single row."
            for split in SPLITS
            if borders[split][0] == borders[split][1]
        },
        notes=tuple(notes),
    )


# --- series with a label ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledSeries(Example):
    """Values (T, C), with NaN for missing values, and their label."""

    form: ClassVar = "series-labelled"
    label_field = "label"

    values: Values
    label: str

    @property
    def text(self) -> str:
        """The values as text, step by step, for display."""
        return " | ".join(" ".join("-" if np.isnan(value) else f"{value:g}" for value in step) for step in self.values)

    def content(self) -> bytes:
        return f"{self.label}\n{self.values.shape}\n".encode() + array_bytes(self.values)

    @classmethod
    def sizes(cls, corpus: Corpus["LabelledSeries"], split: str) -> dict[str, int]:
        examples = corpus.split(split)
        return {
            "series": len(examples),
            "labels": len({example.label for example in examples}),
            "steps": sum(len(example.values) for example in examples),
            "variables": variables_of(corpus),
        }

    @classmethod
    def check(cls, corpus: Corpus["LabelledSeries"]) -> Corpus["LabelledSeries"]:
        """Return the corpus unchanged; raise DataError if it has only one label."""
        refuse_single_label(corpus, "series")
        return corpus


def variables_of(corpus: Corpus[LabelledSeries]) -> int:
    return corpus.split("train")[0].values.shape[1]
