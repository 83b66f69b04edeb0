"""Tests of `seqloom similar` with text models, and of `seqloom embed --normalize`."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom.cli.app import main
from seqloom.core.errors import DataError, UsageError
from seqloom.predict.loader import load

LINES = [
    "the owl slept here .",
    "",
    "a cat",
    "the dog saw in the hay .",
    "the owl slept here .",
    "the cat sat on a mat .",
]
QUERY = "the owl sat here ."


def ranked(run: Path, query: str, lines: list[str], pooling: Any = "mean") -> list[tuple[float, int, str]]:
    """Compute and sort all cosines."""
    model = load(run, "cpu")
    kept = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    v, u = model.embed(query, pooling)[0].astype(float), model.embed([line for _, line in kept], pooling).astype(float)
    cosines = u @ v / np.linalg.norm(u, axis=1) / np.linalg.norm(v)
    result = [(float(score), *at) for score, at in zip(cosines, kept, strict=True)]
    return sorted(result, key=lambda one: (-round(one[0], 5), one[1]))


@pytest.mark.parametrize("name", ["runs/chars", "runs/words", "translators/one", "translators/transformer"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_results_have_the_largest_cosines(
    seqloom: Any, runs: Path, translators: Path, type_in: Any, name: str, pooling: str
) -> None:
    room, _, which = name.partition("/")
    run = (runs if room == "runs" else translators) / which
    type_in("\n".join(LINES).encode())
    shown = seqloom("similar", run, "--query", QUERY, "--top", 4, "--pooling", pooling)
    assert shown.code == 0 and shown.err.endswith("note: blank lines are skipped: 1 of 6\n")
    assert ("lacks parts of 5 lines" in shown.err) == (room == "translators")  # runs with other vocabularies
    rows = [line.split("\t") for line in shown.out.splitlines()]
    expected = ranked(run, QUERY, LINES, pooling)[:4]
    assert [(int(number), text) for _, number, text in rows] == [(number, text) for _, number, text in expected]
    assert [float(score) for score, _, _ in rows] == pytest.approx([score for score, _, _ in expected], abs=1e-4)


def test_results_are_independent_of_windows(runs: Path) -> None:
    model = load(runs / "chars", "cpu")
    (complete,) = model.similar(QUERY, LINES, top=3)
    for window in (1, 2, 4):
        (result,) = model.similar(QUERY, iter(LINES), top=3, window=window)
        assert [near.line for near in result.best] == [near.line for near in complete.best]
        assert (result.texts, result.blank) == (5, 1)
    assert complete.best[0].line < complete.best[1].line  # equal lines are in input order
    assert complete.best[0].score == pytest.approx(complete.best[1].score, abs=1e-6)


def test_line_is_most_similar_to_itself(runs: Path) -> None:
    for result, line in zip(load(runs / "words", "cpu").similar(LINES[2:4], LINES, top=1), LINES[2:4], strict=True):
        assert result.query == line == result.best[0].text and result.best[0].score == pytest.approx(1, abs=1e-5)


def test_each_query_gives_a_block_or_a_json_object(seqloom: Any, runs: Path, tmp_path: Path, type_in: Any) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("a cat\n\nthe dog\tran\n", encoding="utf-8")
    words = ["similar", runs / "chars", "--query", QUERY, "--query-file", file, "--top", 2]
    type_in("\n".join(LINES).encode())
    shown = seqloom(*words)
    blocks = shown.out.split("\n\n")
    assert [block.partition("\n")[0] for block in blocks] == [f"{QUERY}:", "a cat:", "the dog ran:"]
    assert all(len(block.strip().splitlines()) == 3 for block in blocks)
    type_in("\n".join(LINES).encode())
    objects = seqloom(*words, "--json").objects
    assert [one["query"] for one in objects] == [QUERY, "a cat", "the dog\tran"]
    best = objects[1]["similar"][0]
    assert best["text"] == "a cat" and best["line"] == 3 and best["score"] == pytest.approx(1, abs=1e-5)


def test_texts_are_read_from_the_command_line(seqloom: Any, runs: Path) -> None:
    shown = seqloom("similar", runs / "chars", "a cat", "the dog", "--query", "a cat", "--top", 1)
    assert shown.out == "1.0000\t1\ta cat\n" and shown.err == ""


def test_missing_lines_are_noted(seqloom: Any, runs: Path, type_in: Any) -> None:
    type_in(b"")
    shown = seqloom("similar", runs / "chars", "--query", "a cat")
    assert (shown.code, shown.out) == (0, "") and "there are no lines to compare" in shown.err


def test_invalid_queries_are_rejected(seqloom: Any, runs: Path, tmp_path: Path, type_in: Any) -> None:
    run, blank = runs / "chars", tmp_path / "blank.txt"
    blank.write_text("\n \n")
    seqloom("similar", run, "a").fails_with(2, "--query", "--query-file")
    seqloom("similar", run, "a", "--query", " ").fails_with(3, "must not be blank")
    seqloom("similar", run, "a", "--query-file", tmp_path / "none").fails_with(2, "cannot be read", "No such file")
    seqloom("similar", run, "a", "--query-file", tmp_path).fails_with(2, "cannot be read")
    seqloom("similar", run, "a", "--query-file", blank).fails_with(3, "but all lines are blank")
    seqloom("similar", runs / "grams", "a", "--query", "a").fails_with(2, "which has no text vectors")
    type_in(b"fine\n\xff\n")
    seqloom("similar", run, "--query", "a").fails_with(3, "UTF-8", "line 2")
    model = load(run, "cpu")
    with pytest.raises(UsageError, match="top must be at least 1"):
        model.similar("a", ["b"], top=0)
    with pytest.raises(UsageError, match="no pooling method 'middle'"):
        model.similar("a", ["b"], pooling="middle")
    with pytest.raises(DataError, match="query 2 of 2"):
        model.similar(["a", ""], ["b"])


def test_normalize_gives_unit_vectors(runs: Path, capfdbinary: Any) -> None:
    model = load(runs / "chars", "cpu")
    plain, unit = model.embed(LINES), model.embed(LINES, normalize=True)
    assert np.linalg.norm(unit, axis=1) == pytest.approx([1, 0, 1, 1, 1, 1], abs=1e-6)
    assert unit * np.linalg.norm(plain, axis=1, keepdims=True) == pytest.approx(plain, abs=1e-5)
    assert main(["embed", str(runs / "chars"), "--normalize", "a cat"]) == 0
    assert np.load(io.BytesIO(capfdbinary.readouterr().out)) == pytest.approx(unit[2:3], abs=1e-6)


def test_unknown_words_are_noted(seqloom: Any, runs: Path, type_in: Any, tmp_path: Path) -> None:
    lines = "the owl slept here .\nthe \u732b\na \u732b \u72ac\n".encode()
    output = "note: the vocabulary lacks parts of 2 lines; the first is line 2: '\u732b'\n"
    type_in(lines)
    shown = seqloom("similar", runs / "chars", "--query", "the owl")
    assert shown.err == output and len(shown.out.splitlines()) == 3
    type_in(lines)
    assert seqloom("embed", runs / "chars", "--out", tmp_path / "v.npy").err == output
    command = seqloom("similar", runs / "chars", "a cat", "--query", "\u732b").err
    assert command == "note: the vocabulary lacks parts of the query '\u732b': '\u732b'\n"
