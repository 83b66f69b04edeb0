"""GPT in the language modelling task: attention across documents, no carried state, and exact resume."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.core.files import tensors_from_file
from seqloom.core.tree import leaves
from seqloom.predict.loader import load
from seqloom.tasks.language_model import Task, number_documents
from seqloom.text import END
from seqloom.train.events import Evaluated, Finished
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.training import begin, resume

GPT = ["model.kind=gpt", "model.d_model=16", "model.layers=2", "model.context=8"]
APART = [*GPT, "batch.cross_document_attention=false"]
GOLDEN = [2.7455, 2.6383, 2.5896, 2.6572, 2.5008, 2.4779, 2.4558, 2.4893, 2.3526, 2.2958]  # values of the last review

Make = Callable[..., Any]


def model_of(task: Task) -> Any:
    torch.manual_seed(0)
    model = task.model().double().eval()
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return model


# --- documents --------------------------------------------------------------------------------------------------------


def test_document_starts_at_the_preceding_end_token() -> None:
    assert number_documents(torch.tensor([[5, 6, END, 7, END, END, 8]])).tolist() == [[0, 0, 1, 1, 2, 3, 3]]


def test_loss_without_cross_document_attention_matches_that_of_single_documents(recipe: Make) -> None:
    task = Task.prepare(recipe(*APART))
    model, batch = model_of(task), task.batch(1, 1)
    total = 0.0
    for inputs, targets in zip(batch["inputs"], batch["targets"], strict=True):
        borders = [
            0,
            *(position for position, token in enumerate(inputs.tolist()) if token == END and position),
            len(inputs),
        ]
        for first, last in pairwise(borders):
            value, _ = model.loss(inputs[None, first:last], targets[None, first:last])
            total += value.item() * (last - first)
    result = task.loss(model, batch, None)
    assert result.value.item() == pytest.approx(total / batch["targets"].numel(), rel=1e-12)
    assert result.carry is None and result.tokens == 24
    joined = Task.prepare(recipe(*GPT)).loss(model, batch, None)
    assert joined.value.item() != pytest.approx(result.value.item(), rel=1e-4)


def test_documents_are_independent_without_cross_document_attention(recipe: Make) -> None:
    """Predictions and gradients do not depend on other documents."""
    task = Task.prepare(recipe(*APART, "batch.size=1", "batch.length=40", "model.context=40"))
    model, batch = model_of(task), task.batch(1, 0)
    inputs = batch["inputs"]
    documents = number_documents(inputs)
    first, second = documents[0] == 1, documents[0] == 2
    assert first.sum() > 5 and second.sum() > 5
    changed = inputs.clone()
    changed[0, first] = torch.where(inputs[0, first] == END, END, (inputs[0, first] % 7) + 2)
    before, after = (model(row, documents=documents) for row in (inputs, changed))
    assert torch.equal(before[0, second], after[0, second])
    assert not torch.equal(before[0, first], after[0, first])
    vectors = torch.randn(1, inputs.shape[1], 16, dtype=torch.float64, requires_grad=True)
    hook = model.backbone.embed.register_forward_hook(lambda *_: vectors)
    model.backbone.read(inputs, documents=documents)[0, second].square().sum().backward()
    hook.remove()
    assert torch.equal(vectors.grad.abs().sum(dim=2)[0] > 0, second)  # type: ignore[union-attr]
    for joined, alike in ((model(inputs), True), (model(changed), False)):
        assert torch.equal(joined[0, second], model(inputs)[0, second]) == alike


def test_evaluation_without_cross_document_attention_scores_single_documents(recipe: Make) -> None:
    """The context of every document is only END, and each token of the split is counted once."""
    task = Task.prepare(recipe(*APART))
    model, total, count = model_of(task), 0.0, 0
    for document in task.corpus.split("dev"):
        ids = [*task.tokenizer.encode(document), END]
        scores, _ = model.score(torch.tensor([[END, *ids[:-1]]]), torch.tensor([ids]), model.start(rows=1))
        total, count = total - scores.sum().item(), count + len(ids)
    result = task.evaluate(model, "dev")
    assert count == len(task.stream("dev"))
    assert result["loss"] == pytest.approx(total / count, rel=1e-10)
    assert result["perplexity"] == pytest.approx(math.exp(total / count))
    assert Task.prepare(recipe(*GPT)).evaluate(model, "dev")["loss"] != pytest.approx(result["loss"], rel=1e-4)


def test_stream_log_probs_are_independent_of_chunking(recipe: Make) -> None:
    task = Task.prepare(recipe(*GPT))
    model = model_of(task)
    first = task.evaluate(model, "dev")
    task.eval_chunk = 5
    assert task.evaluate(model, "dev") == pytest.approx(first, rel=1e-12)


# --- training ---------------------------------------------------------------------------------------------------------


def test_first_ten_losses_match_the_recorded_losses(recipe: Make) -> None:
    config = recipe(*GPT, "model.dropout=0.1", "model.output_bias=true", "train.lr=0.005")
    trainer = TrainState(Task.prepare(config), config.train, config.seed)
    assert [make_step(trainer).loss for _ in range(10)] == pytest.approx(GOLDEN, abs=1e-3)


def test_no_state_is_carried_between_chunks(recipe: Make) -> None:
    config = recipe(*GPT)
    trainer = TrainState(Task.prepare(config), config.train, config.seed)
    make_step(trainer)
    assert trainer.carry is None


@pytest.mark.parametrize("options", [GPT, APART, [*GPT, "batch.random_offset=true", "model.tied=false"]], ids=str)
def test_resumed_training_is_bit_identical(recipe: Make, tmp_path: Path, options: list[str]) -> None:
    def trained(name: str, *steps: int) -> dict[str, torch.Tensor]:
        for number in steps:
            config = recipe(*options, "model.dropout=0.3", f"train.steps={number}", "train.save_every=2")
            path = tmp_path / name
            training = begin(config, path) if number == steps[0] else resume(path, [f"train.steps={number}"])
            assert [type(event) for event in training.events()][-1] is Finished
        newest = tmp_path / name / "checkpoints" / f"step-{steps[-1]}"
        files = sorted(newest.glob("*.safetensors"))
        return {f"{file.name}/{key}": value for file in files for key, value in tensors_from_file(file).items()}

    first, resumed, other = trained("once", 8), trained("twice", 4, 8), trained("other", 4, 7)
    assert first.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[key]) for key, value in first.items())
    assert any(not torch.equal(value, other[key]) for key, value in first.items())


def test_evaluated_run_reopens_unchanged(recipe: Make, tmp_path: Path) -> None:
    training = begin(recipe(*GPT), tmp_path / "run")
    evaluated = [event for event in training.events() if isinstance(event, Evaluated)]
    best = min(evaluated, key=lambda event: event.metrics["loss"])
    assert load(tmp_path / "run", device="cpu").evaluate("dev") == dict(best.metrics)


# --- errors and warnings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["batch.cross_document_attention=false"], ["batch.cross_document_attention=false needs model.kind gpt"]),
        ([*GPT, "batch.length=9"], ["batch.length must be at most 8, the context of the model", "got 9"]),
        (
            ["model.kind=gpt", "model.heads=3", "model.context=600", "batch.size=0"],
            [
                "model: d_model must be divisible by heads",
                "model: context must be at most 512, the number of",
                "batch.size: must be",
            ],
        ),
        (
            ["model.kind=gpt", "batch.cross_document_attention=2"],
            ["batch.cross_document_attention: must be true or false"],
        ),
    ],
)
def test_all_problems_are_reported(recipe: Make, overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        recipe(*overrides)
    assert all(word in str(caught.value) for word in words), caught.value


def test_untrained_positions_give_warning(recipe: Make) -> None:
    (result,) = Task.prepare(recipe("model.kind=gpt", "model.d_model=16")).warnings()
    assert "Set batch.length to 512, or model.context to 8" in result
    assert Task.prepare(recipe(*GPT)).warnings() == []
    rotary = ["model.kind=gpt", "model.d_model=16", "model.positions.kind=rotary"]
    (result,) = Task.prepare(recipe(*rotary)).warnings()
    assert "longer distances are not learned. Set batch.length to 512, or model.context to 8" in result
    assert Task.prepare(recipe(*rotary, "model.context=8")).warnings() == []


def test_batches_are_deterministic_with_few_shapes(recipe: Make) -> None:
    first, other = (Task.prepare(recipe(*APART, "batch.random_offset=true")) for _ in range(2))
    steps = range(2 * first.steps_per_epoch())
    batches = [first.batch(1, step) for step in steps]
    for mine, same in zip(batches, [other.batch(1, step) for step in reversed(steps)][::-1], strict=True):
        assert all(map(torch.equal, leaves(mine), leaves(same)))
    assert len({batch["inputs"].shape for batch in batches}) <= 2
