"""A small task trained by gradient descent, with nonfinite and interrupted steps, and a comparison of checkpoints."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.device import make_generator
from seqloom.core.files import tensors_from_file
from seqloom.core.protocols import Loss, Monitor, Task
from seqloom.core.tree import GrowingBuffer, Tree
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.config import FitConfig
from seqloom.train.events import Event, Progress
from seqloom.train.loop import fit
from seqloom.train.stop import Stop
from seqloom.train.wrappers import wrap

V, H, ROWS, WIDTH, EPOCH = 7, 6, 3, 4, 5


class NonFiniteGradient(torch.autograd.Function):
    """A function that is the identity in the forward pass and has a nonfinite gradient in the backward pass."""

    @staticmethod
    def forward(context: Any, x: Tensor, value: float) -> Tensor:
        context.value = value
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.value, None


class TinyModel(nn.Module):
    """A GRU cell over a few tokens with dropout, whose state is carried."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, H)
        self.cell = nn.GRUCell(H, H)
        self.out = nn.Linear(H, V)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, h: Tensor | None, spoil: float | None = None) -> tuple[Tensor, Tensor]:
        weight = self.embed.weight if spoil is None else NonFiniteGradient.apply(self.embed.weight, spoil)
        h = weight.new_zeros(len(tokens), H) if h is None else h
        logits = []
        for x in F.embedding(tokens, weight).unbind(1):
            h = self.cell(self.dropout(x), h)
            logits.append(self.out(self.dropout(h)))
        return torch.stack(logits, 1), h


class TinyTask(Task):
    """A task with batches of random tokens, five batches per epoch, and a carried state.

    `spoil` maps a batch to a fault: "loss" makes its loss NaN, and a number multiplies the gradient of `embed.weight`.
    """

    monitor = Monitor("loss")

    def __init__(self, dropout: float = 0.2, spoil: dict[int, Any] | None = None, batch_rows: int = ROWS) -> None:
        self.dropout, self.spoil, self.rows = dropout, spoil or {}, batch_rows
        self.text = torch.randint(V, (self.rows, EPOCH * WIDTH + 1), generator=make_generator(5, "text"))
        self.on_evaluate: Callable[[], None] = lambda: None
        self.evaluations = 0

    def model(self) -> TinyModel:
        return TinyModel(self.dropout)

    def steps_per_epoch(self) -> int:
        return EPOCH

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        start = step % EPOCH * WIDTH
        piece = self.text[:, start : start + WIDTH + 1]
        return {"inputs": piece[:, :-1], "targets": piece[:, 1:], "fresh": start == 0, "spoil": self.spoil.get(step)}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        spoil = batch["spoil"]
        logits, h = model(
            batch["inputs"], None if batch["fresh"] or carry is None else carry["h"], None if spoil == "loss" else spoil
        )
        value = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        return Loss(value * float("nan") if spoil == "loss" else value, {"h": h}, batch["targets"].numel())

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        assert split == "dev"
        assert not model.training
        self.evaluations += 1
        torch.rand(3)  # random numbers drawn by an evaluation must not affect training
        self.on_evaluate()
        text = torch.randint(V, (2, 9), generator=make_generator(5, "dev")).to(model.embed.weight.device)
        logits, _ = model(text[:, :-1], None)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).item(), "accuracy": 0.5}


@pytest.fixture
def tiny_task() -> type[TinyTask]:
    return TinyTask


class Session:
    """A run directory, and the events of the training that runs in it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.config = FitConfig(
            **{"steps": 14, "lr": 0.05, "log_every": 1, "keep_checkpoints": 20, "device": "cpu", **options}
        )
        path.mkdir(exist_ok=True)

    def events(self, task: Any, *, stop: Stop | None = None, resume: bool = False, seed: int = 3) -> Iterator[Event]:
        store = CheckpointStore(self.path, self.config.keep_checkpoints)
        return fit(task, self.config, store, seed=seed, stop=stop, resume=resume, wrap=wrap)

    def train(self, task: Any, *, until: int | None = None, resume: bool = False) -> list[Event]:
        """Return all events. With `until`, request a stop when that step is reported."""
        stop, events = Stop(), []
        for event in self.events(task, stop=stop, resume=resume):
            events.append(event)
            if isinstance(event, Progress) and event.step == until:
                stop.request()
        return events

    def checkpoint(self, step: int) -> Any:
        return contents(self.path / "checkpoints" / f"step-{step}")

    def best(self) -> dict[str, Tensor]:
        return tensors_from_file(self.path / "model.safetensors")


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    return lambda name="run", **options: Session(tmp_path / name, **options)


def contents(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, which consists of tensors, JSON values and file names."""
    content: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            content[path.name] = tensors_from_file(path)
        elif path.name == "manifest.json":  # digests may differ, because the order of the safetensors header varies
            manifest = json.loads(path.read_text())
            content[path.name] = {**manifest, "files": sorted(manifest["files"])}
        else:
            content[path.name] = json.loads(path.read_text())
    return content


def bits(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    """Compare types, shapes and bits. NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, GrowingBuffer):
        return same(a.buffer, b.buffer) and same(a.length, b.length)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (isinstance(a, float) and a != a and b != b)


@pytest.fixture(name="same", scope="session")
def _same() -> Callable[[Any, Any], bool]:
    return same


@pytest.fixture(name="contents", scope="session")
def _contents() -> Callable[[Path], dict[str, Any]]:
    return contents


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip flushing files to disk, because this takes most of the time of a small training run."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
