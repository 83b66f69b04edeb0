"""`seqloom calibrate`, and classifiers that abstain."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.understanding import classify_recipe, reviews, trained, write_reviews

from seqloom.core.metrics import baseline_notes
from seqloom.predict.classify import ClassifierPredictor
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.training import resume


@pytest.fixture(scope="module")
def imperfect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a classifier on texts. One fifth of the texts have the wrong label."""
    folder = tmp_path_factory.mktemp("calibrated")
    flip = {"good": "bad", "bad": "good"}
    rows = [(text, flip[label] if number % 5 == 0 else label) for number, (text, label) in enumerate(reviews())]
    write_reviews(folder / "noisy.csv", rows)
    overrides = ["model.encoder.kind=bag", "train.steps=60", "train.lr=0.1", "data.dev_fraction=0.3"]
    return trained(classify_recipe(folder, *overrides, f"data.train={folder / 'noisy.csv'}"), folder / "run")


@pytest.fixture
def run(imperfect: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(imperfect, tmp_path / "run"))


def test_every_command_uses_the_temperature(seqloom: Any, run: Path) -> None:
    texts = [text for text, _ in reviews()[:5]]
    raw = load(run, "cpu", ClassifierPredictor)
    before = np.array([[c.probability for c in each.candidates] for each in raw.classify(texts)])
    weights = (run / "model.safetensors").read_bytes()
    result = seqloom("calibrate", run, "--json")
    assert result.code == 0, result.err
    fitted = json.loads(result.out)
    temperature = fitted["temperature"]
    assert temperature != pytest.approx(1, abs=0.01)
    assert fitted["after"]["loss"] < fitted["before"]["loss"]
    assert fitted["after"]["uncalibrated_error"] == pytest.approx(fitted["before"]["calibration_error"], abs=1e-6)
    assert (run / "model.safetensors").read_bytes() == weights  # the trained weights are unchanged

    expected = before ** (1 / temperature)
    expected /= expected.sum(axis=1, keepdims=True)
    model = load(run, "cpu", ClassifierPredictor)
    after = np.array([[c.probability for c in each.candidates] for each in model.classify(texts)])
    np.testing.assert_allclose(after, expected, atol=1e-5)
    line = seqloom("classify", run, texts[0]).out
    assert float(line.split("\t")[1]) == pytest.approx(expected[0].max(), abs=1e-4)
    confidences = {example.text: example.probability for example in model.predict_split("dev")}
    again = {each.text: each.probability for each in model.classify(list(confidences))}
    assert confidences == pytest.approx(again, abs=1e-5)
    shown = seqloom("evaluate", run).out
    assert "calibration error" in shown and "before calibration" in shown
    assert seqloom("calibrate", run, "--remove").code == 0
    assert not (run / "calibration.json").exists()
    removed = np.array([[c.probability for c in each.candidates] for each in load(run, "cpu").classify(texts)])
    np.testing.assert_array_equal(removed, before)


def test_abstention_is_shown_in_text_json_and_tables(seqloom: Any, run: Path, tmp_path: Path) -> None:
    text = reviews()[0][0]
    plain = json.loads(seqloom("classify", run, text, "--json").out)
    result = seqloom("classify", run, text, "", "--min-probability", "1")
    assert result.out.splitlines() == [f"-\t{plain['probability']:.4f}", ""]
    assert "note: 1 line without a label: the probability is below the threshold" in result.err
    item = json.loads(seqloom("classify", run, text, "--json", "--min-probability", "1").out)
    assert item["label"] is None and item["probability"] == plain["probability"]
    assert item["candidates"][0]["label"] == plain["label"]
    (tmp_path / "in.csv").write_text(f'text\n"{text}"\n')
    for limit, label in (("1", ""), ("0", plain["label"])):
        out = tmp_path / f"out{limit}.csv"
        assert seqloom("classify", run, "--in", tmp_path / "in.csv", "--min-probability", limit, "--out", out).code == 0
        with open(out, newline="") as file:
            (row,) = csv.DictReader(file)
        assert row["label"] == label and float(row["probability"]) == pytest.approx(plain["probability"], abs=1e-5)


