"""Kalman tracking on the command line: training, evaluation, comparison and inspection."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checksums import update_checksums

from seqloom.cli.app import main

SMALL = ["data.train=3", "data.dev=2", "data.test=2", "data.steps=40", "model.rounds=4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracks") / "track"
    assert main(["train", "kalman-track", *SMALL, "--out", str(folder)]) == 0
    return folder


def test_training_prints_rounds_and_errors(seqloom: Any, tmp_path: Path) -> None:
    shown = seqloom("train", "kalman-track", *SMALL, "--out", tmp_path / "run")
    assert shown.code == 0 and "perplexity" not in shown.out
    assert "step 4/4  loss " in shown.out and " values/s" in shown.out
    assert "dev: loss " in shown.out and "rmse_observed" in shown.out and "rmse_smoothed" in shown.out


def test_smoothed_error_is_evaluated_and_compared(seqloom: Any, run: Path) -> None:
    shown = seqloom("evaluate", run, "--split", "test")
    assert "2 tracks, 80 steps" in shown.out and "RMSE of observations" in shown.out
    result = seqloom("evaluate", run, "--split", "test", "--json").json
    assert result["rmse_smoothed"] < result["rmse_observed"]
    assert "smoothed" in seqloom("compare", run).out


def test_data_show_prints_tracks(seqloom: Any) -> None:
    shown = seqloom(
        "data", "show", "track", "train=2", "dev=1", "test=1", "steps=30", "dropped=0.8", "--lines", "5"
    ).out
    assert "missing" in shown and "train begins:" in shown
    result = seqloom("data", "show", "track", "train=2", "dev=1", "test=1", "steps=30", "--json").json
    assert result["counts"]["train"]["steps"] == 60


def test_inspect_track_prints_and_plots(seqloom: Any, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = seqloom("inspect", "track", run, "--number", 2, "--out", tmp_path / "track.png")
    assert shown.out.splitlines()[0].startswith(f"{run}: track test 2, 40 steps")
    assert [line.split()[0] for line in shown.out.splitlines()[2:]] == ["observed", "filtered", "smoothed"]
    assert (tmp_path / "track.png").read_bytes().startswith(b"\x89PNG")
    assert seqloom("inspect", "track", run, "--out", tmp_path / "track.svg").code == 0


def test_inspect_track_json_agrees_with_metrics_and_gaps(seqloom: Any, run: Path) -> None:
    result = seqloom("inspect", "track", run, "--split", "dev", "--json").json
    truth, smoothed = np.array(result["truth"]), np.array(result["smoothed"])
    assert truth.shape == smoothed.shape == (40, 2) and np.array(result["smoothed_covariances"]).shape == (40, 2, 2)
    seen = [place for place, row in enumerate(result["observed"]) if None not in row]
    error = np.sqrt(((smoothed - truth)[seen] ** 2).sum(axis=1).mean())
    assert result["metrics"]["rmse_smoothed"] == pytest.approx(error)
    for first, last in result["gaps"]:
        assert all(result["observed"][step] == [None, None] for step in range(first, last + 1))


def test_invalid_arguments_are_rejected(seqloom: Any, run: Path, tmp_path: Path) -> None:
    seqloom("inspect", "track", run, "--number", 3).fails_with(2, "--number must be from 1 to 2", "got 3", lines=1)
    seqloom("inspect", "track", run, "--number", 0).fails_with(2, "from 1 to 2", lines=1)
    seqloom("inspect", "track", run, "--out", tmp_path / "track.gif").fails_with(2, ".png or .svg", lines=1)
    seqloom("generate", run).fails_with(2, "reads no text", lines=1)


def test_run_of_another_task_is_rejected(seqloom: Any, run: Path, tmp_path: Path) -> None:
    """The task is checked before other arguments."""
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / "recipe.yaml").write_text((run / "recipe.yaml").read_text().replace("task: track", "task: ngram"))
    update_checksums(other)
    seqloom("inspect", "track", other).fails_with(2, "has the task ngram, not track", "kalman-track", lines=1)


def test_all_recipe_errors_are_reported(seqloom: Any, tmp_path: Path) -> None:
    wrong = ["data.noise=-1.0", "model.rounds=-1", "model.hidden=0", "train.keep_checkpoints=x"]
    shown = seqloom("train", "kalman-track", *wrong, "--out", tmp_path / "run")
    assert shown.code == 2
    for words in ("data.noise: must", "model.hidden: must", "model.rounds: must", "train.keep_checkpoints"):
        assert words in shown.err
