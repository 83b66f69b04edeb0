"""WikiText-2: two million words of Wikipedia articles, with rare words replaced by <unk>."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import TextCorpus
from seqloom.data.files import DataSet, read_lines

SUMMARY = "WikiText-2: 2M words of Wikipedia, vocabulary of 33,278 (needs SEQLOOM_DATA)"
FORM = "text"
SOURCE = DataSet(
    "WikiText-2",
    "https://github.com/pytorch/examples, word_language_model/data/wikitext-2 (no licence is stated for the text)",
)
FILES = {"train": "train", "dev": "valid", "test": "test"}
TITLE = re.compile(r" = (?!=)(?:(?! = ).)+ = ")  # title of an article; titles of sections have more equals signs


@config
class Config:
    corpus: Literal["wikitext2"] = "wikitext2"
    documents: Literal["line", "article"] = "line"  # what counts as a document

    @property
    def by_article(self) -> bool:
        return self.documents == "article"


def load(config: Config) -> TextCorpus:
    """Load lines or articles. Lines, including blank lines, give the published word counts."""
    splits = {split: read_lines(SOURCE.file(f"wikitext-2/{name}.txt.gz")) for split, name in FILES.items()}
    if config.by_article:
        splits = {split: list(articles(lines)) for split, lines in splits.items()}
    return TextCorpus(
        name="wikitext2",
        licence="none stated by its source; Wikipedia's text is CC BY-SA",
        description=f"WikiText-2; {'an article' if config.by_article else 'a line'} is a document",
        splits=splits,
    )


def articles(lines: Sequence[str]) -> Iterator[str]:
    """Yield the articles, each starting with its title, without blank lines around them."""
    titles = [
        number
        for number, line in enumerate(lines)
        if TITLE.fullmatch(line)
        and not any(other.strip() for other in (*lines[:number][-1:], *lines[number + 1 :][:1]))
    ]
    for start, end in zip(sorted({0, *titles}), [*[title for title in titles if title], len(lines)], strict=True):
        article = "\n".join(lines[start:end]).strip()
        if article:
            yield article
