"""Which of several sentences comes next? Made from running text: the wrong ones are from other documents."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpora import pydocs, wikitext2
from seqloom.data.corpus import Corpus
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
    is_prose = config.text == "pydocs"
    source = pydocs.load(pydocs.Config()) if is_prose else wikitext2.load(wikitext2.Config(documents="article"))
    splits: dict[str, list[MultipleChoiceExample]] = {}
    for split, texts in source.splits.items():
        paragraphs = map(_prose if is_prose else _lines, texts)
        documents = [[list(map(str.strip, split_sentences(part))) for part in document] for document in paragraphs]
        splits[split] = list(_choices(config, split, documents))
        if not splits[split]:
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
    """Every sentence but the first of its paragraph is to be found once, after those before it.

    The wrong ones are sentences of other documents, none twice.
    """
    drawn = random.Random(f"{config.seed} {split}")
    offered = [(number, one) for number, own in enumerate(documents) for part in own for one in part[1:] if _fits(one)]
    if len({number for number, _ in offered}) < 2:
        return  # there is no other document to take wrong ones from
    for number, paragraph in ((number, part) for number, document in enumerate(documents) for part in document):
        for place, right in enumerate(paragraph):
            if place == 0 or not _fits(right):
                continue
            options, tried = [right], 0
            while len(options) < config.options:
                other, sentence = drawn.choice(offered)
                tried += 1
                if tried > 1000 * (config.options - 1):
                    raise DataError(
                        f"The text has too few different sentences to offer {config.options} of them. "
                        "Lower data.options."
                    )
                if other != number and sentence not in options:
                    options.append(sentence)
            drawn.shuffle(options)
            before = " ".join(paragraph[max(0, place - config.before) : place])
            yield MultipleChoiceExample(before, tuple(options), options.index(right))


def _fits(sentence: str) -> bool:
    return SHORTEST <= len(sentence.split()) <= LONGEST


def _lines(article: str) -> Iterator[str]:
    """The paragraphs of an article of WikiText, a line each, without its headings."""
    return (line.strip() for line in article.split("\n") if line.strip() and not line.strip().startswith("="))


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a topic that are sentences: they begin with a capital letter and end with a full stop."""
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split())
        if re.fullmatch(r"[A-Z].*[.]", joined) and not re.search(r">>>|\.\. |::=|\*{3}|={4}|-{4}", joined):
            yield joined
