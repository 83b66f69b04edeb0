"""`seqloom recipe` and `seqloom train --resume-or-start`."""

from pathlib import Path
from typing import Any

from seqloom.config import load_yaml
from seqloom.recipes import RECIPES


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
