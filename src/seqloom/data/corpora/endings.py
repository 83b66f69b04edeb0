"""Which of several sentences comes next? Made from running text: the wrong ones are from other documents."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpora import pydocs, wikitext2
from seqloom.data.corpus import Corpus, TextCorpus
from seqloom.data.examples import MultipleChoiceExample
from seqloom.text.base import split_sentences

SUMMARY = "which sentence comes next? made from pydocs, no download, or from WikiText-2 (needs SEQLOOM_DATA)"
FORM = "multiple-choice"
SHORTEST, LONGEST = 4, 60  # words of a sentence that is asked for or offered
Document = list[list[str]]  # its paragraphs, each its sentences


@config
class Config:
    corpus: Literal["endings"] = "endings"
    text: Literal["pydocs", "wikitext2"] = "pydocs"  # where the sentences are from
    options: Annotated[int, Ge(2)] = 4  # sentences to choose from
    before: PositiveInt = 2  # sentences that are read before the choice, at most
    seed: int = 0  # decides which wrong sentences are offered, and in which order


def load(config: Config) -> Corpus[MultipleChoiceExample]:
    """The splits are those of the text, so no document stands in two of them; nor is a wrong sentence from another."""
    source = pydocs.load(pydocs.Config()) if config.text == "pydocs" else _articles()
    splits = {split: list(_choices(config, split, _documents(config, source, split))) for split in source.splits}
    for split, choices in splits.items():
        if not choices:
            raise DataError(
                f"The {split} split of {config.text} must have documents with several sentences; it has none."
            )
    return Corpus(
        name="endings",
        version=f"{source.version} seed {config.seed}",
        licence=source.licence,
        description=f"{config.text}: which of {config.options} sentences comes next; the wrong ones are from elsewhere",
        splits=splits,
    )


def _choices(config: Config, split: str, documents: Sequence[Document]) -> Iterator[MultipleChoiceExample]:
    """Every sentence but the first of its paragraph is to be found once, after those before it."""
    drawn = random.Random(f"{config.seed} {split}")
    offered = [(number, one) for number, own in enumerate(documents) for part in own for one in part[1:] if _fits(one)]
    if len({number for number, _ in offered}) < 2:
        return  # there is no other document to take wrong ones from
    for number, document in enumerate(documents):
        for paragraph in document:
            for place in range(1, len(paragraph)):
                right = paragraph[place]
                if _fits(right):
                    options = [right, *_wrong(config.options - 1, number, right, offered, drawn)]
                    drawn.shuffle(options)
                    before = " ".join(paragraph[max(0, place - config.before) : place])
                    yield MultipleChoiceExample(before, tuple(options), options.index(right))


def _wrong(
    count: int, number: int, right: str, offered: Sequence[tuple[int, str]], drawn: random.Random
) -> Iterator[str]:
    """Sentences of other documents, none twice."""
    taken, tried = {right}, 0
    while len(taken) <= count:
        other, sentence = drawn.choice(offered)
        tried += 1
        if tried > 1000 * count:
            raise DataError(
                f"The text has too few different sentences to offer {count + 1} of them. Lower data.options."
            )
        if other != number and sentence not in taken:
            taken.add(sentence)
            yield sentence


def _fits(sentence: str) -> bool:
    return SHORTEST <= len(sentence.split()) <= LONGEST


def _articles() -> TextCorpus:
    return wikitext2.load(wikitext2.Config(documents="article"))


def _documents(config: Config, source: TextCorpus, split: str) -> list[Document]:
    paragraphs = _lines if config.text == "wikitext2" else _prose
    return [[_sentences(part) for part in paragraphs(text)] for text in source.split(split)]


def _sentences(paragraph: str) -> list[str]:
    return [sentence.strip() for sentence in split_sentences(paragraph)]


def _lines(article: str) -> Iterator[str]:
    """The paragraphs of an article of WikiText, a line each, without its headings."""
    return (line.strip() for line in article.split("\n") if line.strip() and not line.strip().startswith("="))


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a topic that are sentences: they begin with a capital letter and end with a full stop."""
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split())
        if re.fullmatch(r"[A-Z].*[.]", joined) and not re.search(r">>>|\.\. |::=|\*{3}|={4}|-{4}", joined):
            yield joined
