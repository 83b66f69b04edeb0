"""Tests of `seqloom classify`, and of other commands with classifiers."""

import io
import json
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checksums import update_checksums
from tests.understanding import classify_recipe, reviews, tag_recipe, trained, write_reviews

from seqloom.cli.predict import shade_words
from seqloom.inspect import doctor
from seqloom.inspect.plots.measurements import draw_curves
from seqloom.inspect.rehearsal import Rehearsal
from seqloom.predict.classify import ClassifierPredictor
from seqloom.predict.loader import load
from seqloom.runs.run import Run

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifiers")
    kinds = {
        "gru": ["model.pooling=mean"],
        "bag": ["model.encoder.kind=bag", "train.steps=30"],
        "bytes": ["tokenizer.kind=byte-pair", "tokenizer.size=300", "model.pooling=attention"],
    }
    for name, overrides in kinds.items():
        trained(classify_recipe(folder, *overrides), folder / name)
    trained(tag_recipe(folder, "train.steps=2", "train.evaluate_every=2"), folder / "tagger")
    return folder


@pytest.fixture
def runs(folder: Path, tmp_path: Path) -> Path:
    for name in ("gru", "bag", "bytes", "tagger"):
        shutil.copytree(folder / name, tmp_path / name)
    return tmp_path


# --- classify -------------------------------------------------------------------------------------------------------


