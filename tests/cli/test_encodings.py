"""Tests of `seqloom encodings`: text, JSON and plot output, and sources of the vocabulary."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom.cli import encodings
from seqloom.data.corpus import Example
from seqloom.data.examples import ParallelExample, TextClassificationExample, TokenClassificationExample
from seqloom.text import WordsConfig, train_tokenizer

BEAR = ["Market falls into bear territory", "Bear falls into market territory"]


def test_text_output_shows_matrices_and_sizes(seqloom: Any) -> None:
    shown = seqloom("encodings", "the market falls")
    assert shown.code == 0 and "\x1b" not in shown.out
    assert shown.err == "note: tf–idf equals the counts, since there is only one document; add texts or --corpus\n"
    lines = shown.out.splitlines()
    assert lines[:2] == ["the text: the market falls  (3 words)", "vocabulary: 3 words, from the text"]
    start = lines.index("one-hot") + 3
    assert [line.split() for line in lines[start : start + 4]] == [
        ["falls", "market", "the"],
        ["the", "0", "0", "1"],
        ["market", "0", "1", "0"],
        ["falls", "1", "0", "0"],
    ]
    sizes = {" ".join(line.split()): line for line in lines if line.startswith((" one-hot", " dense", " bag", " tf"))}
    assert "one-hot 3 × 3 9 3 30,000 300,000 none kept" in sizes
    assert "bag of words 3 3 3 10,000 100,000 none lost" in sizes
    assert "dense, 32 3 × 32 96 96 96 96 3 × 32 kept" in sizes
    assert "distinguishable" not in shown.out


def test_equal_bags_of_words_are_not_distinguishable(seqloom: Any) -> None:
    shown = seqloom("encodings", *BEAR).out
    answers = {line[2:36].strip(): line[37:] for line in shown.splitlines() if line.startswith("  ") and ":" in line}
    assert answers["one-hot, in order"] == "yes: word 1 differs (market, bear)"
    for name in ("bag of words", "tf–idf", "mean of dense vectors"):
        assert answers[name].startswith("no: the word counts are equal"), name
    assert answers["dense, read by a recurrent network"].startswith("yes: distance 0.")
    kept = seqloom("encodings", *BEAR, "--keep-case").out
    assert "no: the same" not in kept and kept.count("yes: ") == 5
    same = seqloom("encodings", "a b", "A B").out
    assert "no: the same words in the same order" in same and same.count("yes: ") == 0


def test_json_output_has_vectors_sizes_and_comparisons(seqloom: Any) -> None:
    result = seqloom("encodings", *BEAR, "--width", "4,2", "--json").json
    assert result["vocabulary"] == {"size": 5, "source": "these 2 texts", "documents": 2}
    assert [word["word"] for word in result["words"]] == ["bear", "falls", "into", "market", "territory"]
    assert [len(word["dense"]["4"]) for word in result["words"]] == [4] * 5 and set(result["words"][0]["dense"]) == {
        "4",
        "2",
    }
    one, other = result["texts"]
    assert one["words"] == BEAR[0].lower().split() and one["one_hot"] == [3, 1, 2, 0, 4]
    assert one["counts"] == other["counts"] == {str(column): 1 for column in range(5)}
    assert one["tf_idf"] == other["tf_idf"] and one["one_hot"] != other["one_hot"]
    assert one["sizes"][0] == {"encoding": "one-hot", "shape": [5, 5], "nonzero": 5, "parameters": 0, "numbers": 25}
    assert one["sizes"][3]["shape"] == [5, 4] and one["sizes"][3]["parameters"] == 20
    (pair,) = result["comparisons"]
    assert pair["texts"] == [1, 2] and pair["one_hot"] == {"same": False, "differs_at": 1}
    assert pair["counts"]["same"] and pair["tf_idf"]["same"] and pair["dense_mean"]["same"]
    assert not pair["recurrent"]["same"] and pair["recurrent"]["distance"] > 0.01
    assert len(seqloom("encodings", *"abcdefg", "--json").json["comparisons"]) == 6


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_plot_is_written(seqloom: Any, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"x{ending}"
    shown = seqloom("encodings", *BEAR, "--out", out)
    assert shown.code == 0 and shown.err == f"Wrote {out}.\n"
    if ending == ".png":
        assert min(struct.unpack(">II", out.read_bytes()[16:24])) > 400
    else:
        assert "territory" in out.read_text("utf-8")
    assert seqloom("encodings", "a", "--out", out, "--json").json["vocabulary"]["size"] == 1


def test_characters_without_font_are_noted(seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    font_manager = pytest.importorskip("matplotlib.font_manager")
    brought = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", brought)
    shown = seqloom("encodings", "日曜日 ok", "b", "--out", tmp_path / "x.png")
    assert shown.code == 0 and "no installed font has 日曜" in shown.err
    assert "note" not in seqloom("encodings", "日曜日 ok", "b", "--out", tmp_path / "x.svg").err


# --- vocabularies ---------------------------------------------------------------------------------------------------


def test_vocabulary_and_idf_come_from_the_corpus(seqloom: Any) -> None:
    shown = seqloom("encodings", "the class falls into bear territory", "--corpus", "pydocs")
    assert "note: not in the vocabulary, so encoded as the same word: bear, territory\n" in shown.err
    result = seqloom("encodings", "the class falls into bear territory", "--corpus", "pydocs", "--json").json
    size, documents = result["vocabulary"]["size"], result["vocabulary"]["documents"]
    assert size > 2000 and result["vocabulary"]["source"] == f"corpus pydocs, train, {documents:,} documents"
    idf = {word["word"]: word["idf"] for word in result["words"]}
    assert idf["the"] < idf["class"] < idf["falls"] < idf["<unk>"]
    assert result["texts"][0]["sizes"][0]["shape"] == [6, size]
    (seen,) = [line for line in shown.out.splitlines() if line.startswith("vocabulary:")]
    assert seen.endswith(f"; {size - 5:,} columns not shown, all 0 here")


def test_every_form_of_example_has_a_text() -> None:
    tagged = TokenClassificationExample(words=("a", "b"), tags=("O", "O"), text="a b", spans=((0, 1), (2, 3)))
    examples: list[str | Example] = [
        "a b",
        ParallelExample("a b", "x"),
        TextClassificationExample("a b", "y"),
        tagged,
        TextClassificationExample("", "z"),
    ]
    assert [encodings.get_text(example) for example in examples] == ["a b"] * 4 + [""]


def test_vocabulary_is_read_from_a_text_or_word_list(seqloom: Any, tmp_path: Path) -> None:
    text, listed = tmp_path / "text.txt", tmp_path / "words.txt"
    text.write_text("the market\nthe bear\n", "utf-8")
    listed.write_text("Market\n\nbear\n", "utf-8")
    result = seqloom("encodings", "the market", "--corpus", text, "--json").json
    assert result["vocabulary"] == {"size": 4, "source": f"{text}, 2 documents", "documents": 2}
    idf = {word["word"]: word["idf"] for word in result["words"]}
    assert idf == {"the": 1, "market": pytest.approx(np.log(3 / 2) + 1)}
    result = seqloom("encodings", "the market", "bear", "--vocabulary", listed, "--json").json
    assert result["vocabulary"]["size"] == 3 and [own["one_hot"] for own in result["texts"]] == [[0, 1], [2]]
    kept = seqloom("encodings", "the market", "bear", "--vocabulary", listed, "--keep-case", "--json").json
    assert [own["one_hot"] for own in kept["texts"]] == [[0, 0], [2]]


def test_vocabulary_is_read_from_a_tokenizer(seqloom: Any, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["the market falls", "the bear"])
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tokenizer.to_json()), "utf-8")
    for given in (file, tmp_path):
        result = seqloom("encodings", "the bear rises", "--vocabulary", given, "--json").json
        assert result["texts"][0]["one_hot"] == tokenizer.encode("the bear rises")
        assert result["vocabulary"]["size"] == len(tokenizer)
    seqloom("encodings", "a", "--vocabulary", file, "--keep-case").fails_with(
        2, "leave it out for a tokenizer", lines=1
    )
    file.write_text('{"format": "seqloom-tok', "utf-8")
    seqloom("encodings", "a", "--vocabulary", file).fails_with(3, str(file), "must be a tokenizer in JSON", lines=1)
    file.write_text("[]", "utf-8")
    seqloom("encodings", "a", "--vocabulary", file).fails_with(4, "not a seqloom tokenizer", lines=1)


# --- invalid input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, ["texts"]),
        ([""], 3, ["text 1 has none: ''"]),
        (["a", " \t"], 3, ["text 2 has none"]),
        (["a", "--width", "0"], 2, ["from 1 to 4096", "'0'"]),
        (["a", "--width", "8,,16"], 2, ["'8,,16'"]),
        (["a", "--width", "99999"], 2, ["from 1 to 4096"]),
        (["a", "--corpus", "pydoc"], 2, ["Unknown corpus 'pydoc'", "did you mean pydocs?"]),
        (["a", "--corpus", "text"], 2, ["has no files of its own", "--corpus FILE"]),
        (["a", "--corpus", "pydocs", "--vocabulary", "x"], 2, ["cannot be used together"]),
        (["a", "--vocabulary", "nothing.txt"], 3, ["nothing.txt does not exist"]),
        (["a", "--out", "x.gif"], 2, [".png or .svg"]),
        (["a", "--out", "nowhere/x.png"], 2, ["nowhere does not exist"]),
        (["a\udcff"], 3, ["must be UTF-8, but text 1 is not"]),
    ],
)
def test_invalid_arguments_are_rejected(
    seqloom: Any, workdir: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    seqloom("encodings", *arguments).fails_with(code, *words)
    assert list(workdir.iterdir()) == []


def test_long_text_is_shortened(seqloom: Any) -> None:
    text = " ".join(f"w{number % 3000}" for number in range(100_000))
    shown = seqloom("encodings", text)
    assert shown.code == 0 and len(shown.out) < 20_000
    assert "… and 99,980 more rows" in shown.out and "100,000 × 3,000" in shown.out and "300,000,000" in shown.out
    assert "from the text; 2,980 columns not shown\n" in shown.out  # the columns that are not shown are not 0


def test_markup_and_control_characters_are_escaped(seqloom: Any) -> None:
    assert "\x1b" not in seqloom("encodings", "a \x1b[31mred", "[bold]b[/bold]").out
    assert "[bold]" in seqloom("encodings", "[bold]b[/bold]", "c").out


def test_colours_are_used_only_on_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    terminal = Console(force_terminal=True, color_system="truecolor", width=80, file=sys.stdout)
    encodings.print_matrix(terminal, "", ["a"], ["b"], np.array([[1.0]]), "{:.0f}")
    assert "48;2;" in capsys.readouterr().out
    encodings.print_matrix(Console(width=80, file=sys.stdout), "", ["a"], ["b"], np.array([[1.0]]), "{:.0f}")
    assert "\x1b" not in capsys.readouterr().out


def test_text_that_is_a_file_name_is_noted(seqloom: Any, workdir: Path) -> None:
    (workdir / "num.en").write_text("the market falls\n")
    shown = seqloom("encodings", "num.en", "the market")
    assert shown.code == 0
    assert shown.err == "note: num.en is used as a text; this command does not read files\n"
