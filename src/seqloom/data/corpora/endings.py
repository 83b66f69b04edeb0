"""Multiple choice of the next sentence, generated from text; the wrong options come from other documents."""

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

SUMMARY = "choose the next sentence: from pydocs, no download, or from WikiText-2 (needs SEQLOOM_DATA)"
FORM = "multiple-choice"
MIN_WORDS, MAX_WORDS = 4, 60  # number of words of a sentence that is used as an option
Document = list[list[str]]  # the sentences of each paragraph


@config
class Config:
    corpus: Literal["endings"] = "endings"
    text: Literal["pydocs", "wikitext2"] = "pydocs"  # corpus that provides the sentences
    options: Annotated[int, Ge(2)] = 4  # number of sentences to choose from
    before: PositiveInt = 2  # maximum number of context sentences
    seed: int = 0  # seed of the wrong options and their order


def load(config: Config) -> Corpus[MultipleChoiceExample]:
    """Generate the choices of each split from the documents of the same split."""
    is_prose = config.text == "pydocs"
    source = pydocs.load(pydocs.Config()) if is_prose else wikitext2.load(wikitext2.Config(documents="article"))
    splits: dict[str, list[MultipleChoiceExample]] = {}
    for split, texts in source.splits.items():
        paragraphs = map(_prose if is_prose else _lines, texts)
        documents = [[list(map(str.strip, split_sentences(part))) for part in document] for document in paragraphs]
        splits[split] = list(_choices(config, split, documents))
        if not splits[split]:
            raise DataError(
                f"The {split} split of {config.text} must contain documents with several sentences, but has none."
            )
    return Corpus(
        name="endings",
        version=f"{source.version} seed {config.seed}",
        licence=source.licence,
        description=f"{config.text}: the next sentence among {config.options}; wrong options come from other documents",
        splits=splits,
    )


def _choices(config: Config, split: str, documents: Sequence[Document]) -> Iterator[MultipleChoiceExample]:
    """Yield an example for every sentence that is not the first of its paragraph.

    The wrong options are different sentences of other documents.
    """
    draws = random.Random(f"{config.seed} {split}")
    candidates = [
        (number, sentence)
        for number, document in enumerate(documents)
        for paragraph in document
        for sentence in paragraph[1:]
        if _has_usable_length(sentence)
    ]
    if len({number for number, _ in candidates}) < 2:
        return  # wrong options require another document
    for number, paragraph in ((number, part) for number, document in enumerate(documents) for part in document):
        for position, answer in enumerate(paragraph):
            if position == 0 or not _has_usable_length(answer):
                continue
            options, tries = [answer], 0
            while len(options) < config.options:
                other, sentence = draws.choice(candidates)
                tries += 1
                if tries > 1000 * (config.options - 1):
                    raise DataError(
                        f"The text has too few different sentences for {config.options} options. Lower data.options."
                    )
                if other != number and sentence not in options:
                    options.append(sentence)
            draws.shuffle(options)
            before = " ".join(paragraph[max(0, position - config.before) : position])
            yield MultipleChoiceExample(before, tuple(options), options.index(answer))


def _has_usable_length(sentence: str) -> bool:
    return MIN_WORDS <= len(sentence.split()) <= MAX_WORDS


def _lines(article: str) -> Iterator[str]:
    """Yield the paragraphs of a WikiText article, one per line, without the headings."""
    return (line.strip() for line in article.split("\n") if line.strip() and not line.strip().startswith("="))


def _prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of a topic that start with a capital letter and end with a full stop."""
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split())
        if re.fullmatch(r"[A-Z].*[.]", joined) and not re.search(r">>>|\.\. |::=|\*{3}|={4}|-{4}", joined):
            yield joined
