"""The task of masked language models: what it reads under either objective, what it measures, exact resume."""

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


def test_packed_rows_hold_every_token_of_every_document(tmp_path: Path) -> None:
    task = prepared(tmp_path, "objective=mlm", "masks.mask_replace_prob=0", "masks.random_replace_prob=0")
    shown = task.batches.epoch(1, 0)  # with everything left as it is
    assert "other" not in shown and "segments" not in shown
    words = [word for row in shown["tokens"] for word in row.tolist() if 0 < word < len(task.tokenizer)]
    expected = [token for text in task.corpus.split("train") for token in task.tokenizer.encode(text)]
    assert sorted(words) == sorted(expected)


def test_pairs_follow_or_do_not(tmp_path: Path) -> None:
    task = prepared(tmp_path, "masks.mask_replace_prob=0", "masks.random_replace_prob=0")
    shown = task.batches.epoch(1, 0)
    texts = [task.tokenizer.decode(task.tokenizer.encode(text)) for text in task.corpus.split("train")]
    seen = {0: 0, 1: 0}
    for row, segments, other in zip(shown["tokens"], shown["segments"], shown["other"].tolist(), strict=True):
        ids = row.tolist()
        a = task.tokenizer.decode(ids[1 : ids.index(Specials.after(len(task.tokenizer)).separate)])
        b = task.tokenizer.decode([token for token, segment in zip(ids, segments, strict=True) if segment][:-1])
        seen[other] += 1
        if not other:
            assert any(f"{a} {b}" in text for text in texts)
    assert min(seen.values()) > 5


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_every_batch_has_one_shape_and_is_a_function_of_seed_and_step(tmp_path: Path, objective: str) -> None:
    one, two = (prepared(tmp_path, f"objective={objective}") for _ in range(2))
    shapes = set()
    for step in (9, 0, 31):
        left, right = one.batch(1, step), two.batch(1, step)
        assert all(torch.equal(left[name], right[name]) for name in left if name != "read")
        shapes.add(tuple((name, tuple(left[name].shape)) for name in sorted(left) if name != "read"))
    assert len(shapes) == 1
    assert any((one.batch(1, 0)[name] != one.batch(2, 0)[name]).any() for name in ("tokens", "targets"))


def test_static_epochs_show_the_same_pairs_and_masks(tmp_path: Path) -> None:
    static, dynamic = (prepared(tmp_path, f"masking={kind}").batches for kind in ("static", "dynamic"))
    for name in ("tokens", "targets", "other"):
        assert (static.epoch(1, 0)[name] == static.epoch(1, 5)[name]).all()
        assert (dynamic.epoch(1, 0)[name] != dynamic.epoch(1, 5)[name]).any()


