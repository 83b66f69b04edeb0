"""Training with each output layer: counts, exact resume, and errors before a run is created."""

from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.core.files import tensors_from_file
from seqloom.predict.loader import load
from seqloom.tasks.language_model import Task
from seqloom.train.events import Saved, Stopped
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

SOFTMAXES = {
    "adaptive": ["model.softmax.kind=adaptive", "model.softmax.cutoffs=[5, 12]", "model.softmax.factor=2"],
    "log-uniform": ["model.softmax.kind=sampled", "model.softmax.samples=4"],
    "blackout": ["model.softmax.kind=sampled", "model.softmax.sampler=blackout", "model.softmax.samples=4"],
}


@pytest.mark.parametrize("overrides", SOFTMAXES.values(), ids=SOFTMAXES)
def test_resumed_training_is_bit_identical(recipe: Any, tmp_path: Path, overrides: list[str]) -> None:
    config = recipe(*overrides, "model.dropout=0.2")
    list(begin(config, tmp_path / "whole").events())
    stop = Stop()
    for event in begin(config, tmp_path / "halves").events(stop):
        if isinstance(event, Saved):
            stop.request()
    assert isinstance(event, Stopped) and event.step == 3
    list(resume(tmp_path / "halves").events())
    uninterrupted, halves = (tensors_from_file(tmp_path / name / "model.safetensors") for name in ("whole", "halves"))
    assert uninterrupted.keys() == halves.keys()
    assert all(torch.equal(uninterrupted[name], halves[name]) for name in uninterrupted)


@pytest.mark.parametrize("overrides", SOFTMAXES.values(), ids=SOFTMAXES)
def test_loaded_run_uses_exact_probabilities(recipe: Any, tmp_path: Path, overrides: list[str]) -> None:
    training = begin(recipe(*overrides), tmp_path / "run")
    list(training.events())
    trained = load(tmp_path / "run", device="cpu")
    # Evaluation does not use samples
    assert trained.evaluate("dev") == trained.evaluate("dev") == training.run.metrics("dev")
    output = trained.model.step(torch.zeros(1, 1, dtype=torch.long), trained.model.start(rows=1))
    assert output.log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert len(list(trained.generate("the", max_tokens=5, stream=True))) <= 6


def test_sampler_uses_counts_of_training_text(recipe: Any) -> None:
    task = Task.prepare(recipe(*SOFTMAXES["blackout"], "model.softmax.alpha=1"))
    stream = task.stream("train")
    proposal = task.model().output.proposal
    end = float((stream == 0).float().mean())
    # <unk> is counted as if it occurred once
    assert proposal[0].item() == pytest.approx(end * len(stream) / (len(stream) + 1))
    assert proposal[1] == proposal.min()


def test_note_explains_the_sampled_loss(recipe: Any) -> None:
    remarks = [Task.prepare(recipe(*overrides)).monitor.remark for overrides in ([], *SOFTMAXES.values())]
    assert remarks == ["", "", "of samples", "of samples"]


def test_cutoffs_beyond_vocabulary_create_no_run(recipe: Any, tmp_path: Path) -> None:
    config = recipe("model.softmax.kind=adaptive", "model.softmax.cutoffs=[10, 5000]")
    size = len(Task.prepare(recipe()).tokenizer)
    with pytest.raises(UsageError, match=f"the vocabulary, {size} tokens; got \\[10, 5000\\]"):
        begin(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
