"""Multi-label classifiers on the command line: labels, tables, evaluation and calibration."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.understanding import TOPICS, ticket_recipe, tickets, trained, write_tickets

from seqloom.predict.loader import load

LABELS = sorted(TOPICS)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tickets")
    return trained(ticket_recipe(folder, "model.encoder.kind=bag", "train.lr=0.05"), folder / "run")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def test_labels_above_their_thresholds_are_printed(seqloom: Any, run: Path) -> None:
    lines = seqloom("classify", run, "hello invoice now", "hello", "").out.splitlines()
    first = lines[0].split("\t")
    assert sorted(first[::2]) == ["billing", "urgent"] and first[1] >= first[3]
    assert lines[1].startswith("-\t") and len(lines[1].split("\t")) == 2 and lines[2] == ""
    assert seqloom("classify", run, "hello invoice now", "--top", "1").out.split("\t")[0] == first[0]
    ranked = seqloom("classify", run, "hello", "--top", "2", "--min-probability", "0").out.split("\t")
    assert len(ranked) == 4 and float(ranked[1]) >= float(ranked[3])
    assert seqloom("classify", run, "hello invoice now", "--min-probability", "1").out.startswith("-\t")
    why = seqloom("classify", run, "hello password", "--why").out.rstrip("\n").split("\t")
    assert why[0] == "login" and why[-1].startswith("hello ")


def test_json_has_all_probabilities(seqloom: Any, run: Path) -> None:
    result = seqloom("classify", run, "hello invoice now", "hello", "", "--json")
    several, none, blank = map(json.loads, result.out.splitlines())
    probabilities = {each["label"]: each["probability"] for each in several["candidates"]}
    assert list(probabilities) == sorted(LABELS, key=lambda label: -probabilities[label])
    assert set(several["labels"]) == {"billing", "urgent"}
    assert several["probabilities"] == [probabilities[label] for label in several["labels"]]
    assert sum(probabilities.values()) > 1.1  # the decisions are independent
    assert none["labels"] == none["probabilities"] == [] and len(none["candidates"]) == 3
    assert blank["labels"] is None and blank["candidates"] == []
    assert "label" not in several
    (line,) = seqloom("predict", run, "hello invoice now", "--json").out.splitlines()
    assert json.loads(line) == several


def test_tables_have_the_labels_in_one_column(seqloom: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,body\n1,hello invoice now\n2,hello\n3,\n")
    assert seqloom("classify", run, "--in", tmp_path / "in.csv", "--out", tmp_path / "out.csv").code == 0
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "body", "labels", "probabilities"]
    assert [sorted(row["labels"].split(";")) for row in rows] == [["billing", "urgent"], [""], [""]]
    assert len(rows[0]["probabilities"].split(";")) == 2
    # The output is also a labelled table.
    command = ["evaluate", run, tmp_path / "out.csv", "--json"]
    content = (tmp_path / "out.csv").read_text().replace("labels", "topics", 1)
    (tmp_path / "out.csv").write_text(content)
    assert json.loads(seqloom(*command).out)["subset_accuracy"] == 1.0


def test_evaluation_lists_every_label(seqloom: Any, run: Path, tmp_path: Path) -> None:
    write_tickets(tmp_path / "new.csv", [*tickets(30), ("hello refund", ["login"]), ("hello", ["new"])])
    command = ["evaluate", run, tmp_path / "new.csv"]
    item = json.loads(seqloom(*command, "--json", "--out", tmp_path / "answers.tsv").out)
    with open(tmp_path / "answers.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert len(rows) == 32 and rows[-1]["expected"] == "new"
    right = sum(row["expected"] == row["predicted"] for row in rows)
    assert item["subset_accuracy"] == pytest.approx(right / 32)
    assert set(item["by_class"]) == {*LABELS, "new"} and item["unseen"] == {"new": 1}
    assert item["by_class"]["billing"].keys() >= {"precision", "recall", "f1", "threshold", "average_precision"}
    assert item["intervals"].keys() == {"micro_f1", "samples_f1", "subset_accuracy", "hamming_loss"}
    text = seqloom(*command, "--reliability", tmp_path / "plot.png").out
    assert (tmp_path / "plot.png").stat().st_size > 1000
    for words in ("samples F1", "Hamming loss", "average precision", "threshold", "macro average"):
        assert words in text
    assert "predicted, but not expected: hello refund" in text
    assert "1 label not in the training data (new); counted as missed" in text
    seqloom(*command, "--confusion", tmp_path / "c.png").fails_with(
        2, "--confusion requires one label per text or word"
    )


def test_model_no_better_than_constant_labels_is_reported(seqloom: Any, run: Path, tmp_path: Path) -> None:
    write_tickets(tmp_path / "same.csv", [(f"hello {number}", ["billing"]) for number in range(20)])
    assert "no better than always predicting the same labels" in seqloom("evaluate", run, tmp_path / "same.csv").err
    assert "no better" not in seqloom("evaluate", run).err


def test_calibration_fits_temperature_and_thresholds(seqloom: Any, run: Path) -> None:
    before = json.loads(seqloom("evaluate", run, "--json").out)
    result = seqloom("calibrate", run)
    assert result.code == 0 and "thresholds by f1" in result.out and "micro F1" in result.out
    after = json.loads(seqloom("evaluate", run, "--json").out)
    assert after["loss"] < before["loss"] and after["micro_f1"] == before["micro_f1"]
    assert after["uncalibrated_error"] == pytest.approx(before["calibration_error"], abs=1e-6)
    item = json.loads(seqloom("calibrate", run, "--precision", "1.0", "--json").out)
    report = load(run, "cpu").compute_report("dev")
    assert item["criterion"] == "precision 1"
    assert all(hits.precision == 1.0 for hits in report.by_class.values() if hits.predicted)
    assert seqloom("calibrate", run, "--remove").code == 0
    thresholds = json.loads(seqloom("evaluate", run, "--json").out)["by_class"]
    assert {values["threshold"] for values in thresholds.values()} == {0.5}


# --- from a file to a model -------------------------------------------------------------------------------------------


def test_init_states_the_labels_and_the_alternative(seqloom: Any, workdir: Path) -> None:
    write_tickets(workdir / "tickets.csv")
    result = seqloom("init", "tickets.csv", "--no-estimate")
    assert 'several labels in the column "topics", separated by ";". 94 examples, 3 labels' in result.out
    assert "If this is wrong: --single-label reads one label per text" in result.out
    assert "of the 94 training examples have no label" in result.out
    recipe = (workdir / "tickets.yaml").read_text()
    assert "multi_label: true" in recipe and "monitor: average_precision" in recipe
    assert seqloom("train", "tickets.yaml", "train.epochs=1").code == 0
    assert json.loads(seqloom("evaluate", "runs/tickets", "--json").out)["subset_accuracy"] >= 0
    single = seqloom("init", "tickets.csv", "--no-estimate", "--single-label", "--out", "single.yaml")
    assert 'labels in the column "topics"' in single.out and "multi_label" not in (workdir / "single.yaml").read_text()
    (workdir / "plain.txt").write_text("a text\n" * 50)
    seqloom("init", "plain.txt", "--multi-label").fails_with(2, "require a classifier: add --task classify")


def test_file_with_flags_is_evaluated(seqloom: Any, run: Path, tmp_path: Path) -> None:
    """A table in another form gives the same metrics."""
    rows = tickets(30)
    write_tickets(tmp_path / "a.csv", rows)
    flags = [f"{text},{','.join(str(int(label in labels)) for label in TOPICS)}" for text, labels in rows]
    (tmp_path / "b.csv").write_text("\n".join([f"message,{','.join(TOPICS)}", *flags]))
    first, second = (json.loads(seqloom("evaluate", run, tmp_path / name, "--json").out) for name in ("a.csv", "b.csv"))
    assert {**first, "data": ""} == {**second, "data": ""}


def test_doctor_describes_several_labels(seqloom: Any, workdir: Path) -> None:
    rows = [(text, [*labels, "all"] + ["rare"] * (number == 5)) for number, (text, labels) in enumerate(tickets())]
    write_tickets(workdir / "tickets.csv", rows)
    assert seqloom("init", "tickets.csv", "--no-estimate").code == 0
    out = seqloom("doctor", "tickets.yaml").out
    assert "per text: all: 96 (100.0%)" in out
    assert "The class 'rare' has fewer than 10 training texts" in out
    assert "Every training text has the label 'all'" in out
    assert "Watch macro F1 in addition to micro F1." in out and "class_weights" not in out


def test_averaged_run_has_thresholds(seqloom: Any, run: Path, tmp_path: Path) -> None:
    assert seqloom("average", run, "--last", "2", "--out", tmp_path / "mean").code == 0
    assert json.loads((tmp_path / "mean/calibration.json").read_text())["criterion"] == "f1"