def test_what_is_measured_is_what_the_model_thinks(tmp_path: Path) -> None:
    task = prepared(tmp_path)
    torch.manual_seed(0)
    model = task.model().eval()
    found = task.evaluate(model, "dev")
    shown = task.read("dev").epoch(EVALUATION_SEED, 0)
    losses, right, pairs, told, unfit = [], 0, 0, 0, 0.0
    for row in range(len(shown["tokens"])):
        tokens, mask, segments = (
            torch.tensor(shown[name][row : row + 1]).long() for name in ("tokens", "mask", "segments")
        )
        h = model.read(tokens, mask.bool(), segments)
        log_probs = model.masked_logits(h)[0].log_softmax(dim=1)
        for place, target in zip(shown["positions"][row], shown["targets"][row], strict=True):
            if target >= 0:
                losses.append(-log_probs[place, target].item())
                right += int(log_probs[place].argmax()) == target
        answer = model.next_logits(h)[0].log_softmax(dim=0)
        other = int(shown["other"][row])
        pairs, told, unfit = pairs + 1, told + (int(answer.argmax()) == other), unfit - answer[other].item()
    assert found["masked_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found["masked_accuracy"] == right / len(losses)
    assert found["next_accuracy"] == told / pairs
    assert found["next_loss"] == pytest.approx(unfit / pairs, rel=1e-5)
    assert found["loss"] == pytest.approx(found["masked_loss"] + found["next_loss"])
    assert found["masked_perplexity"] == pytest.approx(math.exp(found["masked_loss"]))
    assert task.evaluate(model, "dev") == found  # two evaluations ask the same


def test_without_pairs_there_is_nothing_to_say_of_them(tmp_path: Path) -> None:
    task = prepared(tmp_path, "objective=mlm")
    found = task.evaluate(task.model().eval(), "dev")
    assert found.keys() == {"loss", "masked_loss", "masked_perplexity", "masked_accuracy", "unknown_rate"}
    assert found["loss"] == found["masked_loss"]
    assert task.monitor.unit == "nats per masked token"


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_it_learns(tmp_path: Path, objective: str) -> None:
    """In the little language most words can be told from those around them."""
    changes = ["train.steps=250", "train.evaluate_every=250", "train.lr=1e-2", "batch.size=16", "train.log_every=250"]
    changes += ["model.dropout=0", "model.norm_first=true", "model.init=0.2"]
    run = trained(
        masked_recipe(tmp_path, f"objective={objective}", "model.positions.kind=rotary", *changes), tmp_path / "run"
    )
    assert load(run).evaluate("test")["masked_accuracy"] > 0.45  # the most frequent word is a sixth of all


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_stopping_and_going_on_changes_not_a_bit(tmp_path: Path, objective: str) -> None:
    recipe = masked_recipe(tmp_path, f"objective={objective}", "model.dropout=0.2")
    whole = trained(recipe, tmp_path / "whole")
    parted_run(recipe, tmp_path / "parts")
    assert_same_checkpoints(whole, tmp_path / "parts")


def test_control_without_seeding_each_step_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "seed_step", lambda *_: None)
    recipe = masked_recipe(tmp_path, "model.dropout=0.2")
    whole = trained(recipe, tmp_path / "whole")
    parted_run(recipe, tmp_path / "parts")
    with pytest.raises(AssertionError):
        assert_same_checkpoints(whole, tmp_path / "parts")


def parted_run(recipe: Any, out: Path) -> None:
    stop = Stop()
    for event in begin(recipe, out).events(stop):
        if isinstance(event, Progress) and event.step == 4:
            stop.request()
    assert [entry["event"] for entry in Run.open(out).log()][-1] == "stopped"
    assert [event.step for event in resume(out).events() if isinstance(event, Evaluated)] == [6]


def test_another_text_is_asked_for_its_tokens_alone(tmp_path: Path) -> None:
    run = trained(masked_recipe(tmp_path), tmp_path / "run")
    found = load(run).evaluate_documents(["The cats purr all day ."])
    assert "next_accuracy" not in found and found["masked_loss"] > 0


def test_documents_of_one_sentence_are_counted(tmp_path: Path) -> None:
    recipe = masked_recipe(tmp_path)
    with open(tmp_path / "train.txt", "a", encoding="utf-8") as file:
        file.write("Alone .\nAlone .\n")
    (warning,) = Task.prepare(recipe).warnings()
    assert "2 of 62 training documents are omitted" in warning
    assert prepared(tmp_path, "objective=mlm").warnings() == []


def test_a_text_of_which_nothing_is_hidden_has_no_figures(tmp_path: Path) -> None:
    """Or else the mean over no token would be a loss of zero, the best there is."""
    run = trained(masked_recipe(tmp_path), tmp_path / "run")
    with pytest.raises(DataError, match=r"^The text is too short: none of its tokens is masked .*Use more text"):
        load(run).evaluate_documents(["purr"])
    recipe = masked_recipe(tmp_path, "objective=mlm")
    (tmp_path / "dev.txt").write_text("purr\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"^The dev split of .* is too short"):
        Task.prepare(recipe)


def test_fewer_rows_than_a_batch_are_remarked_on(tmp_path: Path) -> None:
    task = prepared(tmp_path, "objective=mlm", "batch.size=500")
    (warning,) = task.warnings()
    assert f"has {task.batches.total} rows, fewer than batch.size=500" in warning
    assert len(task.batch(1, 0)["tokens"]) == task.batches.total < 500


def test_one_document_has_no_other(tmp_path: Path) -> None:
    recipe = masked_recipe(tmp_path, "data.documents=file")
    with pytest.raises(DataError, match=r"at least two documents .* the train split has 1\. Set objective=mlm"):
        Task.prepare(recipe)
    assert prepared(tmp_path, "data.documents=file", "objective=mlm").steps_per_epoch() > 0


def test_all_that_is_wrong_with_a_recipe_is_said_at_once(tmp_path: Path) -> None:
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
