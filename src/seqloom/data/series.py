"""The times of a series: read, put in order, and gone on with.

A time is a date (2024, 2024-03, 2024-03-01, 2024/03/01 13:00, 20240301) or a plain number. How far two of them lie
apart is counted in months where all fall on the same day of the month, or all on its last; in weekdays where days
follow each other and none is a Saturday or a Sunday; and else in seconds. An offset (+01:00) that all times share is
left out; where they differ, times are those of UTC.


Series: values of one or several variables at times that follow each other, in splits that follow each other too.

What comes later is dev, and what comes last is test. Each split keeps all that came before it, since that is what it is
forecast from; `begins` says where its own values start. Gaps are rows of NaN, so that a step is a step everywhere.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import SPLITS, Corpus, Example, Fill, Gaps, digest, frame
from seqloom.data.examples import refuse_single_label, sort_labels

Times = NDArray[np.datetime64] | NDArray[np.float64]
Unit = Literal["months", "weekdays", "seconds", "numbers"]
DAY = 86_400  # seconds
WEEK = 5  # weekdays
_COMPACT = re.compile(r"(?P<year>(?:1[5-9]|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_OFFSET = re.compile(r"([T ]\d\d(?::\d\d)*(?:\.\d+)?) ?(Z|[-+]\d\d:?\d\d)$")  # from UTC, after the time of the day
_SEASONS = {60: 60, 300: 288, 600: 144, 900: 96, 1800: 48, 3600: 24, DAY: 7, 7 * DAY: 52}  # seconds → steps


@dataclass(frozen=True)
class Clock:
    """How far from one step to the next. `regular` is False where rows do not lie evenly: then it is the usual way."""

    unit: Unit
    step: float
    regular: bool = True
    month_ends: bool = False

    @property
    def season(self) -> int:
        """Steps after which things usually repeat themselves: a year of months, a week of days, a day of hours."""
        if self.unit == "months":
            return int(12 / self.step) if 12 % self.step == 0 else 1
        if self.unit == "weekdays":
            return WEEK
        return _SEASONS.get(int(self.step), 1) if self.unit == "seconds" else 1

    def after(self, times: Times, count: int) -> Times:
        """The `count` times that follow the last."""
        ahead = np.arange(1, count + 1)
        if self.unit == "numbers":
            return np.asarray(times[-1] + self.step * ahead, dtype=np.float64)
        last: np.datetime64 = np.datetime64(times[-1], "s")
        if self.unit == "seconds":
            return last + (self.step * ahead).astype("timedelta64[s]")
        if self.unit == "weekdays":
            day = last.astype("datetime64[D]")
            return np.busday_offset(day, ahead).astype("datetime64[s]") + (last - day.astype("datetime64[s]"))
        return self._months_on(last, (self.step * ahead).astype(np.int64))

    def _months_on(self, last: np.datetime64, months: NDArray[np.int64]) -> Times:
        """A day that a month does not have is its last."""
        first = last.astype("datetime64[M]")
        begins = (first + months).astype("datetime64[D]")
        longest = ((first + months + 1).astype("datetime64[D]") - begins).astype(np.int64) - 1
        day = (last.astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
        placed = begins + (longest if self.month_ends else np.minimum(day, longest))
        rest = last - last.astype("datetime64[D]").astype("datetime64[s]")
        return placed.astype("datetime64[s]") + rest

    def said(self) -> str:
        """`1 month`, `7 days`, `0.5`."""
        if self.unit == "numbers":
            return f"{self.step:g}"
        name, size = _largest_unit(self.step) if self.unit == "seconds" else (self.unit[:-1], 1)
        count = self.step / size
        return f"{count:g} {name}{'' if count == 1 else 's'}"


def _largest_unit(seconds: float) -> tuple[str, int]:
    units = {"day": DAY, "hour": 3600, "minute": 60, "second": 1}
    return next((name, size) for name, size in units.items() if seconds % size == 0)


def parse_times(texts: Sequence[str], lines: Sequence[int], where: str, form: str | None = None) -> Times:
    """All times of a column, ascending. DataError with the line of the first that is none, or not after the last."""
    texts = [text.strip() for text in texts]
    texts = _without_offset(texts) if form is None else texts
    if form is None and all(_NUMBER.fullmatch(text) for text in texts) and not all(map(_compact, texts)):
        times: Times = np.asarray([float(text) for text in texts])
    else:
        times = np.asarray([_date(*one, where, form) for one in zip(texts, lines, strict=True)], dtype="datetime64[s]")
    ahead = np.diff(times).astype(np.float64) > 0
    for place in map(int, np.flatnonzero(~ahead)):
        says, what = _out_of_order(times[place] == times[place + 1], texts[place] == texts[place + 1])
        raise DataError(f"Line {lines[place + 1]:,} of {where} {says}: {shown(texts[place + 1])}. {what}.")
    return times


def _out_of_order(same_time: bool, same_text: bool) -> tuple[str, str]:
    """What is wrong with a time that is not after the one before it, and what to do."""
    if not same_time:
        return "is earlier than the line before it", "Sort the rows by time"
    if not same_text:
        return "is the same time as the line before it, to the second", "Write finer times as numbers"
    return "is a time that stands there before", "Keep one row for each time"


def _without_offset(texts: Sequence[str]) -> list[str]:
    """Times as they are written, where all have the same offset from UTC; those of UTC, where they have different ones,
    as in summer and winter."""
    offsets = {found[2] if (found := _OFFSET.search(text)) else "" for text in texts}
    if len(offsets) > 1 and "" not in offsets:
        return [_in_utc(text) for text in texts]
    return [_OFFSET.sub(r"\1", text) for text in texts] if len(offsets) == 1 else list(texts)


def _in_utc(text: str) -> str:
    try:
        return datetime.fromisoformat(text.replace("/", "-")).astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    except ValueError:
        return text  # no time: what reads it will say so


def _compact(text: str) -> bool:
    found = _COMPACT.fullmatch(text)
    return found is not None and 1 <= int(found["month"]) <= 12 and 1 <= int(found["day"]) <= 31


def _date(text: str, line: int, where: str, form: str | None) -> np.datetime64:
    try:
        if form is not None:
            return np.datetime64(datetime.strptime(text, form).replace(tzinfo=None), "s")
        if _compact(text):
            return np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:]}", "s")
        if not re.match(r"\d{4}", text):
            raise ValueError("it does not begin with a year")
        if _OFFSET.search(text):
            raise ValueError("some lines say how far from UTC they are, and others do not")
        return np.datetime64(text.replace("/", "-"), "s")
    except ValueError as error:
        hint = f"as data.time_format says, {form}" if form else "such as 2024-03-01 or 2024-03-01 13:00"
        more = "" if form else ", or give its form, as strptime has it: data.time_format='%d.%m.%Y'"
        raise DataError(
            f"Line {line:,} of {where} must have a time {hint}{more}; got {shown(text)} ({error})."
        ) from None


def clock_of(times: Times) -> Clock:
    """The most frequent step; `regular` if every other is so many times as long."""
    if len(times) < 2:
        return Clock("numbers", 1.0)
    if times.dtype.kind != "M":
        return _most_frequent("numbers", np.diff(times))
    days = times.astype("datetime64[D]")
    month = times.astype("datetime64[M]")
    in_month = (days - month.astype("datetime64[D]")).astype(np.int64)
    last = ((month + 1).astype("datetime64[D]") - days).astype(np.int64) == 1
    same_time = len(np.unique(times - days.astype("datetime64[s]"))) == 1
    if same_time and (len(np.unique(in_month)) == 1 or last.all()):
        return _most_frequent("months", np.diff(month).astype(np.float64), month_ends=bool(last.all()))
    found = _most_frequent("seconds", np.diff(times).astype(np.float64))
    if found.step == DAY and same_time and len(times) > WEEK and np.is_busday(days).all():
        return _most_frequent("weekdays", np.diff(_counted(times, "weekdays")))
    return found


def _counted(times: Times, unit: Unit) -> NDArray[np.float64]:
    """How far each lies from the first, in units."""
    if unit == "weekdays":
        days = times.astype("datetime64[D]")
        return np.busday_count(days[0], days).astype(np.float64)
    counted = times.astype("datetime64[M]") if unit == "months" else times
    return (counted - counted[0]).astype(np.float64)


def _most_frequent(unit: Unit, steps: NDArray[np.float64], month_ends: bool = False) -> Clock:
    lengths, counts = np.unique(np.round(steps, 9), return_counts=True)
    step = float(lengths[counts.argmax()])
    whole = bool(np.allclose(lengths / step, np.round(lengths / step), atol=1e-6))
    return Clock(unit, step, whole, month_ends)


def places_on(clock: Clock, times: Times) -> NDArray[np.int64]:
    """Which step of a regular clock each time is, counted from the first."""
    return np.round(_counted(times, clock.unit) / clock.step).astype(np.int64)


def on_clock(clock: Clock, times: Times) -> bool:
    """Whether there is one for each step."""
    return clock.regular and int(places_on(clock, times)[-1]) == len(times) - 1


def longest_step(clock: Clock, times: Times) -> str:
    """The farthest that two rows lie apart, in words."""
    return replace(clock, step=float(np.diff(_counted(times, clock.unit)).max())).said()


def labels_of(times: Times) -> list[str]:
    """Times as a table shows them: no more of a date than tells them apart."""
    if times.dtype.kind != "M":
        return [f"{time:.12g}" for time in times]
    days = times.astype("datetime64[D]")
    if (times != days).any():
        minutes = times.astype("datetime64[m]")
        return [str(time).replace("T", " ") for time in (times if (times != minutes).any() else minutes)]
    whole = len(times) > 1 and (days == days.astype("datetime64[M]")).all()
    return [str(day) for day in (days.astype("datetime64[M]") if whole else days)]


# --- series --------------------------------------------------------------------------------


Values = NDArray[np.float64]
FEWEST = 8  # values a series must have


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
        """What a model sees: values without NaN, and a mask of those it may look at, both (T, C).

        What is made up looks back only, so no forecast can see what it is to say.
        """
        if self.fill == "mask":
            return np.nan_to_num(self.values), self.mask
        made = filled(self.values, self.fill, self.season)
        return np.nan_to_num(made), ~np.isnan(made)

    @property
    def own(self) -> int:
        """How many rows are its own, not history."""
        return len(self) - self.begins

    def until(self, end: int, begins: int = 0) -> "Series":
        """The same without what comes at `end` and later."""
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
        """The times after the last."""
        return self.clock.after(self.times, horizon)


def columns_of(corpus: Corpus[Series]) -> tuple[str, ...]:
    """Return the names of the variables; every split has the same series, train's are the shortest."""
    return corpus.split("train")[0].columns


