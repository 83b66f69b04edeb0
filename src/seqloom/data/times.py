"""The times of a series: read, put in order, and gone on with.

A time is a date (2024, 2024-03, 2024-03-01, 2024/03/01 13:00, 20240301) or a plain number. How far two of them lie
apart is counted in months where all fall on the same day of the month, or all on its last; in weekdays where days
follow each other and none is a Saturday or a Sunday; and else in seconds. An offset (+01:00) that all times share is
left out; where they differ, times are those of UTC.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.words import shown

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
