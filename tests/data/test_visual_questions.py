"""Questions about images: dialogues with correct answers, easy-VQA, and tables of the user."""

import json
import re
from dataclasses import replace
from itertools import combinations, groupby, islice
from pathlib import Path

import numpy as np
import pytest

from seqloom.core.errors import DataError, ResourceError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import dialogue_shapes, easy_vqa, vqa_files
from seqloom.data.corpus import Corpus
from seqloom.data.image_texts import Turn, VisualQuestion, dialogue_text, last_turns
from seqloom.data.images import ImageShape, ImageTable, PixelImage, encode_png
from seqloom.data.shapes import SHAPES, Scene, SceneObject, draw_scenes, held_out, render

SPLITS = ("train", "dev", "test")
SMALL = dialogue_shapes.Config(train=150, dev=30, test=30, side=24)


@pytest.fixture(scope="module")
def dialogues() -> Corpus[VisualQuestion]:
    return dialogue_shapes.load(SMALL)


# --- dialogues --------------------------------------------------------------------------------------------------------


def solve(question: str, scene: Scene, focus: SceneObject | None) -> tuple[str, SceneObject | None]:
    """Answer a question from its words, the scene and the object in focus; return the answer and the next focus."""
    words = set(re.findall(r"\w+", question))
    refers_back = bool(words & {"it", "its", "others"})
    if "objects" in words:
        return ["none", "one", "two", "three", "four"][len(scene.objects)], focus
    if refers_back:
        assert focus is not None
    else:
        positions = re.search(r"in the (\w+( left| right| middle)?)\b", question)
        (focus,) = (
            thing
            for thing in scene.objects
            if (positions[1] == thing.position if positions else True)
            and words & {*SHAPES} <= {thing.shape}
            and words & {"red", "green", "blue", "yellow", "purple", "orange", "brown", "black"} <= {thing.colour}
        )
    others = [thing for thing in scene.objects if thing is not focus]
    if "others" in words:
        same = [one.colour == focus.colour if "colour" in words else one.shape == focus.shape for one in others]
        return ["none", "one", "two", "three", "four"][sum(same)], focus
    if side := words & {"left", "right", "above", "below"} if refers_back else set():
        axis, sign = {"left": ("column", -1), "right": ("column", 1), "above": ("row", -1), "below": ("row", 1)}[
            side.pop()
        ]
        beside = [one for one in others if sign * (getattr(one, axis) - getattr(focus, axis)) > 0]
        assert len(beside) <= 1, "the answer must be unique"
        return (f"a {beside[0].shape}", beside[0]) if beside else ("nothing", focus)
    if "where" in words or "position" in words:
        return focus.position, focus
    if words & {"colour"}:
        return focus.colour, focus
    if words & {"big", "size"}:
        return focus.size, focus
    return (focus.shape if "shape" in words else f"a {focus.shape}"), focus


def test_answers_of_dialogues_follow_from_picture_and_history(dialogues: Corpus[VisualQuestion]) -> None:
    kinds = set()
    for split in SPLITS:
        by_image = [list(turns) for _, turns in groupby(dialogues.split(split), lambda turn: turn.image.name)]
        scenes = draw_scenes(split, objects=(2, 4))
        for scene, turns in zip(islice(scenes, len(by_image)), by_image, strict=True):
            assert np.array_equal(turns[0].image.decode().pixels, render(scene, 24))
            focus: SceneObject | None = None
            history: tuple[Turn, ...] = ()
            for turn in turns:
                answer, focus = solve(turn.question, scene, focus)
                assert (answer,) == turn.answers and answer in turn.choices
                assert turn.history == history and turn.image is turns[0].image
                history += ((turn.question, answer),)
                kinds.add(turn.question_type)
    assert len(kinds) == 14


def test_only_follow_up_questions_refer_back(dialogues: Corpus[VisualQuestion]) -> None:
    for turn in dialogues.split("train"):
        assert turn.needs_history == bool(re.search(r"\b(it|its|others)\b", turn.question))
        assert turn.history or not turn.needs_history
    rate = np.mean([turn.needs_history for turn in dialogues.split("train")])
    assert 0.4 < rate < 0.7


