"""Sentences with persons and places: "Pankaj lives in Munich", made from templates and faker's names."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.faker_lists import require_faker, version
from seqloom.data.people.drawing import VERSION, Drawing
from seqloom.data.people.templates import how_many
from seqloom.data.tagged import Tagged

SUMMARY = "sentences with persons and places, from templates and faker's names; no download"
FORM = "tagged"


@config
class Config:
    corpus: Literal["people"] = "people"
    train: int = 15_000  # sentences
    dev: int = 1_000
    test: int = 2_000
    seed: int = 0  # decides the sentences, not how a model is trained on them

    def problems(self) -> Iterator[str]:
        if min(self.train, self.dev, self.test) < 1:
            yield "train, dev and test must each be at least 1"


def load(config: Config) -> Corpus[Tagged]:
    """Names, places and templates of dev and test are new: what was learned by heart is of no use there."""
    require_faker("people")
    drawing = Drawing(config.seed)
    splits = {split: drawing.take(split, getattr(config, split)) for split in SPLITS}
    corpus = Corpus(
        name="people",
        version=f"{VERSION} {version()} seed {config.seed}",
        licence="MIT (faker's lists); the templates are seqloom's",
        description="persons (PER) and places (LOC)",
        splits=splits,
    )
    return replace(corpus, description=f"{corpus.description} {_hardness(corpus)}")


def _hardness(corpus: Corpus[Tagged]) -> str:
    templates = [f"{how_many(split)} for {split}" for split in SPLITS]
    return (
        f"in sentences from templates ({', '.join(templates)}); names, places and templates of dev and test are new, "
        f"and {corpus.new_words('test'):.0%} of test's words never occur in train"
    )
