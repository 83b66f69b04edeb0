"""Series: times, gaps, splits with their history, files of the user, and series from packages."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.config import build
from seqloom.core.errors import DataError, ResourceError, UsageError
from seqloom.data import corpora, series_files
from seqloom.data.batching import SeriesWindows
from seqloom.data.corpus import Corpus
from seqloom.data.series import Series, arrange_series, clock_of, columns_of, labels_of, season_of
from seqloom.data.series_files import SERIES, parse_times


def parse(*texts: str, form: str | None = None) -> Any:
    return parse_times(texts, list(range(2, len(texts) + 2)), "series.csv", form)


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "interval", "season", "expected"),
    [
        (["2020-11", "2020-12", "2021-01"], "1 month", 12, ["2021-02", "2021-03"]),
        (["2020-01-31", "2020-02-29", "2020-03-31"], "1 month", 12, ["2020-04-30", "2020-05-31"]),
        (["2020-01-15", "2020-04-15", "2020-07-15"], "3 months", 4, ["2020-10-15", "2021-01-15"]),
        (["2020/02/27", "2020/02/28", "2020/02/29"], "1 day", 7, ["2020-03-01", "2020-03-02"]),
        (["20200101", "20200108", "20200115"], "7 days", 52, ["2020-01-22", "2020-01-29"]),
        (["2020-01-01 22:00", "2020-01-01 23:00"], "1 hour", 24, ["2020-01-02 00:00", "2020-01-02 01:00"]),
        (["2020-01-01 23:59:59", "2020-01-02 00:00:00"], "1 second", 1, ["2020-01-02 00:00:01", "2020-01-02 00:00:02"]),
        ([f"2020-01-{day:02d}" for day in (1, 2, 3, 6, 7, 8, 9)], "1 weekday", 5, ["2020-01-10", "2020-01-13"]),
        (["1998", "1999", "2000"], "1", 1, ["2001", "2002"]),
        (["1700000000", "1700000060"], "60", 1, ["1700000120", "1700000180"]),
        (["0.5", "1.0", "1.5"], "0.5", 1, ["2", "2.5"]),
    ],
)
def test_future_times_continue_the_series(texts: list[str], interval: str, season: int, expected: list[str]) -> None:
    times = parse(*texts)
    clock = clock_of(times)
    assert (clock.describe(), clock.season) == (interval, season)
    assert labels_of(np.concatenate([times, clock.after(times, 2)]))[-2:] == expected


def test_time_format_can_be_configured() -> None:
    assert labels_of(parse("31.01.2020", "01.02.2020", form="%d.%m.%Y")) == ["2020-01-31", "2020-02-01"]
    with pytest.raises(DataError, match=r"Line 3 of series.csv must have a time such as .* got '1/2/2020'"):
        parse("2020-01-01", "1/2/2020")


def test_utc_offsets_are_converted() -> None:
    same = parse("2020-01-01T00:00+01:00", "2020-01-02T00:00+01:00")
    assert labels_of(same) == ["2020-01-01", "2020-01-02"], "equal offsets keep the local time"
    assert labels_of(parse("2020-01-01T10:00Z", "2020-01-01T11:00Z")) == ["2020-01-01 10:00", "2020-01-01 11:00"]
    summer = parse("2020-03-29T01:00+01:00", "2020-03-29T03:00+02:00", "2020-03-29T04:00+02:00")
    assert clock_of(summer).describe() == "1 hour" and labels_of(summer)[1] == "2020-03-29 01:00", (
        "different offsets are converted"
    )
    with pytest.raises(DataError, match=r"Line 2 of series.csv .* have a UTC offset"):
        parse("2020-01-01T10:00Z", "2020-01-01T11:00")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ("2020-01", "2020-03", "2020-02"),
            r"Line 4 of series.csv is earlier than the line before it: '2020-02'. Sort",
        ),
        (
            ("2020-01", "2020-02", "2020-02"),
            r"Line 4 of series.csv repeats the time of the line before it: '2020-02'. Keep",
        ),
        (("3", "2"), r"Line 3 of series.csv is earlier"),
        (
            ("2020-01-01 00:00:00.1", "2020-01-01 00:00:00.2"),
            r"Line 3 of series.csv has the same time as .* to the second",
        ),
    ],
)
def test_times_must_be_in_ascending_order(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse(*texts)


# --- gaps -------------------------------------------------------------------------------------------------------------


def arrange(times: list[str], **options: Any) -> tuple[Any, list[str]]:
    values = np.arange(float(len(times))).reshape(-1, 1)
    return arrange_series(values, parse(*times), ["y"], name="s", **options)


DAYS = [f"2020-01-{day:02d}" for day in range(1, 21)]


def test_missing_row_becomes_missing_values() -> None:
    series, notes = arrange([day for day in DAYS if day != "2020-01-05"])
    assert len(series) == 20 and np.isnan(series.values[4, 0]) and series.time_labels() == DAYS
    assert "s lacks 1 row for a regular step of" in notes[0] and "1 of the 20 values" in notes[1]
    assert not arrange(DAYS)[1]


def test_weekends_are_not_missing_rows() -> None:
    weekdays = [f"2020-01-{day:02d}" for day in range(1, 32) if day % 7 not in (4, 5)]
    series, notes = arrange(weekdays)
    assert len(series) == len(weekdays) and series.season == 5 and not notes
    holiday, notes = arrange([day for day in weekdays if day != "2020-01-20"])
    assert holiday.time_labels() == weekdays and np.isnan(holiday.values[13, 0])
    assert "s lacks 1 row for a regular step of" in notes[0]


def test_rows_are_steps_if_many_are_missing() -> None:
    irregular = [day for day in DAYS if int(day[-2:]) % 3]
    series, notes = arrange(irregular)
    assert len(series) == len(irregular) and "are irregular, mostly 1 day apart and at most 2 days" in notes[0]
    assert series.season == 1, "seven irregular rows are not a week"
    complete = arrange(irregular, gaps="insert")[0]
    assert len(complete) == 20 and complete.season == 7
    with pytest.raises(DataError, match=r"data.gaps=insert needs regular times"):
        arrange([f"2020-01-{day:02d}" for day in (1, 3, 5, 7, 9, 11, 14, 16, 18, 20)], gaps="insert")


def test_missing_values_are_filled_or_masked() -> None:
    values = np.array([[1.0], [2.0], [np.nan], [4.0], [np.nan]])
    series = Series(values, np.arange(5.0), ("y",), season=2, fill="previous")
    assert series.visible()[0].ravel().tolist() == [1, 2, 2, 4, 4]
    assert replace(series, fill="season").visible()[0].ravel().tolist() == [1, 2, 1, 4, 1]
    assert replace(series, fill="mask").visible()[1].ravel().tolist() == [True, True, False, True, False]
    late = Series(np.array([[np.nan], [1.0]]), np.arange(2.0), ("y",), fill="previous")
    assert late.visible()[1].ravel().tolist() == [False, True], "there is no value before the first"


def test_series_without_values_is_rejected() -> None:
    times = parse(*DAYS)
    with pytest.raises(DataError, match=r"The column 'b' of s must have values"):
        arrange_series(np.column_stack([np.arange(20.0), np.full(20, np.nan)]), times, ["a", "b"], name="s")
    with pytest.raises(DataError, match=r"at least 8 rows"):
        arrange_series(np.zeros((3, 1)), times[:3], ["a"], name="s")


# --- files ------------------------------------------------------------------------------------------------------------


def load_file(path: Path, text: str, **settings: Any) -> Corpus[Series]:
    path.write_text(text)
    config = build(corpora.find("series-file").Config, {"corpus": "series-file", "file": str(path), **settings})
    return corpora.load(config)


def table(rows: int = 20, name: str = "a,b,word") -> str:
    lines = [f"{day},{n},{n * n},x" for n, day in enumerate(DAYS[:rows])]
    return "\n".join([f"time,{name}", *lines]) + "\n"


def table_with_missing(first: int, last: int) -> str:
    """Return a table in which column a has values only from row `first` to the row before `last`."""
    lines = [f"{day},{n if first <= n < last else ''},{n}" for n, day in enumerate(DAYS)]
    return "\n".join(["time,a,b", *lines]) + "\n"


def test_series_file_is_split_with_history(tmp_path: Path) -> None:
    corpus = load_file(tmp_path / "s.csv", table())
    assert columns_of(corpus) == ("a", "b") and "word of s.csv has no numbers and was left out" in corpus.notes[0]
    assert {split: corpus.sizes(split)["steps"] for split in corpus.splits} == {"train": 14, "dev": 3, "test": 3}
    dev = corpus.split("dev")[0]
    assert (len(dev), dev.begins, dev.new_steps) == (17, 14, 3), "dev includes the history before it"
    assert np.array_equal(dev.values[:14], corpus.split("train")[0].values)
    assert season_of(load_file(tmp_path / "s.csv", table(), columns=["b"], season=3)) == 3
    assert load_file(tmp_path / "s.csv", table(), test_fraction=0).absent.keys() == {"test"}


def test_changed_file_changes_version_of_affected_split(tmp_path: Path) -> None:
    before, same = (load_file(tmp_path / "s.csv", table()) for _ in range(2))
    after = load_file(tmp_path / "s.csv", table().replace("19,361", "19,362"))
    assert before.fingerprint() == same.fingerprint() and before.version == same.version
    assert before.fingerprint()["test"] != after.fingerprint()["test"]
    assert before.fingerprint()["train"] == after.fingerprint()["train"]


@pytest.mark.parametrize("missing", ["", "NA", "nan", "null", "?"])
def test_missing_value_markers_are_recognized(tmp_path: Path, missing: str) -> None:
    corpus = load_file(tmp_path / "s.csv", table().replace("2020-01-03,2,4", f"2020-01-03,{missing},4"))
    assert np.isnan(corpus.split("train")[0].values[2, 0]) and corpus.sizes("train")["missing"] == 1


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (table().replace("2020-01-03,2,4", "2020-01-03,two,4"), {"columns": ["a"]}, r"'a' at line 4 of .* got 'two'"),
        (table().replace("2020-01-03,2,4", "2020-01-03,inf,4"), {"columns": ["a"]}, r"'a' at line 4 of .* got 'inf'"),
        (table().replace("2020-01-03,2,4", "2020-01-03,two,4"), {}, r"'a' at line 4 of .* got 'two'"),
        (table(), {"columns": ["a", "c", "d"]}, r"must name the columns 'c', 'd' \(data.columns\), but has"),
        (table_with_missing(14, 20), {}, r"'a' of s.csv must have values in train, its first 14 rows"),
        (table_with_missing(0, 14), {"columns": ["a"]}, r"The dev split of s.csv, rows 15 to 17, must contain values"),
        (table().replace("2020-01-03", "2020-01-02"), {}, r"Line 4 of .*s.csv repeats the time of the line before it"),
        (table().replace("2020-01-03", "2020-01-31"), {}, r"Line 5 of .*s.csv is earlier than the line before it"),
        (table().replace("2020-01-03", "soon"), {}, r"Line 4 of .*s.csv must have a time"),
        (table(), {"columns": ["c"]}, r"must name the column 'c'"),
        (table(), {"time": "when"}, r"must name the column 'when'"),
        (table(7), {}, r"at least 8 rows"),
        (table(10), {}, r"too short: train needs at least 8 rows, but only 6 of 10"),
        ("time\n2020\n", {}, r"columns of times and of numbers"),
        ("time,a\n2020,x\n2021,y\n", {}, r"must have a column of numbers"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, text: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_file(tmp_path / "s.csv", text, **settings)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Check data.file"):
        corpora.load(corpora.find("series-file").Config(file=str(tmp_path / "none.csv")))


def test_all_problems_of_config_are_reported() -> None:
    with pytest.raises(UsageError) as error:
        settings = {"dev_fraction": 0.6, "test_fraction": 0.6, "season": 0, "time": "a", "columns": ["a"]}
        build(corpora.find("series-file").Config, {"corpus": "series-file", "file": "x.csv", **settings})
    for message in ("dev_fraction", "season: must be at least 1; got 0", "different columns"):
        assert message in str(error.value)


# --- series of packages -----------------------------------------------------------------------------------------------

needs_packages = pytest.mark.skipif(
    not all(map(find_spec, ("statsmodels", "vega_datasets"))), reason="the extra `series` is missing"
)


@needs_packages
@pytest.mark.parametrize("name", SERIES)
def test_packaged_series_is_regular_and_complete(name: str) -> None:
    corpus = corpora.load(corpora.find("series").Config(series=name))
    test = corpus.split("test")[0]
    assert test.season < len(corpus.split("train")[0]) and np.isfinite(test.values[-1]).all()
    assert test.clock.regular and len(set(test.time_labels())) == len(test)


@needs_packages
def test_packaged_series_match_the_data_of_the_packages() -> None:
    sunspots = corpora.load(corpora.find("series").Config(series="sunspots")).split("test")[0]
    statsmodels = pytest.importorskip("statsmodels.datasets.sunspots")
    assert np.array_equal(sunspots.values[:, 0], statsmodels.load_pandas().data["SUNACTIVITY"].to_numpy())
    co2 = corpora.load(corpora.find("series").Config(series="co2")).split("test")[0]
    weekly = pytest.importorskip("statsmodels.datasets.co2").load_pandas().data["co2"].resample("MS").mean()
    assert np.allclose(co2.values[:, 0], weekly.to_numpy(), equal_nan=True)


@needs_packages
def test_columns_of_packaged_series_are_selected() -> None:
    config = corpora.find("series").Config
    assert columns_of(corpora.load(config(series="weather", columns=("wind",)))) == ("wind",)
    with pytest.raises(UsageError, match="did you mean wind"):
        corpora.load(config(series="weather", columns=("wimd",)))


def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_files, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"pip install 'seqloom\[series\]'"):
        corpora.load(corpora.find("series").Config(series="nile"))


# --- windows ----------------------------------------------------------------------------------------------------------


def test_epoch_reads_every_window_once() -> None:
    values = torch.arange(20.0).double().unsqueeze(1)
    windows = SeriesWindows([(values, torch.ones_like(values, dtype=torch.bool))], 5, size=4)
    batches = [windows.batch(1, step)["values"] for step in range(windows.steps_per_epoch)]
    assert sorted(batch[0].item() for rows in batches for batch in rows) == list(range(16))
    assert torch.equal(windows.batch(1, 2)["values"], batches[2]) and not torch.equal(
        windows.batch(1, 2 + windows.steps_per_epoch)["values"], batches[2]
    )
    halves = [windows.batch(1, 2, rank, 2)["values"] for rank in range(2)]
    assert torch.equal(torch.cat(halves), batches[2])
    with pytest.raises(DataError, match=r"windows of 30 steps.*has 20"):
        SeriesWindows([(values, values > 0)], 30, size=4)
