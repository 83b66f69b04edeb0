"""Tagged sentences in CoNLL and CoNLL-U files: columns, tag schemes, repairs, errors."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.core.iob import Scheme, Span, extract_spans, write_tags
from seqloom.data import corpora
from seqloom.data.corpora.conll import Sentence, find_scheme, parse_tags, read_conll, read_conllu
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TokenClassificationExample, has_spans

NONE = {"dev_fraction": 0.0, "test_fraction": 0.0}


def load(path: Path, **settings: Any) -> Corpus[TokenClassificationExample]:
    return corpora.load(
        build(
            corpora.CorpusConfig[TokenClassificationExample],
            {"corpus": "conll", "train": str(path), **NONE, **settings},
        )
    )


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("gap", [" ", "\t", "  "])
def test_two_columns_are_read(tmp_path: Path, gap: str) -> None:
    text = f"-DOCSTART-{gap}O\n\nAnn{gap}B-PER\nran{gap}O\n\n\n# a comment about it\n#{gap}O\nBob{gap}B-PER\n"
    corpus = load(write(tmp_path / "a.txt", text))
    assert corpus.split("train") == [
        TokenClassificationExample.of(["Ann", "ran"], ["B-PER", "O"]),
        TokenClassificationExample.of(["#", "Bob"], ["O", "B-PER"]),
    ]
    assert corpus.split("train")[0].text == "Ann ran"


def test_columns_are_selected_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll.gz", "1 Ann NNP B-PER\n2 ran VBD O\n")
    assert load(path, columns=[2, -1]).split("train")[0].tags == ("B-PER", "O")
    assert load(path, columns=[2, 3]).split("train")[0].tags == ("NNP", "VBD")
    assert not has_spans(load(path, columns=[2, 3]))


CONLLU = """# sent_id = 1
# text = I don't  know du.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tknow\tknow\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tthat\tthat\tPRON\tDT\t_\t_\t_\t_\t_
5-6\tdu\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
5\tde\tde\tADP\tIN\t_\t4\tcase\t_\t_
6\tle\tle\tDET\tDT\t_\t4\tdet\t_\t_
7\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
2\t!\t!\tPUNCT\t.\t_\t1\tpunct\t_\t_

