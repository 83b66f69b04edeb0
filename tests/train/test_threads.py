"""A resume keeps the number of CPU threads, so that the weights are bit-identical."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from seqloom.core import device
from seqloom.core.device import THREADS_VARIABLE, preserve_threads, resume_threads, training_threads
from seqloom.train.events import Started

CPU, STEPS, UNTIL = torch.device("cpu"), 4, 2


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    monkeypatch.setattr(device, "available_cores", lambda: 2)
    with preserve_threads():
        yield


def make_normed_task(tiny_task: Any) -> Any:
    """A task whose model has a LayerNorm. Several threads sum the gradient of the LayerNorm."""

    class NormedTask(tiny_task):
        def model(self) -> nn.Module:
            model = super().model()
            model.out = nn.Sequential(nn.LayerNorm(model.out.in_features), model.out)
            return model

    return NormedTask(batch_rows=37)


def train_and_resume(session: Any, task: Any, name: str, first: int, then: int) -> tuple[Any, Started]:
    """Return the last checkpoint of a training run that starts with `first` threads and resumes with `then`."""
    run = session(name, steps=STEPS)
    torch.set_num_threads(first)
    run.train(task, until=UNTIL)
    torch.set_num_threads(then)
    started = run.train(task, resume=True)[0]
    assert torch.get_num_threads() == then  # the number of the process is restored
    return run.checkpoint(STEPS), started


@pytest.mark.usefixtures("quick_disk")
def test_resuming_keeps_the_number_of_threads(session: Any, tiny_task: Any, same: Any) -> None:
    torch.set_num_threads(2)
    complete = session("whole", steps=STEPS)
    complete.train(make_normed_task(tiny_task))
    actual, started = train_and_resume(session, make_normed_task(tiny_task), "parts", 2, 1)
    assert same(actual, complete.checkpoint(STEPS))
    assert started.notes[-1].startswith("training continues with 2 CPU threads, as before")


@pytest.mark.usefixtures("quick_disk")
def test_other_thread_count_is_noted_and_changes_weights(
    session: Any, tiny_task: Any, same: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: with the thread count of the second process, the weights differ."""
    complete, _ = train_and_resume(session, make_normed_task(tiny_task), "whole", 2, 2)
    monkeypatch.setenv(THREADS_VARIABLE, "1")
    actual, started = train_and_resume(session, make_normed_task(tiny_task), "parts", 2, 1)
    assert not same(actual["model.safetensors"], complete["model.safetensors"])
    assert started.notes[-1].startswith(
        f"training used 2 CPU threads and continues with 1, because {THREADS_VARIABLE} is set"
    )


@pytest.mark.usefixtures("quick_disk")
def test_equal_thread_count_has_no_note(session: Any, tiny_task: Any) -> None:
    _, started = train_and_resume(session, make_normed_task(tiny_task), "run", 1, 1)
    assert started.notes == ()


def test_resuming_uses_at_most_one_thread_per_core() -> None:
    torch.set_num_threads(1)
    note = resume_threads(3, CPU)
    assert note is not None and "continues with 1, because only 2 cores can be used" in note
    assert torch.get_num_threads() == 1


def test_other_devices_have_no_thread_count() -> None:
    assert training_threads(torch.device("cuda")) == 0
    assert resume_threads(2, torch.device("cuda")) is None and resume_threads(0, CPU) is None