def test_pictures_of_dialogues_have_unseen_combinations(dialogues: Corpus[VisualQuestion]) -> None:
    images = {split: {turn.image.sha256 for turn in dialogues.split(split)} for split in SPLITS}
    assert not any(images[a] & images[b] for a, b in combinations(SPLITS, 2))
    for split in ("dev", "test"):
        for scene in islice(draw_scenes(split, objects=(2, 4)), SMALL.dev):
            assert {(thing.shape, thing.colour) for thing in scene.objects} & held_out(split)


def test_dialogues_depend_only_on_config(dialogues: Corpus[VisualQuestion]) -> None:
    assert dialogue_shapes.load(SMALL).fingerprint() == dialogues.fingerprint()
    assert dialogue_shapes.load(replace(SMALL, seed=1)).fingerprint() != dialogues.fingerprint()
    assert {len(turn.history) for turn in dialogues.split("train")} == set(range(SMALL.turns))
    with pytest.raises(ValueError, match=r"max_objects must be at least min_objects \(4\); got 3"):
        dialogue_shapes.Config(min_objects=4, max_objects=3)


def test_dialogue_is_joined_to_one_text() -> None:
    history = (("what colour is it?", "red"), ("where?", "top left"))
    assert dialogue_text(history, "how big?") == "what colour is it? | red | where? | top left | how big?"
    assert dialogue_text(last_turns(history, 1), "how big?") == "where? | top left | how big?"
    assert dialogue_text(last_turns(history, 0), "how big?") == "how big?"
    assert last_turns(history, None) == last_turns(history, 5) == history


def test_shared_image_is_stored_once() -> None:
    first, second = (PixelImage(str(n), np.full((2, 2, 1), n, dtype=np.uint8)) for n in (1, 2))
    table = ImageTable([first, second, first, first], ImageShape(2, 2, 1))
    assert len(table) == 4 and table.images == [first, second] and table.fill() == []
    assert table.take([3, 1, 0])[:, 0, 0, 0].tolist() == [1, 2, 1]


# --- easy-VQA ---------------------------------------------------------------------------------------------------------


def test_easy_vqa_has_its_published_sizes_and_dev_images_of_its_own() -> None:
    pytest.importorskip("easy_vqa")
    corpus = easy_vqa.load(easy_vqa.Config())
    sizes = {split: corpus.sizes(split) for split in SPLITS}
    assert sizes["train"]["questions"] + sizes["dev"]["questions"] == 38_575 and sizes["test"]["questions"] == 9_673
    assert sizes["train"]["images"] + sizes["dev"]["images"] == 4_000 and sizes["test"]["images"] == 1_000
    assert abs(sizes["dev"]["questions"] - 3_858) < 20
    examples = [example for split in SPLITS for example in corpus.split(split)]
    assert all(example.answers[0] in example.choices for example in examples)
    assert sum(example.question_type == "yes/no" for example in examples) == 28_407 + 7_136
    assert len({answer for example in examples for answer in example.answers}) == 13


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(easy_vqa, "PACKAGE", "no_such_package")
    with pytest.raises(ResourceError, match=r"needs the package easy-vqa: pip install 'seqloom\[vqa\]'"):
        easy_vqa.load(easy_vqa.Config())


