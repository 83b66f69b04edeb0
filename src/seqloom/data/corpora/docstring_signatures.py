"""Code from text: the docstring of a function of Python's standard library, and the signature of the function."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.data.corpus import Corpus
from seqloom.data.docstrings import Documented, docstring_corpus, standard_library
from seqloom.data.examples import ParallelExample

SUMMARY = "docstrings of functions of Python's standard library and their signatures; no download"
FORM = "parallel"
MIN_WORDS = 3


@config
class Config:
    corpus: Literal["docstring-signatures"] = "docstring-signatures"
    max_words: PositiveInt = 30  # maximum number of words of a docstring; longer docstrings are truncated
    max_characters: PositiveInt = 80  # maximum length of a signature; functions with longer signatures are omitted


def load(config: Config) -> Corpus[ParallelExample]:
    """Load the functions whose docstring does not repeat their signature."""
    pairs = (pair for item in standard_library() for pair in signature_pairs(item, config))
    return docstring_corpus("docstring-signatures", "docstrings and signatures of functions", pairs)


def signature_pairs(item: Documented, config: Config) -> Iterator[tuple[str, ParallelExample]]:
    """Yield the docstring and the signature of a function."""
    words, is_stated = item.text.split(), f"{item.name}(" in item.text
    has_length = 0 < len(item.signature) <= config.max_characters and len(words) >= MIN_WORDS
    if has_length and not is_stated:
        yield item.package, ParallelExample(" ".join(words[: config.max_words]), item.signature)
