"""Multi-label classification: batches, class weights, thresholds, exact resume, prediction and evaluation."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.understanding import (
    TOPICS,
    assert_same_checkpoints,
    ticket_recipe,
    tickets,
    trained,
    write_tickets,
)

from seqloom.config import to_mapping
from seqloom.core.errors import UsageError
from seqloom.data.examples import MultiLabelExample
from seqloom.predict.loader import load
from seqloom.predict.multi_label import MultiLabelPredictor
from seqloom.recipes import build_recipe
from seqloom.runs.run import Run
from seqloom.tasks.classify import Task
from seqloom.train.events import Evaluated, Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

LABELS = sorted(TOPICS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tickets")
    return trained(ticket_recipe(folder, "model.encoder.kind=bag", "train.lr=0.05"), folder / "run")


@pytest.fixture
def model(run: Path) -> Any:
    return load(run, "cpu", MultiLabelPredictor)


def test_batches_have_a_row_of_labels_for_each_text(tmp_path: Path) -> None:
    task = Task.prepare(ticket_recipe(tmp_path, "batch.max_shapes=1"))
    read, padded = [], 0
    for step in range(task.steps_per_epoch()):
        batch = task.batch(1, step)
        for row, mask, labels in zip(batch["tokens"], batch["mask"], batch["labels"].tolist(), strict=True):
            if not mask.any():
                assert labels == [-100] * 3
                padded += 1
                continue
            text = task.tokenizer.decode(row[mask].tolist()[:-1])
            read.append((text, tuple(label for label, flag in zip(LABELS, labels, strict=True) if flag)))
    assert padded  # an incomplete batch has empty rows
    examples = [example for example in task.corpus.split("train") if isinstance(example, MultiLabelExample)]
    assert sorted(read) == sorted((example.text, example.label_set) for example in examples)


def test_balanced_weights_equalize_present_and_absent(tmp_path: Path) -> None:
    task = Task.prepare(ticket_recipe(tmp_path, "loss.class_weights=balanced"))
    examples = [example for example in task.corpus.split("train") if isinstance(example, MultiLabelExample)]
    matrix = np.array([[label in example.label_set for label in LABELS] for example in examples])
    assert task.class_weights is not None
    assert (task.class_weights.numpy() * matrix.sum(axis=0)).tolist() == pytest.approx((~matrix).sum(axis=0).tolist())
    assert (task.monitor.metric, task.monitor.unit) == ("average_precision", "nats per label")
    torch.manual_seed(0)
    model, batch = task.model().eval(), task.batch(1, 0)
    loss = task.loss(model, batch, None)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        model(batch), batch["labels"].float(), pos_weight=task.class_weights
    )
    assert loss.value.item() == pytest.approx(expected.item(), abs=1e-6)
    assert loss.count == len(batch["labels"])


def test_resuming_is_exact_and_selects_the_same_thresholds(tmp_path: Path) -> None:
    recipe = ticket_recipe(tmp_path, "model.dropout=0.3")
    uninterrupted = trained(recipe, tmp_path / "whole")
    stop, training = Stop(), begin(recipe, tmp_path / "halves")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step >= 25:
            stop.request()
    assert not (tmp_path / "halves/calibration.json").exists()  # training has not finished
    seen = [event for event in resume(tmp_path / "halves").events() if isinstance(event, Evaluated)]
    assert [event.step for event in seen] == [40]
    assert_same_checkpoints(uninterrupted, tmp_path / "halves")
    calibrations = [(path / "calibration.json").read_text() for path in (uninterrupted, tmp_path / "halves")]
    assert calibrations[0] == calibrations[1]


def test_thresholds_of_a_finished_run_are_kept(tmp_path: Path) -> None:
    run = trained(ticket_recipe(tmp_path), tmp_path / "run")
    load(run, "cpu").calibrate(precision=0.9)
    before = (run / "calibration.json").read_text()
    for _ in resume(run).events():
        pass
    assert (run / "calibration.json").read_text() == before
    for _ in resume(run, ["train.steps=60"]).events():  # trains other weights
        pass
    assert json.loads((run / "calibration.json").read_text())["criterion"] == "f1"


def test_thresholds_have_the_best_f1_on_dev(run: Path, model: Any) -> None:
    assert model.calibration is not None
    assert (model.calibration.temperature, model.calibration.criterion) == (1.0, "f1")
    dev = model.training_task.corpus.split("dev")
    predictions = list(model.classify([example.text for example in dev]))
    for label in LABELS:
        p = np.array([{c.label: c.probability for c in each.candidates}[label] for each in predictions])
        correct = np.array([label in example.label_set for example in dev])

        def f1(limit: float, p: np.ndarray = p, correct: np.ndarray = correct) -> float:
            return float(2 * ((p >= limit) & correct).sum() / ((p >= limit).sum() + correct.sum()))

        assert f1(model.threshold(label)) == pytest.approx(max(map(f1, p)))
    # The dev metrics of training use the same thresholds.
    stored = Run.open(run).metrics("dev") or {}
    metrics = model.compute_report("dev").metrics
    assert {name: stored[name] for name in metrics} == pytest.approx(metrics, abs=1e-6)
    assert metrics["micro_f1"] > 0.9 > metrics["constant_f1"]


def test_predictions_match_those_of_evaluation(model: Any) -> None:
    examples = model.training_task.corpus.split("test")
    predictions = list(model.classify([example.text for example in examples]))
    assert [", ".join(sorted(each.labels)) for each in predictions] == [e.label for e in model.predict_split("test")]
    metrics = model.compute_report("test").metrics
    right = sum(set(a.labels) == set(b.label_set) for a, b in zip(predictions, examples, strict=True))
    wrong = sum(len(set(a.labels) ^ set(b.label_set)) for a, b in zip(predictions, examples, strict=True))
    assert metrics["subset_accuracy"] == pytest.approx(right / len(examples))
    assert metrics["hamming_loss"] == pytest.approx(wrong / len(examples) / 3)
    assert len(model.mistakes("test")) == wrong
    model.min_probability = 1.0
    # The model predicts no labels
    assert len(model.mistakes("test")) == sum(len(example.label_set) for example in examples)


def test_probability_of_a_label_set_is_a_product(model: Any) -> None:
    for example in model.predict_split("dev")[:10]:
        (prediction,) = model.classify(example.text)
        factors = [c.probability if c.label in prediction.labels else 1 - c.probability for c in prediction.candidates]
        assert example.probability == pytest.approx(float(np.prod(factors)), abs=1e-6)


def test_labels_reach_their_thresholds(model: Any) -> None:
    texts = ["hello invoice now", "", "hello", "hello password"]
    several, blank, none, login = model.predict(texts)
    assert set(several.labels) == {"billing", "urgent"} and set(login.labels) == {"login"}
    assert [each.label for each in several.candidates][:2] == list(several.labels)  # most probable label first
    assert (none.labels, none.label, none.abstained) == ((), "", True)
    assert none.to_line() == f"-\t{none.candidates[0].probability:.4f}"
    assert (blank.labels, blank.candidates, blank.abstained, blank.to_line()) == ((), [], False, "")
    assert blank.to_json()["labels"] is None and none.to_json()["labels"] == []
    assert len(several.candidates) == 3
    (top,) = model.classify(texts[0], top=1)
    assert list(top.labels) == [several.labels[0]] == [c.label for c in top.candidates]
    model.min_probability = 0.0
    (everything,) = model.classify("hello")
    assert len(everything.labels) == 3


def test_most_probable_label_is_explained(model: Any) -> None:
    (prediction,) = model.classify("hello password", why=True)
    assert prediction.why is not None
    assert max(prediction.why.words, key=lambda word: word.weight).text == "password"
    why = model.why("hello password now", label="urgent")
    assert max(why.words, key=lambda word: word.weight).text == "now"
    drops = model.why("hello password now", label="urgent", kind="occlusion")
    assert max(drops.words, key=lambda word: word.weight).text == "now"


def test_temperature_is_applied_and_keeps_the_predictions(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    model = load(copy, "cpu", MultiLabelPredictor)
    text = "hello invoice now"
    (before,) = model.classify(text)
    report = model.compute_report("dev")
    calibration = model.calibrate()
    assert calibration.temperature != 1 and calibration.criterion == "f1"
    (after,) = load(copy, "cpu").classify(text)
    old, new = ({c.label: c.probability for c in each.candidates} for each in (before, after))
    for label in LABELS:
        odds = (old[label] / (1 - old[label])) ** (1 / calibration.temperature)
        assert new[label] == pytest.approx(odds / (1 + odds), abs=1e-5)
    calibrated = model.compute_report("dev")
    assert calibrated.metrics["micro_f1"] == report.metrics["micro_f1"]
    assert calibrated.metrics["loss"] < report.metrics["loss"]
    assert calibrated.metrics["uncalibrated_error"] == pytest.approx(report.metrics["calibration_error"], abs=1e-6)
    model.remove_calibration()
    assert {model.threshold(label) for label in LABELS} == {0.5}


def test_file_in_another_form_is_evaluated(run: Path, tmp_path: Path) -> None:
    model = load(run, "cpu", MultiLabelPredictor)
    rows = tickets(40)
    write_tickets(tmp_path / "a.csv", rows)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"body": a, "topics": b}) + "\n" for a, b in rows))
    flags = [f"{a},{','.join(str(int(label in b)) for label in TOPICS)}" for a, b in rows]
    (tmp_path / "c.csv").write_text("\n".join(["message," + ",".join(TOPICS), *flags]))
    reports = [model.on_file(tmp_path / name).compute_report("other") for name in ("a.csv", "b.jsonl")]
    assert reports[0].metrics == reports[1].metrics


def test_backbone_is_fine_tuned_for_several_labels(tmp_path: Path) -> None:
    pretrained_run(tmp_path / "gpt", "gpt")
    recipe = ticket_recipe(
        tmp_path,
        f"init.from={tmp_path / 'gpt'}",
        "tokenizer=null",
        "model={kind: fine-tuned-classifier, dropout: 0.0}",
        "loss.language_model=0.5",
        "train.steps=4",
        "train.evaluate_every=4",
    )
    task = Task.prepare(recipe)
    torch.manual_seed(0)
    model, batch = task.model().eval(), task.batch(1, 0)
    assert model.multi_label
    value = task.loss(model, batch, None).value.item()
    h = model.read(batch)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch["labels"].float())
    assert value == pytest.approx(
        (plain + 0.5 * model.backbone.next_token_loss(h, batch["tokens"], batch["mask"])).item()
    )
    predictor = load(trained(recipe, tmp_path / "run"), "cpu", MultiLabelPredictor)
    (prediction,) = predictor.classify("hello invoice", why=True)
    assert len(prediction.candidates) == 3 and prediction.why is not None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["monitor=accuracy"], r"monitor must be loss, macro_f1, average_precision or .* with several labels per text"),
        (["data.multi_label=false", "data.label_separator=null", "monitor=micro_f1"], "with a single label per text"),
        (["loss.consistency=1.0"], "loss.consistency needs a single label per text"),
    ],
)
def test_inconsistent_recipe_is_rejected(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ticket_recipe(tmp_path, *overrides)


def test_prompt_tuning_needs_a_single_label(tmp_path: Path) -> None:
    recipe: Any = to_mapping(ticket_recipe(tmp_path))
    run = pretrained_run(tmp_path / "gpt", "gpt")
    mapping = {"task": "prompt-tune", "data": recipe["data"], "init": {"from": str(run)}, "train": {"steps": 1}}
    with pytest.raises(UsageError, match=r"data.multi_label must be false"):
        build_recipe(mapping, "the recipe")
