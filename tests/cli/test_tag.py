"""Tests of `seqloom tag`, and of other commands with taggers."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.understanding import sentences, tag_recipe, trained, write_sentences

from seqloom.inspect import doctor
from seqloom.inspect.rehearsal import Rehearsal
from seqloom.runs.run import Run

LINE = "Ann lives in New Delhi, Bob in Rome."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taggers")
    trained(tag_recipe(folder), folder / "names")
    trained(tag_recipe(folder, "model.crf=false", "model.characters=null"), folder / "alone")
    (folder / "plain").mkdir()
    plain = [[(word, {"B-PER": "NAME", "O": "X"}.get(tag, "PLACE")) for word, tag in one] for one in sentences()]
    write_sentences(folder / "plain" / "mine.conll", plain)
    trained(tag_recipe(folder / "plain"), folder / "parts")
    return folder


@pytest.fixture
def runs(folder: Path, tmp_path: Path) -> Path:
    for name in ("names", "alone", "parts"):
        shutil.copytree(folder / name, tmp_path / name)
    return tmp_path


def test_each_input_line_gives_one_output_line(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    type_in(f"{LINE}\n\n  Dee sings in Oslo .  \r\n".encode())
    shown = seqloom("tag", runs / "names")
    assert shown.code == 0
    assert shown.out.split("\n") == [
        "Ann:PER lives in [New Delhi]:LOC, Bob:PER in Rome:LOC.",
        "",
        "  Dee:PER sings in Oslo:LOC .  ",
        "",
    ]
    assert shown.err == ""


def test_texts_are_read_from_the_command_line(seqloom: Any, runs: Path) -> None:
    shown = seqloom("tag", runs / "parts", "Ann lives in Rome.", "Bob\nsings")
    assert shown.out == "Ann:NAME lives:X in:X Rome:PLACE .:X\nBob:NAME sings:X\n"


def test_conll_format_prints_a_word_and_tag_per_line(
    seqloom: Any, runs: Path, type_in: Callable[[bytes], None]
) -> None:
    type_in(b"Ann lives in New Delhi.\n\nBob\n")
    shown = seqloom("tag", runs / "names", "--format", "conll")
    assert shown.out == "Ann\tB-PER\nlives\tO\nin\tO\nNew\tB-LOC\nDelhi\tI-LOC\n.\tO\n\n\nBob\tB-PER\n\n"


def test_words_format_prints_word_slash_tag(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    type_in(b"Ann lives in New Delhi.\n\n")
    shown = seqloom("tag", runs / "names", "--format", "words")
    assert shown.out == "Ann/B-PER lives/O in/O New/B-LOC Delhi/I-LOC ./O\n\n"


def test_json_offsets_refer_to_the_original_line(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    line = "  👩‍👩‍👧 Ann lives in New  Delhi."
    type_in(f"{line}\n\n".encode())
    one, blank = seqloom("tag", runs / "names", "--json").objects
    assert one["text"] == line
    spans = {span["text"]: span for span in one["spans"]}
    assert spans["New  Delhi"]["label"] == "LOC"
    for span in one["spans"]:
        assert line[span["start"] : span["end"]] == span["text"]
        assert 0 < span["probability"] <= 1
    assert [line[word["start"] : word["end"]] for word in one["words"]] == [word["text"] for word in one["words"]]
    assert blank == {"text": "", "spans": [], "words": [], "unknown": [], "pieces": 0}
    (plain,) = seqloom("tag", runs / "parts", "Ann", "--json").objects
    assert "spans" not in plain and plain["words"][0]["tag"] == "NAME"


def test_spaces_option_splits_words_only_at_spaces(seqloom: Any, runs: Path) -> None:
    shown = seqloom("tag", runs / "names", "Ann lives in Rome.", "--spaces", "--format", "words")
    assert [pair.rpartition("/")[0] for pair in shown.out.split()] == ["Ann", "lives", "in", "Rome."]


def test_long_line_is_read_in_pieces(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    type_in(b"Ann\n" + b"Ann lives in Rome . " * 2_000 + b"\n")
    shown = seqloom("tag", runs / "alone")
    assert shown.code == 0 and shown.out.count("\n") == 2
    assert shown.out.count("Rome:LOC") == 2_000
    assert shown.err == "note: 1 line longer than 24 tokens: read in pieces; the first is line 2\n"


def test_unknown_words_are_noted_without_character_encoder(seqloom: Any, runs: Path) -> None:
    assert seqloom("tag", runs / "names", "Zoe sings").err == ""
    shown = seqloom("tag", runs / "alone", "Ann sings", "Zoe sings")
    assert shown.err == "note: the vocabulary lacks parts of 1 line; the first is line 2: 'Zoe'\n"


def test_invalid_arguments_and_runs_are_rejected(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    seqloom("tag", runs / "names", "x", "--json", "--format", "text").fails_with(
        2, "--json and --format cannot be used together"
    )
    seqloom("tag", runs / "names", "x", "--format", "xml").fails_with(2, "--format")
    seqloom("classify", runs / "names", "x").fails_with(2, "is a tagger: use `seqloom tag`")
    seqloom("tag", runs / "none", "x").fails_with(4, "is not a run")
    type_in(b"\xff\n")
    seqloom("tag", runs / "names").fails_with(3, "The input must be UTF-8, but line 1 contains the byte 0xFF.")
    (runs / "names" / "characters.json").unlink()
    seqloom("tag", runs / "names", "x").fails_with(4, "is incomplete: characters.json is missing")


# --- train, evaluate, compare, doctor -------------------------------------------------------------------------------


def test_training_rejects_invalid_files(seqloom: Any, tmp_path: Path) -> None:
    file = tmp_path / "bad.conll"
    words = ["train", "tag-conll", f"data.train={file}", "--out", tmp_path / "new"]
    file.write_text("Ann\tB-PER\nlives\n")
    seqloom(*words).fails_with(3, f"Line 2 of {file} must have 2 columns, like line 1, but has 1 column")
    write_sentences(file, [[("Ann", "O"), ("Bee", "I-PER")], *sentences()])
    seqloom(*words, "data.invalid=refuse").fails_with(3, f"Line 2 of {file} has I-PER after O")
    assert not (tmp_path / "new").exists()


def test_repaired_tags_are_counted(seqloom: Any, tmp_path: Path) -> None:
    file = write_sentences(tmp_path / "mine.conll", [[("Ann", "O"), ("Bee", "I-PER")], *sentences()])
    small = ["model.embedding=8", "model.encoder.hidden=8", "batch.tokens=64", "train.steps=2", "train.warmup=0"]
    shown = seqloom("train", "tag-conll", f"data.train={file}", *small, "--out", tmp_path / "new")
    assert shown.code == 0, shown.err
    assert re.search(r"warning: 1 .*repaired", shown.err)
    assert re.search(r"^step 2  dev: loss [\d.]+  span_f1 [\d.]+  token_accuracy [\d.]+", shown.out, re.MULTILINE)
    assert f"Try: seqloom tag {tmp_path / 'new'} · " in shown.out


def test_evaluate_shows_spans_or_tags(seqloom: Any, runs: Path) -> None:
    out, plot = runs / "answers.conll", runs / "confusion.svg"
    shown = seqloom("evaluate", runs / "names", "--split", "test", "--out", out, "--confusion", plot)
    assert shown.code == 0, shown.err
    assert "on conll, test: 8 sentences, " in shown.out
    assert re.search(r"span F1 +[\d.]+   95 %: [\d.]+ to [\d.]+", shown.out)
    assert re.search(r"^ LOC +[\d.]+ +[\d.]+ +[\d.]+ +8", shown.out, re.MULTILINE)
    first = out.read_text().split("\n\n")[0].split("\n")
    assert len(first) >= 5 and all(line.count("\t") == 2 for line in first)
    assert "predicted tag" in plot.read_text("utf-8")
    result = seqloom("evaluate", runs / "names", "--json").json
    assert result["by_class"].keys() == {"LOC", "PER"} and result["invalid"] == 0
    plain = seqloom("evaluate", runs / "parts")
    assert "token accuracy" in plain.out and "span F1" not in plain.out and "confusion matrix" in plain.out


def test_evaluation_on_text_is_rejected(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a text without tags\nand a line\n")
    seqloom("evaluate", runs / "names", tmp_path / "x.txt").fails_with(3, "Line 2", "must have 4 columns", lines=1)


def test_compare_ranks_by_span_f1(seqloom: Any, runs: Path) -> None:
    run = Run.open(runs / "names")
    run.save_metrics("dev", {**(run.metrics("dev") or {}), "span_f1": 0.1})
    result = seqloom("compare", runs / "names", runs / "alone", "--json").json
    assert result["ranked_by"] == "span_f1"
    assert [row["run"] for row in result["runs"]] == [str(runs / "alone"), str(runs / "names")]


def test_doctor_reports_long_sentences(seqloom: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=1 << 29))
    shown = seqloom("doctor", "tag-conll", f"data.train={folder / 'mine.conll'}", "batch.max_length=4")
    assert shown.code == 0, shown.err
    assert re.search(r"^data +sentences +tokens", shown.out, re.MULTILINE)
    assert re.search(r"^classes: 2, in \d+ spans of train: \w+: \d+ ", shown.out, re.MULTILINE)
    assert re.search(
        r"^model: tagger, .*embedding [\d,]+, encoder [\d,]+, output [\d,]+, CRF \d+", shown.out, re.MULTILINE
    )
    assert "and read in pieces" in shown.out