def test_each_input_line_gives_one_output_line(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    type_in("\ufeffa gripping, funny film\n\na dull plot\r\nzebra\u2028film".encode())
    shown = seqloom("classify", runs / "gru")
    assert shown.code == 0
    lines = shown.out.split("\n")
    assert len(lines) == 5 and lines[1] == "" and lines[4] == ""
    assert re.fullmatch(r"good\t[01]\.\d{4}", lines[0])
    assert lines[2].startswith("bad\t")
    assert shown.err == "note: the vocabulary lacks parts of 1 line; the first is line 4: 'zebra'\n"


def test_top_shows_several_labels(seqloom: Any, runs: Path) -> None:
    shown = seqloom("classify", runs / "gru", "a gripping, funny film", "--top", 5)
    (label, one, other, two) = shown.out.rstrip("\n").split("\t")
    assert (label, other) == ("good", "bad")
    assert float(one) + float(two) == pytest.approx(1.0, abs=2e-4)


def test_why_option_prints_a_weight_after_each_word(seqloom: Any, runs: Path) -> None:
    shown = seqloom("classify", runs / "bag", "a gripping, funny film", "--why")
    weights = shown.out.rstrip("\n").split("\t")[2]
    assert re.fullmatch(r"a [+-][\d.]+ gripping \+[\d.]+ , [+-][\d.]+ funny \+[\d.]+ film [+-][\d.]+", weights)
    shown = seqloom("classify", runs / "bytes", "a film", "--why")
    assert re.fullmatch(r"a 0\.\d+ film 0\.\d+", shown.out.rstrip("\n").split("\t")[2])


def test_why_option_colours_words_on_request(seqloom: Any, runs: Path) -> None:
    shown = seqloom("classify", runs / "bag", " a gripping, dull film", "--why", "--color")
    answer, text = shown.out.splitlines()
    assert re.fullmatch(r"(good|bad) [\d.]+", answer)
    assert "\x1b[" in text
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == " a gripping, dull film"
    grounds = re.findall(r"48;2;(\d+);(\d+);(\d+)", text)
    assert {max(range(3), key=lambda n: int(ground[n])) for ground in grounds} >= {0, 1}  # red and green
    plain = seqloom("classify", runs / "bag", "a film", "--why", "--no-color")
    assert "\x1b" not in plain.out


def test_why_option_uses_named_colours_if_few_are_available(runs: Path) -> None:
    (one,) = load(runs / "bag", "cpu", ClassifierPredictor).classify("a gripping, dull film", why=True)
    assert one.why is not None
    styles = {str(span.style) for span in shade_words(one.text, one.why, few_colours=True).spans}
    assert styles & {"white on green", "white on red"} and styles <= {
        *("white on green", "white on red"), *("green", "red"),
    }  # fmt: skip


def test_json_output_has_candidates_and_word_offsets(
    seqloom: Any, runs: Path, type_in: Callable[[bytes], None]
) -> None:
    type_in(b" a gripping zebra\n\n")
    one, blank = seqloom("classify", runs / "gru", "--json", "--why", "--top", 2).objects
    assert one["text"] == " a gripping zebra"
    assert one["label"] == one["candidates"][0]["label"]
    assert sum(output["probability"] for output in one["candidates"]) == pytest.approx(1.0, abs=1e-5)
    assert one["unknown"] == ["zebra"] and one["cut"] is False
    assert one["why"]["kind"] == "influence"
    assert [(w["text"], w["start"], w["end"]) for w in one["why"]["words"]] == [
        ("a", 1, 2),
        ("gripping", 3, 11),
        ("zebra", 12, 17),
    ]
    assert blank == {"text": "", "label": None, "probability": None, "candidates": [], "unknown": [], "cut": False}


def test_long_line_is_truncated_with_a_note(seqloom: Any, runs: Path, type_in: Callable[[bytes], None]) -> None:
    type_in(b"a film\n" + b"gripping " * 100_000 + b"\n")
    shown = seqloom("classify", runs / "gru")
    assert shown.code == 0 and shown.out.count("\n") == 2
    assert shown.err == "note: 1 line longer than 20 tokens: only the beginning was read; the first is line 2\n"


def test_predictions_are_independent_of_batch_and_window(
    seqloom: Any, runs: Path, type_in: Callable[[bytes], None]
) -> None:
    lines = "".join(f"{text}\n" * (n % 3) + "\n" for n, (text, _) in enumerate(reviews()[:40])).encode()
    outputs = set()
    for options in ([], ["--batch", 1], ["--batch", 7, "--window", 3], ["--window", 1]):
        type_in(lines)
        outputs.add(seqloom("classify", runs / "gru", *options).out)
    assert len(outputs) == 1
    assert outputs.pop().count("\n") == lines.count(b"\n")


def test_invalid_utf8_is_reported_after_previous_lines(
    seqloom: Any, runs: Path, type_in: Callable[[bytes], None]
) -> None:
    type_in(b"a dull film\nna\xefve\n")
    shown = seqloom("classify", runs / "gru")
    assert shown.code == 3
    assert shown.out.startswith("bad\t")
    assert "seqloom: The input must be UTF-8, but line 2 contains the byte 0xEF." in shown.err


@pytest.mark.parametrize("word", ["nofile.txt", "runs/nope", "reviews.csv"])
def test_text_that_looks_like_a_path_is_noted(seqloom: Any, runs: Path, word: str) -> None:
    shown = seqloom("classify", runs / "gru", "a dull film", word)
    assert shown.code == 0 and shown.out.count("\n") == 2
    assert f"note: {word} is used as a text; no such run or file exists\n" in shown.err
    file = runs / "mine.txt"
    file.write_text("a dull film\n")
    assert (
        f"note: {file} is used as a text; to read the file: < {file}\n" in seqloom("classify", runs / "gru", file).err
    )
    assert "is used as" not in seqloom("classify", runs / "gru", "a dull/slow film", "dull", "see a.txt", "").err


def test_text_that_is_a_file_name_is_noted(seqloom: Any, runs: Path, workdir: Path, type_in: Any) -> None:
    for name in ("num.en", "two words", "README"):
        (workdir / name).write_text("a dull film\n")
        shown = seqloom("classify", runs / "gru", name)
        quoted = f"'{name}'" if " " in name else name
        assert shown.code == 0 and shown.out.count("\n") == 1
        assert shown.err.startswith(f"note: {name} is used as a text; to read the file: < {quoted}\n")
        type_in(f"{name}\n".encode())  # the line is still used as a text
        again = seqloom("classify", runs / "gru")
        assert again.out == shown.out and "is used as" not in again.err


def test_other_runs_are_rejected(seqloom: Any, runs: Path) -> None:
    seqloom("classify", runs / "tagger", "text").fails_with(2, "is a tagger: use `seqloom tag`", "needs a classifier")
    seqloom("translate", runs / "gru", "text").fails_with(2, "is a classifier: use `seqloom classify`")
    seqloom("generate", runs / "gru").fails_with(2, "is a classifier: use `seqloom classify`")
    seqloom("classify", runs / "nothing", "text").fails_with(4, "is not a run: it does not exist")
    seqloom("classify", runs / "gru", "text", "--top", 0).fails_with(2, "--top")


def test_damaged_runs_are_rejected(seqloom: Any, runs: Path) -> None:
    labels = runs / "gru" / "labels.json"
    labels.write_text(json.dumps(json.loads(labels.read_text())[::-1]))
    seqloom("classify", runs / "gru", "x").fails_with(
        4, f"{labels} is damaged: it does not match its checksum", lines=1
    )
    labels.write_text('["good"]')
    update_checksums(runs / "gru")
    seqloom("classify", runs / "gru", "x").fails_with(
        4, "labels.json is damaged: its names do not match the outputs of the model"
    )
    (runs / "gru" / "labels.json").unlink()
    seqloom("classify", runs / "gru", "x").fails_with(4, "is incomplete: labels.json is missing")
    (runs / "bag" / "sizes.json").write_text('{"labels": 3}')
    seqloom("classify", runs / "bag", "x").fails_with(
        4, "sizes.json is damaged: it does not match its checksum", lines=1
    )
    update_checksums(runs / "bag")
    seqloom("classify", runs / "bag", "x").fails_with(4, "does not match the model of its recipe")


# --- train, evaluate, compare, doctor -------------------------------------------------------------------------------


def test_training_prints_notes_and_next_commands(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    data = [f"data.train={folder / 'reviews.csv'}", "data.text=review", "data.label=verdict"]
    small = [
        "model.embedding=8",
        "model.encoder.hidden=8",
        "batch.tokens=64",
        "train.steps=4",
        "train.evaluate_every=2",
    ]
    shown = seqloom("train", "classify-table", *data, *small, "train.warmup=0", "--out", tmp_path / "new")
    assert shown.code == 0, shown.err
    assert re.search(r"^step 2  dev: loss [\d.]+  accuracy [\d.]+  macro_f1 [\d.]+  \(best\)$", shown.out, re.MULTILINE)
    assert "perplexity" not in shown.out
    assert f"Try: seqloom classify {tmp_path / 'new'} · seqloom evaluate" in shown.out


def test_missing_column_is_reported(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    words = ["train", "classify-table", f"data.train={folder / 'reviews.csv'}", "data.label=verdict"]
    shown = seqloom(*words, "data.text=revue", "--out", tmp_path / "new")
    shown.fails_with(3, "must name the column 'revue', but has ['review', 'verdict']", "did you mean data.text=review?")
    assert not (tmp_path / "new").exists()


def test_evaluate_prints_all_metrics_and_plots(seqloom: Any, runs: Path) -> None:
    pictures = [runs / "confusion.png", runs / "reliability.svg"]
    answers = runs / "answers.tsv"
    shown = seqloom(
        "evaluate", runs / "gru", "--split", "test", "--confusion", pictures[0], "--reliability", pictures[1], "--out",
        answers,
    )  # fmt: skip
    assert shown.code == 0, shown.err
    assert "on table, test: 12 examples" in shown.out
    assert re.search(r"accuracy +[\d.]+   95 %: [\d.]+ to [\d.]+", shown.out)
    assert re.search(r"calibration error +[\d.]+", shown.out)
    assert "macro average" in shown.out and "confusion matrix" in shown.out
    assert pictures[0].read_bytes().startswith(PNG)
    assert struct.unpack(">II", pictures[0].read_bytes()[16:24])[0] > 300
    assert pictures[1].read_text().startswith("<?xml")
    head, *rows = answers.read_text().splitlines()
    assert head == "expected\tpredicted\tprobability\ttext" and len(rows) == 12


def test_evaluate_json_has_consistent_counts_and_intervals(seqloom: Any, runs: Path) -> None:
    result = seqloom("evaluate", runs / "gru", "--split", "test", "--json").json
    low, high = result["intervals"]["accuracy"]
    assert low <= result["accuracy"] <= high
    assert result["confusion"]["labels"] == ["bad", "good"]
    total = sum(map(sum, result["confusion"]["counts"]))
    right = sum(result["confusion"]["counts"][n][n] for n in range(2))
    assert result["accuracy"] == right / total
    assert result["by_class"]["good"]["expected"] == sum(result["confusion"]["counts"][1])
    assert sum(one["count"] for one in result["calibration"]) == total
    assert result["unseen"] == {}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--confusion", "x.jpeg"], 2, ".png or .svg"),
        (["--confusion", "no/x.png"], 2, "no"),
        (["--beam", "3"], 2, "--source and --reference require a translator"),
        (["x.txt"], 3, "x.txt does not exist"),
        (["--out", "no/answers.tsv"], 2, "the folder no does not exist"),
        (["--split", "train", "--interpolate"], 2, "--interpolate"),
    ],
)
def test_evaluate_rejects_invalid_options(
    seqloom: Any, runs: Path, workdir: Path, options: list[str], code: int, words: str
) -> None:
    seqloom("evaluate", runs / "gru", *options).fails_with(code, words)


def test_reliability_requires_a_classifier(seqloom: Any, runs: Path) -> None:
    shown = seqloom("evaluate", runs / "tagger", "--reliability", runs / "x.png")
    shown.fails_with(2, "--reliability requires a classifier", "is a tagger")


def test_compare_ranks_by_accuracy_across_tokenizers(seqloom: Any, runs: Path) -> None:
    for name, accuracy in (("gru", 0.5), ("bag", 0.9), ("bytes", 0.7)):
        run = Run.open(runs / name)
        run.save_metrics("dev", {**(run.metrics("dev") or {}), "accuracy": accuracy})
    result = seqloom("compare", runs / "gru", runs / "bag", runs / "bytes", "--json").json
    assert result["ranked_by"] == "accuracy" and result["not_ranked"] is None
    assert [row["metrics"]["accuracy"] for row in result["runs"]] == [0.9, 0.7, 0.5]
    assert "model.encoder.kind" in result["recipes"]
    by_loss = seqloom("compare", runs / "gru", runs / "bag", runs / "bytes", "--by", "loss", "--json").json["runs"]
    losses = [row["metrics"]["loss"] for row in by_loss]
    assert losses == sorted(losses)
    shown = seqloom("compare", runs / "gru", runs / "bag")
    assert "accuracy" in shown.out and "macro F1" in shown.out


def test_curves_show_accuracy_and_loss(seqloom: Any, runs: Path) -> None:
    assert seqloom("compare", runs / "gru", runs / "bag", "--plot", runs / "curves.png").code == 0
    assert (runs / "curves.png").read_bytes().startswith(PNG)
    loss, beside = draw_curves([Run.open(runs / "gru"), Run.open(runs / "bytes")]).axes
    assert loss.get_ylabel() == "loss, nats per text"
    assert beside.get_ylabel() == "accuracy on dev"
    assert "accuracy" in repr(load(runs / "gru", "cpu"))
    # The runs have no common metric and unit
    panels = draw_curves([Run.open(runs / "gru"), Run.open(runs / "tagger")]).axes
    assert [axes.get_ylabel() for axes in panels] == ["loss, nats per text", "loss, nats per word"]
    assert [{str(line.get_label()).partition(":")[0] for line in axes.lines} for axes in panels] == [
        {"gru"},
        {"tagger"},
    ]


def test_several_classifiers_are_rejected(seqloom: Any, runs: Path) -> None:
    seqloom("evaluate", runs / "gru", runs / "bag").fails_with(2, "Evaluate other runs one at a time", lines=1)


@pytest.mark.parametrize("name", ["gru", "bag", "tagger"])
def test_averaged_run_works_with_other_commands(seqloom: Any, runs: Path, name: str) -> None:
    last = len(list((runs / name / "checkpoints").glob("step-*")))
    shown = seqloom("average", runs / name, "--last", last)
    assert shown.code == 0, shown.err
    one, mean = (Run.open(runs / path) for path in (name, f"{name}-averaged"))
    assert mean.labels == one.labels and mean.sizes == one.sizes
    assert (mean.characters is not None) == (name == "tagger")
    assert mean.metrics("dev") is not None and "intervals" in (mean.metrics("dev") or {})
    assert seqloom("tag" if name == "tagger" else "classify", mean.path, "Ann sings in Rome").code == 0
    compared = seqloom("compare", one.path, mean.path, "--json").json
    assert compared["ranked_by"] == ("span_f1" if name == "tagger" else "accuracy")


def test_missing_split_is_reported(seqloom: Any, tmp_path: Path) -> None:
    run = trained(classify_recipe(tmp_path, "data.test_fraction=0", "train.steps=1"), tmp_path / "run")
    seqloom("evaluate", run, "--split", "test").fails_with(3, "has no test split: data.test_fraction is 0")


def test_doctor_reports_classes(seqloom: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=1 << 29))
    good = [row for row in reviews() if row[1] == "good"]
    rows = [*good, *good[:20], *[row for row in reviews() if row[1] == "bad"][:5]]
    uneven = write_reviews(tmp_path / "uneven.csv", rows)
    data = [f"data.train={uneven}", "data.text=review", "data.label=verdict", "data.test_fraction=0"]
    shown = seqloom("doctor", "classify-table", *data, "batch.max_length=4", "tokenizer.min_count=60")
    assert shown.code == 0, shown.err
    assert re.search(r"^data +texts +tokens +length: min", shown.out, re.MULTILINE)
    assert re.search(r"^classes: 2, in \d+ texts of train: good: \d+ \([\d.]+%\), bad: \d ", shown.out, re.MULTILINE)
    assert "longer than 4 tokens" in shown.out
    assert "are duplicates" in shown.out
    assert "The class 'bad' has fewer than 10 training texts" in shown.out
    assert "times as many texts as the smallest" in shown.out
    assert "is read as <unk>" in shown.out
    result = seqloom("doctor", "classify-table", *data, "--json").json
    assert result["examples"]["classes"]["bad"] < 10


def test_terminal_input_shows_a_hint(seqloom: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyboard:
        buffer = io.BytesIO(b"a dull film\n")

        @staticmethod
        def isatty() -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Keyboard())
    shown = seqloom("classify", runs / "gru")
    assert shown.err == "Type a line and press Enter; end with Ctrl-D.\n"
    assert shown.out.startswith("bad\t")
