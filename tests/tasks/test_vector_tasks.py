"""The adding and recall tasks: batches, losses, learning, and runs."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checksums import update_checksums
from torch import nn

from seqloom.config import apply_overrides, build, parse_overrides
from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.data import vectors
from seqloom.predict.loader import load
from seqloom.tasks import task_info
from seqloom.tasks.adding import VectorTask
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.training import begin, resume

RECIPES: dict[str, dict[str, Any]] = {
    "adding": {"data": {"length": 8, "dev": 200, "test": 200}},
    "recall": {"data": {"lag": 3, "dev": 200, "test": 200, "symbols": 4}},
}
TRAIN = {"steps": 4, "lr": 0.01, "schedule": "cosine", "device": "cpu"}


def recipe(task: str, *overrides: str) -> Any:
    base = {"task": task, "batch": {"size": 16}, "model": {"hidden": 8}, "train": TRAIN, **RECIPES[task]}
    return build(task_info(task).recipe, apply_overrides(base, parse_overrides(overrides)))


def prepared(task: str, *overrides: str) -> VectorTask:
    prepared_task = task_info(task).task.prepare(recipe(task, *overrides))
    assert isinstance(prepared_task, VectorTask)
    return prepared_task


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Fixed(nn.Module):
    """A model with constant answers."""

    def __init__(self, answers: torch.Tensor) -> None:
        super().__init__()
        self.answers = nn.Parameter(answers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.answers.expand(len(x), -1)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batch_depends_only_on_seed_and_step(name: str) -> None:
    task, again = prepared(name), prepared(name)
    first, same = task.batch(1, 5), again.batch(1, 5)
    assert all(torch.equal(first[key], same[key]) for key in first)
    for other in (task.batch(1, 6), task.batch(2, 5)):
        assert other["inputs"].shape != first["inputs"].shape or not torch.equal(other["inputs"], first["inputs"])


def test_processes_divide_batch(name: str) -> None:
    task = prepared(name)
    uninterrupted, parts = task.batch(1, 3), [task.batch(1, 3, rank, 4) for rank in range(4)]
    assert [len(part["targets"]) for part in parts] == [4] * 4
    for key in ("inputs", "targets"):
        assert torch.equal(torch.cat([part[key] for part in parts]), uninterrupted[key])
    with pytest.raises(UsageError, match=r"multiple of the number of processes \(3\); got 16"):
        task.batch(1, 0, 0, 3)


def test_epoch_has_configured_length(name: str) -> None:
    assert prepared(name, "data.epoch=33").steps_per_epoch() == 3


# --- losses and metrics -----------------------------------------------------------------------------------------------


def test_metrics_of_the_adding_task_match_manual_computation() -> None:
    task = prepared("adding")
    targets = task.corpus.split("test")["targets"]
    metrics = task.evaluate(Fixed(torch.tensor([0.7])), "test")
    assert metrics["loss"] == pytest.approx(sum((t - 0.7) ** 2 for t in targets.tolist()) / 200, abs=1e-6)
    assert metrics["success"] == sum(abs(t - 0.7) < 0.04 for t in targets.tolist()) / 200
    blind = task.evaluate(Fixed(torch.tensor([1.0])), "test")
    assert (blind["loss"], blind["success"]) == (blind["blind_loss"], blind["blind_success"])
    assert blind["blind_loss"] == pytest.approx(1 / 6, abs=0.04)


def test_metrics_of_the_recall_task_match_manual_computation() -> None:
    task = prepared("recall")
    targets = task.corpus.split("dev")["targets"].tolist()
    metrics = task.evaluate(Fixed(torch.tensor([0.0, 2.0, 0.0, 0.0])), "dev")
    log_z = math.log(3 + math.exp(2))
    assert metrics["loss"] == pytest.approx(sum(log_z - (2 if t == 1 else 0) for t in targets) / 200, abs=1e-5)
    assert metrics["success"] == targets.count(1) / 200
    assert metrics["blind_loss"] == pytest.approx(math.log(4)) and metrics["blind_success"] == 0.25


def test_training_loss_matches_evaluation_loss(name: str) -> None:
    """The loss of a batch equals the mean loss that `evaluate` computes."""
    task = prepared(name, "data.dev=16")
    batch, model = task.corpus.split("dev"), task.model()
    loss = task.loss(model, batch, None)
    assert loss.value.item() == pytest.approx(task.evaluate(model, "dev")["loss"], abs=1e-6)
    assert loss.carry is None and loss.tokens == batch["inputs"].shape[0] * batch["inputs"].shape[1]


def test_evaluation_is_independent_of_batch_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepared(name)
    model = task.model().eval()
    uninterrupted = task.evaluate(model, "dev")
    monkeypatch.setattr(VectorTask, "eval_size", 7)
    assert task.evaluate(model, "dev") == pytest.approx(uninterrupted, abs=1e-6)


# --- learning ---------------------------------------------------------------------------------------------------------


def train_and_evaluate(task: VectorTask, steps: int, seed: int = 1) -> dict[str, float]:
    trainer = TrainState(task, task.recipe.train, seed)
    trainer.total = steps
    for _ in range(steps):
        make_step(trainer)
    return task.evaluate(trainer.model.eval(), "test")


def test_model_of_the_adding_task_beats_a_constant_answer() -> None:
    metrics = train_and_evaluate(prepared("adding", "model.cell=gru", "model.hidden=32", "batch.size=32"), 300)
    assert metrics["loss"] < 0.02 < 0.12 < metrics["blind_loss"]
    assert metrics["success"] > 3 * metrics["blind_success"]


def test_model_of_the_recall_task_beats_chance() -> None:
    metrics = train_and_evaluate(prepared("recall", "model.hidden=24"), 150)
    assert metrics["success"] > 0.95
    assert metrics["blind_success"] == 0.25


def test_adding_task_cannot_be_learned_without_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without marks, the same training run is no better than a guess without reading the input."""
    task = prepared("adding", "model.cell=gru", "model.hidden=32", "batch.size=32")
    draw = task.corpus.draw

    def unmarked(seed: int, indices: Any) -> Any:
        drawn = draw(seed, indices)
        return {**drawn, "inputs": drawn["inputs"] * torch.tensor([1.0, 0.0])}

    monkeypatch.setattr(task.corpus, "draw", unmarked)
    metrics = train_and_evaluate(task, 300)
    assert metrics["loss"] > 0.5 * metrics["blind_loss"]


