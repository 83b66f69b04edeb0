"""Shared by all tests: one thread per worker, and properties that check the same examples on every machine."""

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import HealthCheck, settings

from seqloom import accel

torch.set_num_threads(1)
accel.install()  # as training and prediction do

settings.register_profile(
    "seqloom",
    deadline=None,  # a busy machine is not a failure
    derandomize=True,  # the same examples on every machine; look for new ones with HYPOTHESIS_PROFILE=explore
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seqloom"))


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end: Python need not search them for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """What tests write need not outlive a power cut, nor be written for TensorBoard too. That files are flushed, and
    when, and what TensorBoard gets, is tested by itself."""
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(os, "fsync", lambda handle: None)
        quick.setattr("seqloom.runs.record.open_tensorboard", lambda run, step: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_command_line_is_built_once() -> Iterator[None]:
    """A program builds it for its one command; here thousands of commands run in one process."""
    from seqloom.cli import app

    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(app, "build_app", cache(app.build_app))
        quick.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


# The recipe of a run that `seqloom import-minilm` makes, as far as another begins with it.
MINILM: dict[str, Any] = {
    "task": "masked-lm",
    "tokenizer": {"kind": "huggingface"},
    "model": {"kind": "bert", "d_model": 384, "heads": 12, "layers": 6, "norm_epsilon": 1e-12},
}


@pytest.fixture
def pretended_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes that begin with a run can be read without it: as if the shipped recipe of its name had been trained,
    or MiniLM imported."""
    from seqloom.recipes import recipe_mapping, recipe_names
    from seqloom.runs.layout import Manifest
    from seqloom.runs.run import Run
    from seqloom.runs.transfer import Pretrained

    really = Pretrained.open

    def pretend(path: str | Path, *kinds: Any) -> Pretrained:
        name = Path(path).name
        if Path(path).exists() or name not in (*recipe_names(), "minilm"):
            return really(path, *kinds)
        mapping: dict[str, Any] = MINILM if name == "minilm" else recipe_mapping(name)[1]
        return Pretrained(
            Run(Path(path), mapping, Manifest({}, ())),
            mapping["model"].get("backbone", mapping["model"]),
            "backbone" in mapping["model"],
        )

    monkeypatch.setattr(Pretrained, "open", pretend)
