"""The command `seqloom tune`."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the extra tune is not installed")

TINY = ["data.train=60", "data.dev=10", "data.test=10", "batch.size=4", "batch.length=8", "model.embedding=16"]
SHORT = [*TINY, "train.epochs=null", "train.steps=6", "train.evaluate_every=3", "train.log_every=2"]
SPACE = ["train.lr=1e-4..1e-1:log", "model.cell=gru,lstm", "model.hidden=4..12"]


def test_tune_writes_table_plot_and_recipe(seqloom: Any, workdir: Path) -> None:
    shown = seqloom("tune", "toys-copy", *SHORT, *SPACE, "--trials", "3")
    assert shown.code == 0, shown.err
    assert "toys-copy: 3 trials, ranked by loss on dev (lowest is best)" in shown.out
    assert "[3/3] train.lr=" in shown.out and "model.cell=" in shown.out
    out = Path("runs/toys-copy-tune")
    assert "The best is trial" in shown.out and f"seqloom train {out}/best.yaml --seeds 2,3,4" in shown.out
    assert (out / "trials.png").read_bytes().startswith(b"\x89PNG")
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["dev_loss"]) for row in rows]
    assert losses == sorted(losses) and {row["state"] for row in rows} == {"finished"}
    more = seqloom("tune", "toys-copy", *SHORT, *SPACE, "--trials", "4", "--json").objects
    assert [(entry["event"], entry.get("number")) for entry in more] == [("trial", 4), ("tune", None)]
    assert more[-1]["trials"] == 4 and more[-1]["best"]["value"] == min([*losses, more[0]["value"]])
    again = seqloom("tune", "toys-copy", *SHORT, *SPACE, "--trials", "4")
    assert "4 trials ended in an earlier call; no trials remain." in again.out and "[4/4]" not in again.out
    assert seqloom("train", out / "best.yaml", "--out", "best").code == 0
    stored = json.loads((out / "tune.json").read_text())
    assert [trial["number"] for trial in stored["trials"]] == [1, 2, 3, 4]


def test_errors_are_reported_in_one_line(seqloom: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unnamed = seqloom("tune")
    assert unnamed.code == 2 and "Name a recipe" in unnamed.err
    unknown = seqloom("tune", "toys-copy", "model.drpout=0..0.5")
    assert unknown.code == 2 and "model.drpout: no such key; did you mean model.dropout?" in unknown.err
    for command in ("tune", "train"):
        tracker = seqloom(command, "toys-copy", "--track", "mlfow")
        assert tracker.code == 2 and "There is no tracker 'mlfow': did you mean mlflow?" in tracker.err
    monkeypatch.setitem(sys.modules, "optuna", None)
    missing = seqloom("tune", "toys-copy")
    assert missing.code == 5 and missing.err == "seqloom: A search needs Optuna: pip install 'seqloom[tune]'.\n"
    assert not Path("runs").exists()


def test_interrupted_search_tries_all_combinations(
    seqloom: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = seqloom("tune", "toys-copy", *SHORT, "model.cell=gru,elman", "--out", "x")
    assert few.code == 0 and "All 2 combinations of these values have been tried." in few.out
    from seqloom.train.stop import Stop

    monkeypatch.setattr(Stop, "on_signals", lambda stop: _request(stop))
    stopped = seqloom("tune", "toys-copy", *SHORT, *SPACE, "--trials", "2", "--out", "y", "--no-prune")
    assert stopped.code == 75
    assert "To continue, run the same command: seqloom tune toys-copy" in stopped.err
    assert stopped.err.rstrip().endswith("--trials 2 --out y --no-prune")


def _request(stop: Any) -> Any:
    from contextlib import nullcontext

    stop.request()
    return nullcontext()
