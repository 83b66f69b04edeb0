"""Tests of `seqloom match`, `choose` and `answer`, and of other commands with these models."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.matching import recipe
from tests.understanding import trained

from seqloom.inspect.views.curves import loss_panels
from seqloom.predict.loader import load
from seqloom.runs.run import Run

NAMES = {"pair": "recurrent-lm", "score": "gpt", "choice": "bert", "answer": "bert"}
CONTEXT = "There is a green box. It stands on the table.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matching")
    for name, backbone in NAMES.items():
        trained(recipe(folder, name, backbone=backbone), folder / name)
    (folder / "page.txt").write_text(CONTEXT)
    return folder


@pytest.fixture
def runs(folder: Path, tmp_path: Path) -> Path:
    for name in NAMES:
        shutil.copytree(folder / name, tmp_path / name)
    shutil.copy(folder / "page.txt", tmp_path)
    return tmp_path


# --- match ----------------------------------------------------------------------------------------------------------


def test_each_pair_gives_one_output_line(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    type_in(b"a grey fox\tit is red\n\na red zebra\tit is green\r\n\tit is red\n")
    shown = seqloom("match", runs / "pair")
    assert shown.code == 0
    lines = shown.out.split("\n")
    assert len(lines) == 5 and lines[1] == lines[3] == ""
    assert re.fullmatch(r"yes\t[01]\.\d{4}", lines[0]) and lines[2].startswith("no\t")
    assert shown.err == "note: the vocabulary lacks parts of 1 line; the first is line 3: 'zebra'\n"


def test_pairs_in_arguments_give_json_candidates(seqloom: Any, runs: Path) -> None:
    result = seqloom(
        "match", runs / "pair", "a grey fox", "it is red", "a red fox", "it is green", "--top", 2, "--json"
    )
    one, two = result.objects
    assert (one["first"], one["second"], one["label"], two["label"]) == ("a grey fox", "it is red", "yes", "no")
    assert [output["label"] for output in one["candidates"]] == ["yes", "no"]
    assert sum(output["probability"] for output in one["candidates"]) == pytest.approx(1)
    assert one["probability"] == one["candidates"][0]["probability"] and one["unknown"] == [] and one["cut"] is False


def test_similar_sentences_have_higher_scores(seqloom: Any, runs: Path) -> None:
    shown = seqloom("match", runs / "score", "a grey fox", "it is blue", "a grey fox", "it is green")
    high, low = map(float, shown.out.split())
    assert high > 3.5 and low < 1.5
    result = seqloom("match", runs / "score", "a grey fox", "it is blue", "--json").json
    assert result["score"] == pytest.approx(high, abs=1e-3) and "label" not in result
    blank = seqloom("match", runs / "score", "a grey fox", " ", "--json").json
    assert blank["score"] is None and blank.keys() == result.keys()


def test_invalid_pairs_are_rejected(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    seqloom("match", runs / "pair", "alone").fails_with(
        3, "The number of texts must be even; got 1. The last text is 'alone'"
    )
    type_in(b"a fox\tit is red\nno tab here\n")
    shown = seqloom("match", runs / "pair")
    assert shown.code == 3 and shown.out.count("\n") == 1  # the previous line has a prediction
    assert "Line 2 must have two texts, separated by tabs, but has no tab: 'no tab here'" in shown.err
    type_in(b"a\tb\tc\n")
    seqloom("match", runs / "pair").fails_with(3, "Line 1 must have two texts", "3 columns")


def test_long_pairs_are_truncated_with_a_note(seqloom: Any, runs: Path) -> None:
    shown = seqloom("match", runs / "pair", "a red fox " * 20, "it is red")
    assert shown.code == 0 and "1 line longer than 24 tokens: truncated" in shown.err


# --- choose ---------------------------------------------------------------------------------------------------------


def test_options_are_ranked(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    shown = seqloom("choose", runs / "choice", "the fox is", "blue", "red", "green", "--top", 3)
    fields = shown.out.rstrip("\n").split("\t")
    assert fields[0] == "2" and fields[2] == "red" and sorted(fields[::3]) == ["1", "2", "3"]
    assert sum(map(float, fields[1::3])) == pytest.approx(1, abs=1e-3)
    type_in(b"the fox is\tblue\tred\n\nthe hat is\tred\tgrey\tblue\n")
    one, blank, two = seqloom("choose", runs / "choice").out.split("\n")[:3]
    assert (one.split("\t")[::2], blank, two.split("\t")[::2]) == (["2", "red"], "", ["1", "red"])
    result = seqloom("choose", runs / "choice", "the fox is", "blue", "red", "--json").json
    assert result["options"] == [{"text": "red", "position": 2, "probability": result["options"][0]["probability"]}]


def test_invalid_choices_are_rejected(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    seqloom("choose", runs / "choice", "the fox is", "red").fails_with(2, "a text and at least two options; got 2")
    type_in(b"the fox is\tred\n")
    seqloom("choose", runs / "choice").fails_with(3, "Line 1 must have a text and at least two options", "2 columns")


# --- answer ---------------------------------------------------------------------------------------------------------


def test_answer_is_a_span_of_the_text(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    command = ["answer", runs / "answer", "--context", runs / "page.txt"]
    shown = seqloom(*command, "--question", "Which colour?", "--top", 3)
    fields = shown.out.rstrip("\n").split("\t")
    assert fields[0] == "green" and len(fields) == 6
    assert [float(p) for p in fields[1::2]] == sorted(map(float, fields[1::2]), reverse=True)
    type_in(b"Which colour?\n\nWhich zebra?\n")
    shown = seqloom(*command)
    assert [line.split("\t")[0] for line in shown.out.split("\n")[:2]] == ["green", ""] and shown.out.count("\n") == 3
    assert "the vocabulary lacks parts of 1 line; the first is line 3: 'zebra'" in shown.err


def test_ask_answers_questions_about_a_text(seqloom: Any, runs: Path) -> None:
    expected = seqloom("answer", runs / "answer", "--context", runs / "page.txt", "--question", "Which colour?").out
    assert seqloom("ask", runs / "answer", runs / "page.txt", "Which colour?").out == expected
    shown = seqloom("ask", runs / "answer", runs / "page.txt", "Which colour?", "--choices", "red,green")
    shown.fails_with(2, "--choices requires a model that reads pictures")
    seqloom("ask", runs / "pair", runs / "page.txt", "What?").fails_with(2, "use `seqloom match`")


def test_json_answers_have_offsets(seqloom: Any, runs: Path) -> None:
    command = ["--context", runs / "page.txt", "--question", "Which colour?", "--question", " "]
    one, blank = seqloom("answer", runs / "answer", *command, "--json").objects
    result = one["answers"][0]
    assert one["answer"] == result["text"] == CONTEXT[result["start"] : result["end"]] == "green"
    assert 0.5 < result["probability"] <= 1 and 0 <= one["no_answer_probability"] < 0.5 and one["windows"] == 1
    assert blank["answer"] is None and blank["answers"] == [] and blank["no_answer_probability"] is None


def test_long_context_is_read_in_windows(seqloom: Any, runs: Path) -> None:
    (runs / "long.txt").write_text("It stands on the table. " * 12 + CONTEXT)
    command = ["--context", runs / "long.txt", "--question", "Which colour?", "--json"]
    result = seqloom("answer", runs / "answer", *command).json
    assert result["windows"] > 5
    start = result["answers"][0]["start"]
    assert (runs / "long.txt").read_text()[start:].startswith(result["answer"])


def test_invalid_context_is_rejected(seqloom: Any, runs: Path) -> None:
    (runs / "empty.txt").write_text(" \n")
    command = ["answer", runs / "answer", "--question", "Which colour?"]
    seqloom(*command, "--context", runs / "empty.txt").fails_with(3, "is empty")
    seqloom(*command, "--context", runs / "none.txt").fails_with(3, "does not exist")
    seqloom(*command).fails_with(2, "--context", lines=3)


# --- other ----------------------------------------------------------------------------------------------------------


def test_runs_of_other_tasks_are_rejected(seqloom: Any, runs: Path) -> None:
    seqloom("match", runs / "answer", "a", "b").fails_with(2, "a question-answering model: use `seqloom answer`")
    seqloom("classify", runs / "pair", "a").fails_with(2, "a model of sentence pairs: use `seqloom match`")
    seqloom("choose", runs / "pair", "a", "b", "c").fails_with(2, "This operation needs a multiple-choice model")
    seqloom("evaluate", runs / "choice", "--confusion", "x.png").fails_with(2, "is a multiple-choice model")
    seqloom("evaluate", runs / "answer", "--beam", 3).fails_with(2, "require a translator")
    seqloom("evaluate", runs / "choice", runs / "page.txt").fails_with(
        2, "page.txt was not recognized as data for the task choice"
    )


def test_evaluate_reports_and_plots_classes_of_pairs(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    plot = tmp_path / "confusion.svg"
    shown = seqloom("evaluate", runs / "pair", "--split", "test", "--out", tmp_path / "a.tsv", "--confusion", plot)
    assert re.search(r"^ *class .* pairs", shown.out, re.M), shown.out
    assert ">true class<" in plot.read_text("utf-8") and ">pairs<" in plot.read_text("utf-8")
    assert shown.code == 0 and "confusion matrix" in shown.out and "Matthews correlation" in shown.out
    assert re.search(r"on sentence-pairs, test: \d+ pairs, 2 labels", shown.out)
    rows = (tmp_path / "a.tsv").read_text().split("\n")
    assert rows[0] == "expected\tpredicted\tprobability\ttext" and "it is" in rows[1]


@pytest.mark.parametrize(
    ("name", "metric"),
    [("score", "Pearson correlation"), ("choice", "  chance baseline"), ("answer", "answer F1")],
)
def test_evaluate_reports_metrics_and_predictions_of_each_task(
    seqloom: Any, runs: Path, tmp_path: Path, name: str, metric: str
) -> None:
    shown = seqloom("evaluate", runs / name, "--split", "test", "--out", tmp_path / "a.tsv")
    assert shown.code == 0 and metric in shown.out and "95 %:" in shown.out
    rows = (tmp_path / "a.tsv").read_text().rstrip("\n").split("\n")
    model = load(runs / name, "cpu")
    assert rows[0] == "expected\tpredicted\texample"
    assert len(rows) == 1 + len(model.training_task.corpus.split("test"))
    result = seqloom("evaluate", runs / name, "--split", "test", "--json").json
    assert {key: result[key] for key in model.evaluate("test")} == pytest.approx(model.evaluate("test"))
    seqloom("evaluate", runs / name, "--out", tmp_path / "a.tsv").fails_with(2, "exists")


def test_compare_ranks_by_headline_metric(seqloom: Any, runs: Path) -> None:
    shutil.copytree(runs / "score", runs / "other")
    result = seqloom("compare", runs / "score", runs / "other", "--json").json
    assert result["ranked_by"] == "pearson"
    shown = seqloom("compare", runs / "answer")
    assert "answer F1" in shown.out


def test_curves_have_the_unit_of_the_loss(runs: Path) -> None:
    units = {name: loss_panels([Run.open(runs / name)])[0].title for name in NAMES}
    assert units == {
        "pair": "loss, nats per pair",
        "score": "loss, squared error / variance",
        "choice": "loss, nats per example",
        "answer": "loss, nats per window",
    }


def test_training_prints_next_command(seqloom: Any, folder: Path, workdir: Path) -> None:
    settings = [
        "model.backbone.d_model=8",
        "model.backbone.heads=2",
        "train.steps=2",
        "data.train=20",
        "data.dev=4",
        "data.test=4",
    ]
    shown = seqloom("train", "similarity-scenes", *settings, "--out", "run")
    assert shown.code == 0 and "Try: seqloom match run · seqloom evaluate run --split test" in shown.out


def test_data_show_prints_examples(seqloom: Any, folder: Path) -> None:
    small = ["train=12", "dev=4", "test=4", "--lines=1"]
    shown = seqloom("data", "show", "scene-claims", *small).out
    assert re.search(r"^train +12 +2 ", shown, re.MULTILINE) and "labels: false 50.0%, true 50.0%" in shown
    shown = seqloom("data", "show", "choices", f"train={folder / 'choices.jsonl'}", "--lines=1").out
    assert re.search(r"\n  the \w+ is\n    [+-] \w+\n    [+-] ", shown)
    result = seqloom("data", "show", "scene-questions", *small, "--json").json
    assert result["counts"]["train"]["questions"] == 12 and result["absent"] == {}
    shown = seqloom("data", "show", "scene-questions", *small).out
    assert re.search(r"\ndev begins:\n  \w.*\? \w", shown)
