import json
from pathlib import Path
from typing import Any

import pytest

from seqloom.cli import language_model
from seqloom.predict.loader import load

TEXTS = ["the cat sat here .", "here sat cat the .", ""]


@pytest.mark.parametrize("run", ["chars", "pairs", "words", "grams"])
def test_json_matches_python_api(seqloom: Any, runs: Path, run: str) -> None:
    objects = seqloom("score", runs / run, *TEXTS, "--json").objects
    scored = load(runs / run).score(TEXTS)
    assert [one["text"] for one in objects] == TEXTS
    for result, expected in zip(objects, scored, strict=True):
        assert result["log_prob"] == expected.log_prob
        assert result["perplexity"] == expected.perplexity
        assert [token["token"] for token in result["tokens"]] == expected.tokens
        assert [token["log_prob"] for token in result["tokens"]] == expected.log_probs
        assert result["log_prob"] == sum(token["log_prob"] for token in result["tokens"])
        assert result["tokens"][-1]["token"] == "</s>"


def test_text_output_matches_python_api(seqloom: Any, runs: Path) -> None:
    shown = seqloom("score", runs / "grams", *TEXTS)
    assert shown.code == 0 and shown.err == ""
    for line, scored in zip(shown.out.splitlines(), load(runs / "grams").score(TEXTS), strict=True):
        assert line == f"{scored.log_prob:10.3f}  perplexity {scored.perplexity:10.2f}  {scored.text}"


def test_text_that_is_a_file_name_is_noted(seqloom: Any, runs: Path, workdir: Path) -> None:
    (workdir / "num.en").write_text("the cat\n")
    shown = seqloom("score", runs / "chars", "the cat", "num.en")
    assert shown.code == 0 and shown.out.count("\n") == 2
    assert shown.err == "note: num.en is used as a text; to read the file: < num.en\n"


def test_control_characters_are_escaped(seqloom: Any, runs: Path) -> None:
    shown = seqloom("score", runs / "chars", "the \x1b[2J cat")
    assert shown.code == 0 and "\x1b" not in shown.out and "the \\x1b[2J cat" in shown.out


def test_word_order_matters(seqloom: Any, runs: Path) -> None:
    right, wrong, _ = seqloom("score", runs / "grams", *TEXTS, "--json").objects
    assert right["log_prob"] > wrong["log_prob"] + 1


def test_lines_of_standard_input_keep_their_order(
    seqloom: Any, runs: Path, type_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["the cat sat here .", "", "naïve", "x" * 40, "the dog slept in the hay .", "no line end"]
    monkeypatch.setattr(language_model, "SCORE_LINES", 4)  # gives two blocks
    type_in("\n".join(lines).encode())
    piped = seqloom("score", runs / "chars", "--json").objects
    assert [one["text"] for one in piped] == lines
    alone = [seqloom("score", runs / "chars", line, "--json").json for line in lines]
    assert [one["log_prob"] for one in piped] == pytest.approx([one["log_prob"] for one in alone], abs=1e-4)


def test_windows_line_endings_are_removed(seqloom: Any, runs: Path, type_in: Any) -> None:
    type_in(b"the cat\r\nthe dog\r\n")
    assert [one["text"] for one in seqloom("score", runs / "chars", "--json").objects] == ["the cat", "the dog"]


def test_empty_line_has_only_the_end_token(seqloom: Any, runs: Path, type_in: Any) -> None:
    type_in(b"\n")
    (token,) = seqloom("score", runs / "chars", "--json").json["tokens"]
    assert token["token"] == "</s>"
    assert token["log_prob"] < 0


def test_empty_input_gives_no_output(seqloom: Any, runs: Path, type_in: Any) -> None:
    type_in(b"")
    shown = seqloom("score", runs / "chars", "--json")
    assert (shown.code, shown.out, shown.err) == (0, "", "")


def test_unknown_words_are_flagged(seqloom: Any, runs: Path) -> None:
    text = "the xylophone sat zyx ."
    result = seqloom("score", runs / "words", text, "--json").json
    assert result["unknown"] == ["xylophone", "zyx"]
    assert [token["token"] for token in result["tokens"]].count("<unk>") == 2
    assert seqloom("score", runs / "words", text).out.endswith(f"{text}   (unknown: xylophone, zyx)\n")


def test_unknown_words_can_be_rejected(seqloom: Any, runs: Path) -> None:
    text = "the xylophone sat zyx ."
    allowed = seqloom("score", runs / "words", "the cat", text, "--allow-unknown")
    assert allowed.out == seqloom("score", runs / "words", "the cat", text).out
    seqloom("score", runs / "words", "the cat", text, "--no-allow-unknown").fails_with(
        3, f"The text {text} has", "not in the vocabulary", ": 'xylophone', 'zyx'.", "--allow-unknown"
    )
    known = seqloom("score", runs / "words", "the cat", "--no-allow-unknown")
    assert known.out == seqloom("score", runs / "words", "the cat").out


def test_invalid_utf8_is_reported_by_line(seqloom: Any, runs: Path, type_in: Any) -> None:
    type_in(b"the cat\nna\xefve\n")
    seqloom("score", runs / "chars").fails_with(3, "line 2", "0xEF", "UTF-8")
    seqloom("score", runs / "chars", "fine", b"na\xefve".decode(errors="surrogateescape")).fails_with(
        3, "text 2", "UTF-8"
    )


def test_terminal_without_texts_is_an_error(
    seqloom: Any, runs: Path, type_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    type_in(b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    seqloom("score", runs / "chars").fails_with(2, "Give texts to score", lines=1)


def test_json_keeps_unicode_and_is_one_line_per_text(seqloom: Any, runs: Path) -> None:
    texts = ["naïve\nfox", "Ω", "line\u2028separator"]
    shown = seqloom("score", runs / "chars", *texts, "--json")
    assert "naïve" in shown.out and "Ω" in shown.out
    assert [json.loads(line)["text"] for line in shown.out.splitlines()] == texts
