"""Facts that hold in every text and must be learned from training, unlike those of `facts`.

kela: red          lines with other facts, if any
nike: ivory
mosi               a name whose colour is the label; the colour is the same in every text
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

SUMMARY = "constant facts (mosi is always green), to be learned from training; no download"
FORM = "text-classification"
VERSION = "1"  # increase this number when a change of this module alters the texts


@config
class Config(GeneratedConfig):
    corpus: Literal["known-facts"] = "known-facts"
    names: int = 16  # number of names, as in `facts`, so that a model trained on `facts` knows the words
    colours: int = 16  # number of colours, as in `facts`
    known_names: int = 6  # number of names with a fixed colour, all different; the questions are about these names
    max_lines: NonNegativeInt = 4  # maximum number of lines before a question
    train: PositiveInt = 2_000  # number of training texts
    dev: PositiveInt = 200
    test: PositiveInt = 400
    seed: int = 0  # seed of the facts and the texts; the seed of `facts` gives the same names

    def problems(self) -> Iterator[str]:
        if not 2 <= self.known_names <= self.names <= NAMES:
            yield f"known_names must be from 2 to names, names at most {NAMES:,}; got {self.known_names}, {self.names}"
        if not 2 <= self.colours <= len(COLOURS):
            yield f"colours must be from 2 to {len(COLOURS)}; got {self.colours}"
        elif self.known_names > self.colours:
            yield f"known_names must be at most colours ({self.colours}), one per name; got {self.known_names}"


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Generate texts that all differ, even across splits. The facts are the same in all splits."""
    total = sum(config.counts().values())
    possible = config.known_names * sum((config.known_names - 1) ** lines for lines in range(config.max_lines + 1))
    if total > 0.8 * possible:
        raise DataError(
            f"The corpus known-facts must not use more than 80 % of the {possible:,} possible texts; got {total:,}. "
            "Raise data.known_names or data.max_lines, or generate fewer texts."
        )
    (names, _), colours = draw_names(config.names, config.seed), list(COLOURS[: config.colours])
    dice = Dice(f"known-facts/{VERSION}/{config.seed}")
    facts = {dice.take(names): dice.take(colours) for _ in range(config.known_names)}

    def draw_example() -> TextClassificationExample:
        question = dice.one_of(list(facts))
        others = [f"{name}{IS}{colour}" for name, colour in facts.items() if name != question]
        lines = [dice.one_of(others) for _ in range(dice.below(config.max_lines + 1))]
        return TextClassificationExample("\n".join([*lines, question]), facts[question])

    examples = draw_distinct(draw_example, key=lambda example: example.text)
    return Corpus(
        name="known-facts",
        version=f"{VERSION} seed {config.seed}",
        description=f"the colours of {config.known_names} of {config.names} names, each different, after up to "
        f"{config.max_lines} other facts",
        splits=config.draw(lambda _, count: [next(examples) for _ in range(count)]),
    )
