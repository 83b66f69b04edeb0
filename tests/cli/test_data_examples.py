"""Tests of `seqloom data show` with labelled texts and tagged sentences."""

import re
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import build
from seqloom.data import corpora
from seqloom.data.examples import TextClassificationExample, TokenClassificationExample, tag_counts

pytest.importorskip("faker")
SMALL = ["train=240", "dev=48", "test=48"]


def test_text_output_shows_label_frequencies_and_examples(seqloom: Any) -> None:
    shown = seqloom("data", "show", "names", *SMALL, "--lines=2")
    assert shown.code == 0 and shown.err == ""
    assert re.search(r"^split +examples +labels +words +characters +new words   sha256$", shown.out, re.MULTILINE)
    assert re.search(r"^train +240 +24 .* 0\.0%   [0-9a-f]{12}$", shown.out, re.MULTILINE)
    assert re.search(r"^labels: Croatian 4\.2%, Czech 4\.2%", shown.out, re.MULTILINE)
    assert re.search(r"\ntest begins:\n  Croatian: .+\n  Czech: .+\n$", shown.out)


def test_text_output_shows_span_frequencies_and_brackets(seqloom: Any) -> None:
    shown = seqloom("data", "show", "people", *SMALL, "--lines=40").out
    assert re.search(r"^spans:  (PER|LOC) \d+\.\d%, (PER|LOC) \d+\.\d%$", shown, re.MULTILINE)
    assert re.search(r"\[[^\]]+ PER\]", shown) and re.search(r"\[[^\]]+ LOC\]", shown)


def test_text_output_shows_tag_frequencies_and_tagged_words(seqloom: Any, tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(
        "".join(f"{n}\tw{n}\t_\t{t}\t_\t_\t0\t_\t_\t_\n" for n, t in ((1, "X"), (2, "Y")))
    )
    words = ["data", "show", "conll", f"train={tmp_path / 'a.conllu'}", "dev_fraction=0", "test_fraction=0"]
    shown = seqloom(*words).out
    assert "  w1/X w2/Y\n" in shown and "tags:   X 50.0%, Y 50.0%" in shown
    assert "dev     absent: data.dev_fraction is 0" in shown


@pytest.mark.parametrize("name", ["names", "people"])
def test_json_matches_python_api(seqloom: Any, name: str) -> None:
    result = seqloom("data", "show", name, *SMALL, "--json").json
    settings = {"corpus": name, "train": 240, "dev": 48, "test": 48}
    corpus: Any
    if name == "names":
        corpus = corpora.load(build(corpora.CorpusConfig[TextClassificationExample], settings))
        assert result["labels"] == list(corpus.labels)
        assert result["counts"]["dev"]["labels_of"] == corpus.label_counts("dev")
    else:
        corpus = corpora.load(build(corpora.CorpusConfig[TokenClassificationExample], settings))
        assert result["tags"] == list(corpus.labels)
        assert result["counts"]["dev"]["tags_of"] == tag_counts(corpus, "dev")
    assert result["sha256"] == corpus.fingerprint()
    assert result["counts"]["test"]["new_words"] == corpus.new_words("test")
    assert result["notes"] == list(corpus.notes) and result["absent"] == {}


def test_omitted_rows_are_noted_and_invalid_columns_rejected(seqloom: Any, tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("review,stars\n" + "".join(f"fine {n},{n % 2}\n" for n in range(40)) + ",1\n")
    show = ["data", "show", "table", f"train={path}"]
    seqloom(*show).fails_with(3, "must name the column 'text'", "['review', 'stars']", "set data.text")
    shown = seqloom(*show, "text=review", "label=stars").out
    assert "note: 1 example has no text and was left out, at line 42 of" in shown
    seqloom(*show, "text=review", "label=stars", "header=false").fails_with(2, "column numbers", lines=3)
    path.write_text("text,label\na,x\nb,x\n")
    seqloom(*show, "dev_fraction=0", "test_fraction=0").fails_with(3, "at least two labels")


def test_long_text_is_shortened(seqloom: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(f'{{"text": "{"long " * 9000}{n}\\nline", "label": {n}}}' for n in range(2)))
    shown = seqloom("data", "show", "table", f"train={path}", "dev_fraction=0", "test_fraction=0").out
    assert max(map(len, shown.splitlines())) < 250 and "…" in shown
