"""Series: values of one or several variables at times that follow each other, in splits that follow each other too.

What comes later is dev, and what comes last is test. Each split keeps all that came before it,
since that is what it is forecast from; `begins` says where its own values start. Gaps are rows of
NaN, so that a step is a step everywhere.

How far two times lie apart is counted in months where all fall on the same day of the month, or all
on its last; in weekdays where days follow each other and none is a Saturday or a Sunday; and else
in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import SPLITS, Corpus, Example, Fill, Gaps, SeriesConfig, digest, frame
from seqloom.data.examples import refuse_single_label

Values = NDArray[np.float64]
Times = NDArray[np.datetime64] | NDArray[np.float64]
Unit = Literal["months", "weekdays", "seconds", "numbers"]
DAY = 86_400  # seconds
WEEK = 5  # weekdays
MIN_VALUES = 8  # values a series must have
_SEASONS = {60: 60, 300: 288, 600: 144, 900: 96, 1800: 48, 3600: 24, DAY: 7, 7 * DAY: 52}  # seconds → steps


# --- times ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clock:
    """How far from one step to the next. `regular` is False where rows do not lie evenly: then it is the usual way."""

    unit: Unit
    step: float
    regular: bool = True
    month_ends: bool = False

    @classmethod
    def of_steps(cls, unit: Unit, steps: NDArray[np.float64], month_ends: bool = False) -> "Clock":
        """Return the clock of the most frequent step; `regular` if every other is so many times as long."""
        lengths, counts = np.unique(np.round(steps, 9), return_counts=True)
        step = float(lengths[counts.argmax()])
        whole = bool(np.allclose(lengths / step, np.round(lengths / step), atol=1e-6))
        return cls(unit, step, whole, month_ends)

    @property
    def season(self) -> int:
        """Steps after which things usually repeat themselves: a year of months, a week of days, a day of hours."""
        if self.unit == "months":
            return int(12 / self.step) if 12 % self.step == 0 else 1
        if self.unit == "weekdays":
            return WEEK
        return _SEASONS.get(int(self.step), 1) if self.unit == "seconds" else 1

    def after(self, times: Times, count: int) -> Times:
        """Return the `count` times that follow the last. A day that a month does not have is its last."""
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
        first, months = last.astype("datetime64[M]"), (self.step * ahead).astype(np.int64)
        begins = (first + months).astype("datetime64[D]")
        longest = ((first + months + 1).astype("datetime64[D]") - begins).astype(np.int64) - 1
        day_of_month = (day - first.astype("datetime64[D]")).astype(np.int64)
        days = begins + (longest if self.month_ends else np.minimum(day_of_month, longest))
        return days.astype("datetime64[s]") + time_of_day

    def count(self, times: Times) -> NDArray[np.float64]:
        """Return how far each time lies from the first, in units."""
        if self.unit == "weekdays":
            days = times.astype("datetime64[D]")
            return np.busday_count(days[0], days).astype(np.float64)
        units = times.astype("datetime64[M]") if self.unit == "months" else times
        return (units - units[0]).astype(np.float64)

    def steps(self, times: Times) -> NDArray[np.int64]:
        """Return which step of a regular clock each time is, counted from the first."""
        return np.round(self.count(times) / self.step).astype(np.int64)

    def describe(self) -> str:
        """`1 month`, `7 days`, `0.5`."""
        if self.unit == "numbers":
            return f"{self.step:g}"
        name, size = self.unit[:-1], 1
        if self.unit == "seconds":
            units = {"day": DAY, "hour": 3600, "minute": 60, "second": 1}
            name, size = next((name, size) for name, size in units.items() if self.step % size == 0)
        count = self.step / size
        return f"{count:g} {name}{'' if count == 1 else 's'}"


def clock_of(times: Times) -> Clock:
    """Return the clock whose step is the most frequent one."""
    if len(times) < 2:
        return Clock("numbers", 1.0)
    if times.dtype.kind != "M":
        return Clock.of_steps("numbers", np.diff(times))
    days = times.astype("datetime64[D]")
    month = times.astype("datetime64[M]")
    in_month = (days - month.astype("datetime64[D]")).astype(np.int64)
    last = ((month + 1).astype("datetime64[D]") - days).astype(np.int64) == 1
    same_time = len(np.unique(times - days.astype("datetime64[s]"))) == 1
    if same_time and (len(np.unique(in_month)) == 1 or last.all()):
        return Clock.of_steps("months", np.diff(month).astype(np.float64), month_ends=bool(last.all()))
    clock = Clock.of_steps("seconds", np.diff(times).astype(np.float64))
    if clock.step == DAY and same_time and len(times) > WEEK and np.is_busday(days).all():
        return Clock.of_steps("weekdays", np.diff(Clock("weekdays", 1).count(times)))
    return clock


def labels_of(times: Times) -> list[str]:
    """Return times as a table shows them: no more of a date than tells them apart."""
    if times.dtype.kind != "M":
        return [f"{time:.12g}" for time in times]
    days = times.astype("datetime64[D]")
    if (times != days).any():
        minutes = times.astype("datetime64[m]")
        return [str(time).replace("T", " ") for time in (times if (times != minutes).any() else minutes)]
    whole = len(times) > 1 and (days == days.astype("datetime64[M]")).all()
    return [str(day) for day in (days.astype("datetime64[M]") if whole else days)]


# --- series -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series(Example):
    """Rows of C variables: `values` (T, C), NaN where one is missing."""

    form: ClassVar = "series"

    values: Values
    times: Times  # (T,)
    columns: tuple[str, ...]
    season: int = 1  # steps after which things repeat themselves; 1 for never
    name: str = "series"
    begins: int = 0  # what stands before this place is history
    clock: Clock = field(default_factory=lambda: Clock("numbers", 1.0))
    fill: Fill = "mask"  # what a model sees in place of a missing value

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """True where a value was observed (T, C)."""
        return ~np.isnan(self.values)

    def visible(self) -> tuple[Values, NDArray[np.bool_]]:
        """Return what a model sees: values without NaN, and a mask of those it may look at, both (T, C).

        With `fill`, a missing value is the last one there was, or that of a season ago; before the
        first value nothing is. What is made up looks back only, so no forecast can see what it is
        to say.
        """
        values = self.values.copy()
        for column in values.T if self.fill != "mask" else ():
            for place in np.flatnonzero(np.isnan(column)):
                seasonal = self.fill == "season" and place >= self.season and not np.isnan(column[place - self.season])
                back = self.season if seasonal else 1
                column[place] = column[place - back] if place >= back else np.nan
        return np.nan_to_num(values), ~np.isnan(values)

    @property
    def own(self) -> int:
        """How many rows are its own, not history."""
        return len(self) - self.begins

    def until(self, end: int, begins: int = 0) -> "Series":
        """Return the same without what comes at `end` and later."""
        return replace(self, values=self.values[:end], times=self.times[:end], begins=begins)

    def ahead(self, start: int, steps: int) -> Values:
        """Return the values of `steps` steps from `start` on (steps, C), NaN beyond the end."""
        values = np.full((steps, len(self.columns)), np.nan)
        own = self.values[start : start + steps]
        values[: len(own)] = own
        return values

    def time_labels(self) -> list[str]:
        return labels_of(self.times)

    def content(self) -> bytes:
        """Return name, times and values, history included."""
        head = [self.name, *self.columns, *self.time_labels(), str(self.begins), str(self.season)]
        return frame("\n".join(head)) + array_bytes(self.values)

    @classmethod
    def sizes(cls, corpus: Corpus["Series"], split: str) -> dict[str, int]:
        """Return series, their own steps, variables, and missing values."""
        examples = corpus.split(split)
        return {
            "series": len(examples),
            "steps": sum(series.own for series in examples),
            "variables": len(columns_of(corpus)),
            "missing": sum(int((~series.mask[series.begins :]).sum()) for series in examples),
        }

    def future(self, horizon: int) -> Times:
        """Return the times after the last."""
        return self.clock.after(self.times, horizon)


def columns_of(corpus: Corpus[Series]) -> tuple[str, ...]:
    """Return the names of the variables; every split has the same series, train's are the shortest."""
    return corpus.split("train")[0].columns


