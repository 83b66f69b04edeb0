"""Phrases in any two of many languages, made from Unicode CLDR: real words, real word order, known alignment."""

import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.core.words import did_you_mean
from seqloom.data.cldr.kinds import KINDS, Dice, Kind, Shared, missing
from seqloom.data.cldr.language import Language, links, slots_of, text_of
from seqloom.data.cldr.tags import find, require_babel, same
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.examples import ParallelExample

SUMMARY = "dates, times, lists, numbers, money in any two languages, from Unicode CLDR; no download"
FORM = "parallel"
DRAWING = "1"  # of what is drawn here; a change of it is a new version
TRIES = 100  # a kind that gives nothing new in so many draws is used up


@config
class Config(GeneratedConfig):
    corpus: Literal["cldr"] = "cldr"
    source: str = "en"  # a language tag, such as en, pt-BR, zh-Hant
    target: str = "fr"
    train: PositiveInt = 30_000  # pairs
    dev: PositiveInt = 1_000
    test: PositiveInt = 2_000
    kinds: tuple[str, ...] | None = None  # only these kinds of phrases, such as full date; null for all

    def problems(self) -> Iterator[str]:
        names = [kind.name for kind in KINDS]
        for name in self.kinds or ():
            if name not in names:
                yield f"kinds holds {name!r}, which is none; {did_you_mean(name, names)}"
        if self.kinds is not None and not self.kinds:
            yield "kinds must name at least one kind of phrases; null for all"
        try:
            require_babel()
        except ResourceError:
            return  # it can be read without; `load` says what is missing
        for tag in (self.source, self.target):
            find(tag)
        if same(self.source, self.target):
            yield f"source and target must be two languages, got {self.source} and {self.target}"


def load(config: Config) -> Corpus[ParallelExample]:
    """Pairs of which no side stands twice, in any split; dev and test hold nothing but words that train has."""
    require_babel()
    drawing = _Drawing(config)
    splits = {"train": drawing.take("train", config.train, lambda pair: True)}
    known = [set[str](), set[str]()]
    for pair in splits["train"]:
        for words, side in zip(known, drawing.words(pair), strict=True):
            words |= side

    def familiar(pair: ParallelExample) -> bool:
        return all(side <= words for words, side in zip(known, drawing.words(pair), strict=True))

    for split, count in (("dev", config.dev), ("test", config.test)):
        splits[split] = drawing.take(split, count, familiar)
    return Corpus(
        name="cldr",
        version=f"{version()} seed {config.seed}",
        licence="Unicode License v3 (CLDR), LGPL-2.1 (num2words, the program; not what it writes)",
        description=f"phrases of {len(drawing.kinds)} kinds from Unicode CLDR, {config.source} to {config.target}",
        languages=(drawing.source.tag, drawing.target.tag),
        splits=splits,
        notes=drawing.notes(),
    )


def version() -> str:
    import importlib.metadata

    import babel
    from babel.core import get_cldr_version

    spoken = importlib.metadata.version("num2words")
    return f"{DRAWING} CLDR {get_cldr_version()} babel {babel.__version__} num2words {spoken}"


class _Drawing:
    """Draws pairs of two languages, none of whose sides was drawn before."""

    def __init__(self, config: Config) -> None:
        self.source, self.target = Language(config.source), Language(config.target)
        self.shared = Shared(self.source, self.target)
        self.dice = Dice(random.Random(f"cldr/{DRAWING}/{config.seed}").random)
        self.seen: tuple[set[str], set[str]] = set(), set()
        wanted = [kind for kind in KINDS if config.kinds is None or kind.name in config.kinds]
        self.missing = {
            language.tag: [name for name in missing(language) if name in {kind.name for kind in wanted}]
            for language in (self.source, self.target)
        }
        self.kinds = [kind for kind in wanted if all(kind.name not in names for names in self.missing.values())]

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"left out for want of words in {tag}: {', '.join(names)}" for tag, names in self.missing.items() if names
        )

    def take(self, split: str, count: int, wanted: Callable[[ParallelExample], bool]) -> list[ParallelExample]:
        pairs: list[ParallelExample] = []
        kinds = list(self.kinds)
        while len(pairs) < count:
            if not kinds:
                more = "" if split == "train" else ", or raise data.train: they may have no word that it lacks"
                raise DataError(
                    f"data.{split} must be no more than the {len(pairs):,} pairs that could be drawn, got {count:,}. "
                    f"Ask for fewer{more}."
                )
            kind = self._some_kind(kinds)
            pair = next((pair for _ in range(TRIES) if (pair := self._pair(kind)) and wanted(pair)), None)
            if pair is None:
                kinds.remove(kind)
            else:
                pairs.append(pair)
                self.seen[0].add(pair.source)
                self.seen[1].add(pair.target)
        return pairs

    def _some_kind(self, kinds: list[Kind]) -> Kind:
        sums = list(accumulate(kind.share for kind in kinds))
        place = self.dice.below(sums[-1])
        return next(kind for kind, upper in zip(kinds, sums, strict=True) if place < upper)

    def _pair(self, kind: Kind) -> ParallelExample | None:
        """A pair of this kind, or None if it was drawn before or its source does not say what its target should."""
        meaning = kind.draw(self.dice, self.shared)
        source, target = kind.say(self.source, *meaning), kind.say(self.target, *meaning)
        texts = text_of(source), text_of(target)
        if texts[0] in self.seen[0] or texts[1] in self.seen[1] or slots_of(target) - slots_of(source):
            return None
        for rival in kind.rivals:
            if text_of(rival.say(self.source, *meaning)) == texts[0]:
                return None
        return ParallelExample(*texts, kind=kind.name, links=links(source, target))

    def words(self, pair: ParallelExample) -> tuple[set[str], set[str]]:
        """The words of both sides; where no spaces part them, every character, and what fills each slot."""
        return self._words(self.source, pair, 0), self._words(self.target, pair, 1)

    @staticmethod
    def _words(language: Language, pair: ParallelExample, place: Literal[0, 1]) -> set[str]:
        text = pair.target if place else pair.source
        if language.spaced:
            return set(_word_pattern().findall(text))
        return {*text, *(text[link[place][0] : link[place][1]] for link in pair.links)}


@cache
def _word_pattern() -> re.Pattern[str]:
    """Runs of digits, runs of letters, other signs. Python's \\w lacks the marks that words of Arabic or Hindi have."""
    marks = "".join(chr(code) for code in range(0x300, 0x11000) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"\d+|(?:[^\W\d]|[{marks}])+|\S")
