"""Tatoeba: short everyday sentences and their translations, between English and French or German."""

import math
from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import ParallelExample
from seqloom.data.files import DataSet
from seqloom.data.splits import divide, hold_out, link_groups
from seqloom.data.tables import read_columns

SUMMARY = "Tatoeba: 160,000 everyday sentences, English with French or German (needs SEQLOOM_DATA)"
FORM = "parallel"
SOURCE = DataSet(
    "Tatoeba",
    "https://www.manythings.org/anki/ (fra-eng.zip, deu-eng.zip; CC BY 2.0, manythings.org/anki and tatoeba.org)",
)
Language = Literal["en", "fr", "de"]
FILES = {"fr": "tatoeba/fra.txt.gz", "de": "tatoeba/deu.txt.gz"}


@config
class Config:
    corpus: Literal["tatoeba"] = "tatoeba"
    source: Language = "en"
    target: Language = "fr"
    dev: PositiveInt = 2000  # minimum number of dev pairs
    test: PositiveInt = 2000  # minimum number of test pairs
    max_words: PositiveInt | None = None  # omit pairs with more words on either side

    def problems(self) -> Iterator[str]:
        if (self.source == "en") == (self.target == "en"):
            yield f"one of source and target must be en; got {self.source} and {self.target}"


def load(config: Config) -> Corpus[ParallelExample]:
    """Load the pairs; pairs that share a sentence, directly or indirectly, are in the same split."""
    path = SOURCE.file(FILES[config.target if config.source == "en" else config.source])
    _, rows = read_columns(path, (1, 2))  # English, the other language; newer files add an attribution
    unique = dict.fromkeys((english.strip(), other.strip()) for english, other in rows)
    max_words = config.max_words or math.inf
    pairs = [pair for pair in unique if all(pair) and max(len(side.split()) for side in pair) <= max_words]
    chosen = hold_out(link_groups(pairs), {"dev": config.dev, "test": config.test})
    ordered = pairs if config.source == "en" else [(other, english) for english, other in pairs]
    splits = divide((ParallelExample(*pair) for pair in ordered), chosen, SPLITS)
    if not all(splits.values()):
        raise DataError(
            f"{path} has {len(pairs):,} usable pairs, too few for data.dev={config.dev}, data.test={config.test} and a "
            "training split. Lower them, or raise data.max_words."
        )
    return Corpus(
        name="tatoeba",
        licence="CC BY 2.0, manythings.org/anki and tatoeba.org",
        description=f"Tatoeba, {config.source} to {config.target}"
        + (f", at most {config.max_words} words per side" if config.max_words else ""),
        languages=(config.source, config.target),
        splits=splits,
    )
