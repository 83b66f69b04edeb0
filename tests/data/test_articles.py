"""WikiText-2 is split into articles. An article ends before the next title."""

import os

import pytest

from seqloom.data.corpora.wikitext2 import Config, articles, load

LINES = [
    *(" ", " = First = ", " ", " One . ", " Two . ", " ", " = = Section = = ", " ", " Three . "),
    *(" ", " = x = y = ", " "),  # a formula, not a title
    *(" = no title = ", " since a line of text follows "),
    *(" ", " = Second ( song ) = ", " ", " Four . "),
]


def test_articles_start_with_titles() -> None:
    first, second = articles(LINES)
    assert first.startswith("= First = \n \n One . ") and first.endswith("since a line of text follows")
    assert " = = Section = = \n \n Three . \n \n = x = y = " in first
    assert second == "= Second ( song ) = \n \n Four ."


def test_text_before_first_title_is_kept() -> None:
    assert list(articles([" Before . ", " ", " = Title = ", " ", " After . "])) == [
        "Before .",
        "= Title = \n \n After .",
    ]
    assert list(articles([" ", ""])) == []


@pytest.mark.skipif("SEQLOOM_DATA" not in os.environ, reason="needs the data sets (SEQLOOM_DATA)")
def test_sizes_match_published_sizes() -> None:
    corpus = load(Config(documents="article"))
    assert {split: len(documents) for split, documents in corpus.splits.items()} == {
        "train": 600,
        "dev": 60,
        "test": 60,
    }
