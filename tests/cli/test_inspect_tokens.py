"""Tests of `seqloom inspect tokens`."""

from pathlib import Path
from typing import Any

import pytest


def test_tokens_of_a_run_are_printed_with_their_ids(seqloom: Any, runs: Path) -> None:
    shown = seqloom("inspect", "tokens", runs / "words", "the cat xyz").out.splitlines()
    assert shown[0].split()[::2] == ["the", "cat", "<unk>"]
    assert shown[1].startswith("3 tokens, 1 of them unknown, from the ")
    assert shown[1].endswith(" tokens of the words tokenizer")
    result = seqloom("inspect", "tokens", runs / "words", "the cat xyz", "--json").json
    assert [token["unknown"] for token in result["tokens"]] == [False, False, True]
    assert [(token["start"], token["end"]) for token in result["tokens"]] == [(0, 3), (4, 7), (8, 11)]
    assert result["merges"] is None


def test_merges_of_a_run_are_counted_in_its_training_text(seqloom: Any, runs: Path, copy: Any) -> None:
    merges = seqloom("inspect", "tokens", runs / "pairs", "--merges", 5, "--json").json["merges"]
    counts = [merge["count"] for merge in merges]
    assert len(counts) == 5 and counts == sorted(counts, reverse=True) and counts[-1] > 1
    assert [merge["number"] for merge in merges] == [1, 2, 3, 4, 5]
    table = seqloom("inspect", "tokens", runs / "pairs", "the cat", "--merges", 5).out.splitlines()
    assert table[0].split() == ["merge", "left", "right", "token", "count"]
    assert [line.split()[-1] for line in table[1:6]] == [f"{count:,}" for count in counts]
    assert "tokenizer" in table[-1]


def test_byte_pairs_are_learned_from_a_file(seqloom: Any, workdir: Path) -> None:
    (workdir / "low.txt").write_text(" ".join(["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3))
    shown = seqloom("inspect", "tokens", "low.txt", "lowest", "--merges", 3)
    assert [line.split() for line in shown.out.splitlines()[1:4]] == [
        ["1", "e", "s", "es", "9"],
        ["2", "es", "t", "est", "9"],
        ["3", "l", "o", "lo", "7"],
    ]
    assert (
        seqloom("inspect", "tokens", "low.txt", "x", "--size", 260, "--merges", 9, "--json").json["vocabulary"] == 260
    )


def test_merges_without_training_data_have_no_counts(seqloom: Any, workdir: Path) -> None:
    (workdir / "text.txt").write_text("the cat sat on the mat\n" * 40)
    assert seqloom("init", "--no-estimate", "text.txt", "--tokens", "byte-pair").code == 0
    assert seqloom("train", "text.yaml", "train.steps=1", "model.hidden=4").code == 0
    (workdir / "text.txt").unlink()
    shown = seqloom("inspect", "tokens", "runs/text", "--merges", 2)
    assert shown.code == 0 and shown.err.startswith("note: the merges have no counts: ")
    assert "text.txt does not exist" in shown.err and shown.err.count("\n") == 1
    assert all(len(line.split()) == 4 for line in shown.out.splitlines()[1:])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["RUN/words"], 2, "Give a text, or add --merges N"),
        (
            ["RUN/words", "--merges", "3"],
            2,
            "--merges needs a byte-pair tokenizer; the tokenizer of RUN/words is of kind words",
        ),
        (["RUN/pairs", "a", "--size", "300"], 2, "--size applies only to a text file"),
        (["nowhere", "a"], 4, "nowhere"),
    ],
)
def test_invalid_options_are_reported(seqloom: Any, runs: Path, words: list[str], code: int, message: str) -> None:
    words = [word.replace("RUN", str(runs)) for word in words]
    seqloom("inspect", "tokens", *words).fails_with(code, message.replace("RUN", str(runs)))
