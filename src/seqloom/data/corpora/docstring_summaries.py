"""Summaries: the body of a docstring of Python's standard library, and the first line of the docstring."""

import re
from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.data.corpus import Corpus
from seqloom.data.docstrings import Documented, docstring_corpus, standard_library
from seqloom.data.examples import ParallelExample

SUMMARY = "docstrings of Python's standard library and their first lines, as summaries; no download"
FORM = "parallel"
MIN_BODY_WORDS = 8
SUMMARY_WORDS = range(3, 21)
_NOT_PROSE = re.compile(r"\w\(|->|>>>|^[-=*]")  # signatures, examples and headings


@config
class Config:
    corpus: Literal["docstring-summaries"] = "docstring-summaries"
    max_words: PositiveInt = 60  # maximum number of words of a body; longer bodies are truncated


def load(config: Config) -> Corpus[ParallelExample]:
    """Load the docstrings whose first line is a sentence of its own, followed by a blank line and a body."""
    pairs = (pair for item in standard_library() for pair in summary_pairs(item, config.max_words))
    return docstring_corpus("docstring-summaries", "bodies and first lines of the docstrings", pairs)


def summary_pairs(item: Documented, max_words: int) -> Iterator[tuple[str, ParallelExample]]:
    """Yield the body and the first line of a docstring, if it has both."""
    first, _, rest = item.text.partition("\n\n")
    body = rest.partition(">>>")[0].split()
    is_prose = "\n" not in first and not _NOT_PROSE.search(first) and len(first.split()) in SUMMARY_WORDS
    if is_prose and len(body) >= MIN_BODY_WORDS:
        yield item.package, ParallelExample(" ".join(body[:max_words]), " ".join(first.split()))