@pytest.mark.parametrize("content", ["{", "[[1]]", '[["is it?", "purple", 0]]', '[["a", "yes", "../../x"]]'])
def test_damaged_questions_of_easy_vqa_are_reported(content: str, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/questions.json").write_text(content)
    with pytest.raises(DataError, match=r"questions\.json must contain the questions of easy-VQA 1\.0"):
        easy_vqa.read_part(tmp_path, "train")


# --- tables of the user -----------------------------------------------------------------------------------------------


def write_table(folder: Path, lines: str, images: str = "abcdefgh") -> str:
    for number, name in enumerate(images):
        (folder / f"{name}.png").write_bytes(encode_png(np.full((4, 4, 3), 20 * number, dtype=np.uint8)))
    (folder / "questions.csv").write_text(lines)
    return str(folder / "questions.csv")


def read(train: str, **options: object) -> Corpus[VisualQuestion]:
    loaded: Corpus[VisualQuestion] = corpora.load(vqa_files.Config(train=train, **options))  # type: ignore[arg-type]
    return loaded


def test_table_of_questions_is_divided_by_image(tmp_path: Path) -> None:
    both = (("red", "no"), ("blue", "yes"))
    rows = [f"{name}.png,is it {colour}?,{answer}" for name in "abcdefgh" for colour, answer in both]
    corpus = read(write_table(tmp_path, "\n".join(["image,question,answer", *rows])), dev_fraction=0.2)
    names = {split: {example.image.name for example in corpus.split(split)} for split in SPLITS}
    assert sum(map(len, names.values())) == 8 and not any(names[a] & names[b] for a, b in combinations(SPLITS, 2))
    assert all(len(corpus.split(split)) == 2 * len(names[split]) for split in SPLITS)
    assert corpus.split("train")[0].image is corpus.split("train")[1].image


def test_dialogues_and_choices_are_read_from_a_table(tmp_path: Path) -> None:
    lines = [
        "image,question,answer,choices,talk,type",
        "a.png,what is it?,a dog,a cat;a dog,1,object",
        "b.png,what is it?,a cat,a cat; a dog,1,object",
        "a.png,is it big?,yes,yes;no,1,size",
        "a.png,is it red?,no,,2,colour",
        "c.png,is it red?,no,,,colour",
        "d.png,is it red?,no,,,colour",
    ]
    keys = {"choices": "choices", "dialogue": "talk", "question_type": "type"}
    corpus = read(write_table(tmp_path, "\n".join(lines)), dev_fraction=0.0, test_fraction=0.0, **keys)
    first, other, second, third, *_ = corpus.split("train")
    assert first.choices == other.choices == ("a cat", "a dog") and third.choices == ()
    assert second.history == (("what is it?", "a dog"),) and second.needs_history and second.question_type == "size"
    assert not (first.history or other.history or third.history)


def test_several_answers_are_read_from_json_lines(tmp_path: Path) -> None:
    write_table(tmp_path, "")
    rows = [{"image": f"{name}.png", "question": "what?", "answer": ["a dog", "dog"]} for name in "abc"]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = read(str(tmp_path / "questions.jsonl"))
    assert corpus.split("train")[0].answers == ("a dog", "dog")


def test_all_missing_images_are_listed(tmp_path: Path) -> None:
    table = write_table(tmp_path, "image,question,answer\na.png,q?,x\nz1.png,q?,x\nz1.png,r?,x\nz2.png,q?,x\n")
    with pytest.raises(DataError, match=r"names 2 images that do not exist below .*:\n  z1\.png \(line 3\)\n  z2"):
        read(table)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("../a.png,q?,x,", r"Line 2 of .* must name a file below .*, but has '../a\.png'"),
        (",q?,x,", r"Line 2 of .* must have an image, but the cell is blank"),
        ("a.png,q?,x,yes;no", r"Line 2 of .* must have its answer among its choices \['yes', 'no'\]; got 'x'"),
        ("a.png,,x,", r"must contain images with questions and answers, but it has none"),
        ("a.png,q?,,", r"must contain images with questions and answers, but it has none"),
    ],
)
def test_bad_row_is_reported(row: str, problem: str, tmp_path: Path) -> None:
    table = write_table(tmp_path, f"image,question,answer,choices\n{row}\n")
    with pytest.raises(DataError, match=problem):
        read(table, choices="choices")


def test_incomplete_rows_are_left_out_with_a_note(tmp_path: Path) -> None:
    rows = "".join(f"{name}.png,q?,x\n" for name in "abcde")
    corpus = read(write_table(tmp_path, f"image,question,answer\n{rows}f.png,,x\ng.png,q?,\n"))
    assert [note.split(" of ")[0] for note in corpus.notes] == [
        "1 example has no question and was left out, at line 7",
        "1 example has no answer and was left out, at line 8",
    ]


def test_columns_must_differ() -> None:
    with pytest.raises((UsageError, ValueError), match="image, question and answer must be different columns"):
        vqa_files.Config(train="a.csv", question="image")
