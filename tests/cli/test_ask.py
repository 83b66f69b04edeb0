"""`seqloom ask`: answers, choices, dialogues, attention over the picture and tables; `seqloom init` for questions."""

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom import load, train_recipe
from seqloom.core.errors import DataError, UsageError
from seqloom.data.images import decode, encode_png
from seqloom.data.shapes import draw_scenes, render
from seqloom.predict.visual_questions import ImageQuestion, VisualQuestionPredictor

SMALL = ["data.train=30", "data.dev=6", "data.test=6", "data.side=24", "model.image.channels=[8,16]", "batch.size=16"]
STEPS = ["train.epochs=null", "train.steps=12", "train.evaluate_every=12", "train.warmup=2"]
FIRST, SECOND = "what colour is the star?", "how big is it?"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ask") / "run"
    train_recipe("dialogue-shapes", *SMALL, *STEPS, out=path)
    return path


@pytest.fixture(scope="module")
def model(run: Path) -> VisualQuestionPredictor:
    loaded = load(run, "cpu")
    assert isinstance(loaded, VisualQuestionPredictor)
    return loaded


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    path.write_bytes(encode_png(render(next(draw_scenes("test")), 24)))
    return path


# --- Python -----------------------------------------------------------------------------------------------------------


def test_dialogue_reads_previous_questions_and_own_answers(model: VisualQuestionPredictor, picture: Path) -> None:
    dialogue = model.dialogue(picture)
    first, second = dialogue.ask(FIRST), dialogue.ask(f" {SECOND} ")
    assert first.history == () and second.history == ((FIRST, first.text),) and second.query == SECOND
    (same,) = model.ask(picture, f"{FIRST} | {first.text} | {SECOND}")
    assert same.log_prob == pytest.approx(second.log_prob, abs=1e-6)
    (alone,) = model.ask(picture, SECOND)
    assert alone.log_prob != pytest.approx(second.log_prob, abs=1e-6)
    assert model.longest_history == 4
    turns = [(FIRST, "red")] * 9
    (cut,) = model.ask(picture, SECOND, history=turns)
    assert len(cut.history) == 4 and cut == model.ask(picture, SECOND, history=turns[5:])[0]


def test_choices_are_ranked_with_their_conditional_probabilities(model: VisualQuestionPredictor, picture: Path) -> None:
    choices = ["red", "top left", "a star"]
    (answer,) = model.ask(picture, FIRST, choices=choices, attention=True)
    assert sorted(each.text for each in answer.candidates) == sorted(choices)
    joint = np.exp([each.log_prob for each in answer.candidates])
    assert [each.probability for each in answer.candidates] == pytest.approx((joint / joint.sum()).tolist())
    assert list(joint) == sorted(joint, reverse=True) and answer.text == answer.candidates[0].text
    for word in answer.words or ():
        assert word.weights.sum() + word.source_weights.sum() == pytest.approx(1, abs=1e-5)
    mixed = [ImageQuestion(picture, FIRST), ImageQuestion(picture, FIRST, tuple(choices)), ImageQuestion("", "")]
    written, chosen, blank = model.answer(mixed)
    assert written.text == model.ask(picture, FIRST)[0].text and blank.text == ""
    assert chosen.log_prob == pytest.approx(answer.log_prob, abs=1e-6)


@pytest.mark.parametrize("choices", [["red"], ["red", " "], ["red", "red "]])
def test_unusable_choices_are_rejected(model: VisualQuestionPredictor, picture: Path, choices: list[str]) -> None:
    with pytest.raises(UsageError, match="Choices must be at least two different texts; got "):
        model.ask(picture, FIRST, choices=choices)


def test_blank_question_is_rejected(model: VisualQuestionPredictor, picture: Path) -> None:
    with pytest.raises(DataError, match=r"Question 2 must not be blank\."):
        model.ask(picture, [FIRST, "  "])


# --- commands ---------------------------------------------------------------------------------------------------------


