"""Tests of `seqloom prompt`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fine_tuning import pretrained_run
from tests.prompt_recipes import instruct_recipe, tune_recipe, wide_gpt
from tests.understanding import classify_recipe, trained

from seqloom.inspect import doctor
from seqloom.inspect.rehearsal import Rehearsal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompted")
    wide_gpt(folder / "gpt")
    pretrained_run(folder / "lstm", "recurrent-lm")
    short = ["train.steps=2", "train.evaluate_every=2"]
    trained(tune_recipe(folder, folder / "gpt", *short), folder / "tuned")
    trained(instruct_recipe(folder, folder / "gpt", *short), folder / "instructed")
    (folder / "shots.tsv").write_text("a warm film\tgood\na dull plot\tbad\na funny cast\tgood\n")
    return folder


def test_each_input_line_gives_one_output_line(seqloom: Any, folder: Path, type_in: Callable[[bytes], None]) -> None:
    type_in("\ufeffa clumsy story\n\na gripping film\r\n".encode())
    shown = seqloom("prompt", folder / "gpt", "--shots", folder / "shots.tsv", "--choices", "good,bad", "--top", 2)
    assert shown.code == 0 and shown.err == ""
    one, blank, other = shown.out.removesuffix("\n").split("\n")
    assert blank == ""
    for line in (one, other):
        assert re.fullmatch(r"(good\t0\.\d{4}\tbad|bad\t0\.\d{4}\tgood)\t0\.\d{4}", line)


def test_json_candidates_depend_on_prompt_and_scoring_options(seqloom: Any, folder: Path) -> None:
    words: list[object] = ["prompt", folder / "lstm", "a film", "a plot", "--json", "--top", 2]
    words += ["--shots", folder / "shots.tsv"]
    one = seqloom(*words).objects[0]
    assert one["text"] == "a film" and one["label"] == one["candidates"][0]["label"]
    assert set(one["candidates"][0]) == {"label", "probability", "score", "log_prob", "tokens"}
    assert (one["unknown"], one["dropped_shots"], one["cut"]) == ([], 0, False)
    changed = {
        name: seqloom(*words, *options).objects[0]["candidates"]
        for name, options in {
            "sum": ["--by", "sum"],
            "calibrated": ["--calibrate"],
            "template": ["--template", "{text}? {label}"],
            "separator": ["--separator", "\\n\\n"],
            "first": ["--first", "2"],
        }.items()
    }
    assert all(candidates != one["candidates"] for candidates in changed.values())
    escaped = seqloom(*words, "--separator", "\\n").objects[0]
    assert escaped == one  # --check does not change the text


def test_check_option_counts_correct_answers(seqloom: Any, folder: Path, type_in: Callable[[bytes], None]) -> None:
    words = ["prompt", folder / "gpt", "--choices", "good,bad", "--check"]
    output = seqloom("prompt", folder / "gpt", "a film", "a plot", "--choices", "good,bad").out.split("\n")
    label = output[0].split("\t")[0]
    type_in(f"a film\t{label}\n\na plot\tneither\n".encode())
    shown = seqloom(*words)
    assert shown.out.split("\n") == [output[0], "", output[1], ""]
    assert shown.err == "correct: 1 of 2, 50.00%\n"
    type_in(b"a film\n")
    seqloom(*words).fails_with(3, "With --check, a line must consist of a text, a tab and a label; line 1 is 'a film'")
    one = seqloom("prompt", folder / "gpt", f"a film\t{label}", "--choices", "good,bad", "--check", "--json")
    assert one.json["expected"] == label


def test_generate_option_prints_completions_and_excludes_choices(seqloom: Any, folder: Path) -> None:
    shown = seqloom("prompt", folder / "gpt", "a film", "a plot", "--shots", folder / "shots.tsv", "--generate")
    assert shown.code == 0 and shown.out.count("\n") == 2
    words = ["prompt", folder / "gpt", "a film", "--generate", "--max-tokens", 3, "--json"]
    assert set(seqloom(*words).json) == {"text", "completion", "unknown", "dropped_shots", "cut"}
    for option in (["--choices", "a,b"], ["--by", "sum"], ["--calibrate"], ["--top", 2]):
        seqloom("prompt", folder / "gpt", "x", "--generate", *option).fails_with(2, "--generate excludes")


def test_prompt_tuned_and_instruction_tuned_models_can_be_prompted(seqloom: Any, folder: Path) -> None:
    shown = seqloom("prompt", folder / "tuned", "a film")  # the template and the labels are those of the run
    assert re.match(r"(good|bad)\t0\.\d{4}\n", shown.out)
    shown = seqloom("prompt", folder / "instructed", "verdict", "--generate", "--max-tokens", 4)
    assert shown.code == 0 and shown.out.count("\n") == 1
    seqloom("prompt", folder / "instructed", "verdict").fails_with(2, "There must be at least two choices")


def test_notes_are_printed_at_the_end(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.tsv"
    many.write_text("".join(f"a film {n}\tgood\na plot {n}\tbad\n" for n in range(30)))
    shown = seqloom("prompt", folder / "gpt", "a film", "dull " * 100, "--shots", many)
    assert shown.out.count("\n") == 2
    assert "note: 2 lines: the first shots were dropped because the prompt was too long; the first is line 1\n" in (
        shown.err
    )
    assert "note: 1 line too long even without shots: only the end was read; the first is line 2\n" in (shown.err)


@pytest.mark.parametrize(
    ("content", "options", "code", "words"),
    [
        ("a film\na plot\n", [], 3, "must have two columns, text and label, separated by a tab"),
        ("a film\tgood\na plot\n", [], 3, "Line 2"),
        ("a film\tgood\n", [], 2, "only one label, 'good'"),
        ("a film\tgood\na plot\tbad\n", ["--choices", "good,fair"], 3, "is 'bad'"),
        ("a film\tgood\na plot\tbad\n", ["--choices", "good,,bad"], 2, "--choices must be values separated by commas"),
        ("a film\tgood\na plot\tbad\n", ["--template", "{text}"], 2, "must contain {text} and then {label}"),
        ("a film\tgood\na plot\tbad\n", ["--template", "{text} {x} {label}"], 2, "no other braces"),
        ("", [], 3, "is empty"),
    ],
)
def test_invalid_shots_are_rejected(
    seqloom: Any, folder: Path, tmp_path: Path, content: str, options: list[str], code: int, words: str
) -> None:
    (tmp_path / "shots.tsv").write_text(content)
    seqloom("prompt", folder / "gpt", "x", "--shots", tmp_path / "shots.tsv", *options).fails_with(code, words, lines=1)


def test_other_models_and_missing_choices_are_rejected(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    small = ["train.steps=2", "train.evaluate_every=2"]
    trained(classify_recipe(tmp_path, *small), tmp_path / "classifier")
    seqloom("prompt", tmp_path / "classifier", "x", "--choices", "a,b").fails_with(2, "is a classifier")
    seqloom("prompt", folder / "gpt", "x", "--first", 2, "--choices", "a,b").fails_with(2, "add --shots")
    seqloom("prompt", folder / "gpt", "x", "--shots", folder / "none.tsv").fails_with(3, "does not exist")
    seqloom("prompt", folder / "gpt", "x").fails_with(2, "There must be at least two choices, but there are none")


def test_prompt_tuned_and_instruction_tuned_models_are_evaluated_and_generate_text(seqloom: Any, folder: Path) -> None:
    shown = seqloom("evaluate", folder / "tuned", "--split", "test")
    assert shown.code == 0 and re.search(r"accuracy +[\d.]+", shown.out) and "ends of documents" not in shown.out
    result = seqloom("evaluate", folder / "instructed", "--split", "test", "--json").json
    assert {"loss", "perplexity", "exact"} <= set(result)
    assert seqloom("generate", folder / "tuned", "--prompt", "a", "--tokens", 3).code == 0
    assert seqloom("score", folder / "instructed", "a film").code == 0
    assert (
        "accuracy"
        in seqloom("evaluate", folder / "tuned", folder / "shots.tsv", "--column=1", "--label=2", "--json").json
    )
    shown = seqloom("compare", folder / "tuned", folder / "instructed")
    assert "This is a bug" not in shown.err


def test_doctor_counts_data_and_trained_parameters(seqloom: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal())
    data = [f"data.train={folder / 'mine.jsonl'}", f"init.from={folder / 'gpt'}"]
    shown = seqloom("doctor", "instruct-files", *data)
    assert shown.code == 0 and re.search(r"train 72 examples, \d+ words", shown.out)
    assert "UserWarning" not in shown.err
    table = ["data.corpus=table", f"data.train={folder / 'reviews.csv'}", "data.text=review", "data.label=verdict"]
    shown = seqloom("doctor", "prompt-tune", f"init.from={folder / 'gpt'}", *table)
    assert re.search(r"train 48 examples, 2 labels", shown.out) and "216 parameters are trained" in shown.out
