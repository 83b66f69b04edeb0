"""Tests of `seqloom inspect attention` with translators."""

import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from seqloom.cli.app import main
from seqloom.inspect.views.attention import alignment_view
from seqloom.predict.loader import load

SOURCE = "the cat sat, here"
PAIRS = [
    ("the cat sat, here", "القط جلس هنا"),
    ("a dog sat", "كلب جلس"),
    ("the dog is here", "الكلب هنا"),
    ("a cat", "猫"),
]


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Translators: `pairs` (byte pairs), `words`, and `blind` without attention."""
    folder = tmp_path_factory.mktemp("translators")
    for side, ending in enumerate(("en", "xx")):
        for name, pairs in (("train", PAIRS), ("dev", [("the cat is here", "القط هنا")])):
            (folder / f"{name}.{ending}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    kinds = {
        "pairs": ("{kind: byte-pair, size: 270}", "{kind: recurrent-seq2seq, hidden: 12}"),
        "words": ("{kind: words}", "{kind: recurrent-seq2seq, hidden: 12}"),
        "blind": ("{kind: words}", "{kind: recurrent-seq2seq, hidden: 12, attention: null}"),
    }
    files = ", ".join(f"{name}: [{folder / name}.en, {folder / name}.xx]" for name in ("train", "dev"))
    for name, (tokenizer, model) in kinds.items():
        recipe = folder / f"{name}.yaml"
        recipe.write_text(
            f"task: translate\ndata: {{corpus: parallel, {files}}}\ntokenizer: {tokenizer}\n"
            f"batch: {{tokens: 100, dev_pairs: 0}}\nmodel: {model}\ndecode: {{beam: 2, max_length: 12}}\n"
            "train: {steps: 4, lr: 0.05, schedule: constant}\n",
            "utf-8",
        )
        assert main(["train", str(recipe), "--out", str(folder / name)]) == 0, name
    return folder


def test_json_output_matches_the_alignment_view(seqloom: Any, translators: Path) -> None:
    result = seqloom("inspect", "attention", translators / "pairs", SOURCE, "--json").json
    view = alignment_view(load(translators / "pairs", "cpu"), SOURCE)
    assert result["run"] == str(translators / "pairs") and result["source"] == SOURCE
    assert (result["translation"], result["given"], result["finished"]) == (view.text, False, view.finished)
    assert result["log_prob"] == pytest.approx(view.log_prob)
    assert result["source_words"] == ["the", "cat", "sat", ",", "here", "</s>"]
    assert result["target_tokens"] == view.tokens.rows and result["source_tokens"] == view.tokens.columns
    np.testing.assert_allclose(result["weights"], view.tokens.weights)
    np.testing.assert_allclose(result["word_weights"], view.words.weights)
    assert result["alignment"] == view.links
    output = seqloom("translate", translators / "pairs", SOURCE).out
    assert output == f"{view.text}\n"


def test_target_option_replaces_the_translation(seqloom: Any, translators: Path) -> None:
    result = seqloom("inspect", "attention", translators / "pairs", SOURCE, "--target", "القط جلس 猫", "--json").json
    assert result["given"] and result["finished"] and result["translation"] == "القط جلس 猫"
    assert result["target_words"] == ["القط", "جلس", "猫", "</s>"]
    np.testing.assert_allclose(np.sum(result["word_weights"], axis=1), 1, atol=1e-6)


def test_piped_map_has_no_colours(seqloom: Any, translators: Path) -> None:
    shown = seqloom("inspect", "attention", translators / "pairs", SOURCE, "--target", "القط جلس 猫")
    assert shown.code == 0 and shown.err == "" and "\x1b" not in shown.out
    lines = shown.out.splitlines()
    assert lines[:2] == [SOURCE, "القط جلس 猫"] and lines[2].startswith("log p = -")
    assert lines[4] == "rows: produces (target); columns: key (source)"
    assert lines[6].split() == ["the", "cat", "sat", ",", "here", "</s>"]
    assert [line.split()[0].strip("\u2068\u2069") for line in lines[7:11]] == ["القط", "جلس", "猫", "</s>"]
    assert lines[-1] == "0 ·░▒▓█ 1  fraction of the attention in each row"
    bare = seqloom("inspect", "attention", translators / "pairs", SOURCE, "--target", "القط جلس 猫", "--no-end")
    assert "</s>" not in bare.out


def test_tokens_option_shows_a_row_per_token(seqloom: Any, translators: Path) -> None:
    run, target = translators / "pairs", "猫 zq"
    view = alignment_view(load(run, "cpu"), SOURCE, target)
    assert len(view.tokens.rows) > len(view.words.rows)
    lines = seqloom("inspect", "attention", run, SOURCE, "--target", target, "--tokens").out.splitlines()
    shown = [line for line in lines if any(shade in line for shade in "·░▒▓█")][:-1]
    assert len(shown) == len(view.tokens.rows)


@pytest.mark.parametrize(("option", "coloured"), [("--color", True), ("--no-color", False)])
def test_colour_option_overrides_the_environment(
    seqloom: Any, translators: Path, monkeypatch: pytest.MonkeyPatch, option: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = seqloom("inspect", "attention", translators / "pairs", SOURCE, option).out
    assert ("\x1b[48;2;" in shown) is coloured
    assert ("░" in shown or "▒" in shown) is not coloured


def test_beam_option_sets_the_beam_of_the_search(seqloom: Any, translators: Path) -> None:
    result = seqloom("inspect", "attention", translators / "pairs", SOURCE, "--beam", 1, "--json").json
    assert result["translation"] == alignment_view(load(translators / "pairs", "cpu"), SOURCE, beam=1).text


def test_unknown_words_are_noted(seqloom: Any, translators: Path) -> None:
    shown = seqloom("inspect", "attention", translators / "words", "the zebra sat", "--target", "猫", "--json")
    assert "<unk>" in shown.json["source_tokens"]
    assert shown.err == "note: the model reads 'zebra' of the text as <unk>\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["pairs", ""], 2, "The text is empty"),
        (["pairs", "a", "--target", " "], 2, "The translation is empty"),
        (["blind", "a cat"], 2, "blind has no attention. Train a translator with attention"),
        (["nowhere", "a cat"], 4, "is not a run"),
        (["pairs", "a", "--beam", "2", "--target", "b"], 2, "--beam and --target cannot be used together"),
        (["pairs", "a", "--beam", "0"], 2, "--beam must be at least 1; got 0"),
        (["pairs", "a \udcff"], 3, "must be UTF-8"),
        (["nowhere", "a", "--out", "x.png", "--font", "Komic Sans"], 2, "No font 'Komic Sans' is installed"),
        (["pairs", "a", "--font", "DejaVu Sans"], 2, "--font requires a plot"),
    ],
)
def test_invalid_arguments_are_rejected(
    seqloom: Any, translators: Path, workdir: Path, words: list[str], code: int, message: str
) -> None:
    name, *rest = words
    seqloom("inspect", "attention", translators / name, *rest).fails_with(code, message)
    assert not any(workdir.iterdir())


def test_recurrent_language_model_is_rejected(seqloom: Any, runs: Path) -> None:
    seqloom("inspect", "attention", runs / "chars", "the cat").fails_with(2, "has no attention heads")


def test_invalid_plot_path_is_rejected_first(
    seqloom: Any, translators: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("pairs", "nowhere"):
        command = ["inspect", "attention", translators / run, "a", "--out"]
        seqloom(*command, tmp_path / "x.pdf").fails_with(2, "must end in .png or .svg", lines=1)
        seqloom(*command, tmp_path / "no/x.png").fails_with(2, "does not exist", lines=1)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    command = ["inspect", "attention", translators / "pairs", "a", "--out", tmp_path / "x.png"]
    seqloom(*command).fails_with(5, "pip install 'seqloom[plot]'", lines=1)
    assert not any(tmp_path.iterdir())


def test_plots_are_written(seqloom: Any, translators: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import font_manager

    brought = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", brought)
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    command = ["inspect", "attention", translators / "pairs", SOURCE, "--target", "كلب 猫", "--json", "--out"]
    shown = seqloom(*command, png)
    assert shown.json
    note, drawn = shown.err.splitlines()
    assert note.startswith("note: no installed font has 猫") and drawn == f"Wrote {png}."
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert width >= 600 and height > 200
    assert seqloom(*command, svg).err == f"Wrote {svg}.\n"  # no warning, because the SVG contains text
    texts = {"".join(node.itertext()) for node in ElementTree.fromstring(svg.read_bytes()).iter()}
    assert {"猫", "كلب", SOURCE} <= texts
