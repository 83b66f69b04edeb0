"""Tests of `seqloom forecast`, and of other commands with forecasters."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest

from seqloom.cli.app import main


def write(path: Path, steps: int = 96, name: str = "sales", first: int = 0, every: int = 1) -> Path:
    """Write monthly values with a trend and a season of 12."""
    rows = []
    for n in range(first, first + steps):
        month = n * every
        value = 100 + n + 20 * math.sin(2 * math.pi * n / 12) + 5 * math.sin(n * n)
        rows.append(f"{2000 + month // 12}-{month % 12 + 1:02d},{value:.3f},{200 - n + 3 * math.cos(n**3):.3f}")
    path.write_text("\n".join([f"month,{name},visits", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, and two runs `ar` and `lstm` that were trained on the file."""
    folder = tmp_path_factory.mktemp("forecast")
    data = ["data.corpus=series-file", f"data.file={write(folder / 'sales.csv')}", "forecast.horizon=6"]
    linear = ["model.kind=ar", "model.taps=2", "model.difference=season"]
    small = ["model.kind=lstm", "model.hidden=4", "model.context=12", "train.steps=4", "train.evaluate_every=2"]
    for name, model in (("ar", linear), ("lstm", small)):
        assert main(["train", "series-forecast", *data, *model, "--out", str(folder / name)]) == 0
    return folder


