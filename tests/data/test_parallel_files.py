"""Sentence pairs in files of the user: formats, splits, errors."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import apply_overrides, build, parse_overrides
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora.parallel import Config
from seqloom.data.corpus import Corpus
from seqloom.data.examples import ParallelExample

NONE = {"dev_fraction": 0.0, "test_fraction": 0.0}


def load(**settings: Any) -> Corpus[ParallelExample]:
    return corpora.load(build(corpora.CorpusConfig[ParallelExample], {"corpus": "parallel", **settings}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for language, word in {"en": "line", "de": "Zeile"}.items():
        (tmp_path / f"a.{language}").write_text("".join(f"{word} {n}\n" for n in range(40)))
    return tmp_path


def table(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def test_two_files_are_read_as_pairs(folder: Path) -> None:
    corpus = load(train=["a.en", "a.de"])
    assert {name: len(pairs) for name, pairs in corpus.splits.items()} == {"train": 36, "dev": 2, "test": 2}
    pairs = [pair for pairs in corpus.splits.values() for pair in pairs]
    assert {(pair.source, pair.target) for pair in pairs} == {(f"line {n}", f"Zeile {n}") for n in range(40)}
    assert (*corpus.languages, corpus.notes) == ("en", "de", ())


def test_corpus_can_be_set_by_overrides(folder: Path) -> None:
    overrides = parse_overrides(["corpus=parallel", "train=[a.en,a.de]", "dev_fraction=0.1"])
    assert build(corpora.CorpusConfig[ParallelExample], apply_overrides({}, overrides)) == Config(
        train=("a.en", "a.de"), dev_fraction=0.1
    )


@pytest.mark.parametrize("name", ["p.tsv", "p.txt.gz"])
def test_pairs_are_read_from_a_table(folder: Path, name: str) -> None:
    path = table(folder / name, 'Hi "you"\tSalut\tby me\nGo\tVa\n')
    assert load(train=path, **NONE).split("train") == [
        ParallelExample('Hi "you"', "Salut"),
        ParallelExample("Go", "Va"),
    ]
    assert load(train=path, columns=[2, 1], **NONE).split("train")[1] == ParallelExample("Va", "Go")


def test_columns_are_selected_by_name(folder: Path) -> None:
    path = table(folder / "p.tsv", "id\tde\ten\n1\tHallo\tHello\n2\tGeh\tGo\n")
    corpus = load(train=path, columns=["en", "de"], **NONE)
    assert corpus.split("train") == [ParallelExample("Hello", "Hallo"), ParallelExample("Go", "Geh")]
    assert corpus.languages == ("en", "de")
    with pytest.raises(DataError, match=r"'fr', but has \['id', 'de', 'en'\]"):
        load(train=path, columns=["en", "fr"])


def test_text_within_the_line_width_is_unchanged(folder: Path) -> None:
    odd = ["e\u0301\u0323 combined", "\u200fשלום\u202b bidi", "one\u2028line", "a\x85b\x0bc", "👩‍👩‍👧 \ufeff"]
    (folder / "x.en").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(odd).encode() + b"\r\n")
    (folder / "x.he").write_text("\n".join(odd))
    assert load(train=["x.en", "x.he"], **NONE).split("train") == [ParallelExample(text, text) for text in odd]


def test_surrounding_white_space_is_removed(folder: Path) -> None:
    path = table(folder / "p.tsv", "  a b \t c  \n")
    assert load(train=path, **NONE).split("train") == [ParallelExample("a b", "c")]


def test_different_lengths_are_rejected_with_both_counts(folder: Path) -> None:
    (folder / "b.de").write_text("Zeile\n" * 1234)
    with pytest.raises(DataError, match=r"a.en has 40 and b.de has 1,234"):
        load(train=["a.en", "b.de"])


def test_pairs_with_blank_side_are_left_out_and_counted(folder: Path) -> None:
    path = table(folder / "p.tsv", "a\tb\n\tb\nc\td\n \u3000\t\n\ne\tf\n")
    corpus = load(train=path, **NONE)
    assert corpus.split("train") == [ParallelExample("a", "b"), ParallelExample("c", "d"), ParallelExample("e", "f")]
    assert corpus.notes == (f"3 examples have a blank side and were left out, the first at line 2 of {path}",)
    (folder / "b.de").write_text("Zeile\n" * 39 + " \n")
    assert load(train=["a.en", "b.de"]).notes == (
        "1 example has a blank side and was left out, at line 40 of a.en and b.de",
    )
    (folder / "c.de").write_text("x" + "\n" * 39 + "\n")
    (folder / "c.en").write_text("\n" * 39 + "x\n")
    with pytest.raises(DataError, match=r"c.en and c.de must contain sentence pairs, but every line has a blank side"):
        load(train=["c.en", "c.de"])


def test_header_without_rows_is_rejected(folder: Path) -> None:
    path = table(folder / "p.tsv", "en\tde\n")
    with pytest.raises(DataError, match="must contain sentence pairs, but it has no rows below the header"):
        load(train=path, columns=["en", "de"])


def test_line_numbers_in_notes_include_the_header(folder: Path) -> None:
    path = table(folder / "p.tsv", "en\tde\nx\t\na\tb\n")
    assert "line 2 of" in load(train=path, columns=["en", "de"], **NONE).notes[0]


@pytest.mark.parametrize(
    ("columns", "text", "message"),
    [
        ([1, 2], "a\tb\nc d e\n", r"Line 2 of .*p.tsv must have at least 2 columns.*no tab: 'c d e'"),
        ([1, 3], "a\tb\tc\na\tb\n", r"Line 2 of .*at least 3 columns separated by tabs, but has 2 columns"),
        (["en", "de"], "en\tde\na\n", r"Line 2 of"),
    ],
)
def test_missing_column_is_reported_with_line(folder: Path, columns: Any, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(train=table(folder / "p.tsv", text), columns=columns)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"caf\xe9\n", "must be UTF-8, but line 1"),
        (b"\xff\xfea\0", "UTF-16"),
        (b"a\0b", "NUL"),
    ],
)
def test_unreadable_files_are_rejected(folder: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (folder / "b.de").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(train=["a.en", "b.de"])


def test_no_source_sentence_is_in_two_splits(folder: Path) -> None:
    path = table(folder / "p.tsv", "".join(f"line {n % 10}\tZeile {n}\n" for n in range(100)))
    splits = load(train=path).splits
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 80, "dev": 10, "test": 10}
    assert len({name: {pair.source for pair in pairs} for name, pairs in splits.items()}["dev"]) == 1


def test_given_splits_are_kept_and_repetitions_noted(folder: Path) -> None:
    dev = table(folder / "d.tsv", "line 1\tx\nline 2\ty\nother\tz\n")
    corpus = load(train=["a.en", "a.de"], dev=dev, test_fraction=0.0)
    assert len(corpus.split("train")) == 40 and len(corpus.split("dev")) == 3
    assert corpus.notes == ("2 of the 3 different source sentences of dev also occur in train",)
    with pytest.raises(DataError, match=r"no test split: data.test_fraction is 0"):
        corpus.split("test")


def test_too_few_pairs_are_rejected(folder: Path) -> None:
    path = table(folder / "p.tsv", "a\tb\na\tc\nd\te\n")
    with pytest.raises(DataError, match=r"only 2 different examples.\n.*data.dev, data.test") as caught:
        load(train=path)
    message = f"{path} is too short: dev and test need at least one example from it, but it has"
    assert str(caught.value).startswith(message)
    with pytest.raises(DataError, match=r": dev needs .* it has only 1 different example\.\n.*data.dev\."):
        load(train=table(folder / "q.tsv", "a\tb\n"), test_fraction=0.0)
    assert len(load(train=path, test_fraction=0.0).split("train")) >= 1


def test_overlapping_or_swapped_files_are_rejected(folder: Path) -> None:
    for name in ("b.en", "d.de", "d.en"):
        (folder / name).touch()
    with pytest.raises(DataError, match=r"data.train and data.dev must not overlap, but both read a.de"):
        load(train=["a.en", "a.de"], dev=["b.en", "a.de"])
    with pytest.raises(DataError, match=r"data.train goes from en to de, but data.dev goes from de to en"):
        load(train=["a.en", "a.de"], dev=["d.de", "d.en"])


@pytest.mark.parametrize(
    ("files", "guess"),
    [
        (["x.en", "x.pt-BR"], ("en", "pt-BR")),
        (["x.en.gz", "x.hu.txt"], ("en", "hu")),
        (["x.en", "x.txt"], ("", "")),
        (["en", "de"], ("", "")),
        (["x.src", "x.tgt"], ("", "")),
        (["1.en", "2.en"], ("", "")),
    ],
)
def test_languages_are_inferred_from_file_names(folder: Path, files: list[str], guess: tuple[str, str]) -> None:
    for file in files:
        table(folder / file, "one\ntwo\nthree\n")
    corpus = load(train=files)
    assert corpus.languages == guess
    assert load(train=files, target="xx").languages[1] == "xx"


def test_located_files_are_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes/b.de").write_text("x\n" * 40)
    located = Config(train=("a.en", "b.de")).locate(folder / "recipes")
    assert located.train == (str(folder / "a.en"), str(folder / "recipes/b.de"))
    monkeypatch.chdir("/")
    assert len(corpora.load(located).split("train")) == 36


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train": ["a", "a"]}, "two different files; got a twice"),
        ({"train": ["a"]}, r"train: .*list of 2"),
        ({"train": ["a", "b", "c"]}, r"train"),
        ({"train": "a", "columns": [0, 1]}, "start at 1"),
        ({"train": "a", "columns": [2, 2]}, "2 twice"),
        ({"train": "a", "columns": ["en", 1]}, "columns"),
        ({"train": "a", "dev_fraction": 0.6, "test_fraction": 0.4}, "must be less than 1"),
        ({}, "train: missing"),
    ],
)
def test_invalid_settings_are_rejected(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(corpora.CorpusConfig[ParallelExample], {"corpus": "parallel", **setting})