def season_of(corpus: Corpus[Series]) -> int:
    return corpus.split("train")[0].season


def array_bytes(values: Values) -> bytes:
    """Return values as bytes that are the same on every machine; missing ones are infinite."""
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
    """Return a series of rows in the order of time, and notes on what was missing of it.

    Rows of NaN stand where the clock says that one should be, unless too many are missing or times
    lie unevenly.
    """
    clock, notes = clock_of(times), []
    steps = len(times) - 1
    lacking = int(clock.steps(times)[-1]) - steps if clock.regular and steps else 0
    if clock.regular and lacking and (gaps == "insert" or (gaps is None and lacking <= steps / 4)):
        places = clock.steps(times)
        whole = np.full((int(places[-1]) + 1, values.shape[1]), np.nan)
        whole[places] = values
        every = np.concatenate([times[:1], clock.after(times[:1], int(places[-1]))])
        every[places] = times
        values, times = whole, every
        rows = "1 row is" if lacking == 1 else f"{lacking:,} rows are"
        notes.append(f"{rows} missing of {name}, one every {clock.describe()}: held as missing values (data.gaps)")
    elif not clock.regular and gaps == "insert":
        raise DataError(
            f"data.gaps=insert needs times that lie evenly, and those of {name} do not: mostly {clock.describe()} "
            "apart, and others no multiple of that. Set data.gaps=ignore, which takes every row as one step."
        )
    elif lacking or not clock.regular:
        longest = replace(clock, step=float(np.diff(clock.count(times)).max())).describe()
        notes.append(
            f"the times of {name} do not lie evenly, mostly {clock.describe()} apart and at most {longest}: "
            "every row is taken as one step (data.gaps)"
        )
    # a week of seven days is not seven rows where some are gone
    usual = clock.season if clock.regular and int(clock.steps(times)[-1]) == len(times) - 1 else 1
    series = Series(values, times, tuple(columns), season or usual, name, clock=clock, fill=fill)
    for column, observed in zip(series.columns, series.mask.T, strict=True):
        if not observed.any():
            raise DataError(f"The column {shown(column)} of {name} has no value at all. Leave it out: data.columns.")
    if len(series) < MIN_VALUES:
        raise DataError(f"{name} must have at least {MIN_VALUES} rows to be a series; it has {len(series)}.")
    if missing := int((~series.mask).sum()):
        how = "they are left out of all sums" if fill == "mask" else f"models see made-up ones (data.fill={fill})"
        notes.append(f"{missing:,} of the {series.values.size:,} values of {name} missing: {how}")
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
    """Return the last values as test, those before them as dev, the rest as train; each with what came before it."""
    last = len(series) - round(config.test_fraction * len(series))
    first = last - round(config.dev_fraction * len(series))
    if first < MIN_VALUES:
        raise DataError(
            f"{series.name} is too short: of its {len(series)} rows {first} are left to train on, and there must be "
            f"{MIN_VALUES}. Give more, or lower data.dev_fraction and data.test_fraction."
        )
    for column, observed in zip(series.columns, series.mask[:first].T, strict=True):
        if not observed.any():
            raise DataError(
                f"The column {shown(column)} of {series.name} has no value in the training part, its first {first:,} "
                "rows. Leave it out (data.columns), or lower data.dev_fraction and data.test_fraction."
            )
    if first < last and not series.mask[first:last].any():
        raise DataError(
            f"The dev part of {series.name}, rows {first + 1:,} to {last:,}, has no value to choose a model by. Set "
            "data.dev_fraction and data.test_fraction so that it has some, or end the series earlier."
        )
    borders = {"train": (0, first), "dev": (first, last), "test": (last, len(series))}
    return Corpus(
        name=name or config.corpus,
        version=version or f"sha256-{digest([series])[:12]}",
        licence=licence,
        description=description,
        splits={split: [series.until(end, begins)] for split, (begins, end) in borders.items() if end > begins},
        absent={
            split: f"data.{split}_fraction is too small to leave it a value."
            for split in SPLITS
            if borders[split][0] == borders[split][1]
        },
        notes=tuple(notes),
    )


# --- series with a label ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledSeries(Example):
    """Values (T, C), NaN where one is missing, and their label."""

    form: ClassVar = "series-labelled"
    label_field = "label"

    values: Values
    label: str

    @property
    def text(self) -> str:
        """Its numbers, a step after the other, for whoever looks at it."""
        return " | ".join(" ".join("-" if np.isnan(one) else f"{one:g}" for one in step) for step in self.values)

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
        """Return the corpus as it is; raise DataError if there are not two labels."""
        refuse_single_label(corpus, "series")
        return corpus


def variables_of(corpus: Corpus[LabelledSeries]) -> int:
    return corpus.split("train")[0].values.shape[1]
