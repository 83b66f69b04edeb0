"""The memory of a step, compared with manual counts."""

import pytest
import torch

from seqloom.core.memory import measure_peak
from seqloom.core.tree import leaves
from seqloom.train.config import FitConfig, OptimizerName
from seqloom.train.events import Finished
from seqloom.train.loop import make_step, training_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import measure_memory, wrap

pytestmark = pytest.mark.usefixtures("quick_disk")
CPU = torch.device("cpu")
KIB = 1024


def block(count: int = 1) -> torch.Tensor:
    return torch.ones(count, 256)  # a block of count × 1 KiB


def test_live_tensors_are_counted() -> None:
    live = block(3)
    with measure_peak(CPU, [live, live[1:]]) as peak:
        assert peak.bytes == 3 * KIB  # a view shares the memory of its block
        a = live * 2
        assert peak.bytes == 6 * KIB
        b = a[:1] + 1
        del a
        assert peak.bytes == 7 * KIB
        c = b.repeat(2, 1)  # 3 + 1 + 2 KiB, which is below the previous peak
        assert peak.bytes == 7 * KIB
        d = torch.cat([c, c])
        assert peak.bytes == 10 * KIB
        d.mul_(2)
        d.view(-1)
    assert peak.bytes == 10 * KIB
    block(100) + 1  # allocated outside the block
    assert peak.bytes == 10 * KIB


def test_activations_are_counted_until_the_backward_pass() -> None:
    def peak_of(depth: int, grad: bool) -> int:
        x = block().requires_grad_(grad)
        with measure_peak(CPU, [x]) as peak:
            y = x
            for _ in range(depth):
                y = y.tanh()  # the gradient of this operation needs its result
            if grad:
                y.sum().backward()
        return peak.bytes

    assert peak_of(20, grad=False) == peak_of(5, grad=False) == 3 * KIB
    assert peak_of(20, grad=True) - peak_of(5, grad=True) == 15 * KIB


def test_training_reports_its_memory(tiny_task, session) -> None:
    *_, end = session(steps=6, optimizer="adam").train(tiny_task())
    assert isinstance(end, Finished)
    numbers = sum(p.numel() for p in tiny_task().model().parameters())
    assert end.memory and end.memory > 4 * 4 * numbers  # weights, gradients and two optimizer values per weight


def test_resumed_training_keeps_the_measured_memory(tiny_task, session) -> None:
    stopped = session(steps=6)
    stopped.train(tiny_task(), until=3)
    *_, end = stopped.train(tiny_task(), resume=True)
    assert end.memory == session("whole", steps=6).train(tiny_task())[-1].memory


def test_optimizer_state_is_counted_without_changing_training(tiny_task) -> None:
    def train(optimizer: OptimizerName, measured: set[int]) -> TrainState:
        state = TrainState(tiny_task(), FitConfig(steps=4, device="cpu", optimizer=optimizer), 3)
        for _ in range(4):
            make_step(state, measure_memory(training_step, measured))
        return state

    plain, measured, sgd = train("adam", set()), train("adam", {1}), train("sgd", {1})
    assert plain.tally.memory == 0
    numbers = sum(p.numel() for p in plain.model.parameters())
    assert measured.tally.memory - sgd.tally.memory == pytest.approx(2 * 4 * numbers, abs=256)
    for expected, actual in zip(leaves(plain.state_dict()), leaves(measured.state_dict()), strict=True):
        assert torch.equal(expected, actual)


def test_largest_batch_is_measured() -> None:
    from seqloom.recipes import read_recipe
    from seqloom.tasks.translate import Task

    small = ["data.train=60", "data.dev=5", "data.test=5", "batch.tokens=40", "model.hidden=8", "tokenizer.size=300"]
    _, recipe = read_recipe("translate-cldr", [*small, "train.epochs=1", "train.device=cpu"])
    task = Task.prepare(recipe)
    every = TrainState(task, recipe.train, 1)
    usual = TrainState(task, recipe.train, 1)
    step = wrap(usual)
    measured_steps = []
    for _ in range(usual.total):
        make_step(usual, step)
        every.tally.memory = 0
        make_step(every, measure_memory(training_step, range(1, every.total)))
        measured_steps.append(every.tally.memory)
    assert len(set(measured_steps[1:])) > 3
    # The batch with the most cells needs nearly the most memory
    assert usual.tally.memory >= 0.97 * max(measured_steps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_gpu_memory_comes_from_the_allocator() -> None:
    device = torch.device("cuda")
    live = torch.ones(1 << 20, device=device)
    other = torch.ones(1 << 20, device=device)  # allocated outside the measurement
    with measure_peak(device, [live]) as peak:
        a = live * 2
        b = a + 1
        del a, b
    assert peak.bytes == 3 * 4 << 20
    assert len(other)