def test_thresholds_reach_target_precision_on_dev(seqloom: Any, run: Path) -> None:
    result = seqloom("calibrate", run, "--precision", "0.95")
    assert result.code == 0 and "thresholds by precision 0.95" in result.out
    model = load(run, "cpu", ClassifierPredictor)
    examples = model.predict_split("dev")
    accepted = [each for each in examples if each.probability >= model.threshold(each.label)]
    for label in {each.label for each in accepted}:
        chosen = [each for each in accepted if each.label == label]
        assert sum(each.expected == label for each in chosen) >= 0.95 * len(chosen)
    metrics = model.report("dev").metrics
    assert metrics["coverage"] == len(accepted) / len(examples)
    if accepted:
        assert metrics["selective_accuracy"] == sum(e.label == e.expected for e in accepted) / len(accepted)
    text = next((each.text for each in examples if each not in accepted), None)
    if text is not None:
        assert seqloom("classify", run, text).out.startswith("-\t")
        assert not seqloom("classify", run, text, "--min-probability", "0").out.startswith("-\t")


def test_resumed_training_ignores_the_calibration(seqloom: Any, run: Path) -> None:
    identity = Run.open(run).identity
    assert seqloom("calibrate", run).code == 0
    assert Run.open(run).identity == identity
    resume(run)  # the manifest and the checkpoints are intact
    content = json.loads((run / "calibration.json").read_text())
    assert set(content) >= {"temperature", "weights", "sha256"}
    (run / "calibration.json").write_text(json.dumps({**content, "temperature": 9.0}))
    result = seqloom("classify", run, "a film")
    assert result.code == 4 and "calibration.json is damaged" in result.err
    assert seqloom("calibrate", run, "--remove").code == 0


def test_calibration_of_other_weights_is_ignored_with_a_note(seqloom: Any, run: Path, tmp_path: Path) -> None:
    before = seqloom("classify", run, "a film").out
    assert seqloom("calibrate", run).code == 0
    assert seqloom("classify", run, "a film").out != before
    model = load(run, "cpu", ClassifierPredictor)
    assert model.calibration is not None
    replace(model.calibration, weights="0" * 64).save(model.run)
    result = seqloom("classify", run, "a film")
    assert result.out == before and "trained after it was calibrated" in result.err


def test_unusable_options_are_rejected(seqloom: Any, run: Path, runs: Path) -> None:
    language_model = next(path for path in sorted(runs.iterdir()) if (path / "recipe.yaml").exists())
    assert seqloom("calibrate", run, "--f1", "--precision", "0.9").code == 2
    result = seqloom("calibrate", language_model)
    assert result.code == 2 and "only classifiers have probabilities to calibrate" in result.err
    result = seqloom("evaluate", language_model, "--min-probability", "0.5")
    assert result.code == 2 and "--min-probability requires a classifier" in result.err


def test_model_no_better_than_its_baseline_is_reported(seqloom: Any, run: Path, tmp_path: Path) -> None:
    assert "no better" not in seqloom("evaluate", run).err
    text = reviews()[0][0]
    label = json.loads(seqloom("classify", run, text, "--json").out)["label"]
    (tmp_path / "one.csv").write_text(f'review,verdict\n"{text}",{"bad" if label == "good" else "good"}\n')
    result = seqloom("evaluate", run, tmp_path / "one.csv")
    assert result.code == 0
    note = "the model is no better than always predicting the most frequent label: accuracy 0.0000, baseline 1.0000"
    assert note in result.err
    assert list(baseline_notes({"bleu": 3.0, "baseline_bleu": 2.9})) == []
    (note,) = baseline_notes({"bleu": 3.0, "baseline_bleu": 3.0})
    assert note.startswith("the model is no better than its baseline: BLEU 3.00, baseline 3.00")
