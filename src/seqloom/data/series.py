"""Series: values of one or several variables at times that follow each other, in splits that follow each other too.

What comes later is dev, and what comes last is test. Each split keeps all that came before it, since that is what it is
forecast from; `begins` says where its own values start. Gaps are rows of NaN, so that a step is a step everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import SPLITS, Corpus, Example, digest_examples, frame
from seqloom.data.corpus_config import Fill, Gaps
from seqloom.data.examples import sort_labels
from seqloom.data.times import Clock, Times, clock_of, labels_of, longest_step, on_clock, places_on

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
    return f"sha256-{digest_examples(series)[:12]}"


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
        if len(corpus.labels) < 2:
            raise DataError(
                f"The corpus {corpus.name} must have at least two labels to tell apart, but all its training series "
                f"are {shown(corpus.labels[0])}. Give examples of others, and check which column holds the labels."
            )
        return corpus


def variables_of(corpus: Corpus[LabelledSeries]) -> int:
    return corpus.split("train")[0].values.shape[1]