def season_of(corpus: Corpus[Series]) -> int:
    return corpus.split("train")[0].season


def array_bytes(values: Values) -> bytes:
    """Return values as bytes that are the same on every machine; missing ones are infinite."""
    return np.nan_to_num(values, nan=np.inf).astype("<f8").tobytes()


def version_of(series: Sequence[Series]) -> str:
    """The version of series that come without one: what they say."""
    return f"sha256-{digest(series)[:12]}"


# --- making one -------------------------------------------------------------------------------------------------------


def arranged(
    values: Values,
    times: Times,
    columns: Sequence[str],
    *,
    name: str,
    season: int | None = None,
    gaps: Gaps | None = None,
    fill: Fill = "mask",
) -> tuple[Series, list[str]]:
    """A series of rows in the order of time, and notes on what was missing of it."""
    clock = clock_of(times)
    values, times, notes = _evenly(values, times, clock, gaps, name)
    usual = clock.season if on_clock(clock, times) else 1  # a week of seven days is not seven rows where some are gone
    made = Series(values, times, tuple(columns), season or usual, name, clock=clock, fill=fill)
    _refuse_empty(made)
    if missing := int((~made.mask).sum()):
        how = "they are left out of all sums" if fill == "mask" else f"models see made-up ones (data.fill={fill})"
        notes.append(f"{missing:,} of the {made.values.size:,} values of {name} missing: {how}")
    return made, notes


