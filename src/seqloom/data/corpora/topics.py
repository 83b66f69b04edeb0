"""Paragraphs of the Python language reference, labelled with the section that they come from."""

import platform
import re
from collections import Counter
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpora import pydocs
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.examples import TextClassificationExample
from seqloom.data.splits import divide, hold_out_evenly, normal_form

SUMMARY = "paragraphs of the Python language reference with their sections as topics; no download"
FORM = "text-classification"
SELECTION_VERSION = "1"  # increase this number when a change of this module alters the paragraphs
HELD_OUT = {"dev": 0.15, "test": 0.25}  # fractions of the paragraphs of each topic
MIN_WORDS = 12  # words of letters in a paragraph
MIN_PROSE = 0.6  # fraction of the words of a paragraph that consist of letters; code and tables have fewer


@config
class Config:
    corpus: Literal["topics"] = "topics"
    min_paragraphs: PositiveInt = 18  # sections with fewer paragraphs are left out


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Load the paragraphs. A paragraph that occurs in several sections is left out, because its topic is ambiguous."""
    sections = pydocs.drop_contained(pydocs.read_sections())
    paragraphs = {name: prose_paragraphs(text) for name, text in sections.items()}
    users = Counter(normal_form(text) for texts in paragraphs.values() for text in texts)
    unique = {name: [text for text in texts if users[normal_form(text)] == 1] for name, texts in paragraphs.items()}
    examples = [
        TextClassificationExample(text, name)
        for name, texts in unique.items()
        if len(texts) >= config.min_paragraphs
        for text in texts
    ]
    labels = [example.label for example in examples]
    if len(set(labels)) < 2:
        raise DataError(
            f"The corpus topics needs two sections with at least {config.min_paragraphs} paragraphs. Lower "
            "data.min_paragraphs."
        )
    chosen = hold_out_evenly([normal_form(example.text) for example in examples], labels, HELD_OUT)
    return Corpus(
        name="topics",
        version=f"{SELECTION_VERSION} Python {platform.python_version()} {version_of({'examples': examples})}",
        licence="PSF-2.0",
        description=f"paragraphs of {len(set(labels))} sections of the Python language reference (pydoc_data.topics)",
        splits=divide(examples, chosen, ("train", "dev", "test")),
    )


def prose_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a section that consist mainly of words, each on one line."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return [paragraph for paragraph in paragraphs if is_prose(paragraph)]


def is_prose(paragraph: str) -> bool:
    words = paragraph.split()
    letters = sum(word.strip(".,;:()[]“”\"'*").isalpha() for word in words)
    return letters >= MIN_WORDS and letters >= MIN_PROSE * len(words)
