"""Which language a phrase is in: phrases of `cldr`, each in one of many languages."""

import random
import unicodedata
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.data.cldr.kinds import KINDS, Dice, Kind, Meaning, Shared, missing
from seqloom.data.cldr.language import Language, text_of
from seqloom.data.cldr.tags import find, require_babel
from seqloom.data.corpora.cldr import version
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.holdout import normal_form, split_of_group

SUMMARY = "which of 34 languages a phrase is in, from Unicode CLDR; no download"
FORM = "text-classification"
DRAWING = "2"  # of what is drawn here; a change of it is a new version
TRIES = 2000  # draws without a new phrase of a split before a language is used up
HELD_OUT = {"dev": 0.1, "test": 0.2}  # shares of the normal forms; the others are for train
LANGUAGES = (  # of thirteen scripts
    *("en", "de", "nl", "sv", "da", "fr", "es", "pt", "it", "ro", "pl", "cs", "hu", "fi", "tr", "vi", "id"),  # Latin
    *("ru", "uk", "bg", "sr"),  # Cyrillic
    *("el", "ka", "hy"),
    *("ar", "fa", "ur", "he"),
    *("hi", "bn", "th"),
    *("ko", "ja", "zh"),
)
SIGNS_ALONE = ("short date", "time", "price")  # kinds that are hardly more than digits
LETTERS = 3  # a phrase must have so many, or it could be of any language


@config
class Config(GeneratedConfig):
    corpus: Literal["languages"] = "languages"
    languages: tuple[str, ...] = LANGUAGES  # their tags, which are the labels
    train: PositiveInt = 10_000  # phrases, as many of each language
    dev: PositiveInt = 1_000
    test: PositiveInt = 2_000

    def problems(self) -> Iterator[str]:
        if len(set(self.languages)) < max(2, len(self.languages)):
            yield f"languages must be two or more different ones, got {list(self.languages)}"
        if min(self.train, self.dev, self.test) < len(self.languages):
            yield f"train, dev and test must each be at least {len(self.languages)}: a phrase of each language"
        try:
            require_babel("languages")
        except ResourceError:
            return  # it can be read without; `load` says what is missing
        for tag in self.languages:
            find(tag)


def load(config: Config) -> Corpus[TextClassificationExample]:
    """The phrases, as many of each language.

    The normal form of a phrase decides its split: no phrase of dev or test stands in another split with other digits,
    punctuation or capitals. No phrase stands twice, dev and test have each normal form once, and their phrases read
    differently in every other language.
    """
    require_babel("languages")
    drawing = _Drawing(config)
    splits = {split: drawing.take(count, split) for split, count in config.counts().items()}
    return Corpus(
        name="languages",
        version=f"{DRAWING}/{version()} seed {config.seed}",
        licence="Unicode License v3 (CLDR), LGPL-2.1 (num2words, the program; not what it writes)",
        description=f"phrases from Unicode CLDR in {len(config.languages)} languages; no phrase of dev or test is in "
        "train with other digits or punctuation, or is the same in another of the languages",
        splits=splits,
    )


class _Drawing:
    def __init__(self, config: Config) -> None:
        self.dice = Dice(random.Random(f"languages/{DRAWING}/{config.seed}").random)
        self.seed = config.seed
        self.seen: set[str] = set()  # phrases of train, normal forms of dev and test
        self.waiting: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)  # by language and split
        self.languages = {tag: Language(tag) for tag in config.languages}
        self.shared = {tag: Shared(language, language) for tag, language in self.languages.items()}
        self.kinds = {tag: self._kinds(language) for tag, language in self.languages.items()}
        scripts = {tag: _script(language) for tag, language in self.languages.items()}
        self.alike = {
            tag: [other for other in scripts if other != tag and scripts[other] == scripts[tag]] for tag in scripts
        }

    @staticmethod
    def _kinds(language: Language) -> list[Kind]:
        """As often as their shares, so that one is drawn by its place."""
        without = {*SIGNS_ALONE, *missing(language)}
        return [kind for kind in KINDS if kind.name not in without for _ in range(kind.share)]

    def take(self, count: int, split: str) -> list[TextClassificationExample]:
        """Phrases of a split, in turn from every language."""
        tags = list(self.languages)
        return [
            TextClassificationExample(self._next(tags[n % len(tags)], split), tags[n % len(tags)]) for n in range(count)
        ]

    def _next(self, tag: str, split: str) -> str:
        """The next phrase of a split; phrases of the other splits that are drawn before it wait for their turn."""
        waiting = self.waiting[tag, split]
        tries = 0
        while not waiting and tries < TRIES:
            self._draw(tag)
            tries += 1
        if waiting:
            return waiting.popleft()
        raise DataError(f"There are not enough phrases in {tag}: ask for fewer (data.train, data.dev, data.test).")

    def _draw(self, tag: str) -> None:
        """Draw a phrase and put it in the queue of its split, unless it is there already or could be of any language.

        The queues of dev and test take only what no other language would say with the same letters.
        """
        kind = self.dice.one_of(self.kinds[tag])
        meaning = kind.draw(self.dice, self.shared[tag])
        text = text_of(kind.say(self.languages[tag], *meaning))
        form = normal_form(text)
        split = split_of_group(f"{self.seed}/{form}".encode(), HELD_OUT)
        unique = text if split == "train" else form
        if unique in self.seen or _letters(text) < LETTERS:
            return
        if split != "train" and self._elsewhere(tag, kind, meaning, text):
            return
        self.seen.add(unique)
        self.waiting[tag, split].append(text)

    def _elsewhere(self, tag: str, kind: Kind, meaning: Meaning, text: str) -> bool:
        """Whether another language of the same script says it with the same letters: 74 volt.

        Perhaps as another kind: what is a long date here may be a medium one there.
        """
        return any(
            self._said(other, alike, meaning) == text
            for other in self.alike[tag]
            for alike in dict.fromkeys(self.kinds[other])
            if alike.draw is kind.draw
        )

    def _said(self, tag: str, kind: Kind, meaning: Meaning) -> str | None:
        try:
            return text_of(kind.say(self.languages[tag], *meaning))
        except LookupError:  # CLDR has no name for it there
            return None


def _script(language: Language) -> str:
    """The script of the language's Monday, by the name of its first letter: LATIN, CJK."""
    return unicodedata.name(language.locale.days["format"]["wide"][0][0]).split()[0]


def _letters(text: str) -> int:
    return sum(unicodedata.category(character)[0] == "L" for character in text)