def _evenly(
    values: Values, times: Times, clock: Clock, gaps: Gaps | None, name: str
) -> tuple[Values, Times, list[str]]:
    """Rows of NaN where the clock says that one should be; or a word on why not."""
    steps = len(times) - 1
    if clock.regular:
        places = places_on(clock, times)
        lacking = int(places[-1]) - steps if steps else 0
        if not lacking:
            return values, times, []
        if gaps == "insert" or (gaps is None and lacking <= steps / 4):
            whole = np.full((int(places[-1]) + 1, values.shape[1]), np.nan)
            whole[places] = values
            all_times: Any = np.concatenate([times[:1], clock.after(times[:1], int(places[-1]))])
            all_times[places] = times
            rows = "1 row is" if lacking == 1 else f"{lacking:,} rows are"
            note = f"{rows} missing of {name}, one every {clock.said()}: held as missing values (data.gaps)"
            return whole, all_times, [note]
    elif gaps == "insert":
        raise DataError(
            f"data.gaps=insert needs times that lie evenly, and those of {name} do not: mostly {clock.said()} apart, "
            "and others no multiple of that. Set data.gaps=ignore, which takes every row as one step."
        )
    note = (
        f"the times of {name} do not lie evenly, mostly {clock.said()} apart and at most {longest_step(clock, times)}"
    )
    return values, times, [f"{note}: every row is taken as one step (data.gaps)"]


