"""Facts that hold within a document only: a name has a colour, said again and again, and another one in the next.

    mosi: green
    kela: red
    mosi: green

The first time a name comes up, its colour can only be guessed; from then on it stands in the text.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import Asked, TextCorpus
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.files import read_asset

SUMMARY = "facts told again and again, other ones in each document (mosi: green): is what was read remembered?"
FORM = "text"
VERSION = "1"  # of the drawing below; a change of what it draws is a new version
IS = ": "
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
NAMES = len(SYLLABLES) ** 2
COLOURS = read_asset("colours.txt")["colours"]
GROUPS = {0: "zero_shot", 1: "one_shot", 2: "few_shot", 3: "few_shot"}  # how often a name had been there; more: many


@config
class Config(GeneratedConfig):
    corpus: Literal["facts"] = "facts"
    names: int = 16  # different names; the more, the longer it takes until one is found again
    colours: int = 16  # different colours; a guess is right once in so many
    fewest: int = 2  # names in a document, at least
    most: int = 6  # and at most
    lines: PositiveInt = 16  # facts told in a document
    train: PositiveInt = 19_200  # documents
    dev: PositiveInt = 320
    test: PositiveInt = 640

    def problems(self) -> Iterator[str]:
        if not 2 <= self.fewest <= self.most:
            yield f"fewest must be from 2 to most, got {self.fewest} and {self.most}"
        if not self.most <= self.names <= NAMES:
            yield f"names must be from most ({self.most}) to {NAMES:,}, got {self.names}"
        if not 2 <= self.colours <= len(COLOURS):
            yield f"colours must be from 2 to {len(COLOURS)}, got {self.colours}"


def load(config: Config) -> TextCorpus:
    """All documents differ, across the splits too."""
    wanted = config.train + config.dev + config.test
    possible = config.colours**config.fewest * config.fewest**config.lines  # at least, of some names
    if wanted > possible // 4:
        raise DataError(
            f"facts must leave most of the possible documents undrawn: {wanted:,} were asked for, and there may be no "
            f"more than {possible:,}. Raise data.lines, data.fewest or data.colours, or ask for fewer documents."
        )
    documents = _draw(config)
    return TextCorpus(
        name="facts",
        version=f"{VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=f"{config.lines} times one of {config.fewest} to {config.most} names and its colour, "
        f"of {config.names} names and {config.colours} colours",
        splits={split: [next(documents) for _ in range(count)] for split, count in config.counts().items()},
        asked=asked,
    )


def asked(document: str) -> list[Asked]:
    """Every colour of a document, by how often its name had been there before."""
    found, seen, begins = [], Counter[str](), 0
    for line in document.split("\n"):
        name, _, colour = line.partition(IS)
        ends = begins + len(line)
        found.append(Asked(ends - len(colour), ends, GROUPS.get(seen[name], "many_shot")))
        seen[name] += 1
        begins = ends + 1
    return found


def _draw(config: Config) -> Iterator[str]:
    uniform = draws_of(config.seed)
    names, seen = names_of(config.names, uniform), set[str]()
    while True:
        document = _document(config, names, uniform)
        if document not in seen:
            seen.add(document)
            yield document


def draws_of(seed: int) -> Callable[[], float]:
    """Numbers from 0 to 1. Only random() is promised to give the same ones in every version of Python."""
    return random.Random(f"facts/{VERSION}/{seed}").random


def names_of(count: int, uniform: Callable[[], float]) -> list[str]:
    """Words of two syllables, each once."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[one_of(SYLLABLES, uniform) + one_of(SYLLABLES, uniform)] = None
    return list(found)


def _document(config: Config, names: list[str], uniform: Callable[[], float]) -> str:
    left = list(names)
    number = config.fewest + int(uniform() * (config.most - config.fewest + 1))
    own = [left.pop(int(uniform() * len(left))) for _ in range(number)]
    facts = [f"{name}{IS}{one_of(COLOURS[: config.colours], uniform)}" for name in own]
    return "\n".join(one_of(facts, uniform) for _ in range(config.lines))


def one_of(items: Sequence[str], uniform: Callable[[], float]) -> str:
    return items[int(uniform() * len(items))]
