"""Words in the letters of Omniglot: writers of splits, the baseline, and damaged archives."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom.core.errors import DataError
from seqloom.data.corpora import handwriting_words
from seqloom.data.corpora.handwriting_words import ARCHIVE, LETTERS, WRITERS, parse_drawing, place_letter
from seqloom.data.files import data_folder, use_data_folder
from seqloom.data.handwriting import words_of

SIZES: dict[str, Any] = {"train": 40, "dev": 10, "test": 20}


def drawing(letter: str, writer: int) -> str:
    """A vertical stroke whose position depends on the letter, and a horizontal stroke whose length is the writer's."""
    x = 10 + LETTERS.index(letter)
    return f"START\n{x},-20,0\n{x},-{40 + writer},90\nBREAK\n{x},-25,200\n{x + writer},-25,260.5\nBREAK\n"


def write_archive(folder: Path, **changes: str) -> Path:
    path = folder / ARCHIVE
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/x.txt", "ignored")
        for number, letter in enumerate(LETTERS, start=1):
            for writer in range(1, 21):
                name = f"character{number:02d}/{682 + number:04d}_{writer:02d}.txt"
                text = changes.get(f"{letter}{writer}", drawing(letter, writer))
                if text:
                    archive.writestr(f"strokes_background_small1/Latin/{name}", text)
    return path


@pytest.fixture(autouse=True)
def _forget_archives() -> None:
    handwriting_words.read_omniglot.cache_clear()


def test_writers_and_words_of_splits_are_disjoint(tmp_path: Path) -> None:
    write_archive(tmp_path)
    with use_data_folder(tmp_path):
        corpus = handwriting_words.load(handwriting_words.Config(**SIZES))
        plain = handwriting_words.load(handwriting_words.Config(**SIZES, alphabets=False, invented=0.0))
    groups = {split: {example.group for example in corpus.split(split)} for split in corpus.splits}
    numbers = {split: {str(writer) for writer in writers} for split, writers in WRITERS.items()}
    assert groups["train"] <= numbers["train"] | {"print", "script"} and groups["train"] & {"print", "script"}
    assert groups["dev"] == numbers["dev"] and groups["test"] <= numbers["test"]
    assert sorted(writer for writers in WRITERS.values() for writer in writers) == list(range(1, 21))
    assert {example.group for example in plain.split("train")} <= numbers["train"]
    assert {example.text for example in plain.split("train")} <= set(words_of("train"))
    assert all({example.text for example in corpus.split(split)} <= set(words_of(split)) for split in ("dev", "test"))
    assert len(corpus.split("test")) == 20


def test_drawings_have_y_downwards_and_letters_stand_on_the_baseline() -> None:
    strokes = parse_drawing(drawing("b", 8), "x")
    assert [stroke.tolist() for stroke in strokes] == [[[11, 20], [11, 48]], [[11, 25], [19, 25]]]
    for letter, top, bottom in (("a", -1.0, 0.0), ("b", -1.7, 0.0), ("p", -1.0, 0.7), ("i", -1.5, 0.0)):
        placed = place_letter(letter, strokes)
        assert placed.points[:, 1].min() == pytest.approx(top) and placed.points[:, 1].max() == pytest.approx(bottom)
        assert placed.points[:, 0].min() > 0 and placed.points[:, 0].max() < placed.width
        assert np.ptp(placed.points[:, 0]) == pytest.approx((bottom - top) * 8 / 28)  # the proportions are kept
    assert place_letter("i", strokes[:1]).points[:, 1].min() == pytest.approx(-1.0)  # without a dot
    flat = place_letter("a", [np.array([[0.0, 0.0], [50.0, 0.0]])])
    assert np.isfinite(flat.points).all() and flat.width < 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"c7": ""}, "person 7 lacks some of them"),
        ({"c7": "START\n1,2\nBREAK\n"}, "must consist of START, lines x,y,t, and BREAK"),
        ({"c7": "START\nBREAK\n"}, "must contain strokes with finite coordinates"),
        ({"c7": "START\nnan,1,2\nBREAK\n"}, "must contain strokes with finite coordinates"),
        ({"c7": "9" * ((1 << 20) + 1)}, "person 7 lacks some of them"),
    ],
)
def test_damaged_drawings_are_reported(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    write_archive(tmp_path, **changes)
    with use_data_folder(tmp_path), pytest.raises(DataError, match=message):
        handwriting_words.load(handwriting_words.Config(**SIZES))


def test_damaged_and_missing_archives_are_reported(tmp_path: Path) -> None:
    with use_data_folder(tmp_path), pytest.raises(DataError, match=r"Omniglot needs .*\nDownload it from"):
        handwriting_words.load(handwriting_words.Config(**SIZES))
    path = write_archive(tmp_path)
    path.write_bytes(path.read_bytes()[:9000])
    with use_data_folder(tmp_path), pytest.raises(DataError, match="must be the archive of strokes of Omniglot"):
        handwriting_words.load(handwriting_words.Config(**SIZES))


def test_real_archive_has_the_letters_of_twenty_people() -> None:
    folder = data_folder()
    if folder is None or not (folder / ARCHIVE).is_file():
        pytest.skip("needs omniglot in SEQLOOM_DATA")
    writers = handwriting_words.read_omniglot(folder / ARCHIVE)
    assert sorted(writers) == list(range(1, 21))
    assert all(sorted(alphabet) == list(LETTERS) for alphabet in writers.values())
    heights = {letter: -np.mean([w[letter][0].points[:, 1].min() for w in writers.values()]) for letter in "lo"}
    assert heights["l"] > 1.4 * heights["o"]
