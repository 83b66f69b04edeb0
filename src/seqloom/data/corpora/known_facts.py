"""Facts that always hold, asked for where they are not told: what one must know beforehand to go on with `facts`.

kela: red          lines that tell other facts, or none
nike: ivory
mosi               and a name, whose colour is the label; it is the same in every text
"""

import random
from collections.abc import Callable, Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import NonNegativeInt, PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpora.facts import COLOURS, IS, NAMES, draws_of, names_of, one_of
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.examples import TextClassificationExample

SUMMARY = "facts that hold in every text, asked for where they are not told (mosi is green, always)"
FORM = "text-classification"
VERSION = "1"  # of the drawing below; a change of what it draws is a new version


@config
class Config(GeneratedConfig):
    corpus: Literal["known-facts"] = "known-facts"
    names: int = 16  # as in `facts`, so that a model trained there knows them as words
    colours: int = 16  # likewise
    known: int = 6  # names that always have the same colour, each another; those are asked for
    told: NonNegativeInt = 4  # lines before a question, at most
    train: PositiveInt = 2_000  # texts
    dev: PositiveInt = 200
    test: PositiveInt = 400
    seed: int = 0  # that of `facts`, for the same names; it also decides the facts and the texts

    def problems(self) -> Iterator[str]:
        if not 2 <= self.known <= self.names <= NAMES:
            yield f"known must be from 2 to names, and names at most {NAMES:,}; got {self.known} and {self.names}"
        if not 2 <= self.colours <= len(COLOURS):
            yield f"colours must be from 2 to {len(COLOURS)}, got {self.colours}"
        elif self.known > self.colours:
            yield f"known must be at most colours ({self.colours}): each name has another; got {self.known}"


def load(config: Config) -> Corpus[TextClassificationExample]:
    """All texts differ, across the splits too; the facts are the same."""
    wanted = config.train + config.dev + config.test
    possible = config.known * sum((config.known - 1) ** lines for lines in range(config.told + 1))
    if wanted > 0.8 * possible:
        raise DataError(
            f"known-facts must leave some of the {possible:,} possible texts undrawn, and {wanted:,} were asked for. "
            "Raise data.known or data.told, or ask for fewer texts."
        )
    examples = _draw(config)
    return Corpus(
        name="known-facts",
        version=f"{VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=f"{config.known} of {config.names} names, each with a colour of its own, up to {config.told} facts "
        "told before the one that is asked",
        splits={split: [next(examples) for _ in range(count)] for split, count in config.counts().items()},
    )


def _draw(config: Config) -> Iterator[TextClassificationExample]:
    uniform = random.Random(f"known-facts/{VERSION}/{config.seed}").random
    facts, seen = _facts(config, uniform), set[str]()
    while True:
        asked = one_of(list(facts), uniform)
        others = [f"{name}{IS}{colour}" for name, colour in facts.items() if name != asked]
        lines = [one_of(others, uniform) for _ in range(int(uniform() * (config.told + 1)))]
        text = "\n".join([*lines, asked])
        if text not in seen:
            seen.add(text)
            yield TextClassificationExample(text, facts[asked])


def _facts(config: Config, uniform: Callable[[], float]) -> dict[str, str]:
    names, colours = names_of(config.names, draws_of(config.seed)), list(COLOURS[: config.colours])
    return {_taken(names, uniform): _taken(colours, uniform) for _ in range(config.known)}


def _taken(items: list[str], uniform: Callable[[], float]) -> str:
    return items.pop(int(uniform() * len(items)))
