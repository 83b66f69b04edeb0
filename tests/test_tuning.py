"""Hyperparameter search: spaces, trials, pruning and resuming."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqloom import training, tune_recipe
from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.recipes import read_recipe
from seqloom.runs.run import Run
from seqloom.train.events import Saved, Stopped
from seqloom.train.stop import Stop
from seqloom.tuning import NO_SIGNAL, STARTUP_TRIALS, Search, Trial, parse_dimension

pytest.importorskip("optuna", reason="the extra tune is not installed")

TINY = ["data.train=60", "data.dev=10", "data.test=10", "batch.size=4", "batch.length=8", "model.embedding=16"]
SMALL = [*TINY, "train.epochs=null", "train.log_every=6", "model.hidden=8"]
SHORT = [*SMALL, "train.steps=12", "train.evaluate_every=3"]
LR = "train.lr=1e-5..1e-1:log"


def weights(run: Path) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in tensors_from_file(run / "model.safetensors").items()}


def outcomes(search: Search) -> list[Any]:
    return [(trial.settings, trial.state, trial.value, trial.evaluations) for trial in search.trials]


# --- the space --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.lrr=1e-4..1e-2", "train.lrr: no such key; did you mean train.lr?"),
        ("model.cell=gru,lsm", "did you mean lstm?"),
        ("model.dropout=0..1.5", "model.dropout: must be less than 1.0; got 1.5"),
        ("model.hidden=1.5..9", "model.hidden: must be a whole number; got 1.5"),
        ("model.dropout=0.5..0.1", "The interval of model.dropout must begin below its end; got 0.5..0.1."),
        ("model.dropout=0.1..0.1", "must begin below its end"),
        ("train.lr=0..0.1:log", "A logarithmic interval must begin above 0, for example at 1e-5; got train.lr=0..0.1"),
        ("train.lr=1e-4...1e-2", "train.lr must be an interval of two numbers"),
        ("train.lr=..1", "train.lr must be an interval of two numbers"),
        ("train.lr=a..b", "train.lr must be an interval of two numbers"),
        ("model.hidden=8,,9", "model.hidden must be values separated by commas"),
        ("model.hidden=8,8", "The values of model.hidden must be distinct"),
        ("seed=1,2", "seed cannot be searched: all trials have the seed of the recipe"),
        ("data.train=10,20", "data.train cannot be searched: metrics on different data are not comparable"),
        ("train.lr", "must have the form key.path=value"),
    ],
)
def test_invalid_space_is_reported(word: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        Search.open("toys-copy", [word], out=tmp_path / "x")
    assert message in str(error.value)
    assert not (tmp_path / "x").exists()


def test_duplicate_key_and_missing_default_space_are_reported() -> None:
    with pytest.raises(UsageError, match=r"train.lr is given twice"):
        Search.open("toys-copy", [LR, "train.lr=3"])
    with pytest.raises(UsageError, match=r"Name the keys to search.*ngram has no default keys"):
        Search.open("ngram-kn5")
    with pytest.raises(UsageError, match=r"trials must be at least 1; got 0"):
        Search.open("toys-copy", trials=0)


def test_missing_optuna_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ResourceError, match=r"A search needs Optuna: pip install 'seqloom\[tune\]'"):
        Search.open("toys-copy", [LR])


def test_arguments_are_intervals_lists_or_overrides() -> None:
    assert parse_dimension("data.file=../x.txt") is None
    assert parse_dimension("train.betas=[0.9, 0.98]") is None
    betas = parse_dimension("train.betas=[0.9,0.98],[0.9,0.999]")
    assert betas is not None and betas.choices == ([0.9, 0.98], [0.9, 0.999])
    clip = parse_dimension("train.clip_norm=null, 1, 5")
    assert clip is not None and clip.choices == (None, 1, 5)
    opened = Search.open("toys-copy", ["train.clip_norm=1..5", "model.layers=1..3"], trials=5)
    # Values that depend on the type of the key
    assert [dimension.values for dimension in opened.dimensions] == [None, range(1, 4)]
    assert opened.total == 5
    assert [dimension.text for dimension in Search.open("toys-copy").dimensions] == ["0.0005..0.05:log", "0..0.5"]


# --- trials -----------------------------------------------------------------------------------------------------------


def test_search_finds_better_value_in_ordinary_runs(tmp_path: Path) -> None:
    search = tune_recipe("toys-copy", *SHORT, "train.lr=1e-6,0.05", trials=9, out=tmp_path / "search")
    assert search.total == 2  # all combinations
    assert search.best.settings == {"train.lr": 0.05}
    good, bad = search.table
    assert good.value < bad.value - 0.02
    stored = Run.open(search.path_of(good)).metrics("dev")
    assert stored is not None and good.value == min(good.evaluations.values()) == stored["loss"]
    name, recipe = read_recipe(search.recipe_file)
    assert (name, recipe) == ("best", read_recipe("toys-copy", [*SHORT, "train.lr=0.05"])[1])
    training.train_recipe("toys-copy", *SHORT, "train.lr=0.05", out=tmp_path / "alone")
    assert weights(search.path_of(good)) == weights(tmp_path / "alone") != weights(search.path_of(bad))
    assert not list(search.out.rglob("test.json"))


def test_first_trial_has_values_of_recipe_and_no_combination_repeats(tmp_path: Path) -> None:
    space = ["model.layers=1..2", "model.cell=gru,lstm,elman", "train.steps=1"]
    search = tune_recipe("toys-copy", *SMALL, *space, trials=6, out=tmp_path / "x")
    recipe = read_recipe("toys-copy")[1]
    assert search.trials[0].settings == {"model.layers": recipe.model.layers, "model.cell": recipe.model.cell}
    assert len({json.dumps(trial.settings) for trial in search.trials}) == 6


def test_interrupted_search_matches_uninterrupted_search(tmp_path: Path) -> None:
    whole = tune_recipe("toys-copy", *SHORT, LR, trials=7, out=tmp_path / "whole")
    assert len({trial.settings["train.lr"] for trial in whole.trials}) == 7
    assert all(1e-5 <= trial.settings["train.lr"] <= 1e-1 for trial in whole.trials)
    tune_recipe("toys-copy", *SHORT, LR, trials=2, out=tmp_path / "parts")
    for number in (3, 6):  # simulates a process that is lost after a checkpoint of this trial
        cut = Search.open("toys-copy", [*SHORT, LR], trials=7, out=tmp_path / "parts")
        events = cut.run()
        next(event for trial, event in events if trial.number == number and isinstance(event, Saved))
        events.close()  # type: ignore[attr-defined]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("trial-00[1-5]/log.jsonl")}
    rest: list[int] = []
    parts = tune_recipe(
        *("toys-copy", *SHORT, LR),
        trials=7,
        out=tmp_path / "parts",
        on_event=lambda trial, _: rest.append(trial.number),
    )
    assert set(rest) == {6, 7}  # only the missing trials run
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert outcomes(parts) == outcomes(whole)
    assert weights(parts.path_of(parts.best)) == weights(whole.path_of(whole.best))


def finished_search(out: Path, value: float) -> Search:
    """Return a search whose first trials have finished with this value at every evaluation."""
    search = Search.open("toys-copy", [*SHORT, LR], trials=STARTUP_TRIALS + 1, out=out)
    evaluations = dict.fromkeys((3, 6, 9, 12), value)
    for number in range(1, STARTUP_TRIALS + 1):
        search.trials.append(Trial(number, {"train.lr": 0.01 * number}, "finished", value, 12, evaluations))
    search.trials.append(Trial(STARTUP_TRIALS + 1, {"train.lr": 1e-5}))
    out.mkdir()
    search.write()
    return search


def test_poor_trial_is_pruned_and_can_be_resumed(tmp_path: Path) -> None:
    search = finished_search(tmp_path / "poor", 0.5)
    events = list(search.run())
    pruned = search.trials[-1]
    assert (pruned.state, pruned.reason) == ("pruned", "at step 6") and len(pruned.evaluations) == 2
    assert pruned.value == min(pruned.evaluations.values())
    assert events[-1] == (pruned, None) and not any(isinstance(event, Stopped) for _, event in events)
    assert search.best.number <= STARTUP_TRIALS
    resumed = training.resume(search.path_of(pruned))
    assert [event.step for event in resumed.events()][-1] == 12
    for name, value, prune in (("better", 99.0, True), ("off", 0.5, False)):
        other = finished_search(tmp_path / name, value)
        list(other.run(prune=prune))
        assert other.trials[-1].state == "finished" and len(other.trials[-1].evaluations) == 4


def test_signal_takes_precedence_over_pruner() -> None:
    stop = Stop()
    assert not stop.withdraw(NO_SIGNAL)
    stop.request(NO_SIGNAL)
    assert stop.withdraw(NO_SIGNAL) and not stop.requested
    stop.request(NO_SIGNAL)
    stop.request(signal.SIGTERM)
    assert not stop.withdraw(NO_SIGNAL) and stop.requested


def test_stopping_saves_and_keeps_the_trial(tmp_path: Path) -> None:
    search, stop = Search.open("toys-copy", [*SHORT, LR], trials=2, out=tmp_path / "x"), Stop()
    seen = []
    for _, event in search.run(stop):
        seen.append(event)
        if isinstance(event, Saved):
            stop.request()
    assert isinstance(seen[-1], Stopped)
    again = Search.open("toys-copy", [*SHORT, LR], trials=2, out=tmp_path / "x")
    assert [trial.state for trial in again.trials] == ["running"]


def test_diverged_and_invalid_trials_do_not_end_the_search(tmp_path: Path) -> None:
    words = [*SHORT, "train.lr=0.01,1e38", "train.optimizer=sgd", "train.clip_norm=null", "train.max_nonfinite_steps=1"]
    search = tune_recipe("toys-copy", *words, out=tmp_path / "x")
    assert sorted(trial.state for trial in search.trials) == ["diverged", "finished"]
    assert "Training diverged" in search.table[1].reason and math.isnan(search.table[1].value)
    gpt = Search.open("gpt-pydocs", ["model.d_model=60", "model.heads=3,4"], out=tmp_path / "gpt")
    gpt.overrides = ["model.d_model=32"]  # an invalid combination that the bounds of the intervals do not show
    gpt.trials = [Trial(1, {"model.heads": 3})]
    list(gpt.run_trial(gpt.trials[0], Stop()))
    assert gpt.trials[0].state == "invalid" and "d_model" in gpt.trials[0].reason


def test_other_or_damaged_folder_is_reported(tmp_path: Path) -> None:
    tune_recipe("toys-copy", *SHORT, "train.lr=0.01,0.02", trials=1, out=tmp_path / "x")
    with pytest.raises(UsageError, match=r"differs in recipe.train.steps, space.train.lr"):
        Search.open("toys-copy", [*SMALL, "train.steps=9", "train.evaluate_every=3", LR], out=tmp_path / "x")
    with pytest.raises(UsageError, match="is a run, not a search"):
        Search.open("toys-copy", [LR], out=tmp_path / "x" / "trial-001")
    (tmp_path / "x" / "tune.json").write_text('{"trials": [{"numb')
    with pytest.raises(CheckpointError, match="damaged"):
        Search.open("toys-copy", [*SHORT, "train.lr=0.01,0.02"], out=tmp_path / "x")


def test_search_without_finished_trial_has_no_best(tmp_path: Path) -> None:
    search = Search.open("toys-copy", [LR], out=tmp_path / "x")
    search.trials = [replace(Trial(1, {"train.lr": 1.0}), state="diverged")]
    with pytest.raises(UsageError, match=r"No trial of .* has finished"):
        _ = search.best


def test_killed_search_resumes(tmp_path: Path) -> None:
    words = [*SMALL, "train.steps=3000", "train.evaluate_every=50", LR]
    command = [sys.executable, "-m", "seqloom", "tune", "toys-copy", *words, "--trials", "2", "--out", "killed"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("killed/trial-001/checkpoints/step-*")):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    search = Search.open("toys-copy", words, trials=2, out=tmp_path / "killed")
    assert [trial.state for trial in search.trials] == ["running"]
    trial, started = next(search.run())
    assert started is not None and started.step > 0 and trial.number == 1  # the trial resumed and did not restart
