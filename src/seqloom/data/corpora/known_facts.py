"""Facts that always hold, asked for where they are not told: what one must know beforehand to go on with `facts`.

kela: red          lines that tell other facts, or none
nike: ivory
mosi               and a name, whose colour is the label; it is the same in every text
"""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import NonNegativeInt, PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpora.facts import COLOURS, IS, NAMES, draw_names
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.generated import Dice, draw_distinct

SUMMARY = "facts that hold in every text, asked for where they are not told (mosi is green, always)"
FORM = "text-classification"
VERSION = "1"  # of the drawing below; a change of what it draws is a new version


@config
class Config(GeneratedConfig):
    corpus: Literal["known-facts"] = "known-facts"
    names: int = 16  # as in `facts`, so that a model trained there knows them as words
    colours: int = 16  # likewise
    known_names: int = 6  # names that always have the same colour, each another; those are asked for
    max_lines: NonNegativeInt = 4  # lines before a question, at most
    train: PositiveInt = 2_000  # texts
    dev: PositiveInt = 200
    test: PositiveInt = 400
    seed: int = 0  # that of `facts`, for the same names; it also decides the facts and the texts

    def problems(self) -> Iterator[str]:
        if not 2 <= self.known_names <= self.names <= NAMES:
            yield f"known_names must be from 2 to names, names at most {NAMES:,}; got {self.known_names}, {self.names}"
        if not 2 <= self.colours <= len(COLOURS):
            yield f"colours must be from 2 to {len(COLOURS)}, got {self.colours}"
        elif self.known_names > self.colours:
            yield f"known_names must be at most colours ({self.colours}): each name has another; got {self.known_names}"


def load(config: Config) -> Corpus[TextClassificationExample]:
    """All texts differ, across the splits too; the facts are the same."""
    wanted = sum(config.counts().values())
    possible = config.known_names * sum((config.known_names - 1) ** lines for lines in range(config.max_lines + 1))
    if wanted > 0.8 * possible:
        raise DataError(
            f"known-facts must leave some of the {possible:,} possible texts undrawn, and {wanted:,} were asked for. "
            "Raise data.known_names or data.max_lines, or ask for fewer texts."
        )
    (names, _), colours = draw_names(config.names, config.seed), list(COLOURS[: config.colours])
    dice = Dice(f"known-facts/{VERSION}/{config.seed}")
    facts = {dice.take(names): dice.take(colours) for _ in range(config.known_names)}

    def draw_example() -> TextClassificationExample:
        asked = dice.one_of(list(facts))
        others = [f"{name}{IS}{colour}" for name, colour in facts.items() if name != asked]
        lines = [dice.one_of(others) for _ in range(dice.below(config.max_lines + 1))]
        return TextClassificationExample("\n".join([*lines, asked]), facts[asked])

    examples = draw_distinct(draw_example, key=lambda example: example.text)
    return Corpus(
        name="known-facts",
        version=f"{VERSION} seed {config.seed}",
        description=f"{config.known_names} of {config.names} names, each with its own colour, up to {config.max_lines} "
        "facts "
        "told before the one that is asked",
        splits=config.draw(lambda _, count: [next(examples) for _ in range(count)]),
    )