def test_questions_are_answered_independently_or_as_a_dialogue(
    seqloom: Any, run: Path, model: VisualQuestionPredictor, picture: Path, type_in: Callable[[bytes], None]
) -> None:
    alone = [answer.text for answer in model.ask(picture, [FIRST, SECOND])]
    dialogue = model.dialogue(picture)
    together = [dialogue.ask(question).text for question in (FIRST, SECOND)]
    assert seqloom("ask", run, picture, FIRST, SECOND).out.splitlines() == alone
    type_in(f"{FIRST}\n{SECOND}\n".encode())
    assert seqloom("ask", run, picture).out.splitlines() == alone
    assert seqloom("ask", run, picture, FIRST, SECOND, "--chat").out.splitlines() == together
    type_in(f"{FIRST}\n{SECOND}\n\n{SECOND}\n".encode())
    *first, last = seqloom("ask", run, picture, "--chat", "--json").objects
    assert [each["answer"] for each in first] == together and last["answer"] == alone[1]
    assert first[1]["history"] == [{"question": FIRST, "answer": together[0]}] and "history" not in last


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_dialogue_in_a_terminal_continues_after_an_error(
    seqloom: Any, run: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(f"{FIRST}\n{SECOND}\n".encode())))
    shown = seqloom("ask", run, picture.with_name("missing.png"), "--chat")
    assert shown.err.startswith("Type a question and press Enter") and shown.err.count("missing.png") == 2
    assert shown.code == 0 and shown.out == ""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FIRST.encode())))
    seqloom("ask", run, picture.with_name("missing.png"), "--chat").fails_with(3, "missing.png")


def test_ask_prints_choices_and_plots_attention(seqloom: Any, run: Path, picture: Path, tmp_path: Path) -> None:
    shown = seqloom("ask", run, picture, FIRST, "--choices", "red, blue", "--attention", tmp_path / "a.png")
    fields = shown.out.rstrip("\n").split("\t")
    assert set(fields[::2]) == {"red", "blue"} and float(fields[1]) + float(fields[3]) == pytest.approx(1, abs=1e-4)
    assert decode((tmp_path / "a.png").read_bytes(), "x").pixels.shape[1] > 100
    other = seqloom("ask", run, picture, "what color is the star?", "--json")
    assert other.objects[0]["unknown"] == ["color"]
    assert "note: the vocabulary lacks parts of 1 line" in seqloom("ask", run, picture, "what color is the star?").err


def test_answers_are_added_to_a_table(seqloom: Any, run: Path, picture: Path, tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text(f"image,question,options\n{picture},{FIRST},red;blue\n{picture},{SECOND},\n")
    rows = list(csv.DictReader(io.StringIO(seqloom("ask", run, "--in", table).out)))
    answers = [each.text for each in load(run, "cpu").ask(picture, [FIRST, SECOND])]
    assert [row["answer"] for row in rows] == answers and [row["question"] for row in rows] == [FIRST, SECOND]
    rows = list(csv.DictReader(io.StringIO(seqloom("ask", run, "--in", table, "--choices", "options").out)))
    assert rows[0]["answer"] in ("red", "blue") and rows[1]["answer"] == answers[1]
    lines = seqloom("predict", run, f"{picture}\t{FIRST}", f"{picture}\t{FIRST}\tred\tblue").out.splitlines()
    assert lines[0] == answers[0] and lines[1].count("\t") == 3


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "Name the picture that the questions are about, or a table: --in FILE"),
        (["PICTURE", FIRST, "--choices", "red"], 2, '--choices must be at least two answers, such as "red,blue"'),
        (["PICTURE", FIRST, "--choices", "red,red"], 2, "Choices must be at least two different texts"),
        (["PICTURE", "--attention", "x.png"], 2, "--attention requires the questions as arguments"),
        (["PICTURE", FIRST, "--attention", "x.txt"], 2, "must end in .png or .svg"),
        (["PICTURE", FIRST, "--beam", "0"], 2, "--beam"),
        (["nowhere.png", FIRST], 3, "nowhere.png"),
        (["PICTURE", " "], 3, "Question 1 must not be blank"),
        (["PICTURE", "--in", "x.csv"], 2, "Texts and --in cannot be used together"),
    ],
)
def test_invalid_input_of_ask_is_rejected(
    seqloom: Any, run: Path, picture: Path, words: list[str], code: int, message: str
) -> None:
    seqloom("ask", run, *[picture if word == "PICTURE" else word for word in words]).fails_with(code, message)


