"""Controls for text-to-text models: sums of numbers, and letters that are copied or reversed."""

from math import ceil
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import ParallelExample
from seqloom.data.generated import Dice, draw_distinct

SUMMARY = "generated pairs: add (12+9 to 21), copy (abc to abc), reverse (abc to cba); no download"
FORM = "parallel"
VERSION = "1"  # increase this number when a change of this module alters the pairs
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@config
class Config(GeneratedConfig):
    corpus: Literal["toy-pairs"] = "toy-pairs"
    task: Literal["add", "copy", "reverse"] = "add"
    length: PositiveInt = 3  # maximum number of digits of a summand, or of letters
    train: PositiveInt = 20_000  # number of training pairs
    dev: PositiveInt = 500  # number of dev pairs
    test: PositiveInt = 1_000  # number of test pairs


def load(config: Config) -> Corpus[ParallelExample]:
    """Generate pairs with different sources."""
    possible = 10 ** (2 * config.length) if config.task == "add" else len(LETTERS) ** config.length
    total = sum(config.counts().values())
    if total > possible // 2:
        raise DataError(
            f"The corpus toy-pairs must not use more than half of the {possible:,} possible pairs; got {total:,}. "
            "Raise data.length, or generate fewer pairs."
        )
    dice = Dice(f"toy-pairs/{VERSION}/{config.seed}")
    pairs = draw_distinct(lambda: draw_pair(config, dice), key=lambda pair: pair.source)
    return Corpus(
        name="toy-pairs",
        version=f"{VERSION} seed {config.seed}",
        description=f"{config.task}: up to {config.length} {'digits' if config.task == 'add' else 'letters'}",
        splits=config.draw(lambda _, count: [next(pairs) for _ in range(count)]),
    )


def draw_pair(config: Config, dice: Dice) -> ParallelExample:
    if config.task == "add":
        first, second = (dice.below(10**config.length) for _ in range(2))
        return ParallelExample(f"{first}+{second}", str(first + second))
    word = "".join(dice.one_of(LETTERS) for _ in range(dice.between(ceil(config.length / 2), config.length)))
    return ParallelExample(word, word[::-1] if config.task == "reverse" else word)