def test_training_prints_next_command(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    data = ["data.corpus=series-file", f"data.file={folder / 'sales.csv'}", "model.kind=ar", "model.taps=2"]
    shown = seqloom("train", "series-forecast", *data, "--out", tmp_path / "run")
    assert shown.code == 0 and "parameters on cpu" in shown.out
    assert "dev: loss" in shown.out and "mase" in shown.out and "perplexity" not in shown.out
    assert f"Try: seqloom forecast {tmp_path / 'run'} · " in shown.out


@pytest.mark.parametrize(("name", "how"), [("ar", "exact distribution"), ("lstm", "from sample paths")])
def test_text_output_has_intervals_for_each_step(seqloom: Any, folder: Path, name: str, how: str) -> None:
    shown = seqloom("forecast", folder / name)
    lines = shown.out.splitlines()
    assert lines[0] == f"{name} ({name}), 6 steps after 2007-12, {how}"
    assert lines[2] == "sales" and lines[3].split()[:3] == ["time", "mean", "low"]
    assert [line.split()[0] for line in lines[4:10]] == [f"2008-{month:02d}" for month in range(1, 7)]
    mean, low_80, high_80, low_95, high_95 = map(float, lines[4].split()[1:])
    assert low_95 < low_80 < mean < high_80 < high_95
    assert "visits" in lines and seqloom("forecast", folder / name, "--columns", "visits").out.count("time") == 1


def test_json_and_csv_output_depend_on_seed(seqloom: Any, folder: Path) -> None:
    result = seqloom("forecast", folder / "lstm", "--horizon", 3, "--seed", 5, "--json").json
    assert result["horizon"] == 3 and not result["exact"] and list(result["forecast"]) == ["sales", "visits"]
    again = seqloom("forecast", folder / "lstm", "--horizon", 3, "--seed", 5, "--csv").out
    rows = list(csv.DictReader(io.StringIO(again)))
    assert [row["variable"] for row in rows] == ["sales"] * 3 + ["visits"] * 3
    assert float(rows[1]["mean"]) == result["forecast"]["sales"][1]["mean"]
    other = seqloom("forecast", folder / "lstm", "--horizon", 3, "--seed", 6, "--json").json
    assert other["forecast"] != result["forecast"]


def test_back_option_compares_forecast_with_observed_values(seqloom: Any, folder: Path) -> None:
    shown = seqloom("forecast", folder / "ar", "--back", 12)
    assert "observed" in shown.out and "in the 80% interval" in shown.out and "12 steps after 2006-12" in shown.out
    result = seqloom("forecast", folder / "ar", "--back", 12, "--json").json
    rows = (folder / "sales.csv").read_text().splitlines()
    assert result["forecast"]["sales"][0]["truth"] == float(rows[-12].split(",")[1])
    error = [abs(row["mean"] - row["truth"]) for row in result["forecast"]["sales"]]
    assert max(error) < 25, "trend and season are predictable"


def test_forecast_continues_another_file(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    later = write(tmp_path / "later.csv", steps=40, first=60)
    result = seqloom("forecast", folder / "ar", "--input", later, "--json").json
    assert result["after"] == "2008-04" and result["notes"] == []
    quarters = write(tmp_path / "quarters.csv", steps=40, every=3)
    assert (
        "trained on steps of 1 month, but the steps of quarters.csv are 3 months"
        in seqloom("forecast", folder / "ar", "--input", quarters).err
    )


@pytest.mark.parametrize("name", ["ar", "lstm"])
def test_plot_is_written(seqloom: Any, folder: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    for ending, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        shown = seqloom("forecast", folder / name, "--back", 6, "--out", tmp_path / f"f{ending}", "--history", 30)
        assert shown.code == 0 and (tmp_path / f"f{ending}").read_bytes().startswith(begins)


def test_evaluate_reports_naive_forecast_and_compare_ranks_by_crps(seqloom: Any, folder: Path) -> None:
    shown = seqloom("evaluate", folder / "ar", "--split", "test").out
    assert "6 steps ahead, from 3 origins" in shown and "MASE by steps ahead" in shown and "naive" in shown
    assert "the value one season (12 steps) earlier" in shown and "MASE of each variable" in shown
    result = seqloom("evaluate", folder / "ar", "--split", "test", "--json").json
    assert result["mase"] < result["naive_mase"] and len(result["by_step"]) == 6
    seqloom("evaluate", folder / "lstm", "--split", "test")
    compared = seqloom("compare", folder / "ar", folder / "lstm", "--split", "test").out
    assert "best first by CRPS" in compared and compared.index("ar") < compared.index("lstm")
    assert "train.lr " not in compared, "keys of one kind of training are not shown"


def test_init_writes_a_recipe(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    shown = seqloom("init", folder / "sales.csv", "--task", "forecast", "--out", recipe)
    assert shown.code == 0 and "68 steps of 2 variables to train on, 1 month each" in shown.out
    assert "kind: ar" in recipe.read_text() and "season: 12" in recipe.read_text()
    assert seqloom("train", recipe, "--out", tmp_path / "run").code == 0
    long = write(tmp_path / "long.csv", steps=300)
    assert seqloom("init", long, "--task", "forecast", "--out", tmp_path / "long.yaml").code == 0
    assert "kind: lstm" in (tmp_path / "long.yaml").read_text()
    assert seqloom("train", tmp_path / "long.yaml", "train.steps=1", "--out", tmp_path / "run-2").code == 0
    assert seqloom("init", long, "--task", "forecast", "--tokens", "words").code == 2


def test_doctor_and_data_show_describe_the_series(seqloom: Any, folder: Path) -> None:
    shown = seqloom("doctor", folder / "ar" / "recipe.yaml").out
    assert "68 steps" in shown and "no problems found" in shown
    shown = seqloom("data", "show", "series-file", f"file={folder / 'sales.csv'}", "--lines", 2).out
    assert "dev begins:" in shown and "2005-09" in shown
    assert seqloom("data", "show", "series-file", f"file={folder / 'sales.csv'}", "--json").json["season"] == 12


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--horizon", "97"], 2, "The horizon must be at most the length of the series, 96 steps; got 97"),
        (["--back", "96"], 2, "back must be less than the 96 steps"),
        (["--back", "90", "--horizon", "12"], 2, "at most the length of the series, 6 steps; got 12"),
        (["--input", "none.csv"], 3, "none.csv does not exist"),
        (["--columns", "sale"], 2, "did you mean sales"),
        (["--json", "--csv"], 2, "choose one"),
        (["--time", "month"], 2, "--input"),
        (["--out", "x.pdf"], 2, "must end in .png or .svg"),
        (["--horizon", "0"], 2, "--horizon"),
    ],
)
def test_invalid_options_are_rejected(seqloom: Any, folder: Path, options: list[str], code: int, words: str) -> None:
    shown = seqloom("forecast", folder / "ar", *options)
    assert shown.code == code and words in shown.err and "Traceback" not in shown.err
    assert len(shown.err.strip().splitlines()) <= 6


def test_incompatible_files_are_rejected(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.csv", name="profit")
    shown = seqloom("forecast", folder / "ar", "--input", other)
    assert shown.code == 3 and "must have the columns of the model, sales, visits" in shown.err
    text = write(tmp_path / "sorted.csv").read_text().splitlines()
    (tmp_path / "sorted.csv").write_text("\n".join([text[0], text[2], text[1], *text[3:]]))
    shown = seqloom("forecast", folder / "ar", "--input", tmp_path / "sorted.csv")
    assert shown.code == 3 and "Line 3" in shown.err and "earlier than the line before it" in shown.err


def test_other_models_are_rejected(seqloom: Any, folder: Path, runs: Any) -> None:
    shown = seqloom("forecast", runs / "chars")
    assert shown.code == 2 and "a forecaster" in shown.err
    assert seqloom("generate", folder / "ar").code == 2


def test_models_of_other_numeric_tasks_are_rejected(seqloom: Any, tmp_path: Path) -> None:
    tracks = ["data.train=2", "data.dev=1", "data.test=1", "data.steps=20", "model.rounds=1"]
    assert seqloom("train", "kalman-track", *tracks, "--out", tmp_path / "track").code == 0
    shown = seqloom("forecast", tmp_path / "track")
    assert shown.code == 2 and "needs a forecaster" in shown.err and "text" not in shown.err


def blank(text: str, every: int) -> str:
    """Remove every n-th value of the first variable of a table."""
    head, *rows = text.splitlines()
    cells = [row.split(",") for row in rows]
    return "\n".join([head, *(f"{t},{'' if n % every == 0 else a},{b}" for n, (t, a, b) in enumerate(cells))]) + "\n"


@pytest.mark.parametrize(
    ("steps", "every", "kind"), [(96, 1000, "ar"), (96, 6, "kalman"), (30, 1000, "kalman"), (260, 6, "lstm")]
)
def test_recipe_written_by_init_trains(
    seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, every: int, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "own.csv", steps)
    file.write_text(blank(file.read_text(), every))
    assert seqloom("init", "--task", "forecast", "own.csv").code == 0
    assert f"kind: {kind} " in Path("own.yaml").read_text()
    short = {"lstm": ["train.epochs=1"], "kalman": ["model.rounds=2"]}.get(kind, [])
    assert seqloom("train", "own.yaml", *short, "--out", "run").code == 0
    assert seqloom("forecast", "run", "--horizon", 3).code == 0


def test_constant_is_printed_with_few_digits(seqloom: Any, tmp_path: Path) -> None:
    file = tmp_path / "flat.csv"
    file.write_text("\n".join(["day,flat", *(f"{n},5.0" for n in range(60))]))
    assert seqloom("train", "series-file", f"data.file={file}", "--out", tmp_path / "flat").code == 0
    assert seqloom("forecast", tmp_path / "flat").out.splitlines()[4].split() == ["60", *["5.0"] * 5]
