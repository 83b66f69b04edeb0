"""Settings and fixtures of all tests: one thread per worker, and equal Hypothesis examples on every machine."""

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
accel.install()  # training and prediction also call this function

settings.register_profile(
    "seqloom",
    deadline=None,  # tests must not fail on a busy machine
    derandomize=True,  # equal examples on every machine; HYPOTHESIS_PROFILE=explore draws new examples
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seqloom"))


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection, because they exist until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _skip_fsync_and_tensorboard() -> Iterator[None]:
    """Skip fsync and TensorBoard files to save time. Both are tested separately."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr("seqloom.runs.record.open_tensorboard", lambda run, step: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _cache_command_line() -> Iterator[None]:
    """Build the command line once, because thousands of commands run in one process."""
    from seqloom.cli import app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "build_app", cache(app.build_app))
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


# The part of the recipe of `seqloom import-minilm` from which other recipes start.
MINILM: dict[str, Any] = {
    "task": "masked-lm",
    "tokenizer": {"kind": "huggingface"},
    "model": {"kind": "bert", "d_model": 384, "heads": 12, "layers": 6, "norm_epsilon": 1e-12},
}


@pytest.fixture
def stub_pretrained_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read recipes with `init.from` as if its shipped recipe had been trained, or MiniLM had been imported."""
    from seqloom.recipes import recipe_mapping, recipe_names
    from seqloom.runs.layout import Manifest
    from seqloom.runs.run import Run
    from seqloom.runs.transfer import Pretrained

    open_run = Pretrained.open

    def open_or_stub(path: str | Path, *kinds: Any) -> Pretrained:
        name = Path(path).name
        if Path(path).exists() or name not in (*recipe_names(), "minilm"):
            return open_run(path, *kinds)
        mapping: dict[str, Any] = MINILM if name == "minilm" else recipe_mapping(name)[1]
        return Pretrained(
            Run(Path(path), mapping, Manifest({}, ())),
            mapping["model"].get("backbone", mapping["model"]),
            "backbone" in mapping["model"],
        )

    monkeypatch.setattr(Pretrained, "open", open_or_stub)
