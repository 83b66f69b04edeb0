"""The masked language modelling task: batches of each objective, metrics, and exact resume."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.masked import masked_recipe
from tests.understanding import assert_same_checkpoints, trained

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tokens import Specials
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks.masked_lm import EVALUATION_SEED, Task
from seqloom.train import loop
from seqloom.train.events import Evaluated, Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


def prepared(folder: Path, *overrides: str) -> Task:
    return Task.prepare(masked_recipe(folder, *overrides))


def test_packed_rows_contain_every_token(tmp_path: Path) -> None:
    task = prepared(tmp_path, "objective=mlm", "masks.mask_replace_prob=0", "masks.random_replace_prob=0")
    epoch = task.batches.epoch(1, 0)  # rows without masks
    assert "other" not in epoch and "segments" not in epoch
    words = [word for row in epoch["tokens"] for word in row.tolist() if 0 < word < len(task.tokenizer)]
    expected = [token for text in task.corpus.split("train") for token in task.tokenizer.encode(text)]
    assert sorted(words) == sorted(expected)


def test_next_sentence_labels_are_correct(tmp_path: Path) -> None:
    task = prepared(tmp_path, "masks.mask_replace_prob=0", "masks.random_replace_prob=0")
    epoch = task.batches.epoch(1, 0)
    texts = [task.tokenizer.decode(task.tokenizer.encode(text)) for text in task.corpus.split("train")]
    seen = {0: 0, 1: 0}
    for row, segments, other in zip(epoch["tokens"], epoch["segments"], epoch["other"].tolist(), strict=True):
        ids = row.tolist()
        a = task.tokenizer.decode(ids[1 : ids.index(Specials.after(len(task.tokenizer)).separate)])
        b = task.tokenizer.decode([token for token, segment in zip(ids, segments, strict=True) if segment][:-1])
        seen[other] += 1
        if not other:
            assert any(f"{a} {b}" in text for text in texts)
    assert min(seen.values()) > 5


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_batches_have_one_shape_and_depend_on_seed_and_step(tmp_path: Path, objective: str) -> None:
    first, second = (prepared(tmp_path, f"objective={objective}") for _ in range(2))
    shapes = set()
    for step in (9, 0, 31):
        left, right = first.batch(1, step), second.batch(1, step)
        assert all(torch.equal(left[name], right[name]) for name in left if name != "read")
        shapes.add(tuple((name, tuple(left[name].shape)) for name in sorted(left) if name != "read"))
    assert len(shapes) == 1
    assert any((first.batch(1, 0)[name] != first.batch(2, 0)[name]).any() for name in ("tokens", "targets"))


def test_static_masking_repeats_pairs_and_masks(tmp_path: Path) -> None:
    static, dynamic = (prepared(tmp_path, f"masking={kind}").batches for kind in ("static", "dynamic"))
    for name in ("tokens", "targets", "other"):
        assert (static.epoch(1, 0)[name] == static.epoch(1, 5)[name]).all()
        assert (dynamic.epoch(1, 0)[name] != dynamic.epoch(1, 5)[name]).any()


def test_metrics_match_independent_computation(tmp_path: Path) -> None:
    task = prepared(tmp_path)
    torch.manual_seed(0)
    model = task.model().eval()
    metrics = task.evaluate(model, "dev")
    epoch = task.eval_batches("dev").epoch(EVALUATION_SEED, 0)
    losses, right, pairs, correct_pairs, pair_loss = [], 0, 0, 0, 0.0
    for row in range(len(epoch["tokens"])):
        tokens, mask, segments = (
            torch.tensor(epoch[name][row : row + 1]).long() for name in ("tokens", "mask", "segments")
        )
        h = model.read(tokens, mask.bool(), segments)
        log_probs = model.masked_logits(h)[0].log_softmax(dim=1)
        for position, target in zip(epoch["positions"][row], epoch["targets"][row], strict=True):
            if target >= 0:
                losses.append(-log_probs[position, target].item())
                right += int(log_probs[position].argmax()) == target
        answer = model.next_logits(h)[0].log_softmax(dim=0)
        other = int(epoch["other"][row])
        pairs, correct_pairs, pair_loss = (
            pairs + 1,
            correct_pairs + (int(answer.argmax()) == other),
            pair_loss - answer[other].item(),
        )
    assert metrics["masked_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert metrics["masked_accuracy"] == right / len(losses)
    assert metrics["next_accuracy"] == correct_pairs / pairs
    assert metrics["next_loss"] == pytest.approx(pair_loss / pairs, rel=1e-5)
    assert metrics["loss"] == pytest.approx(metrics["masked_loss"] + metrics["next_loss"])
    assert metrics["masked_perplexity"] == pytest.approx(math.exp(metrics["masked_loss"]))
    assert task.evaluate(model, "dev") == metrics  # masks of evaluations are fixed


def test_mlm_has_no_next_sentence_metrics(tmp_path: Path) -> None:
    task = prepared(tmp_path, "objective=mlm")
    metrics = task.evaluate(task.model().eval(), "dev")
    assert metrics.keys() == {"loss", "masked_loss", "masked_perplexity", "masked_accuracy", "unknown_rate"}
    assert metrics["loss"] == metrics["masked_loss"]
    assert task.monitor.unit == "nats per masked token"


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_training_predicts_masked_words_better_than_chance(tmp_path: Path, objective: str) -> None:
    """In the artificial language, the neighbours of most words determine the words."""
    changes = ["train.steps=250", "train.evaluate_every=250", "train.lr=1e-2", "batch.size=16", "train.log_every=250"]
    changes += ["model.dropout=0", "model.norm_first=true", "model.init=0.2"]
    run = trained(
        masked_recipe(tmp_path, f"objective={objective}", "model.positions.kind=rotary", *changes), tmp_path / "run"
    )
    assert load(run).evaluate("test")["masked_accuracy"] > 0.45  # the most frequent word is one sixth of all words


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_resumed_training_is_bit_identical(tmp_path: Path, objective: str) -> None:
    recipe = masked_recipe(tmp_path, f"objective={objective}", "model.dropout=0.2")
    uninterrupted = trained(recipe, tmp_path / "whole")
    stopped_and_resumed_run(recipe, tmp_path / "parts")
    assert_same_checkpoints(uninterrupted, tmp_path / "parts")


def test_resuming_without_seeding_each_step_changes_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "seed_step", lambda *_: None)
    recipe = masked_recipe(tmp_path, "model.dropout=0.2")
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


def test_other_text_is_evaluated_without_next_sentences(tmp_path: Path) -> None:
    run = trained(masked_recipe(tmp_path), tmp_path / "run")
    metrics = load(run).evaluate_documents(["The cats purr all day ."])
    assert "next_accuracy" not in metrics and metrics["masked_loss"] > 0


def test_single_sentence_documents_are_reported(tmp_path: Path) -> None:
    recipe = masked_recipe(tmp_path)
    with open(tmp_path / "train.txt", "a", encoding="utf-8") as file:
        file.write("Alone .\nAlone .\n")
    (warning,) = Task.prepare(recipe).warnings()
    assert "2 of 62 training documents are omitted" in warning
    assert prepared(tmp_path, "objective=mlm").warnings() == []


def test_text_without_masked_tokens_is_rejected(tmp_path: Path) -> None:
    """A mean over zero tokens must not become a loss of zero."""
    run = trained(masked_recipe(tmp_path), tmp_path / "run")
    with pytest.raises(DataError, match=r"^The text is too short: none of its tokens is masked .*Use more text"):
        load(run).evaluate_documents(["purr"])
    recipe = masked_recipe(tmp_path, "objective=mlm")
    (tmp_path / "dev.txt").write_text("purr\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"^The dev split of .* is too short"):
        Task.prepare(recipe)


def test_fewer_rows_than_batch_size_give_warning(tmp_path: Path) -> None:
    task = prepared(tmp_path, "objective=mlm", "batch.size=500")
    (warning,) = task.warnings()
    assert f"has {task.batches.total} rows, fewer than batch.size=500" in warning
    assert len(task.batch(1, 0)["tokens"]) == task.batches.total < 500


def test_next_sentences_need_two_documents(tmp_path: Path) -> None:
    recipe = masked_recipe(tmp_path, "data.documents=file")
    with pytest.raises(DataError, match=r"at least two documents .* the train split has 1\. Set objective=mlm"):
        Task.prepare(recipe)
    assert prepared(tmp_path, "data.documents=file", "objective=mlm").steps_per_epoch() > 0


def test_all_problems_of_recipe_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        masked_recipe(
            tmp_path, "batch.max_length=4", "batch.size=0", "masks.mlm_probability=1.5", "masking=none", "objective=nsp"
        )
    for words in (
        "max_length: must be at least 8",
        "size: must be at least 1",
        "mlm_probability: must be less than 1",
        "masking",
        "objective",
    ):
        assert words in str(error.value)
    with pytest.raises(
        UsageError, match=r"batch\.max_length must be at most 16, .*model\.positions\.max_length\); got 24"
    ):
        masked_recipe(tmp_path, "model.positions.kind=learned", "model.positions.max_length=16")
