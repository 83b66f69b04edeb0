"""A GPT in the task of language models: documents joined or apart, no state carried on, exact resume."""

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
GOLDEN = [2.7455, 2.6383, 2.5896, 2.6572, 2.5008, 2.4779, 2.4558, 2.4893, 2.3526, 2.2958]  # as last looked at

Make = Callable[..., Any]


def model_of(task: Task) -> Any:
    torch.manual_seed(0)
    model = task.model().double().eval()
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return model


# --- documents ------------------------------------------------------------------------------------------------------


def test_a_document_begins_with_the_end_before_it() -> None:
    assert number_documents(torch.tensor([[5, 6, END, 7, END, END, 8]])).tolist() == [[0, 0, 1, 1, 2, 3, 3]]


def test_apart_the_loss_is_that_of_each_document_alone(recipe: Make) -> None:
    task = Task.prepare(recipe(*APART))
    model, batch = model_of(task), task.batch(1, 1)
    total = 0.0
    for inputs, targets in zip(batch["inputs"], batch["targets"], strict=True):
        borders = [0, *(place for place, token in enumerate(inputs.tolist()) if token == END and place), len(inputs)]
        for first, last in pairwise(borders):
            value, _ = model.loss(inputs[None, first:last], targets[None, first:last])
            total += value.item() * (last - first)
    found = task.loss(model, batch, None)
    assert found.value.item() == pytest.approx(total / batch["targets"].numel(), rel=1e-12)
    assert found.carry is None and found.tokens == 24
    joined = Task.prepare(recipe(*GPT)).loss(model, batch, None)
    assert joined.value.item() != pytest.approx(found.value.item(), rel=1e-4)


def test_apart_changing_one_document_changes_nothing_in_another(recipe: Make) -> None:
    """Neither what is predicted in it nor any gradient that comes from there."""
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


def test_apart_is_also_how_it_is_evaluated(recipe: Make) -> None:
    """Every document after its END alone; and each token of the split is counted once, as ever."""
    task = Task.prepare(recipe(*APART))
    model, total, count = model_of(task), 0.0, 0
    for document in task.corpus.split("dev"):
        ids = [*task.tokenizer.encode(document), END]
        scores, _ = model.score(torch.tensor([[END, *ids[:-1]]]), torch.tensor([ids]), model.start(rows=1))
        total, count = total - scores.sum().item(), count + len(ids)
    found = task.evaluate(model, "dev")
    assert count == len(task.stream("dev"))
    assert found["loss"] == pytest.approx(total / count, rel=1e-10)
    assert found["perplexity"] == pytest.approx(math.exp(total / count))
    assert Task.prepare(recipe(*GPT)).evaluate(model, "dev")["loss"] != pytest.approx(found["loss"], rel=1e-4)


def test_joined_a_stream_is_read_through_in_any_pieces(recipe: Make) -> None:
    task = Task.prepare(recipe(*GPT))
    model = model_of(task)
    once = task.evaluate(model, "dev")
    task.eval_chunk = 5
    assert task.evaluate(model, "dev") == pytest.approx(once, rel=1e-12)


# --- training -------------------------------------------------------------------------------------------------------


def test_the_first_ten_losses(recipe: Make) -> None:
    made = recipe(*GPT, "model.dropout=0.1", "model.output_bias=true", "train.lr=0.005")
    trainer = TrainState(Task.prepare(made), made.train, made.seed)
    assert [make_step(trainer).loss for _ in range(10)] == pytest.approx(GOLDEN, abs=1e-3)


def test_nothing_is_carried_from_chunk_to_chunk(recipe: Make) -> None:
    made = recipe(*GPT)
    trainer = TrainState(Task.prepare(made), made.train, made.seed)
    make_step(trainer)
    assert trainer.carry is None


@pytest.mark.parametrize("options", [GPT, APART, [*GPT, "batch.random_offset=true", "model.tied=false"]], ids=str)
def test_resume_is_exact(recipe: Make, tmp_path: Path, options: list[str]) -> None:
    def trained(name: str, *steps: int) -> dict[str, torch.Tensor]:
        for number in steps:
            made = recipe(*options, "model.dropout=0.3", f"train.steps={number}", "train.save_every=2")
            path = tmp_path / name
            training = begin(made, path) if number == steps[0] else resume(path, [f"train.steps={number}"])
            assert [type(event) for event in training.events()][-1] is Finished
        newest = tmp_path / name / "checkpoints" / f"step-{steps[-1]}"
        files = sorted(newest.glob("*.safetensors"))
        return {f"{file.name}/{key}": value for file in files for key, value in tensors_from_file(file).items()}

    once, twice, other = trained("once", 8), trained("twice", 4, 8), trained("other", 4, 7)
    assert once.keys() == twice.keys()
    assert all(torch.equal(value, twice[key]) for key, value in once.items())
    assert any(not torch.equal(value, other[key]) for key, value in once.items())


def test_an_evaluated_run_opens_as_it_was(recipe: Make, tmp_path: Path) -> None:
    training = begin(recipe(*GPT), tmp_path / "run")
    evaluated = [event for event in training.events() if isinstance(event, Evaluated)]
    best = min(evaluated, key=lambda event: event.metrics["loss"])
    assert load(tmp_path / "run", device="cpu").evaluate("dev") == dict(best.metrics)


# --- what is refused, and what is remarked on -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["batch.cross_document_attention=false"], ["batch.cross_document_attention=false needs model.kind gpt"]),
        ([*GPT, "batch.length=9"], ["batch.length must be at most 8, the context of the model", "got 9"]),
        (
            ["model.kind=gpt", "model.heads=3", "model.context=600", "batch.size=0"],
            [
                "model: d_model must be divisible by heads",
                "model: context must be at most the 512",
                "batch.size: must be",
            ],
        ),
        (
            ["model.kind=gpt", "batch.cross_document_attention=2"],
            ["batch.cross_document_attention: must be true or false"],
        ),
    ],
)
def test_all_problems_are_named(recipe: Make, overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        recipe(*overrides)
    assert all(word in str(caught.value) for word in words), caught.value


def test_places_that_no_training_token_stands_at_are_remarked_on(recipe: Make) -> None:
    (found,) = Task.prepare(recipe("model.kind=gpt", "model.d_model=16")).warnings()
    assert "Set batch.length to 512, or model.context to 8" in found
    assert Task.prepare(recipe(*GPT)).warnings() == []
    rotary = ["model.kind=gpt", "model.d_model=16", "model.positions.kind=rotary"]
    (found,) = Task.prepare(recipe(*rotary)).warnings()
    assert "longer distances are not learned. Set batch.length to 512, or model.context to 8" in found
    assert Task.prepare(recipe(*rotary, "model.context=8")).warnings() == []


def test_batches_are_pure_and_of_few_shapes(recipe: Make) -> None:
    one, other = (Task.prepare(recipe(*APART, "batch.random_offset=true")) for _ in range(2))
    steps = range(2 * one.steps_per_epoch())
    batches = [one.batch(1, step) for step in steps]
    for mine, same in zip(batches, [other.batch(1, step) for step in reversed(steps)][::-1], strict=True):
        assert all(map(torch.equal, leaves(mine), leaves(same)))
    assert len({batch["inputs"].shape for batch in batches}) <= 2
