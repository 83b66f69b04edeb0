"""Which language a phrase is in: phrases of `cldr`, each in one of many languages."""

import unicodedata
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.data.corpora.cldr import KINDS, LICENCE, Kind, Meaning, Shared, missing_kinds, version
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.generated import Dice
from seqloom.data.phrases import Language, find, require_babel, text_of
from seqloom.data.splits import normal_form, split_of_group

SUMMARY = "which of 34 languages a phrase is in, from Unicode CLDR; no download"
FORM = "text-classification"
DRAWING = "2"  # of what is drawn here; a change of it is a new version
MAX_TRIES = 2000  # draws without a new phrase of a split before a language is used up
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
MIN_LETTERS = 3  # a phrase must have so many, or it could be of any language


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

    The normal form of a phrase decides its split: no phrase of dev or test stands in another split
    with other digits, punctuation or capitals. No phrase stands twice, dev and test have each
    normal form once, and their phrases read differently in every other language.
    """
    require_babel("languages")
    return Corpus(
        name="languages",
        version=f"{DRAWING}/{version()} seed {config.seed}",
        licence=LICENCE,
        description=f"phrases from Unicode CLDR in {len(config.languages)} languages; no phrase of dev or test is in "
        "train with other digits or punctuation, or is the same in another of the languages",
        splits=config.draw(PhraseDrawing(config).take),
    )


class PhraseDrawing:
    """Draws phrases of many languages, and queues each for the split that its normal form decides."""

    def __init__(self, config: Config) -> None:
        self.dice = Dice(f"languages/{DRAWING}/{config.seed}")
        self.seed = config.seed
        self.seen: set[str] = set()  # phrases of train, normal forms of dev and test
        self.waiting: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)  # by language and split
        self.languages = {tag: Language(tag) for tag in config.languages}
        self.shared = {tag: Shared(language, language) for tag, language in self.languages.items()}
        self.kinds: dict[str, list[Kind]] = {}  # as often as their shares, so that one is drawn by its place
        scripts: dict[str, str] = {}  # of the language's Monday, by the name of its first letter: LATIN, CJK
        for tag, language in self.languages.items():
            without = {*SIGNS_ALONE, *missing_kinds(language)}
            self.kinds[tag] = [kind for kind in KINDS if kind.name not in without for _ in range(kind.share)]
            scripts[tag] = unicodedata.name(language.locale.days["format"]["wide"][0][0]).split()[0]
        self.alike = {
            tag: [other for other in scripts if other != tag and scripts[other] == scripts[tag]] for tag in scripts
        }

    def take(self, split: str, count: int) -> list[TextClassificationExample]:
        """Return phrases of a split, in turn from every language.

        Phrases of the other splits that are drawn before them wait for their turn.
        """
        examples, tags = [], list(self.languages)
        for number in range(count):
            tag = tags[number % len(tags)]
            waiting, tries = self.waiting[tag, split], 0
            while not waiting and tries < MAX_TRIES:
                self._draw(tag)
                tries += 1
            if not waiting:
                raise DataError(
                    f"There are not enough phrases in {tag}: ask for fewer (data.train, data.dev, data.test)."
                )
            examples.append(TextClassificationExample(waiting.popleft(), tag))
        return examples

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
        letters = sum(unicodedata.category(character)[0] == "L" for character in text)
        if unique in self.seen or letters < MIN_LETTERS:
            return
        if split == "train" or not self.is_said_elsewhere(tag, kind, meaning, text):
            self.seen.add(unique)
            self.waiting[tag, split].append(text)

    def is_said_elsewhere(self, tag: str, kind: Kind, meaning: Meaning, text: str) -> bool:
        """Return whether another language of the same script says it with the same letters: 74 volt.

        Perhaps as another kind: what is a long date here may be a medium one there.
        """
        for other in self.alike[tag]:
            for alike in dict.fromkeys(self.kinds[other]):
                if alike.draw is kind.draw:
                    with suppress(LookupError):  # CLDR has no name for it there
                        if text_of(alike.say(self.languages[other], *meaning)) == text:
                            return True
        return False
