"""The number of CPU threads: a resume keeps it, so that the weights are the same to the bit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from seqloom.core import device
from seqloom.core.device import THREADS_VARIABLE, preserve_threads, resume_threads, used_threads
from seqloom.train.events import Started

CPU, STEPS, UNTIL = torch.device("cpu"), 4, 2


@pytest.fixture(autouse=True)
def two_cores_and_no_wish(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    monkeypatch.setattr(device, "available_cores", lambda: 2)
    with preserve_threads():
        yield


def normed(tiny_task: Any) -> Any:
    """A task whose model has a LayerNorm, of whose gradient each thread adds up a part."""

    class NormedTask(tiny_task):
        def model(self) -> nn.Module:
            model = super().model()
            model.out = nn.Sequential(nn.LayerNorm(model.out.in_features), model.out)
            return model

    return NormedTask(batch_rows=37)


def resumed(session: Any, task: Any, name: str, first: int, then: int) -> tuple[Any, Started]:
    """The last checkpoint of a training that begins with `first` threads and is resumed by a process with `then`."""
    run = session(name, steps=STEPS)
    torch.set_num_threads(first)
    run.train(task, until=UNTIL)
    torch.set_num_threads(then)
    started = run.train(task, resume=True)[0]
    assert torch.get_num_threads() == then  # of the process, afterwards
    return run.checkpoint(STEPS), started


@pytest.mark.usefixtures("quick_disk")
def test_resume_keeps_the_number_of_threads(session: Any, tiny_task: Any, same: Any) -> None:
    torch.set_num_threads(2)
    whole = session("whole", steps=STEPS)
    whole.train(normed(tiny_task))
    found, started = resumed(session, normed(tiny_task), "parts", 2, 1)
    assert same(found, whole.checkpoint(STEPS))
    assert started.notes[-1].startswith("the training continues with 2 CPU threads, as it began")


@pytest.mark.usefixtures("quick_disk")
def test_another_number_is_noted_and_matters(
    session: Any, tiny_task: Any, same: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the number of the second process the weights would differ."""
    whole, _ = resumed(session, normed(tiny_task), "whole", 2, 2)
    monkeypatch.setenv(THREADS_VARIABLE, "1")
    found, started = resumed(session, normed(tiny_task), "parts", 2, 1)
    assert not same(found["model.safetensors"], whole["model.safetensors"])
    assert started.notes[-1].startswith(
        f"the training had 2 CPU threads and continues with 1, since {THREADS_VARIABLE} says so"
    )


@pytest.mark.usefixtures("quick_disk")
def test_same_number_needs_no_note(session: Any, tiny_task: Any) -> None:
    _, started = resumed(session, normed(tiny_task), "run", 1, 1)
    assert started.notes == ()


def test_no_more_threads_than_cores() -> None:
    torch.set_num_threads(1)
    note = resume_threads(3, CPU)
    assert note is not None and "continues with 1, since there are only 2 cores" in note
    assert torch.get_num_threads() == 1


def test_other_devices_have_no_number() -> None:
    assert used_threads(torch.device("cuda")) == 0
    assert resume_threads(2, torch.device("cuda")) is None and resume_threads(0, CPU) is None
