"""Memory tests as text: what comes after the bar follows from what stands before it, if one remembers."""

import random
from collections.abc import Callable, Iterator
from math import perm
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import TextCorpus
from seqloom.data.corpus_config import GeneratedConfig

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
    shortest: int = 1  # symbols to remember (recall: pairs of a letter and a digit), at least
    longest: int = 10  # and at most
    symbols: int = 8  # different letters
    train: PositiveInt = 10_000  # documents
    dev: PositiveInt = 500
    test: PositiveInt = 500

    def problems(self) -> Iterator[str]:
        if not 1 <= self.shortest <= self.longest:
            yield f"shortest must be from 1 to longest, got {self.shortest} and {self.longest}"
        if not 1 <= self.symbols <= len(LETTERS):
            yield f"symbols must be from 1 to {len(LETTERS)}, got {self.symbols}"
        if self.task == "recall" and self.longest > self.symbols:
            yield f"recall asks for each letter once, so longest ({self.longest}) cannot exceed symbols"


def load(config: Config) -> TextCorpus:
    """Documents such as `abcd|dcba`; what is to be remembered is different in all of them, across the splits too."""
    wanted, possible = config.train + config.dev + config.test, _possible(config)
    if wanted > possible // 2:
        raise DataError(
            f"toys must leave half of the possible texts undrawn: {wanted:,} were asked for and {possible:,} exist. "
            "Raise data.longest or data.symbols, or ask for fewer documents."
        )
    documents = _draw(config)
    return TextCorpus(
        name="toys",
        version=f"{VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=f"{config.task}: {config.shortest} to {config.longest} of {config.symbols} symbols",
        splits={split: [next(documents) for _ in range(count)] for split, count in config.counts().items()},
    )


def _possible(config: Config) -> int:
    lengths = range(config.shortest, config.longest + 1)
    if config.task == "recall":
        return sum(perm(config.symbols, length) * len(DIGITS) ** length for length in lengths)
    return sum(config.symbols**length for length in lengths)


def _draw(config: Config) -> Iterator[str]:
    # Only random() is promised to give the same numbers in every version of Python.
    uniform = random.Random(f"toys/{VERSION}/{config.seed}").random
    seen: set[str] = set()
    while True:
        length = config.shortest + int(uniform() * (config.longest - config.shortest + 1))
        memory, answer = (_recall if config.task == "recall" else _repeat)(config, length, uniform)
        if memory not in seen:
            seen.add(memory)
            yield memory + BAR + answer


def _repeat(config: Config, length: int, uniform: Callable[[], float]) -> tuple[str, str]:
    memory = "".join(LETTERS[int(uniform() * config.symbols)] for _ in range(length))
    return memory, memory[::-1] if config.task == "reverse" else memory


def _recall(config: Config, length: int, uniform: Callable[[], float]) -> tuple[str, str]:
    letters = list(LETTERS[: config.symbols])
    keys = [letters.pop(int(uniform() * len(letters))) for _ in range(length)]
    pairs = [key + DIGITS[int(uniform() * len(DIGITS))] for key in keys]
    return "".join(pairs), pairs[int(uniform() * length)]
