"""Tests of `seqloom translate`, which keeps the number and the order of lines."""

import io
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqloom.cli._options import WINDOW_BATCHES
from seqloom.cli.app import main
from seqloom.evaluate.alignment import from_pharaoh
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor

RECIPE = """
task: translate
data: {{corpus: parallel, train: [{folder}/a.en, {folder}/a.de]}}
tokenizer: {tokenizer}
batch: {{tokens: 200, dev_pairs: 0}}
model: {{kind: recurrent-seq2seq, hidden: 12, {model}}}
decode: {{beam: 2, min_length: 1, max_length: 9}}
train: {{steps: 3, lr: 0.02, device: cpu}}
"""
KINDS = {
    "bytes": ("{kind: byte-pair, size: 300}", "cell: gru"),
    "words": ("{kind: words}", "cell: gru"),
    "location": ("{kind: words}", "attention: {score: location, max_length: 6}"),
}
LINES = ["the cat sat 3 .", "", "naïve e\u0301 שלום\u200f", "  ", "a\u2028b\x85c", "👩‍👩‍👧", "a dog saw 7 ."]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translators")
    for language, words in {"en": ("the cat sat", "a dog saw"), "de": ("die Katze sass", "ein Hund sah")}.items():
        lines = [f"{words[n % 2]} {n} ." for n in range(30)]
        (folder / f"a.{language}").write_text("\n".join(lines) + "\n")
    for name, (tokenizer, model) in KINDS.items():
        (folder / f"{name}.yaml").write_text(RECIPE.format(folder=folder, tokenizer=tokenizer, model=model))
        assert main(["train", str(folder / f"{name}.yaml"), "--out", str(folder / name)]) == 0
    return folder


