"""Tests of `seqloom predict` with models of all tasks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.matching import recipe
from tests.understanding import classify_recipe, tag_recipe, trained

from seqloom.cli.app import main
from seqloom.predict.base import Predictor
from seqloom.predict.generate_images import ImageGeneratorPredictor
from seqloom.predict.loader import load
from seqloom.tasks import names, task_info

BACKBONES = {"pair": "recurrent-lm", "choice": "bert", "answer": "bert"}
SERIES = "1 2 3 4 5 6 7 8 9 10 11 12 13 14"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small runs of several tasks."""
    folder = tmp_path_factory.mktemp("predict")
    for name, backbone in BACKBONES.items():
        trained(recipe(folder, name, "train.steps=2", backbone=backbone), folder / name)
    trained(classify_recipe(folder, "train.steps=2"), folder / "classify")
    trained(tag_recipe(folder, "train.steps=2"), folder / "tag")
    (folder / "sales.csv").write_text("\n".join(["t,sales", *(f"{n},{n + n % 3}" for n in range(60))]) + "\n")
    data = ["data.corpus=series-file", f"data.file={folder / 'sales.csv'}", "forecast.horizon=3"]
    assert main(["train", "series-forecast", *data, "model.kind=ar", "model.taps=2", "--out", str(folder / "ar")]) == 0
    return folder


@pytest.mark.parametrize(
    ("task", "command", "lines"),
    [
        ("classify", ["classify"], "a fine film\n\nI hated it\n"),
        ("tag", ["tag"], "Ann lives here\n\nBob\n"),
        ("pair", ["match"], "a grey fox\tit is red\n\na fox\tit is green\n"),
        ("choice", ["choose"], "the fox is\tred\tblue\n\nthe box is\tred\tgreen\n"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_predict_gives_the_same_output_as_the_command_of_the_task(
    seqloom: Any, folder: Path, type_in: Callable[[bytes], None], task: str, command: list[str], lines: str, form: Any
) -> None:
    result = []
    for name in ([*command], ["predict"]):
        type_in(lines.encode())
        result.append(seqloom(*name, folder / task, *form))
    assert result[0] == result[1]
    assert result[1].code == 0 and result[1].out.count("\n") == 3


def test_question_and_text_are_separated_by_a_tab(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    context = "There is a green box. It stands on the table."
    (tmp_path / "page.txt").write_text(context)
    command = ["What is green?", "Where is it?"]
    lines = [f"{question}\t{context}" for question in command]
    result = seqloom("predict", folder / "answer", *lines, "--json").objects
    questions = [word for question in command for word in ("--question", question)]
    assert (
        result == seqloom("answer", folder / "answer", "--context", tmp_path / "page.txt", *questions, "--json").objects
    )
    seqloom("predict", folder / "answer", "no text").fails_with(
        3, "Line 1 must have a question and a context, separated by tabs"
    )


def test_language_model_continues_each_line(seqloom: Any, runs: Path) -> None:
    plain = seqloom("predict", runs / "chars", "the cat", "")
    assert plain.code == 0
    continued, blank = plain.out.splitlines()
    (whole,) = load(runs / "chars", "cpu").complete("the cat", template="{text}{label}")
    assert continued == whole.completion and blank == ""
    one, two = seqloom("predict", runs / "chars", "the cat", "", "--json").objects
    assert (one["text"], one["completion"], two["completion"]) == ("the cat", whole.completion, "")


def test_series_on_one_line_is_forecast(seqloom: Any, folder: Path) -> None:
    shown = seqloom("predict", folder / "ar", SERIES, "")
    values, blank = shown.out.split("\n")[:2]
    assert shown.code == 0 and len(values.split("\t")) == 3 and blank == ""
    result = seqloom("predict", folder / "ar", SERIES, "--json").json
    assert [f"{row['mean']:.6g}" for row in result["forecast"]["sales"]] == values.split("\t")
    seqloom("predict", folder / "ar", "1 2 x").fails_with(3, "Line 1 must have finite numbers", "'1 2 x'")


def test_arguments_file_and_standard_input_give_the_same_results(
    seqloom: Any, folder: Path, tmp_path: Path, type_in: Callable[[bytes], None]
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a fine film\nI hated it\n")
    from_file = seqloom("predict", folder / "classify", "--file", file)
    type_in(file.read_bytes())
    assert from_file == seqloom("predict", folder / "classify")
    assert from_file.out == seqloom("predict", folder / "classify", "a fine film", "I hated it").out
    small = seqloom("predict", folder / "classify", "--file", file, "--batch", 1, "--window", 1)
    assert [line.split("\t")[0] for line in small.out.splitlines()] == [
        line.split("\t")[0] for line in from_file.out.splitlines()
    ]


def test_empty_input_gives_no_result(seqloom: Any, folder: Path, type_in: Callable[[bytes], None]) -> None:
    type_in(b"")
    result = seqloom("predict", folder / "classify")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_invalid_arguments_are_rejected(seqloom: Any, folder: Path, runs: Path, tmp_path: Path) -> None:
    seqloom("predict", folder / "classify", "text", "--file", "lines.txt").fails_with(
        2, "Texts and --file cannot be used together"
    )
    seqloom("predict", folder / "classify", "--file", tmp_path / "none").fails_with(2, "cannot be read: No such file")
    seqloom("predict", folder / "classify", "--file", tmp_path).fails_with(2, "cannot be read: Is a directory")
    (tmp_path / "latin1").write_bytes("caf\u00e9\n".encode("latin-1"))
    seqloom("predict", folder / "classify", "--file", tmp_path / "latin1").fails_with(3, "must be UTF-8", "0xE9")
    seqloom("predict", tmp_path / "none", "text").fails_with(4, "is not a run: it does not exist")


def test_model_without_predictions_is_rejected(seqloom: Any, tmp_path: Path) -> None:
    small = ["batch.size=4", "model.hidden=4", "train.steps=2", "train.evaluate_every=2"]
    assert main(["train", "toys-adding", *small, "--out", str(tmp_path / "adding")]) == 0
    seqloom("predict", tmp_path / "adding", "1 2").fails_with(2, "cannot predict from lines", "`seqloom evaluate`")


@pytest.mark.parametrize("task", names())
def test_every_predictor_of_a_task_predicts_lines(task: str) -> None:
    predictor = task_info(task).predictor_class()
    assert issubclass(predictor, Predictor)
    predicts_lines = predictor not in (Predictor, ImageGeneratorPredictor)  # images are generated without input
    assert (predictor.predict is not Predictor.predict) == predicts_lines
