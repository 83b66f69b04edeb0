"""The tasks pair, choice and answer: what they read, that they learn, that a resume changes nothing, and refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.matching import pairs, recipe, write_pairs
from tests.sealing import seal
from tests.understanding import assert_same_checkpoints, trained

from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.data.examples import scores_of
from seqloom.evaluate import correlation
from seqloom.inspect.doctor import about_examples, example_facts
from seqloom.predict import matching
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.events import Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

GOAL = {"pair": "accuracy", "score": "pearson", "choice": "accuracy", "answer": "answer_f1"}


def task_of(made: Any) -> Any:
    return task_info(made.task).task.prepare(made)


def model_of(task: Any) -> Any:
    torch.manual_seed(0)
    return task.model().eval()


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOAL)
def test_every_example_is_read_once_an_epoch(tmp_path: Path, name: str) -> None:
    task = task_of(recipe(tmp_path, name))
    seen = [place for step in range(task.steps_per_epoch()) for place in task.batches.members(1, step).tolist()]
    assert sorted(seen) == list(range(len(task.batches)))
    batch = task.batch(1, 0)
    assert batch["read"] == int(batch["mask"].sum()) and batch["tokens"].numel() <= 160
    again = task_of(recipe(tmp_path, name)).batch(1, 0)
    assert all(torch.equal(batch[key], again[key]) for key in batch if key != "read")


def test_scores_are_read_in_both_orders_by_a_causal_body_alone(tmp_path: Path) -> None:
    shapes = {
        backbone: task_of(recipe(tmp_path, "score", backbone=backbone)).batch(1, 0)["tokens"].shape[1]
        for backbone in ("bert", "gpt")
    }
    assert shapes == {"bert": 1, "gpt": 2}
    assert task_of(recipe(tmp_path, "pair", backbone="gpt")).batch(1, 0)["tokens"].shape[1] == 1
    for value, rows in (("true", 2), ("false", 1)):
        task = task_of(recipe(tmp_path, "pair", f"symmetric={value}"))
        assert task.batch(1, 0)["tokens"].shape[1] == rows


def test_answers_are_pointed_at(tmp_path: Path) -> None:
    task = task_of(recipe(tmp_path, "answer"))
    batch, tokenizer = task.batch(1, 0), task.tokenizer
    for tokens, start, end in zip(batch["tokens"][:, 0], batch["starts"], batch["ends"], strict=True):
        assert start == end and tokenizer.token(int(tokens[start])) in ("red", "blue", "green", "grey")
    narrow = task_of(recipe(tmp_path, "answer", "batch.max_length=10", "batch.max_question_length=3", "batch.stride=2"))
    windows = narrow.windows("train")
    assert len(windows) > 2 * len(narrow.corpus.split("train"))
    assert all(len(window.row.tokens) <= 10 for window in windows)
    absent = sum(
        int(one) == window.row.summary for one, window in zip(narrow.batches.values["starts"], windows, strict=True)
    )
    assert 0 < absent < len(windows)
    assert any("read in windows" in line for line in narrow.warnings())
    assert any(
        "are truncated (batch.max_question_length)" in line
        for line in task_of(recipe(tmp_path, "answer", "batch.max_question_length=2")).warnings()
    )


def test_what_has_no_room_is_counted(tmp_path: Path) -> None:
    task = task_of(recipe(tmp_path, "pair", "batch.max_length=7"))
    assert task.cut() == len(task.batches) and "their texts are truncated" in task.warnings()[-1]
    shorter = task_of(
        recipe(tmp_path, "pair", "model.backbone.positions.kind=learned", "model.backbone.positions.max_length=7")
    )
    assert shorter.batch(1, 0)["tokens"].shape[2] == 7


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backbone"), [("pair", "recurrent-lm"), ("score", "gpt"), ("choice", "bert"), ("answer", "bert")]
)
def test_it_learns_and_a_resume_changes_nothing(tmp_path: Path, name: str, backbone: str) -> None:
    made = recipe(tmp_path, name, backbone=backbone)
    whole = trained(made, tmp_path / "whole")
    metrics = Run.open(whole).metrics("dev") or {}
    assert metrics[GOAL[name]] > 0.9
    stop, training = Stop(), begin(made, tmp_path / "halves")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step >= 25:
            stop.request()
    for _ in resume(tmp_path / "halves").events():
        pass
    assert_same_checkpoints(whole, tmp_path / "halves")
    found = load(whole, "cpu").evaluate("test")
    assert found[GOAL[name]] > 0.8 and found["loss"] < 1


def test_evaluation_does_not_depend_on_how_examples_are_put_together(tmp_path: Path) -> None:
    for name in GOAL:
        one, other = (
            task_of(recipe(tmp_path, name, *more)) for more in ([], ["batch.eval_tokens=30", "batch.max_shapes=2"])
        )
        model = model_of(one)
        plain, again = one.evaluate(model, "dev"), other.evaluate(model, "dev")
        assert plain == pytest.approx(again, abs=1e-5)


def test_figures_of_scores(tmp_path: Path) -> None:
    task = task_of(recipe(tmp_path, "score"))
    model = model_of(task)
    said, expected = task.outputs(model, "dev"), scores_of(task.corpus, "dev")
    found = task.evaluate(model, "dev")
    assert found["pearson"] == pytest.approx(correlation.pearson(expected, said))
    train = torch.tensor(scores_of(task.corpus, "train"), dtype=torch.float64)
    assert found["loss"] == pytest.approx(found["rmse"] ** 2 / float(train.var(correction=0)))
    assert float(model.center) == pytest.approx(float(train.mean()), abs=1e-6)


# --- beginning with a run ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    return trained(recipe(folder, "pair", "train.steps=6", "train.evaluate_every=3"), folder / "run")


@pytest.mark.parametrize("name", ["score", "choice", "answer"])
def test_a_body_is_taken_over(tmp_path: Path, pretrained: Path, name: str) -> None:
    own = recipe(tmp_path, name, f"init.from={pretrained}", "tokenizer=null", "model.backbone=null", "train.steps=2")
    task = task_of(own)
    begun, there = task.model().state_dict(), Run.open(pretrained).model("cpu").state_dict()
    assert all(torch.equal(begun[key], there[key]) for key in there if key.startswith("backbone."))
    run = Run.open(trained(own, tmp_path / "run"))
    assert run.data["init"]["from"] == str(pretrained) and run.recipe["model"]["backbone"]["d_model"] == 16
    assert run.tokenizer.fingerprint() == Run.open(pretrained).tokenizer.fingerprint()


# --- the run ----------------------------------------------------------------------------------------------------------


def test_what_a_run_keeps(tmp_path: Path) -> None:
    short = ["train.steps=2", "train.evaluate_every=2"]
    classes = Run.open(trained(recipe(tmp_path, "pair", *short), tmp_path / "one"))
    assert classes.labels == ["no", "yes"] and classes.sizes["labels"] == 2
    assert list(classes.data["counts"]["train"]) == ["pairs", "labels", "words", "characters"]
    scored = Run.open(trained(recipe(tmp_path, "score", *short), tmp_path / "two"))
    assert not (scored.path / "labels.json").exists() and scored.sizes["scores"] == 1
    assert float(scored.model("cpu").scale) > 1
    both = ["loss.language_model=0.5", "model.backbone.tied=false", *short]
    spoken = Run.open(trained(recipe(tmp_path, "choice", *both, backbone="gpt"), tmp_path / "three"))
    assert spoken.sizes["outputs"] == len(spoken.tokenizer)
    assert spoken.model("cpu").backbone.output is not None
    (spoken.path / "sizes.json").write_text("{}")
    seal(spoken.path)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        Run.open(spoken.path).model("cpu")


def test_changed_data_is_refused(tmp_path: Path) -> None:
    run = trained(recipe(tmp_path, "pair", "train.steps=1"), tmp_path / "run")
    write_pairs(tmp_path / "pairs.tsv", [*pairs(), ("a new fox", "it is red", "yes")])
    with pytest.raises(DataError, match="has changed since it was trained"):
        load(run).evaluate("dev")


# --- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("pair", ["monitor=pearson"], "monitor must be loss, accuracy, macro_f1 or matthews with target=class"),
        ("score", ["monitor=accuracy"], "monitor must be loss, pearson or spearman with target=score"),
        (
            "score",
            ["loss.label_smoothing=0.1"],
            "loss.class_weights, loss.label_smoothing and loss.consistency are for target=class",
        ),
        ("pair", ["batch.max_length=4"], "max_length: must be at least 5, got 4"),
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
def test_recipes_that_make_no_sense(tmp_path: Path, name: str, overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recipe(tmp_path, name, *overrides)


def test_labels_that_are_no_numbers_are_no_scores(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"With target=score, every label must be a number, but pair \d+ of \w+ has"):
        task_of(recipe(tmp_path, "pair", "target=score"))


def test_one_score_cannot_be_correlated(tmp_path: Path) -> None:
    made = recipe(tmp_path, "score", f"data.dev={tmp_path / 'dev.tsv'}")
    write_pairs(tmp_path / "dev.tsv", [("a red fox", "it is red", "4")])
    with pytest.raises(DataError, match=r"dev must have two pairs or more.*it has one"):
        task_of(made)
    write_pairs(tmp_path / "dev.tsv", [("a red fox", "it is red", "4"), ("a red fox", "it is blue", "1")])
    task_of(made)


def test_one_label_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    made = recipe(tmp_path, "pair")
    write_pairs(tmp_path / "pairs.tsv", [(first, second, "same") for first, second, _ in pairs()])
    with pytest.raises(DataError, match="at least two labels"):
        task_of(made)


def test_a_text_is_not_what_they_are_measured_on(tmp_path: Path) -> None:
    run = trained(recipe(tmp_path, "answer", "train.steps=1"), tmp_path / "run")
    with pytest.raises(UsageError, match=r'use the model: seqloom answer .*run --context page.txt --question "…"'):
        load(run).evaluate_documents(["a text"])


def test_answers_stand_where_they_are_said_to_whatever_the_tokens(tmp_path: Path) -> None:
    pieces = ["tokenizer.kind=byte-pair", "tokenizer.size=270", "batch.max_question_length=6", "train.steps=1"]
    context = "There is a grey cat,  and\ta red hat."
    for more in ([], ["batch.split_punctuation=true"]):
        model = load(trained(recipe(tmp_path, "answer", *pieces, *more), tmp_path / f"run{len(more)}"), "cpu")
        (found,) = model.answer("Which colour?", context, top=20)
        assert found.windows > 1 and len(found.answers) == 20
        assert all(context[one.start : one.end] == one.text == one.text.strip() for one in found.answers)


def test_questions_are_answered_a_few_at_a_time_as_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(trained(recipe(tmp_path, "answer", "train.steps=1"), tmp_path / "run"), "cpu")
    asked, context = ["Which colour?", " ", "Which table?", "There is?"], "There is a grey cat . " * 9
    at_once, held = list(model.answer(asked, context, top=3)), list[int]()
    read = model._find_spans

    def counted(by_question: Any, *more: Any) -> Any:
        held.append(sum(map(len, by_question.values())))
        return read(by_question, *more)

    monkeypatch.setattr(matching, "HELD_BATCHES", 1)
    monkeypatch.setattr(model, "_find_spans", counted)
    assert [one.question for one in at_once] == asked
    for one, other in zip(at_once, model.answer(asked, context, top=3, batch_size=2), strict=True):
        assert [own.text for own in one.answers] == [own.text for own in other.answers]
        assert one.absent == pytest.approx(other.absent, abs=1e-6) and one.windows == other.windows
    assert held == [one.windows for one in at_once if one.windows] and len(held) == 3


def test_the_doctor_looks_them_over(tmp_path: Path) -> None:
    for name, unit in (("pair", "pairs"), ("score", "pairs"), ("choice", "examples"), ("answer", "questions")):
        found = example_facts(task_of(recipe(tmp_path, name)))
        assert found.unit == unit and bool(found.classes) == (name == "pair")
        assert [split.name for split in found.splits] == ["train", "dev", "test"]
        assert all(split.lengths.shortest > 0 for split in found.splits)
        assert not any("class" in line for line in about_examples(found))
