"""Facts that hold within a document only: a name has a colour, said again and again, and another one in the next.

    mosi: green
    kela: red
    mosi: green

The first time a name comes up, its colour can only be guessed; from then on it stands in the text.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import Asked, GeneratedConfig, TextCorpus
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice, draw_distinct

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
    min_names: int = 2  # names in a document, at least
    max_names: int = 6  # and at most
    lines: PositiveInt = 16  # facts told in a document
    train: PositiveInt = 19_200  # documents
    dev: PositiveInt = 320
    test: PositiveInt = 640

    def problems(self) -> Iterator[str]:
        if not 2 <= self.min_names <= self.max_names:
            yield f"min_names must be from 2 to most, got {self.min_names} and {self.max_names}"
        if not self.max_names <= self.names <= NAMES:
            yield f"names must be from max_names ({self.max_names}) to {NAMES:,}, got {self.names}"
        if not 2 <= self.colours <= len(COLOURS):
            yield f"colours must be from 2 to {len(COLOURS)}, got {self.colours}"


def load(config: Config) -> TextCorpus:
    """All documents differ, across the splits too."""
    wanted = sum(config.counts().values())
    possible = config.colours**config.min_names * config.min_names**config.lines  # at least, of some names
    if wanted > possible // 4:
        raise DataError(
            f"facts must leave most of the possible documents undrawn: {wanted:,} were asked for, and there may be no "
            f"more than {possible:,}. Raise data.lines, data.min_names or data.colours, or ask for fewer documents."
        )
    names, dice = draw_names(config.names, config.seed)

    def draw_document() -> str:
        left = list(names)
        chosen = [dice.take(left) for _ in range(dice.between(config.min_names, config.max_names))]
        facts = [f"{name}{IS}{dice.one_of(COLOURS[: config.colours])}" for name in chosen]
        return "\n".join(dice.one_of(facts) for _ in range(config.lines))

    documents = draw_distinct(draw_document, key=str)
    return TextCorpus(
        name="facts",
        version=f"{VERSION} seed {config.seed}",
        description=f"{config.lines} times one of {config.min_names} to {config.max_names} names and its colour, "
        f"of {config.names} names and {config.colours} colours",
        splits=config.draw(lambda _, count: [next(documents) for _ in range(count)]),
        asked=asked,
    )


def asked(document: str) -> list[Asked]:
    """Return every colour of a document, by how often its name had been there before."""
    colours, seen, begins = [], Counter[str](), 0
    for line in document.split("\n"):
        name, _, colour = line.partition(IS)
        ends = begins + len(line)
        colours.append(Asked(ends - len(colour), ends, GROUPS.get(seen[name], "many_shot")))
        seen[name] += 1
        begins = ends + 1
    return colours


def draw_names(count: int, seed: int) -> tuple[list[str], Dice]:
    """Draw different words of two syllables; the documents of `facts` are drawn by the same dice afterwards."""
    dice, names = Dice(f"facts/{VERSION}/{seed}"), dict[str, None]()
    while len(names) < count:
        names[dice.one_of(SYLLABLES) + dice.one_of(SYLLABLES)] = None
    return list(names), dice
