"""The files and frames of a plain training step."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import seqloom
from seqloom import accel
from seqloom.recipes import read_recipe
from seqloom.tasks import task_info
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState

SOURCE = Path(seqloom.__file__).parent


def profile_step(name: str, overrides: list[str]) -> tuple[set[str], list[str]]:
    """Return the seqloom files of a training step and the frames between `make_step` and `loss.backward()`."""
    _, recipe = read_recipe(name, [*overrides, "train.device=cpu"])
    state = TrainState(task_info(recipe.task).task.prepare(recipe), recipe.train, recipe.seed)
    files: set[str] = set()
    frames: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            files.add(str(path.relative_to(SOURCE)))
        elif frame.f_code is torch.Tensor.backward.__code__:
            caller = frame.f_back
            while caller is not None and caller.f_code is not make_step.__code__:
                frames.append(caller.f_code.co_qualname)
                caller = caller.f_back

    with accel.disabled():
        make_step(state)  # the first step includes one-time initialization
        sys.setprofile(profile)
        try:
            make_step(state)
        finally:
            sys.setprofile(None)
    return files, frames


@pytest.mark.parametrize(
    ("name", "overrides", "max_files"),
    [
        ("lm-char-lstm", ["data.corpus=toys", "batch.size=4", "batch.length=8", "model.hidden=8"], 12),
        (
            "translate-cldr-transformer",
            ["data.train=40", "data.dev=5", "data.test=5", "batch.tokens=200", "tokenizer.size=300"],
            17,
        ),
    ],
)
def test_training_step_runs_few_files_and_frames(name: str, overrides: list[str], max_files: int) -> None:
    files, frames = profile_step(name, overrides)
    assert len(files) <= max_files, sorted(files)
    assert 1 <= len(frames) <= 2, frames