"""


def test_conllu_words_have_spans(tmp_path: Path) -> None:
    first, second = load(write(tmp_path / "a.conllu", CONLLU)).split("train")
    assert first.words == ("I", "do", "n't", "know", "de", "le", ".")
    assert first.tags == ("PRON", "AUX", "PART", "VERB", "ADP", "DET", "PUNCT")
    assert first.text == "I don't  know du."
    assert [first.text[start:end] for start, end in first.spans] == ["I", "do", "n't", "know", "du", "du", "."]
    assert (second.text, second.spans) == ("Go!", ((0, 2), (2, 3)))
    assert load(tmp_path / "a.conllu", field="xpos").split("train")[1].tags == ("VB", ".")


def test_format_of_compressed_files_is_known_from_the_name(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    expected = load(write(tmp_path / "a.conllu", CONLLU)).split("train")
    (tmp_path / "a.conllu.zst").write_bytes(zstandard.ZstdCompressor().compress(CONLLU.encode()))
    for path in (write(tmp_path / "a.conllu.gz", CONLLU), tmp_path / "a.conllu.zst"):
        assert load(path).split("train") == expected


def test_mismatched_text_is_rebuilt_from_words(tmp_path: Path) -> None:
    first, _ = load(write(tmp_path / "a.conllu", CONLLU.replace("know du.", "no du."))).split("train")
    assert first.text == "I don't know du."
    assert [first.text[start:end] for start, end in first.spans] == ["I", "do", "n't", "know", "du", "du", "."]


def test_conllu_word_may_contain_space(tmp_path: Path) -> None:
    text = "1\t10 000\t_\tNUM\t_\t_\t0\troot\t_\t_\n2\tfois\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
    assert load(write(tmp_path / "a.conllu", text)).split("train")[0].spans == ((0, 6), (7, 11))


# --- schemes ----------------------------------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.sampled_from("XY"), st.integers(0, 2), st.integers(1, 3)), max_size=4)


def place_spans(spans: list[tuple[str, int, int]]) -> tuple[list[Span], int]:
    placed, end = [], 0
    for kind, gap, length in spans:
        placed.append(Span(kind, end + gap, end + gap + length))
        end += gap + length
    return placed, end + 1


@given(st.lists(spans, min_size=1, max_size=5), st.sampled_from(["IOB1", "IOB2", "BIOES"]))
def test_all_schemes_give_the_same_tags(sentences: list[list[tuple[str, int, int]]], scheme: Scheme) -> None:
    expected = [place_spans(sentence) for sentence in sentences]
    encoded = []
    for sentence_spans, length in expected:
        tags = write_tags(sentence_spans, length, scheme)
        encoded.append(Sentence(list(range(1, length + 1)), ["w"] * length, tags))
    parsed, notes = parse_tags(encoded, scheme, "refuse", "x")
    assert not notes
    assert [extract_spans(sentence.tags) for sentence in parsed] == [sentence_spans for sentence_spans, _ in expected]
    assert all(tag[0] in "BIO" for sentence in parsed for tag in sentence.tags)


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O B-X I-X O", "IOB2"),
        ("O I-X I-X O", "IOB1"),
        ("O B-X E-X S-Y O", "BIOES"),
        ("O B-X L-X U-Y O", "BIOES"),
        ("NOUN VERB", None),
        ("O NOUN", None),
    ],
)
def test_scheme_is_detected(tags: str, scheme: Scheme | None) -> None:
    sentence = Sentence([1, 2, 3, 4, 5], list("abcde"), tags.split())
    assert find_scheme("auto", [sentence]) == scheme
    assert find_scheme("plain", [sentence]) is None


def test_bilou_is_converted_to_iob2(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a B-X\nb I-X\nc L-X\nd O\ne U-Y\n")
    assert load(path).split("train")[0].tags == ("B-X", "I-X", "I-X", "O", "B-Y")


def test_invalid_tags_are_repaired_and_counted_or_rejected(tmp_path: Path) -> None:
    good = "a B-X\nb I-X\nc O\n\n" * 5
    path = write(tmp_path / "a.txt", good + "a O\nb I-X\nc I-Y\nd B-Y\n")
    corpus = load(path)
    assert corpus.split("train")[-1].tags == ("O", "B-X", "B-Y", "B-Y")
    assert corpus.notes == (f"2 tags were not valid IOB2 and repaired, the first at line 22 of {path}: I-X became B-X",)
    with pytest.raises(
        DataError, match=r"Line 22 of .*a.txt has I-X after O before I-Y.*not valid IOB2.*invalid=repair"
    ):
        load(path, invalid="refuse")
    dev = write(tmp_path / "dev.txt", "a O\nb I-X\n")  # dev could be IOB1 or IOB2, so the scheme of train is used
    note = f"1 tag was not valid IOB2 and repaired, at line 2 of {dev}: I-X became B-X"
    assert load(path, dev=str(dev)).notes[1] == note
    single = write(tmp_path / "single.txt", "a O\nb S-X\n\n" * 5 + "a B-X\nb O\n")
    assert load(single).notes == (f"1 tag was not valid BIOES and repaired, at line 16 of {single}: B-X",)
    assert load(path, scheme="plain").split("train")[-1].tags == ("O", "I-X", "I-Y", "B-Y")


# --- splits -----------------------------------------------------------------------------------------------------------


def test_equal_sentences_are_held_out_together(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "".join(f"w{n % 40} A\nx B\n\n" for n in range(80)))
    corpus = load(path, dev_fraction=0.1, test_fraction=0.2)
    words = [{sentence.words for sentence in sentences} for sentences in corpus.splits.values()]
    assert sum(map(len, words)) == len(set.union(*words)) == 40
    assert [len(sentences) for sentences in corpus.splits.values()] == [56, 8, 16]


def test_separate_files_for_splits_must_not_overlap(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "a.txt", "a X\nb Y\n\nc X\n"), write(tmp_path / "d.txt", "a X\nb Y\n\ne Z\n")
    corpus = load(train, dev=str(dev))
    assert corpus.notes == (
        "1 of the 2 different sentences of dev also occur in train",
        "1 dev word has a tag not in train (Z): it counts as wrong",
    )
    with pytest.raises(DataError, match="must not overlap"):
        load(train, test=str(train))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "a X\nb Y\nc\n", r"Line 3 of .*a.txt must have 2 columns, like line 1, but has 1 column: 'c'"),
        ("a.txt", "a\tX\nb c\tY\nd e Z\n", r"Line 3 of .* must have 2 columns, like line 1, but has 1 column"),
        ("a.txt", "a 1 X\nb Y\n", r"Line 2 of .* must have 3 columns, like line 1, but has 2 columns: 'b Y'"),
        ("a.txt", "a\tX\n\tY\n", r"Line 2 of .* must have a word and a tag; one is blank"),
        ("a.txt", "a\tX\n\u3000\tY\n", r"Line 2 of .* must have a word and a tag; one is blank"),
        ("a.txt", "a B-X\nb O\nc BX\n", r"Line 3 of .* must have a span tag such as B-PER, or O, but has 'BX'"),
        ("a.txt", "a B-\nb O\nc B-X\n", r"Line 1 of .* but has 'B-'"),
        ("a.txt", "# only a comment\n", "must contain sentences"),
        ("a.txt", " \n", "is empty"),
        ("a.txt", "a O\nb O\n", "at least two tags"),
        ("a.conllu", "1\ta\ta\tX\n", r"Line 1 of .* must have the 10 tab-separated columns of CoNLL-U, but has 4"),
        ("a.conllu", CONLLU.replace("\n4\tknow", "\nfour\tknow"), "Line 7 of .* must start with a word number"),
        ("a.conllu", CONLLU.replace("\tVERB\t", "\t\t", 1), "Line 7 of .* must have a form and its upos"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        load(write(tmp_path / name, text))
    assert "\n" not in str(error.value)


def test_missing_column_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Line 1 of .* must have the columns 1 and 4 of data.columns"):
        load(write(tmp_path / "a.txt", "a X\n"), columns=[1, 4])
    with pytest.raises(DataError, match="columns -3 and -1"):
        load(tmp_path / "a.txt", columns=[-3, -1])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"columns": [0, 1]}, "start at 1"),
        ({"columns": [2, 2]}, "columns must be different"),
        ({"scheme": "IOB"}, "did you mean IOB1|scheme"),
        ({"field": "pos"}, "upos"),
        ({"dev_fraction": -0.1}, "at least 0"),
    ],
)
def test_invalid_settings_are_rejected(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(corpora.CorpusConfig[TokenClassificationExample], {"corpus": "conll", "train": "a.txt", **setting})


def test_readers_return_line_numbers(tmp_path: Path) -> None:
    sentences = read_conll(write(tmp_path / "a.txt", "x Y\n\n\nz Y"))
    assert [(s.lines, s.words) for s in sentences] == [([1], ["x"]), ([4], ["z"])]
    assert [s.lines for s in read_conllu(write(tmp_path / "b.conllu", CONLLU))] == [[3, 5, 6, 7, 10, 11, 12], [14, 15]]
