"""Memory tests as text: the part after the bar can be computed from the part before it."""

from collections.abc import Iterator
from math import perm
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import GeneratedConfig, TextCorpus
from seqloom.data.generated import Dice, draw_distinct

SUMMARY = "generated memory tests: copy (abc|abc), reverse (abc|cba), recall (a4b7|b7); no download"
FORM = "text"
VERSION = "1"  # increase this number when a change of this module alters the documents
BAR = "|"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"


@config
class Config(GeneratedConfig):
    corpus: Literal["toys"] = "toys"
    task: Literal["copy", "reverse", "recall"] = "copy"
    min_length: int = 1  # minimum number of symbols to remember (recall: pairs of a letter and a digit)
    max_length: int = 10  # maximum number of symbols to remember
    symbols: int = 8  # number of different letters
    train: PositiveInt = 10_000  # number of training documents
    dev: PositiveInt = 500
    test: PositiveInt = 500

    def problems(self) -> Iterator[str]:
        if not 1 <= self.min_length <= self.max_length:
            yield f"min_length must be from 1 to max_length; got {self.min_length} and {self.max_length}"
        if not 1 <= self.symbols <= len(LETTERS):
            yield f"symbols must be from 1 to {len(LETTERS)}; got {self.symbols}"
        if self.task == "recall" and self.max_length > self.symbols:
            yield f"recall uses each letter once, so max_length ({self.max_length}) must be at most symbols"


def load(config: Config) -> TextCorpus:
    """Generate documents such as `abcd|dcba`; the part before the bar is never repeated, even across splits."""
    is_recall, lengths = config.task == "recall", range(config.min_length, config.max_length + 1)
    numbers = [perm(config.symbols, n) * len(DIGITS) ** n if is_recall else config.symbols**n for n in lengths]
    total, possible = sum(config.counts().values()), sum(numbers)
    if total > possible // 2:
        raise DataError(
            f"The corpus toys must not use more than half of the {possible:,} possible documents; got {total:,}. "
            "Raise data.max_length or data.symbols, or generate fewer documents."
        )
    dice = Dice(f"toys/{VERSION}/{config.seed}")
    documents = draw_distinct(lambda: draw_document(config, dice), key=lambda document: document.partition(BAR)[0])
    return TextCorpus(
        name="toys",
        version=f"{VERSION} seed {config.seed}",
        description=f"{config.task}: {config.min_length} to {config.max_length} of {config.symbols} symbols",
        splits=config.draw(lambda _, count: [next(documents) for _ in range(count)]),
    )


def draw_document(config: Config, dice: Dice) -> str:
    length = dice.between(config.min_length, config.max_length)
    letters = LETTERS[: config.symbols]
    if config.task == "recall":
        remaining = list(letters)
        keys = [dice.take(remaining) for _ in range(length)]
        pairs = [key + dice.one_of(DIGITS) for key in keys]
        return "".join(pairs) + BAR + dice.one_of(pairs)
    memory = "".join(dice.one_of(letters) for _ in range(length))
    return memory + BAR + (memory[::-1] if config.task == "reverse" else memory)
