"""`seqloom recipe` and `seqloom train --resume-or-start`."""

from pathlib import Path
from typing import Any

from seqloom.config import load_yaml
from seqloom.recipes import RECIPES
from seqloom.runs.run import Run


def test_recipe_is_shown_with_defaults_and_overrides(seqloom: Any, workdir: Path) -> None:
    result = seqloom("recipe", "show", "lm-char-lstm", "model.cell=gru")
    (workdir / "shown.yaml").write_text(result.out)
    shown = load_yaml(workdir / "shown.yaml")
    assert shown["model"]["cell"] == "gru" and shown["train"]["clip_norm"] == 1.0
    assert seqloom("recipe", "show", "shown.yaml").out == result.out
    seqloom("recipe", "show").fails_with(2, "Name a recipe", lines=1)


def test_copy_keeps_comments_and_trains(seqloom: Any, workdir: Path) -> None:
    assert seqloom("recipe", "copy", "toys-copy", "mine.yaml").code == 0
    assert (workdir / "mine.yaml").read_text() == (RECIPES / "toys-copy.yaml").read_text()
    seqloom("recipe", "copy", "toys-copy", "mine.yaml").fails_with(2, "mine.yaml exists", lines=1)
    seqloom("recipe", "copy", "toys-copi", "x.yaml").fails_with(2, "did you mean toys-copy?", lines=1)
    seqloom("recipe", "copy", "toys-copy", "x.txt").fails_with(2, "must end in .yaml", lines=1)


def test_keys_are_explained(seqloom: Any) -> None:
    assert "train.clip_norm  default 1.0" in seqloom("recipe", "explain", "clip_norm").out
    section = seqloom("recipe", "explain", "train", "lm-char-lstm").out
    assert "train.lr  default" in section and "train.epochs" in section and "model." not in section
    assert "model.attention.score" in seqloom("recipe", "explain", "model.attention.score").out
    seqloom("recipe", "explain", "clipnorm").fails_with(2, "did you mean train.clip_norm?", lines=1)


def test_resume_or_start_continues_an_existing_run_exactly(seqloom: Any, workdir: Path) -> None:
    """Two steps followed by two more give the same weights as four steps in one run."""
    small = ["train.schedule=constant", "train.evaluate_every=2", "data.train=50", "data.dev=10", "data.test=10"]
    for steps in (2, 4):
        arguments = ["toys-copy", *small, f"train.steps={steps}", "--resume-or-start", "--out", "runs/parts"]
        assert seqloom("train", *arguments).code == 0
    assert seqloom("train", "toys-copy", *small, "train.steps=4", "--out", "runs/whole").code == 0
    weights = [(workdir / "runs" / name / "model.safetensors").read_bytes() for name in ("parts", "whole")]
    assert weights[0] == weights[1]
    seqloom("train", "toys-copy", "--resume-or-start", "--seeds", "1,2").fails_with(2, "leave out --seeds", lines=1)


SMALL = ["data.train=50", "data.dev=10", "data.test=10", "train.evaluate_every=2", "train.log_every=2"]


def test_resume_or_start_rejects_other_runs_and_folders(seqloom: Any, workdir: Path) -> None:
    """The message is short, even if nearly all keys of another recipe differ."""
    words = ["--resume-or-start", "--out", "runs/one"]
    assert seqloom("train", "toys-copy", *SMALL, "train.steps=4", *words).code == 0
    (workdir / "runs/empty").mkdir()
    (workdir / "runs/file").touch()
    for name in ("empty", "file"):
        result = seqloom("train", "toys-copy", *SMALL, "--resume-or-start", "--out", f"runs/{name}")
        result.fails_with(2, f"runs/{name} exists and is not a run. Choose another path: --out runs/{name}-2.", lines=1)
    other = seqloom("train", "toys-recall", *words)
    other.fails_with(2, "task is 'language-model' in the run and 'recall' now", "other differences", lines=1)
    assert len(other.err) < 500
    with Run.open("runs/one").locked():
        seqloom("train", "toys-copy", *SMALL, "train.steps=8", *words).fails_with(2, "is being trained", lines=1)
    assert Run.open("runs/one").recipe["train"]["steps"] == 4
    finished = seqloom("train", "toys-copy", *SMALL, "train.steps=4", *words)
    assert finished.code == 0 and "finished at step 4" in finished.out


def test_change_of_the_length_is_explained(seqloom: Any, workdir: Path) -> None:
    """A cosine schedule follows the new length. A run that stopped early needs more patience."""
    words = ["toys-copy", *SMALL, "train.schedule=cosine", "train.steps=4", "--out", "runs/cosine"]
    assert seqloom("train", *words).code == 0
    longer = seqloom("train", "--resume", "runs/cosine", "train.steps=6")
    assert "follow the cosine schedule of the new length" in longer.err and "finished at step 6" in longer.out
    words = ["toys-copy", *SMALL, "train.lr=10", "train.patience=1", "train.steps=40", "--out", "runs/early"]
    assert "no improvement in 1 evaluation\n" in seqloom("train", *words).out
    early = seqloom("train", "--resume", "runs/early", "train.steps=80")
    assert "ended early (no improvement in 1 evaluation) and will not continue. Also raise train.patience" in early.err
    again = seqloom("train", "--resume", "runs/early", "train.steps=90", "train.patience=null")
    assert "finished at step 90" in again.out and "ended early" not in again.err