# --- runs -------------------------------------------------------------------------------------------------------------


def test_run_stores_sizes_and_restores_model(name: str, tmp_path: Path) -> None:
    training = begin(recipe(name), tmp_path / "run")
    *_, finished = training.events()
    trained = load(tmp_path / "run")
    assert trained.run.sizes == training.task.sizes()
    assert not (tmp_path / "run/tokenizer.json").exists()
    dev = trained.evaluate("dev")
    assert dev == pytest.approx(finished.best)  # type: ignore[attr-defined]
    assert f"recurrent-reader on {name}" in repr(trained)
    with pytest.raises(DataError, match="no train split"):
        trained.evaluate("train")


def test_resumed_training_is_bit_identical(name: str, tmp_path: Path) -> None:
    constant = ["train.schedule=constant", "model.dropout=0.2"]
    for position, steps in (("whole", 6), ("parts", 3)):
        list(begin(recipe(name, *constant, f"train.steps={steps}"), tmp_path / position).events())
    list(resume(tmp_path / "parts", ["train.steps=6"]).events())
    states = [load(tmp_path / position).run.store().load() for position in ("whole", "parts")]
    uninterrupted, parts = (state.parts["model"] for state in states if state is not None)
    assert all(torch.equal(uninterrupted[key], parts[key]) for key in uninterrupted)


def test_data_of_another_version_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(begin(recipe("adding"), tmp_path / "run").events())
    uniform = vectors.uniform
    monkeypatch.setattr(vectors, "uniform", lambda seed, indices, width: uniform(seed + 1, indices, width))
    with pytest.raises(DataError, match="dev, test of adding differ"):
        load(tmp_path / "run").evaluate("dev")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"inputs": 3, "outputs": 1}', "does not match"),
        ('{"inputs": 2}', "does not match"),
        ('{"inputs": 2, "outputs": -1}', "damaged"),
        ('{"inputs": 2, "outputs": true}', "damaged"),
        ("[2, 1]", "damaged"),
        ("{", "damaged"),
        (None, "incomplete"),
    ],
)
def test_damaged_sizes_are_reported(tmp_path: Path, content: str | None, words: str) -> None:
    list(begin(recipe("adding"), tmp_path / "run").events())
    path = tmp_path / "run/sizes.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
        update_checksums(tmp_path / "run")
    with pytest.raises(CheckpointError, match=words):
        _ = load(tmp_path / "run").model
