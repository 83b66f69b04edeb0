"""Glossaries: files, the terms of a line, and occurrences of terms."""

import random
import re
import time
from pathlib import Path

import pytest

from seqloom.core.errors import DataError, UsageError
from seqloom.data.glossary import Glossary, Term, open_glossary, read_glossary

ROWS = [("cat", "Katze|Katzen"), ("New York", "New York"), ("York", "Yorck"), ("US", "USA"), ("c++", "C++")]


def sources(glossary: Glossary, line: str) -> list[str | None]:
    return [term.source for term in glossary.find(line)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("The Cat, the CAT and a cat.", ["cat"]),  # a term in lowercase matches any case
        ("us and the US", ["US"]),  # a term with capitals matches only itself
        ("USA, Us, cats, concat, cat_1, cat2", []),  # the matches are not whole words
        ("York and New York", ["York", "New York"]),
        ("New York", ["New York"]),  # the longest term, without the terms within it
        ("new York", ["York"]),
        ("I like C++, not c++11", ["c++"]),
        ("New\tYork  cat-flap", ["New York", "cat"]),
        ("", []),
    ],
)
def test_terms_are_found_in_a_line(line: str, expected: list[str]) -> None:
    assert sources(Glossary(ROWS), line) == expected


def test_scripts_without_spaces_have_no_word_boundaries() -> None:
    glossary = Glossary([("猫", "cat"), ("黒猫", "black cat"), ("USB", "USB")])
    assert sources(glossary, "私の黒猫と猫です") == ["黒猫", "猫"]
    assert sources(glossary, "このUSBは") == ["USB"]


def test_equal_unicode_spellings_match() -> None:
    assert sources(Glossary([("caf\u00e9", "Kaffeehaus")]), "a cafe\u0301 !") == ["café"]
    assert Term(("caf\u00e9",)).occurs_in("le cafe\u0301.")


def test_repeated_rows_are_alternatives() -> None:
    glossary = Glossary([("cat", "Katze"), ("cat|kitty", "Mieze|Katze")])
    assert glossary.terms["cat"].forms == ("Katze", "Mieze")
    assert glossary.terms["kitty"].forms == ("Mieze", "Katze")
    assert Glossary({"cat": ["Katze", "Mieze"]}).terms["cat"] == glossary.terms["cat"]


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("Eine Katze.", True),
        ("Katzen", True),
        ("Katzenklo", False),
        ("katze", False),
        ("Der Hund bellt", True),  # a capital letter at the start
        ("Und Der Hund bellt", False),
        ("Und der  Hund bellt", True),
        ("der Hunde", False),
    ],
)
def test_occurrences_are_whole_words(text: str, is_there: bool) -> None:
    assert Term(("Katze", "Katzen", "der Hund")).occurs_in(text) is is_there


def test_occurrences_match_those_of_regular_expressions() -> None:
    """Compare with a regular expression that lists all terms, the longest first."""
    draw = random.Random(3)
    words = ["".join(draw.choices("abc", k=draw.randint(1, 4))) for _ in range(40)]
    terms = {*words, *(f"{draw.choice(words)} {draw.choice(words)}" for _ in range(40))}
    glossary = Glossary([(term, term.upper()) for term in terms])
    ordered = sorted(terms, key=len, reverse=True)
    pattern = re.compile(rf"\b({'|'.join(ordered)})\b")
    for _ in range(300):
        line = " ".join(draw.choices([*words, "x", "aaaaa"], k=8))
        assert sources(glossary, line) == list(dict.fromkeys(pattern.findall(line)))


def test_ten_thousand_terms_are_found_quickly() -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(3, 9))) for _ in range(10_000)]
    start = time.perf_counter()
    glossary = Glossary([(word, word.upper()) for word in words])
    lines = [" ".join(draw.choices(words, k=20)) for _ in range(500)]
    assert sum(len(glossary.find(line)) for line in lines) > 9_900
    assert time.perf_counter() - start < 5  # searching for every term in every line would take minutes


# --- files ------------------------------------------------------------------------------------------------------------

TMX = """<?xml version="1.0"?><tmx version="1.4"><header srclang="en-US"/><body>
<tu><tuv xml:lang="de"><seg>Katze</seg></tuv><tuv xml:lang="en-US"><seg>cat</seg></tuv></tu></body></tmx>"""
FILES = {
    "plain.tsv": "cat\tKatze\tan animal\n\nsea\tMeer\n",
    "none": "cat\tKatze\nsea\tMeer\n",
    "header.tsv": "source\ttarget\ncat\tKatze\nsea\tMeer\n",
    "languages.tsv": "de\tnote\ten\nKatze\t-\tcat\nMeer\t-\tsea\n",
    "plain.csv": 'cat,Katze\n"sea",Meer\n',
    "german.csv": "en;de\ncat;Katze\nsea;Meer\n",
    "lines.jsonl": '{"source": "cat", "target": "Katze"}\n{"source": "sea", "target": "Meer"}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_files_give_the_same_glossary(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    glossary = read_glossary(tmp_path / name, ("en", "de"))
    assert {source: term.forms for source, term in glossary.terms.items()} == {"cat": ("Katze",), "sea": ("Meer",)}


def test_short_words_in_the_first_row_are_not_read_as_a_header(tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("sea\tmer\n")  # both look like language tags
    assert sources(read_glossary(tmp_path / "terms.tsv", ("en", "fr")), "the sea") == ["sea"]


def test_translation_memory_is_read_by_language(tmp_path: Path) -> None:
    (tmp_path / "terms.tmx").write_text(TMX)
    for languages in (("en", "de"), ("", "")):
        assert open_glossary(tmp_path / "terms.tmx", languages).terms["cat"].forms == ("Katze",)
    assert open_glossary(tmp_path / "terms.tmx", ("de", "en")).terms["Katze"].forms == ("cat",)


def test_other_encodings_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "terms.csv").write_bytes("door,Tür\nbook,Bücher für alle Übungen\n".encode("cp1252"))
    assert read_glossary(tmp_path / "terms.csv").terms["door"].forms == ("Tür",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "cat\n", "must have two columns, a source term and a target term, but has one: 'cat'"),
        ("a.csv", "cat\ndog\n", "must have two columns"),
        ("a.tsv", "cat\tKatze\ndog\n", "Line 2 of"),
        ("a.tsv", "cat\tKatze\n \tHund\n", "Line 2 of {path}: A source term must be one or more words"),
        ("a.tsv", "cat\tKatze||Mieze\n", "it has an empty alternative: 'Katze||Mieze'"),
        ("a.tsv", "cat\t\n", "A target term must be one or more words, with alternatives separated by |; it is empty"),
        ("a.tsv", "\n", "it is empty"),
        ("a.tsv", "\t\n", "it is empty"),
    ],
)
def test_invalid_files_are_reported(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(message.format(path=path))):
        read_glossary(path)


def test_missing_file_and_empty_terms_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_glossary(tmp_path / "terms.tsv")
    with pytest.raises(UsageError, match="A term must be one or more words"):
        Term.parse(" ")
    with pytest.raises(UsageError, match="A source term"):
        open_glossary({"": "x"})
