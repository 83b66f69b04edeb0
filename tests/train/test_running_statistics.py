"""Running statistics change exactly once for each applied step, and not in skipped, repeated or rehearsed steps."""

from typing import Any

import pytest
import torch
from tests.train.conftest import TinyTask
from torch import Tensor, nn

from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, leaves
from seqloom.nn.convolution import BatchNorm
from seqloom.train.config import FitConfig
from seqloom.train.loop import make_step, training_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import split_on_oom


class NormModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = BatchNorm(3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.out(self.norm(x).mean(dim=(2, 3))).square().mean()
        return value


class NormTask(TinyTask):
    """A task with random images, some of whose batches are faulty or do not fit in memory."""

    def __init__(self, spoil: dict[int, Any] | None = None, fits: int = 100) -> None:
        super().__init__(spoil=spoil)
        self.fits, self.refused = fits, 0

    def model(self) -> Any:
        return NormModel()

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        images = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(step))
        return {"images": images + step, "spoil": self.spoil.get(step)}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        value = model(batch["images"])
        if len(batch["images"]) > self.fits:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Loss(value * (float("nan") if batch["spoil"] else 1.0), None, 4)


def train(task: NormTask, steps: int, step: Any = training_step) -> list[Tensor]:
    state = TrainState(task, FitConfig(steps=20, device="cpu"), 3)
    assert len(state.statistics) == 2
    for _ in range(steps):
        make_step(state, step)
    return [tensor.clone() for tensor in leaves(state.model.state_dict())]


def statistics_after(task: NormTask, batches: list[Tensor]) -> list[Tensor]:
    norm = BatchNorm(3)
    for images in batches:
        norm(images)
    return list(norm.running_statistics())


def test_statistics_follow_the_batches_of_all_steps() -> None:
    state = TrainState(task := NormTask(), FitConfig(steps=20, device="cpu"), 3)
    for _ in range(3):
        make_step(state)
    expected = statistics_after(task, [task.batch(3, step)["images"] for step in range(3)])
    assert all(map(torch.equal, state.statistics, expected))


def test_skipped_step_changes_nothing() -> None:
    assert all(map(torch.equal, train(NormTask(spoil={2: True}), 3), train(NormTask(), 2)))


def test_step_repeated_in_microbatches_counts_only_its_microbatches() -> None:
    task = NormTask(fits=2)
    state = TrainState(task, FitConfig(steps=20, device="cpu"), 3)
    make_step(state, split_on_oom)
    assert task.refused == 1
    halves = list(task.batch(3, 0)["images"].split(2))
    assert all(map(torch.equal, state.statistics, statistics_after(task, halves)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graphs_update_the_statistics_once_per_step() -> None:
    from seqloom import accel
    from seqloom.train.wrappers import accelerate

    accel.install()
    found = []
    for graphs in (False, True):
        state = TrainState(NormTask(spoil={3: True}), FitConfig(steps=20, device="cuda", cuda_graphs=graphs), 3)
        step = accelerate(split_on_oom, state)
        for _ in range(6):
            make_step(state, step)
        state.settle()
        found.append([tensor.cpu() for tensor in state.statistics])
    torch.testing.assert_close(found[0], found[1])
