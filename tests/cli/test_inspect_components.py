"""Tests of `seqloom inspect components`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom.cli.app import main

STEPS = 48


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`seasonal` and `log` have two increasing variables and a season of 4. The other runs are `free` and `ar`."""
    folder = tmp_path_factory.mktemp("components")
    rows = ["time,wet,dry"]
    for t in range(STEPS):
        season = (3, -1, -4, 2)[t % 4]
        wet = "" if t in (7, 8) else f"{100 + t + season + 0.3 * math.sin(7 * t):.3f}"
        rows.append(f"{2000 + t // 4}-{1 + 3 * (t % 4):02d}-01,{wet},{50 + 2 * math.sin(t):.3f}")
    (folder / "series.csv").write_text("\n".join(rows) + "\n")
    data = ["data.corpus=series-file", f"data.file={folder / 'series.csv'}", "data.season=4"]
    models = {
        "seasonal": ["model.kind=kalman", "model.rounds=15"],
        "log": ["model.kind=kalman", "model.rounds=2", "model.damped=true", "forecast.transform=log"],
        "free": ["model.kind=kalman", "model.rounds=2", "model.structure=free"],
        "ar": ["model.kind=ar", "model.taps=2", "data.fill=previous"],
    }
    for name, words in models.items():
        assert main(["train", "series-forecast", *data, *words, "--out", str(folder / name)]) == 0, name
    return folder


def test_components_recover_the_generated_series(seqloom: Any, runs: Path) -> None:
    result = seqloom("inspect", "components", runs / "seasonal", "--json").json
    assert result["variable"] == "wet" and result["times"][0].startswith("2000-01") and not result["logarithmic"]
    assert result["observed"][7] is None and len(result["observed"]) == STEPS
    parts = {name: np.array(part["mean"]) for name, part in result["parts"].items()}
    assert list(parts) == ["level", "slope", "season"]
    steps = np.arange(STEPS)
    np.testing.assert_allclose(parts["level"], 100 + steps, atol=1.0)
    np.testing.assert_allclose(parts["slope"][4:], 1.0, atol=0.3)
    np.testing.assert_allclose(parts["season"], np.array([3, -1, -4, 2])[steps % 4], atol=0.7)
    deviation = np.array(result["parts"]["level"]["deviation"])
    assert deviation[7] > deviation[20] > 0  # the model is less certain in a gap


def test_column_in_logarithms_is_shown_and_plotted(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "parts.png"
    shown = seqloom("inspect", "components", runs / "log", "--column", "dry", "--out", plot)
    assert shown.code == 0 and "dry of" in shown.out and "(logarithms)" in shown.out
    assert len(shown.out.splitlines()) == 14
    assert plot.read_bytes().startswith(b"\x89PNG")
    result = seqloom("inspect", "components", runs / "log", "--column", "dry", "--json").json
    assert result["logarithmic"] and abs(result["parts"]["level"]["mean"][-1] - math.log(50)) < 0.2


def test_models_without_components_are_rejected(seqloom: Any, runs: Path) -> None:
    seqloom("inspect", "components", runs / "ar").fails_with(
        2, "is not a structural model with level", "model.kind=kalman", lines=1
    )
    seqloom("inspect", "components", runs / "free").fails_with(
        2, "has no named components", "model.structure=trend", lines=1
    )
    seqloom("inspect", "components", runs / "log", "--column", "wett").fails_with(2, "did you mean wet", lines=1)


def test_forecast_is_better_than_naive(seqloom: Any, runs: Path) -> None:
    result = seqloom("evaluate", runs / "seasonal", "--split", "test", "--json").json
    assert result["mase"] < result["naive_mase"]
