"""The tracking task: correct metrics, errors of filter and smoother, and exact resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.data.vectors import Track
from seqloom.predict.loader import load
from seqloom.recipes import read_recipe
from seqloom.tasks.track import Task, is_inside_ellipse, measure_tracks
from seqloom.train.events import Evaluated, Finished, Saved
from seqloom.training import begin, resume

SMALL = ["data.train=4", "data.dev=4", "data.test=2", "data.steps=50", "model.rounds=12", "model.save_every=4"]


def train(out: Path, *overrides: str) -> dict[str, float]:
    _, recipe = read_recipe("kalman-track", [*SMALL, *overrides])
    events = list(begin(recipe, out).events())
    assert isinstance(events[-1], Finished)
    return next(dict(event.metrics) for event in events if isinstance(event, Evaluated))


@pytest.mark.parametrize("motion", ["turns", "drift"])
def test_smoother_beats_filter_and_filter_beats_observations(tmp_path: Path, motion: str) -> None:
    metrics = train(tmp_path / "run", f"data.motion={motion}", "data.train=16", "data.dev=16", "model.rounds=30")
    assert metrics["rmse_smoothed"] < 0.8 * metrics["rmse_filtered"] < 0.8 * metrics["rmse_observed"]
    assert metrics["gap_smoothed"] < metrics["gap_filtered"]
    assert metrics["rmse_observed"] == pytest.approx(6 * 2**0.5, rel=0.1)
    for name in ("within_filtered", "within_smoothed"):
        assert 0.88 < metrics[name] < 0.995
    assert metrics["next_rmse"] < metrics["next_naive"]


def test_metrics_match_manual_computation(tmp_path: Path) -> None:
    train(tmp_path / "run")
    model = load(tmp_path / "run").model
    truth = np.array([[0.0, 0], [3, 4], [6, 8], [9, 12]])
    observed = truth + np.array([[3.0, 4], [0, 0], [np.nan, np.nan], [0, 0]])
    metrics = measure_tracks(model, [Track("by hand", observed, truth)])
    assert metrics["rmse_observed"] == pytest.approx((25 / 3) ** 0.5)
    assert metrics["next_naive"] == pytest.approx(((0**2 + 0**2) / 2 + (6**2 + 8**2) / 2) ** 0.5)
    smoothed = model.smooth(torch.from_numpy(observed)[None]).means[0, :, [0, 2]].numpy()
    errors = np.linalg.norm(smoothed - truth, axis=1)
    assert metrics["gap_smoothed"] == pytest.approx(errors[2])
    assert metrics["rmse_smoothed"] == pytest.approx(np.sqrt((errors[[0, 1, 3]] ** 2).mean()))


def test_ellipse_contains_95_percent_of_errors() -> None:
    draw = torch.Generator().manual_seed(0)
    factor = torch.tensor([[2.0, 0], [1, 0.5]], dtype=torch.float64)
    errors = torch.randn(20_000, 2, generator=draw, dtype=torch.float64) @ factor.mT
    covariances = (factor @ factor.mT).expand(20_000, 2, 2)
    assert float(is_inside_ellipse(errors, covariances).double().mean()) == pytest.approx(0.95, abs=0.005)


def test_padded_tracks_are_measured_like_single_tracks(tmp_path: Path) -> None:
    train(tmp_path / "run")
    trained = load(tmp_path / "run")
    tracks = list(trained.task().corpus.split("dev"))
    tracks[1] = Track("shorter", tracks[1].observed[:20], tracks[1].truth[:20])
    both, alone = (
        measure_tracks(trained.model, tracks[:2]),
        [measure_tracks(trained.model, [track]) for track in tracks[:2]],
    )
    counts = [int(track.mask.sum()) for track in tracks[:2]]
    mean = sum(track["loss"] * count for track, count in zip(alone, counts, strict=True)) / sum(counts)
    assert both["loss"] == pytest.approx(mean)


def contents(run: Path) -> dict[str, torch.Tensor]:
    metrics: dict[str, torch.Tensor] = load(run).model.state_dict()
    return metrics


def test_killed_run_resumes_exactly(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    _, recipe = read_recipe("kalman-track", SMALL)
    for event in begin(recipe, tmp_path / "killed").events():
        if isinstance(event, Saved) and event.step == 8:
            break  # later events are lost
    resumed = list(resume(tmp_path / "killed").events())
    assert resumed[0].step == 8 and isinstance(resumed[-1], Finished) and resumed[-1].step == 12
    uninterrupted, killed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    assert all(torch.equal(uninterrupted[name], killed[name]) for name in uninterrupted)
    losses = [
        [entry["values"]["loss"] for entry in load(tmp_path / name).run.log() if entry["event"] == "progress"]
        for name in ("whole", "killed")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 12
    assert load(tmp_path / "whole").evaluate("test") == load(tmp_path / "killed").evaluate("test")


def test_changed_tracks_are_rejected(tmp_path: Path) -> None:
    train(tmp_path / "run")
    run = load(tmp_path / "run").run
    _, recipe = read_recipe("kalman-track", [*SMALL, "data.seed=1"])
    with pytest.raises(DataError, match="has changed since it was trained: dev, test, train of track"):
        Task.reopen(recipe, run).corpus.split("dev")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.corpus=series", "data"),
        ("model.kind=ngram", "kalman"),
        ("model.structure=spiral", "constant-velocity"),
        ("train.steps=4", "train.steps"),
    ],
)
def test_invalid_recipe_is_rejected(override: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_recipe("kalman-track", [override])


def test_seasonal_model_is_rejected_for_tracks(tmp_path: Path) -> None:
    recipe: Any = read_recipe("kalman-track", [*SMALL, "model.structure=seasonal"])[1]
    with pytest.raises(UsageError, match="needs a season"):
        list(begin(recipe, tmp_path / "run").events())
