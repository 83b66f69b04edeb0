"""Tatoeba: short everyday sentences and their translations, between English and French or German."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.folder import DataSet
from seqloom.data.holdout import held_out, linked
from seqloom.data.parallel import Pair
from seqloom.data.readers import read_columns

SUMMARY = "Tatoeba: 160,000 everyday sentences, English with French or German (needs SEQLOOM_DATA)"
FORM = "pairs"
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
    dev: int = 2000  # pairs held out to choose by, at least
    test: int = 2000  # and to report
    max_words: int | None = None  # leave out pairs with more words on either side

    def problems(self) -> Iterator[str]:
        if (self.source == "en") == (self.target == "en"):
            yield f"one of source and target must be en, got {self.source} and {self.target}"
        if min(self.dev, self.test) < 1:
            yield f"dev and test must be at least 1, got {self.dev} and {self.test}"
        if self.max_words is not None and self.max_words < 1:
            yield f"max_words must be at least 1, got {self.max_words}"


def load(config: Config) -> Corpus[Pair]:
    """No sentence of either language is in two splits: pairs that share one, also through others, stay together."""
    path = SOURCE.file(FILES[config.target if config.source == "en" else config.source])
    _, rows = read_columns(path, (1, 2))  # English, the other, and in newer files who wrote them
    both = dict.fromkeys((english.strip(), other.strip()) for english, other in rows)
    pairs = [pair for pair in both if all(pair) and _fits(pair, config.max_words)]
    chosen = held_out(linked(pairs), {"dev": config.dev, "test": config.test})
    splits: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    for (english, other), split in zip(pairs, chosen, strict=True):
        splits[split].append(Pair(english, other) if config.source == "en" else Pair(other, english))
    if not all(splits.values()):
        raise DataError(
            f"{path} has {len(pairs):,} pairs that can be used, too few for data.dev={config.dev} and "
            f"data.test={config.test} and some to train on. Lower them, or raise data.max_words."
        )
    return Corpus(
        name="tatoeba",
        version=version_of(splits),
        licence="CC BY 2.0, manythings.org/anki and tatoeba.org",
        description=f"Tatoeba, {config.source} to {config.target}"
        + (f", at most {config.max_words} words a side" if config.max_words else ""),
        languages=(config.source, config.target),
        splits=splits,
    )


def _fits(pair: tuple[str, str], words: int | None) -> bool:
    return words is None or max(len(side.split()) for side in pair) <= words
