"""The denoising task: batches, metrics, learning and exact resume."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.denoising import KINDS, denoise_recipe
from tests.understanding import assert_same_checkpoints, trained

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tokens import EXTRA, Specials
from seqloom.data.noise import parse_spans, sentinels_of
from seqloom.decoding.beam import beam_search
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks.denoise import EVALUATION_SEED, GREEDY, Task
from seqloom.train import loop
from seqloom.train.events import Evaluated, Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


def prepared(folder: Path, *overrides: str) -> Task:
    return Task.prepare(denoise_recipe(folder, *overrides))


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_is_read_completely(tmp_path: Path, kind: str) -> None:
    task = prepared(tmp_path, f"noise.kind={kind}")
    tokens = [token for piece in task.batches.texts for token in piece.tokens]
    assert tokens == [token for text in task.corpus.split("train") for token in task.tokenizer.encode(text)]
    assert task.tokens_per_step() * task.steps_per_epoch() == len(tokens) + len(task.batches.texts)


def test_output_layer_includes_the_special_tokens_of_the_denoising_objective(tmp_path: Path) -> None:
    for kind, extra in (("spans", EXTRA + 100), ("bart", EXTRA)):
        run = trained(denoise_recipe(tmp_path, f"noise.kind={kind}", "train.steps=1"), tmp_path / kind)
        model = load(run)
        assert model.model.output.weight.shape[0] == len(model.tokenizer) + extra
        assert Run.open(run).sizes == {"vocabulary": len(model.tokenizer), "extra": extra}


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_match_independent_computation(tmp_path: Path, kind: str) -> None:
    task = prepared(tmp_path, f"noise.kind={kind}", "batch.dev_texts=null")
    torch.manual_seed(0)
    model = task.model().eval()
    metrics = task.evaluate(model, "dev")
    read = task.eval_batches("dev")
    losses, right, hits, hidden, exact = [], 0, 0, 0, []
    banned = tuple(Specials.after(len(task.tokenizer)).names)
    for number in range(len(read.texts)):
        source, target, unseen = read.corrupt(number, EVALUATION_SEED, 0)
        ended = torch.tensor([[*source, 0]])
        inputs = torch.tensor([[0, *target]])
        log_probs = model(ended, None, inputs)[0].log_softmax(dim=1)
        for position, token in enumerate([*target, 0]):
            losses.append(-log_probs[position, token].item())
            agreed = int(log_probs[position].argmax()) == token
            right += agreed
            if position < len(target) and unseen[position]:
                hidden, hits = hidden + 1, hits + agreed
        ((best,),) = beam_search(
            model, source={"tokens": ended, "mask": ended >= 0}, options=GREEDY, end=0, banned=banned
        )
        if kind == "bart":
            exact.append(best.tokens == target)
        else:
            sentinels = sentinels_of(task.recipe.noise, len(task.tokenizer))
            predicted, expected = (parse_spans(ids, sentinels) for ids in (best.tokens, target))
            exact += [predicted.get(gap) == span for gap, span in expected.items() if span]
    assert metrics["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["target_accuracy"] == right / len(losses) and metrics["hidden_accuracy"] == hits / hidden
    assert metrics["exact_spans" if kind == "spans" else "exact_texts"] == sum(exact) / len(exact)
    assert task.evaluate(model, "dev") == metrics  # two evaluations use the same noise


def test_evaluation_without_dev_texts_omits_reconstruction_metrics(tmp_path: Path) -> None:
    task = prepared(tmp_path, "batch.dev_texts=0")
    metrics = task.evaluate(task.model().eval(), "dev")
    assert metrics.keys() == {"loss", "perplexity", "target_accuracy", "hidden_accuracy", "unknown_rate"}


def test_training_predicts_hidden_words_better_than_chance(tmp_path: Path) -> None:
    """In the artificial language, the neighbours of most hidden words determine the words."""
    changes = [
        "train.steps=240",
        "train.evaluate_every=240",
        "train.log_every=240",
        "model.dropout=0",
        "model.d_model=32",
    ]
    changes += ["batch.tokens=384", "batch.dev_texts=0", "noise.kind=bart", "noise.mean_span_length=1.5"]
    metrics = load(trained(denoise_recipe(tmp_path, *changes), tmp_path / "run")).evaluate("test")
    assert metrics["hidden_accuracy"] > 0.3  # the most frequent word is one sixth of all words
    assert metrics["target_accuracy"] > 0.6


@pytest.mark.parametrize("kind", KINDS)
def test_few_texts_are_memorized(tmp_path: Path, kind: str) -> None:
    task = prepared(tmp_path, f"noise.kind={kind}", "model.dropout=0", "model.d_model=32", "batch.tokens=64")
    torch.manual_seed(0)
    model, batch = task.model(), task.batch(1, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        loss = task.loss(model, batch, None).value
        if loss.item() < 0.02:
            break
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    source = {"tokens": batch["source"], "mask": batch["source_mask"]}
    for row, (best,) in enumerate(beam_search(model.eval(), source=source, options=GREEDY, end=0)):
        assert [*best.tokens, 0] == batch["targets"][row][batch["target_mask"][row]].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_training_is_bit_identical(tmp_path: Path, kind: str) -> None:
    recipe = denoise_recipe(tmp_path, f"noise.kind={kind}", "model.dropout=0.2")
    uninterrupted = trained(recipe, tmp_path / "whole")
    stopped_and_resumed_run(recipe, tmp_path / "parts")
    assert_same_checkpoints(uninterrupted, tmp_path / "parts")


def test_resuming_without_seeding_each_step_changes_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "seed_step", lambda *_: None)
    recipe = denoise_recipe(tmp_path, "model.dropout=0.2")
    uninterrupted = trained(recipe, tmp_path / "whole")
    stopped_and_resumed_run(recipe, tmp_path / "parts")
    with pytest.raises(AssertionError):
        assert_same_checkpoints(uninterrupted, tmp_path / "parts")


def stopped_and_resumed_run(recipe: Any, out: Path) -> None:
    stop = Stop()
    for event in begin(recipe, out).events(stop):
        if isinstance(event, Progress) and event.step == 4:
            stop.request()
    assert [entry["event"] for entry in Run.open(out).log()][-1] == "stopped"
    assert [event.step for event in resume(out).events() if isinstance(event, Evaluated)] == [6]


def test_texts_of_a_file_are_corrupted_and_evaluated(tmp_path: Path) -> None:
    run = trained(denoise_recipe(tmp_path), tmp_path / "run")
    metrics = load(run).evaluate_documents(["The cats purr all day . They eat milk ."])
    assert metrics["loss"] > 0 and 0 <= metrics["exact_spans"] <= 1


def test_text_without_hidden_tokens_has_no_hidden_accuracy(tmp_path: Path) -> None:
    run = trained(denoise_recipe(tmp_path, "noise.kind=bart", "noise.infill=0.01"), tmp_path / "run")
    metrics = load(run).evaluate_documents(["cats"])
    assert "hidden_accuracy" not in metrics and 0 <= metrics["target_accuracy"] <= 1


def test_text_without_tokens_is_rejected(tmp_path: Path) -> None:
    recipe = denoise_recipe(tmp_path)
    run = trained(recipe, tmp_path / "run")
    with pytest.raises(DataError, match="no tokens to corrupt"):
        load(run).evaluate_documents(["  "])


def test_all_problems_of_recipe_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        denoise_recipe(
            tmp_path, "batch.max_length=4", "batch.tokens=0", "noise.noise_density=1.5", "batch.dev_texts=-1"
        )
    for words in (
        "max_length: must be at least 8",
        "tokens: must be at least 1",
        "noise_density: must be less",
        "dev_texts",
    ):
        assert words in str(error.value)
    with pytest.raises(UsageError, match=r"noise\.sentinels must be at least 5, .* may have 4 spans; got 3"):
        denoise_recipe(tmp_path, "noise.sentinels=3", "noise.mean_span_length=1")
    with pytest.raises(UsageError) as error:
        learned = ["model.positions.kind=learned", "model.positions.max_length=16"]
        denoise_recipe(tmp_path, "noise.kind=bart", *learned)
    for words in ("a source may have 25 tokens", "a target may have 24 tokens", "has 15 positions", "has 16 positions"):
        assert words in str(error.value)
    with pytest.raises(UsageError, match="kind"):
        denoise_recipe(tmp_path, "noise.kind=gauss")


def test_computed_number_of_learned_positions_suffices(tmp_path: Path) -> None:
    """No text becomes longer than the maximum length that the recipe determines."""
    learned = ["model.positions.kind=learned", "model.positions.max_length=26", "noise.mean_span_length=0.5"]
    task = prepared(tmp_path, "noise.kind=bart", "noise.infill=0.6", *learned)
    model = task.model()
    for step in range(2 * task.steps_per_epoch()):
        model.loss(task.batch(1, step))
