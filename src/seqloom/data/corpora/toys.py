"""Memory tests as text: what comes after the bar follows from what stands before it, if one remembers."""

from collections.abc import Iterator
from math import perm
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import GeneratedConfig, TextCorpus
from seqloom.data.generated import Dice, draw_distinct

SUMMARY = "memory tests made on the spot: copy (abc|abc), reverse (abc|cba), recall (a4b7|b7)"
FORM = "text"
VERSION = "1"  # of the drawing below; a change of what it draws is a new version
BAR = "|"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"


@config
class Config(GeneratedConfig):
    corpus: Literal["toys"] = "toys"
    task: Literal["copy", "reverse", "recall"] = "copy"
    min_length: int = 1  # symbols to remember (recall: pairs of a letter and a digit), at least
    max_length: int = 10  # and at most
    symbols: int = 8  # different letters
    train: PositiveInt = 10_000  # documents
    dev: PositiveInt = 500
    test: PositiveInt = 500

    def problems(self) -> Iterator[str]:
        if not 1 <= self.min_length <= self.max_length:
            yield f"min_length must be from 1 to max_length, got {self.min_length} and {self.max_length}"
        if not 1 <= self.symbols <= len(LETTERS):
            yield f"symbols must be from 1 to {len(LETTERS)}, got {self.symbols}"
        if self.task == "recall" and self.max_length > self.symbols:
            yield f"recall asks for each letter once, so max_length ({self.max_length}) cannot exceed symbols"


def load(config: Config) -> TextCorpus:
    """Documents such as `abcd|dcba`; what is to be remembered is different in all of them, across the splits too."""
    recall, lengths = config.task == "recall", range(config.min_length, config.max_length + 1)
    memories = [perm(config.symbols, n) * len(DIGITS) ** n if recall else config.symbols**n for n in lengths]
    wanted, possible = sum(config.counts().values()), sum(memories)
    if wanted > possible // 2:
        raise DataError(
            f"toys must leave half of the possible texts undrawn: {wanted:,} were asked for and {possible:,} exist. "
            "Raise data.max_length or data.symbols, or ask for fewer documents."
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
        left = list(letters)
        keys = [dice.take(left) for _ in range(length)]
        pairs = [key + dice.one_of(DIGITS) for key in keys]
        return "".join(pairs) + BAR + dice.one_of(pairs)
    memory = "".join(dice.one_of(letters) for _ in range(length))
    return memory + BAR + (memory[::-1] if config.task == "reverse" else memory)
