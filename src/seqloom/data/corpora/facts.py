"""Facts that hold within one document: every mention of a name in a document has the same colour.

    mosi: green
    kela: red
    mosi: green

At the first mention of a name, a model can only guess the colour. At later mentions, the model can copy the colour from
the context.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import GeneratedConfig, ProbedSpan, TextCorpus
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice, draw_distinct

SUMMARY = "repeated facts that differ by document (mosi: green), to measure in-context recall; no download"
FORM = "text"
VERSION = "1"  # increase this number when a change of this module alters the documents
IS = ": "
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
NAMES = len(SYLLABLES) ** 2
COLOURS = read_asset("colours.txt")["colours"]
GROUPS = {0: "zero_shot", 1: "one_shot", 2: "few_shot", 3: "few_shot"}  # number of previous mentions → group


@config
class Config(GeneratedConfig):
    corpus: Literal["facts"] = "facts"
    names: int = 16  # number of different names
    colours: int = 16  # number of different colours; chance accuracy is 1/colours
    min_names: int = 2  # minimum number of names in a document
    max_names: int = 6  # maximum number of names in a document
    lines: PositiveInt = 16  # number of lines in a document, each of which states one fact
    train: PositiveInt = 19_200  # number of training documents
    dev: PositiveInt = 320
    test: PositiveInt = 640

    def problems(self) -> Iterator[str]:
        if not 2 <= self.min_names <= self.max_names:
            yield f"min_names must be from 2 to max_names; got {self.min_names} and {self.max_names}"
        if not self.max_names <= self.names <= NAMES:
            yield f"names must be from max_names ({self.max_names}) to {NAMES:,}; got {self.names}"
        if not 2 <= self.colours <= len(COLOURS):
            yield f"colours must be from 2 to {len(COLOURS)}; got {self.colours}"


def load(config: Config) -> TextCorpus:
    """Generate documents that all differ, even across splits."""
    total = sum(config.counts().values())
    possible = config.colours**config.min_names * config.min_names**config.lines  # a lower bound
    if total > possible // 4:
        raise DataError(
            f"The corpus facts must not use more than a quarter of the {possible:,} possible documents; got {total:,}. "
            "Raise data.lines, data.min_names or data.colours, or generate fewer documents."
        )
    names, dice = draw_names(config.names, config.seed)

    def draw_document() -> str:
        remaining = list(names)
        chosen = [dice.take(remaining) for _ in range(dice.between(config.min_names, config.max_names))]
        facts = [f"{name}{IS}{dice.one_of(COLOURS[: config.colours])}" for name in chosen]
        return "\n".join(dice.one_of(facts) for _ in range(config.lines))

    documents = draw_distinct(draw_document, key=str)
    return TextCorpus(
        name="facts",
        version=f"{VERSION} seed {config.seed}",
        description=f"{config.lines} lines on the colours of {config.min_names} to {config.max_names} names, "
        f"from {config.names} names and {config.colours} colours",
        splits=config.draw(lambda _, count: [next(documents) for _ in range(count)]),
        probe=probe_colours,
    )


def probe_colours(document: str) -> list[ProbedSpan]:
    """Return the spans of all colours, grouped by the number of previous mentions of the name."""
    spans, mentions, start = [], Counter[str](), 0
    for line in document.split("\n"):
        name, _, colour = line.partition(IS)
        end = start + len(line)
        spans.append(ProbedSpan(end - len(colour), end, GROUPS.get(mentions[name], "many_shot")))
        mentions[name] += 1
        start = end + 1
    return spans


def draw_names(count: int, seed: int) -> tuple[list[str], Dice]:
    """Draw different words of two syllables; return the words, and the random draws for the documents of `facts`."""
    dice, names = Dice(f"facts/{VERSION}/{seed}"), dict[str, None]()
    while len(names) < count:
        names[dice.one_of(SYLLABLES) + dice.one_of(SYLLABLES)] = None
    return list(names), dice