def test_evaluation_shows_the_accuracy_of_each_type(seqloom: Any, run: Path, tmp_path: Path) -> None:
    shown = seqloom("evaluate", run, "--out", tmp_path / "answers.tsv").out
    assert "accuracy by question type" in shown and "  multiple choice" in shown
    result = seqloom("evaluate", run, "--json").json
    assert sum(kind["questions"] for kind in result["by_type"].values()) == result["questions"] == 30
    assert len((tmp_path / "answers.tsv").read_text().splitlines()) == 31
    assert "ask" in (run / "card.md").read_text()


# --- init -------------------------------------------------------------------------------------------------------------


def write_questions(folder: Path, header: str = "image,question,answer", missing: str = "") -> Path:
    rows = []
    for number in range(12):
        (folder / f"{number}.png").write_bytes(encode_png(np.full((9, 12, 3), 20 * number, dtype=np.uint8)))
        rows += [f"{number}.png,is it dark?,{'yes' if number < 6 else 'no'}", f"{number}.png,what is it?,a picture"]
    table = folder / "questions.csv"
    table.write_text("\n".join([header, *rows, *([missing] if missing else [])]) + "\n")
    return table


def test_init_writes_a_recipe_for_own_questions(seqloom: Any, tmp_path: Path, picture: Path) -> None:
    table, recipe = write_questions(tmp_path), tmp_path / "own.yaml"
    shown = seqloom("init", table, "--out", recipe, "--no-estimate").out
    assert 'questions in the column "question" about images in the column "image"' in shown
    text = recipe.read_text()
    assert "task: vqa\n" in text and "corpus: vqa-files\n" in text and "size: 9 " in text
    seqloom("train", recipe, "train.epochs=1", "train.warmup=0", "--out", tmp_path / "run")
    assert seqloom("ask", tmp_path / "run", tmp_path / "0.png", "is it dark?").code == 0
    noted = seqloom("ask", tmp_path / "run", tmp_path / "0.png", "is it dark?", "--chat")
    assert "was trained without dialogues" in noted.err


def test_init_names_columns_and_lists_missing_pictures(seqloom: Any, tmp_path: Path) -> None:
    table = write_questions(tmp_path, "file,text,value", missing="x.png,is it dark?,no\ny.png,is it dark?,no")
    columns = ["--column", "file", "--column", "text", "--label", "value"]
    shown = seqloom("init", table, "--task", "vqa", *columns, "--no-estimate", "--out", tmp_path / "a.yaml")
    shown.fails_with(3, "names 2 images that do not exist below", "\n  x.png (line 26)\n  y.png (line 27)", lines=3)
    seqloom("init", table, "--task", "vqa", "--no-estimate").fails_with(2, "not recognized as data for the task vqa")


def test_init_reads_questions_about_a_folder_of_pictures(seqloom: Any, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    write_questions(tmp_path / "pictures").rename(tmp_path / "asked.csv")
    shown = seqloom(
        "init", tmp_path / "pictures", tmp_path / "asked.csv", "--no-estimate", "--out", tmp_path / "a.yaml"
    )
    assert shown.code == 0 and "questions in" in shown.out and "folder:" in (tmp_path / "a.yaml").read_text()
    (tmp_path / "asked.csv").rename(tmp_path / "pictures/asked.csv")
    words = ["init", tmp_path / "pictures", "--task", "vqa", "--no-estimate", "--out", tmp_path / "b.yaml"]
    assert "questions in" in seqloom(*words).out
