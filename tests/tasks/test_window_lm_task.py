"""The window model in the language modelling task.

The tests cover windows across chunks, documents, state resets, and exact resume.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.core.files import tensors_from_file
from seqloom.core.protocols import Monitor
from seqloom.inspect.rehearsal import model_facts
from seqloom.models.window_lm import token_windows
from seqloom.predict.loader import load
from seqloom.recipes import read_recipe
from seqloom.tasks.language_model import Task
from seqloom.text import END
from seqloom.train.events import Evaluated, Finished
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.training import begin, resume

K = 4
WINDOW = ["model.kind=window-lm", f"model.window={K}", "model.embedding=6", "model.hidden=8"]
APART = [*WINDOW, "batch.cross_document_attention=false"]
GOLDEN = [2.6958, 2.6556, 2.6161, 2.6477, 2.4569, 2.4314, 2.3338, 2.4349, 2.1295, 2.0904]  # values of the last review

Make = Callable[..., Any]


def model_of(task: Task) -> Any:
    torch.manual_seed(0)
    model = task.model().double().eval()
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.7, 0.7)
    return model


def alone(model: Any, context: list[int], target: int) -> float:
    """Return −log p of a token after `context`, computed from one window."""
    window = torch.tensor([([END] * K + context)[-K:]])
    return -model.output.log_probs(model.before_output(window))[0, target].item()


def row_so_far(task: Task, step: int, row: int) -> tuple[list[int], list[int]]:
    """Return the inputs and targets of a row in an epoch up to the end of this step."""
    batches = [task.batch(1, before) for before in range(step + 1)]
    return torch.cat([batch["inputs"][row] for batch in batches]).tolist(), batches[-1]["targets"][row].tolist()


# --- inputs of a chunk ------------------------------------------------------------------------------------------------


def test_chunk_continues_previous_chunk(recipe: Make) -> None:
    """For any chunks, the loss equals that of separate windows. Windows may cross documents."""
    task = Task.prepare(recipe(*WINDOW, "batch.state_reset_probability=0"))
    model, carry = model_of(task), None
    for step in range(3):
        actual = task.loss(model, task.batch(1, step), carry)
        total, count = 0.0, 0
        for row in range(3):
            read, targets = row_so_far(task, step, row)
            first = len(read) - len(targets)
            total += sum(alone(model, read[: first + t + 1], target) for t, target in enumerate(targets))
            count += len(targets)
        assert actual.value.item() == pytest.approx(total / count, rel=1e-12), step
        assert actual.carry.tolist() == [row_so_far(task, step, row)[0][-K:] for row in range(3)]
        carry = actual.carry


def test_reset_row_starts_with_end_tokens(recipe: Make) -> None:
    task = Task.prepare(recipe(*WINDOW, "batch.state_reset_probability=1"))
    model = model_of(task)
    carry = task.loss(model, task.batch(1, 0), None).carry
    batch = task.batch(1, 1)
    forgotten, fresh = task.loss(model, batch, carry), task.loss(model, batch, None)
    assert carry.any() and forgotten.value.item() == fresh.value.item()
    remembered = Task.prepare(recipe(*WINDOW, "batch.state_reset_probability=0")).loss(
        model, {**batch, "remember": batch["remember"] | True}, carry
    )
    assert remembered.value.item() != pytest.approx(fresh.value.item(), rel=1e-4)


def test_epoch_starts_with_initial_state(recipe: Make) -> None:
    task = Task.prepare(recipe(*WINDOW, "batch.state_reset_probability=0"))
    model, first = model_of(task), task.batch(1, task.steps_per_epoch())
    stale = torch.full((3, K), 5)
    assert first["fresh"]
    assert task.loss(model, first, stale).value.item() == task.loss(model, first, None).value.item()


def test_loss_without_cross_document_attention_matches_that_of_single_documents(recipe: Make) -> None:
    task = Task.prepare(recipe(*APART, "batch.state_reset_probability=0"))
    model, carry = model_of(task), None
    for step in range(3):
        actual = task.loss(model, task.batch(1, step), carry)
        total, count = 0.0, 0
        for row in range(3):
            read, targets = row_so_far(task, step, row)
            for t, target in enumerate(targets, start=len(read) - len(targets)):
                context = read[: t + 1]
                last = max((position for position, token in enumerate(context) if token == END), default=0)
                total, count = total + alone(model, context[last:], target), count + 1
        assert actual.value.item() == pytest.approx(total / count, rel=1e-12), step
        carry = actual.carry
    joined = Task.prepare(recipe(*WINDOW, "batch.state_reset_probability=0")).loss(model, task.batch(1, 2), carry)
    assert joined.value.item() != pytest.approx(actual.value.item(), rel=1e-4)


def test_evaluation_without_cross_document_attention_scores_single_documents(recipe: Make) -> None:
    task = Task.prepare(recipe(*APART))
    model, total, count = model_of(task), 0.0, 0
    for document in task.corpus.split("dev"):
        ids = [*task.tokenizer.encode(document), END]
        total += sum(alone(model, [END, *ids[:t]], target) for t, target in enumerate(ids))
        count += len(ids)
    actual = task.evaluate(model, "dev")
    assert count == len(task.stream("dev"))
    assert actual["loss"] == pytest.approx(total / count, rel=1e-10)
    assert actual["perplexity"] == pytest.approx(math.exp(total / count))


def test_log_probs_of_a_stream_equal_those_of_single_windows(recipe: Make) -> None:
    task = Task.prepare(recipe(*WINDOW))
    model, stream = model_of(task), task.stream("dev").tolist()
    total = sum(alone(model, [END, *stream[:t]], target) for t, target in enumerate(stream))
    for task.eval_chunk in (1, 3, 256):
        assert task.evaluate(model, "dev")["loss"] == pytest.approx(total / len(stream), rel=1e-10)


# --- training ---------------------------------------------------------------------------------------------------------


def test_first_ten_losses_match_the_recorded_losses(recipe: Make) -> None:
    config = recipe(*WINDOW, "model.dropout=0.1", "model.direct=true")
    trainer = TrainState(Task.prepare(config), config.train, config.seed)
    assert [make_step(trainer).loss for _ in range(10)] == pytest.approx(GOLDEN, abs=1e-3)


OPTIONS = [
    WINDOW,
    [*APART, "model.tied=true", "model.direct=true"],
    [
        *WINDOW,
        "batch.random_offset=true",
        "model.softmax.kind=sampled",
        "model.softmax.samples=5",
        "batch.state_reset_probability=0.3",
    ],
]


@pytest.mark.parametrize("options", OPTIONS, ids=["joined", "apart", "sampled"])
def test_resumed_training_is_bit_identical(recipe: Make, tmp_path: Path, options: list[str]) -> None:
    dropped = ["model.dropout=0.3", "model.embedding_dropout=0.1", "train.save_every=2"]

    def trained(name: str, *steps: int) -> dict[str, torch.Tensor]:
        for number in steps:
            config = recipe(*options, *dropped, f"train.steps={number}")
            path = tmp_path / name
            training = begin(config, path) if number == steps[0] else resume(path, [f"train.steps={number}"])
            assert [type(event) for event in training.events()][-1] is Finished
        newest = tmp_path / name / "checkpoints" / f"step-{steps[-1]}"
        files = sorted(newest.glob("*.safetensors"))
        return {f"{file.name}/{key}": value for file in files for key, value in tensors_from_file(file).items()}

    uninterrupted, resumed, other = trained("once", 8), trained("twice", 3, 8), trained("other", 3, 7)
    assert any(
        value.dtype == torch.long and value.shape == (3, K) for value in uninterrupted.values()
    )  # the checkpoint contains the window
    assert uninterrupted.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[key]) for key, value in uninterrupted.items())
    assert any(not torch.equal(value, other[key]) for key, value in uninterrupted.items())


def test_evaluated_run_reopens_unchanged(recipe: Make, tmp_path: Path) -> None:
    training = begin(recipe(*WINDOW), tmp_path / "run")
    evaluated = [event for event in training.events() if isinstance(event, Evaluated)]
    best = min(evaluated, key=lambda event: event.metrics["loss"])
    assert load(tmp_path / "run", device="cpu").evaluate("dev") == dict(best.metrics)


def test_training_can_start_from_another_run(recipe: Make, tmp_path: Path) -> None:
    assert list(begin(recipe(*WINDOW), tmp_path / "first").events())
    files = {name: str(tmp_path / f"{name}.txt") for name in ("train", "dev", "test")}
    config = {
        "task": "language-model",
        "init": {"from": str(tmp_path / "first")},
        "data": {"corpus": "text", "documents": "line", **files},
        "batch": {"size": 3, "length": 8},
        "train": {"steps": 2, "device": "cpu"},
    }
    path = tmp_path / "more.yaml"
    path.write_text(json.dumps(config), "utf-8")
    _, more = read_recipe(str(path))
    assert more.model == recipe(*WINDOW).model
    task = Task.prepare(more)
    stored = load(tmp_path / "first", device="cpu").model.state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in task.model().state_dict().items())


def test_doctor_reports_window_lm(recipe: Make) -> None:
    actual = model_facts(Task.prepare(recipe(*WINDOW, "model.tied=true")), torch.device("cpu"))
    vocabulary = len(Task.prepare(recipe(*WINDOW)).tokenizer)
    parts = {"embedding": vocabulary * 6, "hidden": (K * 6 + 1) * 8, "project": 8 * 6, "output": vocabulary}
    assert (actual.kind, actual.parts, actual.notes) == ("window-lm", parts, [])


def test_note_explains_the_sampled_loss(recipe: Make) -> None:
    sampled = Task.prepare(recipe(*WINDOW, "model.softmax.kind=sampled", "model.softmax.sampler=unigram"))
    assert sampled.monitor.remark == "of samples" and Task.prepare(recipe(*WINDOW)).monitor == Monitor("loss")
    proposal = sampled.model().output.proposal
    assert proposal.max() > 2 * proposal.min()  # the sampler uses the counts of the training text


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([*WINDOW, "model.window=0"], ["model.window: must be at least 1"]),
        (
            [
                *WINDOW,
                "model.window=0",
                "model.layers=-1",
                "model.dropout=1",
                "batch.size=0",
                "batch.state_reset_probability=2",
            ],
            [
                "window: must be",
                "layers: must be",
                "dropout: must be",
                "size: must be",
                "state_reset_probability: must be",
            ],
        ),
        ([*WINDOW, "model.cell=gru"], ["model.cell"]),
        ([*WINDOW, "model.windows=3"], ["did you mean model.window?"]),
        (
            ["batch.cross_document_attention=false"],
            ["batch.cross_document_attention=false needs model.kind gpt or window-lm"],
        ),
        (["model.kind=window"], ["window-lm"]),
    ],
)
def test_all_problems_are_reported(recipe: Make, overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        recipe(*overrides)
    assert all(word in str(caught.value) for word in words), caught.value


def test_invalid_output_layer_is_rejected_before_run_is_created(recipe: Make, tmp_path: Path) -> None:
    adaptive = [*WINDOW, "model.softmax.kind=adaptive", "model.softmax.cutoffs=[500]"]
    with pytest.raises(UsageError, match="cutoffs must be below the size of the vocabulary"):
        begin(recipe(*adaptive), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_window_that_is_not_carried_is_detected(recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(tokens: torch.Tensor, before: torch.Tensor, mask: Any = None) -> Any:
        return token_windows(tokens, torch.full_like(before, END), mask)

    monkeypatch.setattr("seqloom.models.window_lm.token_windows", forgetful)
    with pytest.raises(AssertionError):
        test_chunk_continues_previous_chunk(recipe)
