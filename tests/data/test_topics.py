"""The corpus topics: paragraphs of the Python reference with their sections."""

from collections import Counter
from pydoc_data.topics import topics as sections

import pytest

from seqloom.core.errors import DataError
from seqloom.data.corpora import topics
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.splits import normal_form


@pytest.fixture(scope="module")
def corpus() -> Corpus[TextClassificationExample]:
    return topics.load(topics.Config())


def test_every_paragraph_is_part_of_its_section(corpus: Corpus[TextClassificationExample]) -> None:
    whole = {name: " ".join(text.split()) for name, text in sections.items()}
    examples = [example for split in corpus.splits.values() for example in split]
    assert len(examples) > 500
    for example in examples:
        assert example.text in whole[example.label]
        assert "\n" not in example.text and len(example.text.split()) >= topics.MIN_WORDS
    counts = Counter(normal_form(example.text) for example in examples)
    assert max(counts.values()) == 1  # no paragraph has two topics or occurs in two splits


def test_every_topic_occurs_in_every_split(corpus: Corpus[TextClassificationExample]) -> None:
    labels = [set(corpus.label_counts(split)) for split in ("train", "dev", "test")]
    assert labels[0] == labels[1] == labels[2] and len(labels[0]) >= 10
    total = Counter(example.label for split in corpus.splits.values() for example in split)
    assert min(total.values()) >= 18
    for split, fraction in topics.HELD_OUT.items():
        assert len(corpus.split(split)) == pytest.approx(fraction * sum(total.values()), abs=len(total))


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("The global statement lists identifiers that name variables of the module, not of the function itself.", True),
        ("The global statement lists names.", False),
        ("global_stmt ::= 'global' identifier ( ',' identifier ) * x = [1] y = (2) z = 3 + 4 a b c d e f g h", False),
    ],
)
def test_code_and_short_paragraphs_are_no_prose(paragraph: str, expected: bool) -> None:
    assert topics.is_prose(paragraph) is expected


def test_too_few_sections_are_an_error() -> None:
    with pytest.raises(DataError, match=r"needs two sections with at least 5000 paragraphs. Lower data.min_paragraphs"):
        topics.load(topics.Config(min_paragraphs=5000))