def lines_of(out: str) -> list[str]:
    assert out.endswith("\n")
    return out[:-1].split("\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
def test_each_input_line_gives_one_output_line(seqloom: Any, trained: Path, type_in: Any, end: str, last: str) -> None:
    type_in(end.join(LINES).encode() + last.encode())
    shown = seqloom("translate", trained / "bytes")
    assert shown.code == 0
    expected = [one.text for one in load(trained / "bytes", "cpu").translate(LINES)]
    assert lines_of(shown.out) == expected
    assert all(line == "" for line, source in zip(expected, LINES, strict=True) if not source.strip())


def test_output_is_independent_of_batch_size(seqloom: Any, trained: Path, type_in: Any) -> None:
    lines = [LINES[(n * n) % len(LINES)] + f" {n}" * (n % 3) for n in range(700)]
    content = "".join(line + ("\r\n" if n % 5 == 0 else "\n") for n, line in enumerate(lines)).encode()
    outputs = set()
    for words in (["--batch=17"], ["--batch=100", "--window=301"], []):
        type_in(content)
        shown = seqloom("translate", trained / "words", "--beam=1", "--max-length=4", *words)
        assert shown.code == 0
        assert [bool(line) for line in lines_of(shown.out)] == [bool(line.strip()) for line in lines]
        outputs.add(shown.out)
    assert len(outputs) == 1


def test_empty_input_gives_no_output(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in(b"")
    shown = seqloom("translate", trained / "words")
    assert (shown.code, shown.out, shown.err) == (0, "", "")
    type_in(b"\n\n")
    assert seqloom("translate", trained / "words").out == "\n\n"


def test_line_endings_are_removed(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in(b"the cat\r\n\r\na\rdog")
    sources = [one["source"] for one in seqloom("translate", trained / "words", "--json").objects]
    assert sources == ["the cat", "", "a\rdog"]


def test_byte_order_mark_is_removed(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in(b"\xef\xbb\xbfthe cat\nthe cat\n")
    first, second = seqloom("translate", trained / "words", "--json").objects
    assert first == second


def test_texts_are_read_from_the_command_line(seqloom: Any, trained: Path) -> None:
    shown = seqloom("translate", trained / "words", "the cat sat 3 .", "")
    (text, blank) = load(trained / "words", "cpu").translate(["the cat sat 3 .", ""])
    assert shown.out == f"{text.text}\n{blank.text}\n"


def test_json_output_has_candidates_and_alignments(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in("\n".join(LINES).encode())
    result = seqloom("translate", trained / "bytes", "--json", "--n-best", "3", "--alignment").objects
    expected = list(load(trained / "bytes", "cpu").translate(LINES, n_best=3, attention=True))
    for one, own in zip(result, expected, strict=True):
        assert (one["source"], one["translation"]) == (own.source, own.text)
        assert one["log_prob"] == pytest.approx(own.log_prob) and one["score"] == pytest.approx(own.score)
        assert [candidate["text"] for candidate in one["candidates"]] == [each.text for each in own.candidates]
        assert one["source_words"] == own.source_words and one["alignment"] == own.candidates[0].alignment
        assert one["words"] == one["candidates"][0]["words"]
        assert all(link < len(one["source_words"]) for link, _ in from_pharaoh(one["alignment"]))
    assert len(result[0]["candidates"]) == 3
    assert result[1] == {
        "source": "",
        "translation": "",
        "score": 0.0,
        "log_prob": 0.0,
        "candidates": [{"text": "", "score": 0.0, "log_prob": 0.0, "finished": True, "words": [], "alignment": ""}],
        "unknown": [],
        "source_words": [],
        "words": [],
        "alignment": "",
    }
    plain = seqloom("translate", trained / "bytes", "the cat", "--json").json
    assert "alignment" not in plain and set(plain["candidates"][0]) == {"text", "score", "log_prob", "finished"}


def test_n_best_list_has_moses_format(seqloom: Any, trained: Path) -> None:
    lines = lines_of(seqloom("translate", trained / "words", "the cat", "", "a dog", "--n-best", "2").out)
    assert [line.split(" ||| ")[0] for line in lines] == ["0", "0", "1", "2", "2"]
    scores = [float(line.split(" ||| ")[2]) for line in lines]
    assert scores[0] >= scores[1] and scores[2] == 0
    linked = lines_of(seqloom("translate", trained / "words", "the cat", "--n-best", "2", "--alignment").out)
    assert [line.rpartition(" ||| ")[0] for line in linked] == lines[:2]


def test_alignment_is_printed_after_a_tab(seqloom: Any, trained: Path) -> None:
    lines = lines_of(seqloom("translate", trained / "words", "the cat sat", "", "--alignment").out)
    plain = lines_of(seqloom("translate", trained / "words", "the cat sat", "").out)
    assert [line.split("\t")[0] for line in lines] == plain
    from_pharaoh(lines[0].split("\t")[1])
    assert lines[1] == "\t"


def test_search_options_are_passed_to_the_search(seqloom: Any, trained: Path) -> None:
    run = trained / "words"
    assert seqloom("translate", run, "the cat", "--prefix", "die Katze").out.startswith("die Katze")
    long = seqloom("translate", run, "the cat", "--min-length", "9", "--json", "--beam", "1").json
    assert len(load(run).tokenizer.encode(long["translation"])) >= 9
    for more in (["--stopping", "exact"], ["--coverage-penalty", "0.2"]):
        assert seqloom("translate", run, "the cat", *more).code == 0
    short = seqloom("translate", run, "the cat", "--max-length", "3", "--json", "--beam", "1").json
    assert len(short["translation"].split()) <= 3
    sums = seqloom("translate", run, "the cat", "--length-penalty", "0", "--json").json
    assert sums["score"] == pytest.approx(sums["log_prob"])
    seqloom("translate", run, "x", "--beam", "2", "--n-best", "3").fails_with(
        2, "--n-best must be at most --beam", lines=1
    )
    seqloom("translate", run, "x", "--length-penalty", "-1").fails_with(2, "--length-penalty", lines=1)


def test_unknown_words_are_noted_at_the_end(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in("the cat\nthe 猫\na dog\n猫\n".encode())
    shown = seqloom("translate", trained / "words", "--max-length", "1000")
    assert shown.code == 0 and len(lines_of(shown.out)) == 4
    assert "note: the vocabulary lacks parts of 2 lines; the first is line 2: '猫'\n" in shown.err
    type_in("the 猫\n".encode())
    assert "lacks parts" not in seqloom("translate", trained / "bytes").err


def test_truncated_translations_are_noted(seqloom: Any, trained: Path) -> None:
    shown = seqloom("translate", trained / "words", "", "the cat sat 3 .", "--max-length", "1", "--beam", "1")
    if lines_of(shown.out)[1]:
        assert "note: 1 line: the translation was truncated (--max-length); the first is line 2" in shown.err


def test_invalid_utf8_is_reported_after_previous_lines(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in(b"the cat\n\nna\xefve\nthe dog\n")
    shown = seqloom("translate", trained / "words")
    assert shown.code == 3
    assert shown.err.startswith("seqloom: The input must be UTF-8, but line 3 contains the byte 0xEF.")
    assert lines_of(shown.out) == [one.text for one in load(trained / "words", "cpu").translate(["the cat", ""])]
    bad = b"na\xefve".decode(errors="surrogateescape")
    seqloom("translate", trained / "words", "fine", bad).fails_with(3, "text 2", "UTF-8")
    seqloom("translate", trained / "words", "fine", "--prefix", bad).fails_with(3, "UTF-8")


def test_too_long_line_is_reported_after_previous_lines(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in(b"the cat\nthe cat sat a dog saw\nthe cat\n")
    shown = seqloom("translate", trained / "location")
    assert shown.code == 3 and len(lines_of(shown.out)) == 1
    assert shown.err.startswith("seqloom: Line 2 has 7 tokens")


def test_other_runs_are_rejected(seqloom: Any, trained: Path, runs: Path, type_in: Any) -> None:
    type_in(b"x\n")
    seqloom("translate", runs / "chars").fails_with(
        2, "is a language model", "`seqloom generate`", "needs a translator"
    )
    for command in ("generate", "score"):
        seqloom(command, trained / "words", *["x"] * (command == "score")).fails_with(
            2, "is a translator: use `seqloom translate`", lines=1
        )
    seqloom("translate", trained / "nowhere").fails_with(4, "is not a run", lines=1)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_typed_lines_are_translated_immediately(seqloom: Any, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = []
    plain = TranslatorPredictor.translate

    def watch(self: Any, lines: Any, **options: Any) -> Any:
        windows.append(options["window"])
        return plain(self, lines, **options)

    monkeypatch.setattr(TranslatorPredictor, "translate", watch)
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"the cat\n")))
    assert "Ctrl-D" in seqloom("translate", trained / "words").err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
    assert seqloom("translate", trained / "words", "--batch=3").err == ""
    assert windows == [1, 3 * WINDOW_BATCHES]


@pytest.fixture
def process(trained: Path) -> Any:
    """A process that translates line by line through pipes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "LC_ALL": "C"}
    environment.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, "-m", "seqloom", "translate", str(trained / "bytes"), "--window=1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd="/") as running:
        yield running
        running.kill()


def test_lines_are_streamed_until_interrupted(process: Any) -> None:
    for line in ("the cat sat 3 .\n", "\n", "naïve 猫\n"):
        process.stdin.write(line.encode())
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 60)[0], "no answer"
        answer = process.stdout.readline()
        assert answer.endswith(b"\n") and (answer == b"\n") == (line == "\n")
        answer.decode()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert b"Traceback" not in process.stderr.read()


def test_closed_output_pipe_prints_no_error(process: Any) -> None:
    process.stdin.write(b"the cat\n")
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.write(b"the cat\n" * 10)
    process.stdin.close()
    assert process.wait(60) != 0
    assert process.stderr.read() == b""


def test_line_with_too_many_tokens_is_rejected(
    seqloom: Any, trained: Path, type_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines before a long line are translated. Memory and time do not depend on the length of the long line."""
    type_in(b"the cat\n" + b"the cat " * 20_000 + b"\n")
    shown = seqloom("translate", trained / "bytes", "--window=1")
    assert (shown.code, shown.out.count("\n")) == (3, 1)
    assert "seqloom: Line 2 has " in shown.err and "the limit is 16,384" in shown.err
    monkeypatch.setenv("SEQLOOM_MAX_SOURCE", "3")
    seqloom("translate", trained / "words", "the cat sat").fails_with(3, "Line 1 has 4 tokens", "SEQLOOM_MAX_SOURCE=4")


def test_line_with_too_many_bytes_is_rejected(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in(b"a" * 1_000_001)
    seqloom("translate", trained / "words").fails_with(3, "Line 1 of the input is longer than 1,000,000 bytes")


def test_excessive_beam_size_is_rejected(seqloom: Any, trained: Path) -> None:
    seqloom("translate", trained / "words", "a dog", "--beam=1000000").fails_with(2, "--beam must be at most 1,000")
    seqloom("translate", trained / "words", "a dog", "--n-best=1000000").fails_with(2, "--beam must be at most 1,000")