def _refuse_empty(series: Series) -> None:
    for column, observed in zip(series.columns, series.mask.T, strict=True):
        if not observed.any():
            raise DataError(
                f"The column {shown(column)} of {series.name} has no value at all. Leave it out: data.columns."
            )
    if len(series) < FEWEST:
        raise DataError(f"{series.name} must have at least {FEWEST} rows to be a series; it has {len(series)}.")


def filled(values: Values, fill: Fill, season: int) -> Values:
    """Missing values made up: the last one there was, or that of a season ago. Before the first value nothing is."""
    made = values.copy()
    for column in made.T:
        for place in np.flatnonzero(np.isnan(column)):
            back = season if fill == "season" and place >= season and not np.isnan(column[place - season]) else 1
            column[place] = column[place - back] if place >= back else np.nan
    return made


# --- splits -----------------------------------------------------------------------------------------------------------


def in_splits(series: Sequence[Series], dev: float, test: float) -> dict[str, list[Series]]:
    """The last values are test, those before them dev, the rest train; each with what came before it."""
    made: dict[str, list[Series]] = {name: [] for name in SPLITS}
    for one in series:
        last = len(one) - round(test * len(one))
        first = last - round(dev * len(one))
        if first < FEWEST:
            raise DataError(
                f"{one.name} is too short: of its {len(one)} rows {first} are left to train on, and there must be "
                f"{FEWEST}. Give more, or lower data.dev_fraction and data.test_fraction."
            )
        _refuse_unseen(one, first, last)
        for split, begins, end in (("train", 0, first), ("dev", first, last), ("test", last, len(one))):
            if end > begins:
                made[split].append(one.until(end, begins))
    return {name: found for name, found in made.items() if found}


def _refuse_unseen(series: Series, first: int, last: int) -> None:
    """What cannot be learned since it comes too late; and a dev of which nothing was observed chooses nothing."""
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


def absent_splits(splits: Mapping[str, Any]) -> dict[str, str]:
    """Why a split is not there."""
    return {name: f"data.{name}_fraction is too small to leave it a value." for name in SPLITS if name not in splits}


# --- series with a label ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledSeries(Example):
    """Values (T, C), NaN where one is missing, and their label."""

    form: ClassVar = "series-labelled"

    values: Values
    label: str

    @property
    def text(self) -> str:
        """Its numbers, a step after the other, for whoever looks at it."""
        return " | ".join(" ".join("-" if np.isnan(one) else f"{one:g}" for one in step) for step in self.values)

    def content(self) -> bytes:
        return f"{self.label}\n{self.values.shape}\n".encode() + array_bytes(self.values)

    def labels(self) -> Sequence[str]:
        return (self.label,)

    @staticmethod
    def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
        return sort_labels(labels)

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
