"""Errors in graphed steps on any machine. A fake graph runs the captured operations again; other parts are real."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.train.conftest import Session, TinyTask
from tests.train.test_microbatches import LimitedMemoryTask

from seqloom.accel.training import graphed_step
from seqloom.accel.training.graphed_step import GraphedStep
from seqloom.core.errors import DivergedError
from seqloom.core.operations import Implementation
from seqloom.core.tree import tree_map
from seqloom.train.config import FitConfig
from seqloom.train.events import Prepared, Skipped
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.stop import Stop
from seqloom.train.wrappers import accelerate, split_on_oom

pytestmark = pytest.mark.usefixtures("quick_disk", "graphed_anywhere")


class FakeGraph:
    """A fake CUDA graph that runs the step again."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.replay = work


class Stream:
    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


@pytest.fixture
def graphed_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in {
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "graph_pool_handle": lambda: 0,
        "synchronize": lambda _: None,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(graphed_step, "capture", lambda work, pool=None, stream=None: FakeGraph(work))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(graphed_step, "to_device", lambda tree, _: tree_map(torch.Tensor.clone, tree))
    graphed: Any = Implementation(is_enabled, GraphedStep)
    monkeypatch.setattr(accelerate, "implementations", [graphed])


def is_enabled(step: Any, state: Any) -> Any:
    return state.config.cuda_graphs


class ShortTraining:
    """Create a training run of a few steps and its step."""

    def __init__(self, task: Any = None, steps: int = 9, **options: Any) -> None:
        config = FitConfig(**{"steps": steps, "device": "cpu", "lr": 0.05, "clip_norm": 0.05, **options})
        self.state = TrainState(task or TinyTask(dropout=0.0), config, 3)
        self.step: Any = accelerate(split_on_oom, self.state)
        for _ in range(steps):
            make_step(self.state, self.step)
        self.state.settle()


class Interrupted(TinyTask):
    """Request a stop during step `at`."""

    def __init__(self, stop: Stop, at: int | None, spoil: dict[int, Any]) -> None:
        super().__init__(spoil=spoil)
        self.stop, self.at = stop, at

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Any:
        if step == self.at:
            self.stop.request()
        return super().batch(seed, step)


def assert_same_training(first: ShortTraining, second: ShortTraining) -> None:
    for name, value in first.state.model.state_dict().items():
        torch.testing.assert_close(value, second.state.model.state_dict()[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("spoil", [{}, {0: "loss"}, {0: float("inf"), 1: float("nan")}, {4: "loss"}], ids=str)
def test_non_finite_steps_have_no_effect(optimizer: str, spoil: dict[int, Any]) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "momentum": 0.9}
    rubbish = [torch.full((6, 18), 7e5) for _ in range(50)]  # simulates the content of uninitialized memory
    del rubbish
    fast = ShortTraining(TinyTask(dropout=0.0, spoil=spoil), **options)
    assert fast.step.is_enabled
    assert_same_training(fast, ShortTraining(TinyTask(dropout=0.0, spoil=spoil), cuda_graphs=False, **options))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA out of memory")])
def test_step_runs_once_if_capture_runs_out_of_memory(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(graphed_step, "capture", refuse)
    fast = ShortTraining()
    assert fast.step.is_enabled and not fast.step.graphs
    assert {float(state["step"]) for state in fast.state.optimizer.state.values()} == {9}
    assert_same_training(fast, ShortTraining(cuda_graphs=False))


@pytest.mark.parametrize("calls", [1, 3])
def test_optimizer_out_of_memory_leaves_no_state(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer allocates its state at the first step, and memory runs out before the state is complete."""
    real, left = torch.zeros_like, [calls]

    def full(*arguments: Any, **named: Any) -> Any:
        if left[0] and "optim" in inspect.stack()[1].filename:
            left[0] -= 1
            if not left[0]:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*arguments, **named)

    monkeypatch.setattr(torch, "zeros_like", full)
    fast = ShortTraining(optimizer="adam")
    assert left == [0] and not fast.step.is_enabled
    assert not hasattr(fast.state.optimizer, "grad_scale")
    assert_same_training(fast, ShortTraining(optimizer="adam", cuda_graphs=False))


def test_resuming_keeps_microbatches(tmp_path: Any, same: Any) -> None:
    def run(name: str, until: int | None) -> Any:
        session = Session(tmp_path / name, steps=8, save_every=1)
        session.train(LimitedMemoryTask(3, dropout=0.3), until=until)
        if until:
            session.train(LimitedMemoryTask(dropout=0.3), resume=True)  # there is enough memory for the whole batch
        return session.checkpoint(8)["model.safetensors"]

    assert same(run("whole", None), run("stopped", 4))


def test_stop_reports_all_skipped_steps(tmp_path: Any) -> None:
    def reported_steps(name: str, at: int | None) -> list[int]:
        session, stop = Session(tmp_path / name, steps=9, log_every=5, evaluate_every=50), Stop()
        task = Interrupted(stop, at, {2: "loss", 3: "loss", 7: "loss"})
        events = list(session.events(task, stop=stop))
        if at is not None:
            events += list(session.events(task, resume=True))
        return [event.step for event in events if isinstance(event, Skipped)]

    assert reported_steps("whole", None) == reported_steps("stopped", 3) == [3, 4, 8]


def test_divergence_is_raised_even_if_later_pending_steps_recover(tmp_path: Any) -> None:
    session = Session(tmp_path / "run", steps=40, log_every=20, evaluate_every=100, max_nonfinite_steps=5)
    with pytest.raises(DivergedError, match="5 consecutive steps"):
        session.train(TinyTask(spoil=dict.fromkeys(range(3, 15), "loss")))


def test_resuming_during_divergence_reports_the_cause(tmp_path: Any) -> None:
    session, stop = Session(tmp_path / "run", steps=60, log_every=10, evaluate_every=100, max_nonfinite_steps=5), Stop()
    task = Interrupted(stop, 8, dict.fromkeys(range(2, 40), "loss"))
    list(session.events(task, stop=stop))
    with pytest.raises(DivergedError, match="the loss is nan"):
        session.train(task, resume=True)


def test_shapes_beyond_the_limit_are_not_prepared(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_step, "MAX_GRAPHS", 1)
    monkeypatch.setattr(graphed_step, "MIN_REPORTED_SECONDS", 0.0)
    events = Session(tmp_path / "run", steps=12, log_every=4, evaluate_every=100).train(TinyTask())
    assert sum(event.shapes for event in events if isinstance(event, Prepared)) == 1
