"""The tasks pair, choice and answer: batches, learning, exact resume, and errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checksums import update_checksums
from tests.matching import pairs, recipe, write_pairs
from tests.understanding import assert_same_checkpoints, trained

from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.data.examples import scores_of
from seqloom.evaluate import correlation
from seqloom.inspect.doctor import example_facts, warn_examples
from seqloom.predict import matching
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.events import Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

MONITORS = {"pair": "accuracy", "score": "pearson", "choice": "accuracy", "answer": "answer_f1"}


def task_of(recipe: Any) -> Any:
    return task_info(recipe.task).task.prepare(recipe)


def model_of(task: Any) -> Any:
    torch.manual_seed(0)
    return task.model().eval()


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MONITORS)
def test_epoch_reads_every_example_once(tmp_path: Path, name: str) -> None:
    task = task_of(recipe(tmp_path, name))
    seen = [position for step in range(task.steps_per_epoch()) for position in task.batches.members(1, step).tolist()]
    assert sorted(seen) == list(range(len(task.batches)))
    batch = task.batch(1, 0)
    assert batch["read"] == int(batch["mask"].sum()) and batch["tokens"].numel() <= 160
    again = task_of(recipe(tmp_path, name)).batch(1, 0)
    assert all(torch.equal(batch[key], again[key]) for key in batch if key != "read")


def test_only_causal_backbone_reads_scores_in_both_orders(tmp_path: Path) -> None:
    shapes = {
        backbone: task_of(recipe(tmp_path, "score", backbone=backbone)).batch(1, 0)["tokens"].shape[1]
        for backbone in ("bert", "gpt")
    }
    assert shapes == {"bert": 1, "gpt": 2}
    assert task_of(recipe(tmp_path, "pair", backbone="gpt")).batch(1, 0)["tokens"].shape[1] == 1
    for value, rows in (("true", 2), ("false", 1)):
        task = task_of(recipe(tmp_path, "pair", f"symmetric={value}"))
        assert task.batch(1, 0)["tokens"].shape[1] == rows


def test_answer_targets_cover_answer_text(tmp_path: Path) -> None:
    task = task_of(recipe(tmp_path, "answer"))
    batch, tokenizer = task.batch(1, 0), task.tokenizer
    for tokens, start, end in zip(batch["tokens"][:, 0], batch["starts"], batch["ends"], strict=True):
        assert start == end and tokenizer.token(int(tokens[start])) in ("red", "blue", "green", "grey")
    narrow = task_of(recipe(tmp_path, "answer", "batch.max_length=10", "batch.max_question_length=3", "batch.stride=2"))
    windows = narrow.windows("train")
    assert len(windows) > 2 * len(narrow.corpus.split("train"))
    assert all(len(window.row.tokens) <= 10 for window in windows)
    absent = sum(
        int(result) == window.row.cls_position
        for result, window in zip(narrow.batches.values["starts"], windows, strict=True)
    )
    assert 0 < absent < len(windows)
    assert any("read in windows" in line for line in narrow.warnings())
    assert any(
        "are truncated (batch.max_question_length)" in line
        for line in task_of(recipe(tmp_path, "answer", "batch.max_question_length=2")).warnings()
    )


def test_truncated_examples_are_counted(tmp_path: Path) -> None:
    task = task_of(recipe(tmp_path, "pair", "batch.max_length=7"))
    assert task.truncated_count() == len(task.batches) and "tokens per row and are truncated" in task.warnings()[-1]
    shorter = task_of(
        recipe(tmp_path, "pair", "model.backbone.positions.kind=learned", "model.backbone.positions.max_length=7")
    )
    assert shorter.batch(1, 0)["tokens"].shape[2] == 7


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backbone"), [("pair", "recurrent-lm"), ("score", "gpt"), ("choice", "bert"), ("answer", "bert")]
)
def test_training_is_accurate_and_resuming_is_exact(tmp_path: Path, name: str, backbone: str) -> None:
    config = recipe(tmp_path, name, backbone=backbone)
    uninterrupted = trained(config, tmp_path / "whole")
    metrics = Run.open(uninterrupted).metrics("dev") or {}
    assert metrics[MONITORS[name]] > 0.9
    stop, training = Stop(), begin(config, tmp_path / "halves")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step >= 25:
            stop.request()
    for _ in resume(tmp_path / "halves").events():
        pass
    assert_same_checkpoints(uninterrupted, tmp_path / "halves")
    facts = load(uninterrupted, "cpu").evaluate("test")
    assert facts[MONITORS[name]] > 0.8 and facts["loss"] < 1


def test_evaluation_is_independent_of_batching(tmp_path: Path) -> None:
    for name in MONITORS:
        result, other = (
            task_of(recipe(tmp_path, name, *more)) for more in ([], ["batch.eval_tokens=30", "batch.max_shapes=2"])
        )
        model = model_of(result)
        plain, again = result.evaluate(model, "dev"), other.evaluate(model, "dev")
        assert plain == pytest.approx(again, abs=1e-5)


def test_metrics_of_scores_match_manual_computation(tmp_path: Path) -> None:
    task = task_of(recipe(tmp_path, "score"))
    model = model_of(task)
    predicted, expected = task.outputs(model, "dev"), scores_of(task.corpus, "dev")
    metrics = task.evaluate(model, "dev")
    assert metrics["pearson"] == pytest.approx(correlation.pearson(expected, predicted))
    train = torch.tensor(scores_of(task.corpus, "train"), dtype=torch.float64)
    assert metrics["loss"] == pytest.approx(metrics["rmse"] ** 2 / float(train.var(correction=0)))
    assert float(model.center) == pytest.approx(float(train.mean()), abs=1e-6)


# --- starting from a run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    return trained(recipe(folder, "pair", "train.steps=6", "train.evaluate_every=3"), folder / "run")


@pytest.mark.parametrize("name", ["score", "choice", "answer"])
def test_backbone_is_transferred(tmp_path: Path, pretrained: Path, name: str) -> None:
    answer = recipe(tmp_path, name, f"init.from={pretrained}", "tokenizer=null", "model.backbone=null", "train.steps=2")
    task = task_of(answer)
    weights, source_weights = task.model().state_dict(), Run.open(pretrained).model("cpu").state_dict()
    assert all(torch.equal(weights[key], source_weights[key]) for key in source_weights if key.startswith("backbone."))
    run = Run.open(trained(answer, tmp_path / "run"))
    assert run.data["init"]["from"] == str(pretrained) and run.recipe["model"]["backbone"]["d_model"] == 16
    assert run.tokenizer.fingerprint() == Run.open(pretrained).tokenizer.fingerprint()


# --- the run ----------------------------------------------------------------------------------------------------------


def test_run_stores_labels_counts_and_sizes(tmp_path: Path) -> None:
    short = ["train.steps=2", "train.evaluate_every=2"]
    classes = Run.open(trained(recipe(tmp_path, "pair", *short), tmp_path / "one"))
    assert classes.labels == ["no", "yes"] and classes.sizes["labels"] == 2
    assert list(classes.data["counts"]["train"]) == ["pairs", "labels", "words", "characters"]
    scores = Run.open(trained(recipe(tmp_path, "score", *short), tmp_path / "two"))
    assert not (scores.path / "labels.json").exists() and scores.sizes["scores"] == 1
    assert float(scores.model("cpu").scale) > 1
    both = ["loss.language_model=0.5", "model.backbone.tied=false", *short]
    with_lm = Run.open(trained(recipe(tmp_path, "choice", *both, backbone="gpt"), tmp_path / "three"))
    assert with_lm.sizes["outputs"] == len(with_lm.tokenizer)
    assert with_lm.model("cpu").backbone.output is not None
    (with_lm.path / "sizes.json").write_text("{}")
    update_checksums(with_lm.path)
    with pytest.raises(CheckpointError, match="does not match the model"):
        Run.open(with_lm.path).model("cpu")


def test_changed_data_is_rejected(tmp_path: Path) -> None:
    run = trained(recipe(tmp_path, "pair", "train.steps=1"), tmp_path / "run")
    write_pairs(tmp_path / "pairs.tsv", [("a new fox", "it is red", "yes"), *pairs()])
    with pytest.raises(DataError, match="has changed since it was trained"):
        load(run).evaluate("dev")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("pair", ["monitor=pearson"], "monitor must be loss, accuracy, macro_f1 or matthews with target=class"),
        ("score", ["monitor=accuracy"], "monitor must be loss, pearson or spearman with target=score"),
        (
            "score",
            ["loss.label_smoothing=0.1"],
            "loss.class_weights, loss.label_smoothing and loss.consistency require target=class",
        ),
        ("pair", ["batch.max_length=4"], "max_length: must be at least 5; got 4"),
        ("pair", ["model.backbone=null"], "model.backbone: missing"),
        ("pair", ["tokenizer=null"], "tokenizer: missing"),
        ("pair", ["loss.language_model=0.5"], "needs a backbone that predicts the next token"),
        ("choice", ["loss.language_model=-1.0"], "language_model: must be at least 0"),
        (
            "answer",
            ["batch.max_question_length=30"],
            "batch.max_question_length must leave room for the context in rows of 24 tokens",
        ),
        ("answer", ["batch.stride=0"], "stride: must be at least 1"),
        ("answer", ["decode.max_answer_length=0"], "max_answer_length: must be at least 1"),
        ("pair", ["model.kind=fine-tuned-choice"], "model"),
        (
            "pair",
            ["model.backbone.positions.kind=learned", "model.backbone.positions.max_length=4"],
            "read at least 5 tokens",
        ),
    ],
)
def test_inconsistent_recipe_is_rejected(tmp_path: Path, name: str, overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recipe(tmp_path, name, *overrides)


def test_non_numeric_scores_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"With target=score, every label must be a number, but pair \d+ of \w+ has"):
        task_of(recipe(tmp_path, "pair", "target=score"))


def test_single_dev_score_is_rejected(tmp_path: Path) -> None:
    config = recipe(tmp_path, "score", f"data.dev={tmp_path / 'dev.tsv'}")
    write_pairs(tmp_path / "dev.tsv", [("a red fox", "it is red", "4")])
    with pytest.raises(DataError, match=r"dev must have at least two pairs.*it has one"):
        task_of(config)
    write_pairs(tmp_path / "dev.tsv", [("a red fox", "it is red", "4"), ("a red fox", "it is blue", "1")])
    task_of(config)


def test_single_label_is_rejected(tmp_path: Path) -> None:
    config = recipe(tmp_path, "pair")
    write_pairs(tmp_path / "pairs.tsv", [(first, second, "same") for first, second, _ in pairs()])
    with pytest.raises(DataError, match="at least two labels"):
        task_of(config)


def test_plain_text_evaluation_is_rejected(tmp_path: Path) -> None:
    run = trained(recipe(tmp_path, "answer", "train.steps=1"), tmp_path / "run")
    with pytest.raises(UsageError, match=r'use the model: seqloom answer .*run --context page.txt --question "…"'):
        load(run).evaluate_documents(["a text"])


def test_answer_positions_are_correct_for_any_tokenizer(tmp_path: Path) -> None:
    pieces = ["tokenizer.kind=byte-pair", "tokenizer.size=270", "batch.max_question_length=6", "train.steps=1"]
    context = "There is a grey cat,  and\ta red hat."
    for more in ([], ["batch.split_punctuation=true"]):
        model = load(trained(recipe(tmp_path, "answer", *pieces, *more), tmp_path / f"run{len(more)}"), "cpu")
        (metrics,) = model.answer("Which colour?", context, top=20)
        assert metrics.windows > 1 and len(metrics.answers) == 20
        assert all(
            context[result.start : result.end] == result.text == result.text.strip() for result in metrics.answers
        )


def test_answers_are_independent_of_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(trained(recipe(tmp_path, "answer", "train.steps=1"), tmp_path / "run"), "cpu")
    questions, context = ["Which colour?", " ", "Which table?", "There is?"], "There is a grey cat . " * 9
    at_once, windows_read = list(model.answer(questions, context, top=3)), list[int]()
    read = model._find_spans

    def counted(by_question: Any, *more: Any) -> Any:
        windows_read.append(sum(map(len, by_question.values())))
        return read(by_question, *more)

    monkeypatch.setattr(matching, "BUFFERED_BATCHES", 1)
    monkeypatch.setattr(model, "_find_spans", counted)
    assert [result.question for result in at_once] == questions
    for result, other in zip(at_once, model.answer(questions, context, top=3, batch_size=2), strict=True):
        assert [answer.text for answer in result.answers] == [answer.text for answer in other.answers]
        assert result.no_answer_probability == pytest.approx(other.no_answer_probability, abs=1e-6)
        assert result.windows == other.windows
    assert windows_read == [result.windows for result in at_once if result.windows] and len(windows_read) == 3


def test_doctor_supports_matching_tasks(tmp_path: Path) -> None:
    for name, unit in (("pair", "pairs"), ("score", "pairs"), ("choice", "examples"), ("answer", "questions")):
        metrics = example_facts(task_of(recipe(tmp_path, name)))
        assert metrics.unit == unit and bool(metrics.classes) == (name == "pair")
        assert [split.name for split in metrics.splits] == ["train", "dev", "test"]
        assert all(split.lengths.min > 0 for split in metrics.splits)
        assert not any("class" in line for line in warn_examples(metrics))
