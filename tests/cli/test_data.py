import re
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import build
from seqloom.data import corpora
from seqloom.data.files import read_lines


@pytest.mark.parametrize("name", ["pydocs", "toys"])
def test_json_matches_python_api(seqloom: Any, name: str) -> None:
    result = seqloom("data", "show", name, "--json").json
    corpus = corpora.load(build(corpora.CorpusConfig[str], {"corpus": name}))
    assert result["corpus"] == name
    assert result["version"] == corpus.version
    assert result["licence"] == corpus.licence
    assert result["sha256"] == corpus.fingerprint()
    assert result["counts"] == {split: vars(corpus.counts(split)) for split in corpus.splits}
    assert result["absent"] == {}


def test_text_output_shows_counts_and_first_lines(seqloom: Any, texts: Path) -> None:
    settings = [f"{name}={texts / name}.txt" for name in ("train", "dev", "test")]
    shown = seqloom("data", "show", "text", *settings, "documents=line", "--lines=2")
    assert shown.code == 0 and shown.err == ""
    for name in ("train", "dev", "test"):
        lines = read_lines(texts / f"{name}.txt")
        (row,) = re.findall(rf"^{name} +([\d,]+) +([\d,]+) +([\d,]+)   [0-9a-f]{{12}}$", shown.out, re.MULTILINE)
        words = len(lines) + sum(len(line.split()) for line in lines)
        characters = len(lines) + sum(map(len, lines))
        assert row == (f"{len(lines):,}", f"{words:,}", f"{characters:,}")
        assert f"\n{name} begins:\n  {lines[0]}\n  {lines[1]}\n" in shown.out
        assert lines[2] not in shown.out.split(f"{name} begins:")[1].split("begins:")[0].splitlines()[3:]


def test_lines_option_limits_the_lines_shown(seqloom: Any) -> None:
    assert "begins" not in seqloom("data", "show", "toys", "--lines=0").out
    shown = seqloom("data", "show", "pydocs", "--lines=3").out
    assert len(shown.partition("dev begins:\n")[2].partition("\n\n")[0].splitlines()) <= 3
    seqloom("data", "show", "toys", "--lines=-1").fails_with(2, "--lines")


def test_overrides_are_applied(seqloom: Any) -> None:
    shown = seqloom("data", "show", "toys", "task=reverse", "train=9", "dev=2", "test=2", "--lines=1")
    memory, answer = shown.out.partition("train begins:\n  ")[2].partition("\n")[0].split("|")
    assert memory == answer[::-1]
    assert re.search(r"^train +9 ", shown.out, re.MULTILINE)


def test_error_for_an_absent_split_states_the_reason(
    seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare/input.txt").write_text("Speak, speak.\n" * 20)
    shown = seqloom("data", "show", "shakespeare", "--data-dir", tmp_path)
    assert shown.code == 0
    assert "test    absent: the last 10 % of the text is dev" in shown.out
    assert (
        "10 % of the text is dev"
        in seqloom("data", "show", "shakespeare", "--data-dir", tmp_path, "--json").json["absent"]["test"]
    )
    monkeypatch.setenv("SEQLOOM_DATA", str(tmp_path))
    assert seqloom("data", "show", "shakespeare").code == 0


def test_error_for_a_missing_data_set_names_its_source(
    seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQLOOM_DATA", raising=False)
    seqloom("data", "show", "ptb").fails_with(3, "SEQLOOM_DATA is not set", "--data-dir", "https://")
    seqloom("data", "show", "ptb", "--data-dir", tmp_path).fails_with(3, str(tmp_path / "ptb"), "https://")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "pydoc"], "did you mean pydocs?"),
        (["show", "toys", "max_lenght=3"], "did you mean max_length?"),
        (["show", "toys", "task=copi"], "did you mean copy?"),
        (["show", "text"], "train: missing"),
        (["show", "toys", "more"], "key.path=value"),
        (["shw"], "Did you mean 'show'?"),
    ],
)
def test_errors_for_unknown_names_have_suggestions(seqloom: Any, words: list[str], message: str) -> None:
    seqloom("data", *words).fails_with(2, message)


def test_control_characters_are_escaped(seqloom: Any, workdir: Path) -> None:
    lines = [f"{n}\x1b[2J a\u202eb\tc\n" for n in range(9)]
    (workdir / "a.txt").write_text("".join(lines))
    (workdir / "a.tsv").write_text("".join(line.replace("\t", f"\t{n} ") for n, line in enumerate(lines)))
    (workdir / "b.tsv").write_text("text\tlabel\n" + "".join(f"{n} \x1bwords\tno\x07{n % 2}\n" for n in range(18)))
    for corpus, train in {"text": "a.txt", "parallel": "a.tsv", "table": "b.tsv"}.items():
        shown = seqloom("data", "show", corpus, f"train={train}", "dev_fraction=0.2", "test_fraction=0.2")
        assert shown.code == 0, shown.err
        assert "\\x1b" in shown.out and not set("\x1b\x07\u202e") & set(shown.out)
