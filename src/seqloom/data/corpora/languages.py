"""Language identification: phrases of `cldr` in many languages."""

import unicodedata
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.data.corpora.cldr import KINDS, LICENCE, Meaning, PhraseKind, SharedNames, missing_kinds, version
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.generated import Dice
from seqloom.data.phrases import Language, find, require_babel, text_of
from seqloom.data.splits import normal_form, split_of_group

SUMMARY = "language identification: phrases in 34 languages, from Unicode CLDR; no download"
FORM = "text-classification"
DRAWING_VERSION = "2"  # increase this number when a change of this module alters the phrases
MAX_TRIES = 2000  # a language is exhausted after this many draws without a new phrase of a split
HELD_OUT = {"dev": 0.1, "test": 0.2}  # fractions of the normal forms; the other normal forms are for train
LANGUAGES = (  # languages in thirteen scripts
    *("en", "de", "nl", "sv", "da", "fr", "es", "pt", "it", "ro", "pl", "cs", "hu", "fi", "tr", "vi", "id"),  # Latin
    *("ru", "uk", "bg", "sr"),  # Cyrillic
    *("el", "ka", "hy"),
    *("ar", "fa", "ur", "he"),
    *("hi", "bn", "th"),
    *("ko", "ja", "zh"),
)
DIGIT_KINDS = ("short date", "time", "price")  # kinds of phrases that are mostly digits
MIN_LETTERS = 3  # minimum number of letters in a phrase, so that its language can be identified


@config
class Config(GeneratedConfig):
    corpus: Literal["languages"] = "languages"
    languages: tuple[str, ...] = LANGUAGES  # language tags, which are also the labels
    train: PositiveInt = 10_000  # number of training phrases, the same number for each language
    dev: PositiveInt = 1_000
    test: PositiveInt = 2_000

    def problems(self) -> Iterator[str]:
        if len(set(self.languages)) < max(2, len(self.languages)):
            yield f"languages must be at least two different languages; got {list(self.languages)}"
        if min(self.train, self.dev, self.test) < len(self.languages):
            yield f"train, dev and test must each be at least {len(self.languages)}, a phrase for each language"
        try:
            require_babel("languages")
        except ResourceError:
            return  # a recipe can be read without babel; `load` reports that it is missing
        for tag in self.languages:
            find(tag)


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Generate the same number of phrases in each language.

    The normal form of a phrase determines its split, so phrases of different splits differ in more than digits,
    punctuation or case. Phrases are not repeated, and dev and test contain each normal form only once. A phrase of dev
    or test is not written in the same way in any other language.
    """
    require_babel("languages")
    return Corpus(
        name="languages",
        version=f"{DRAWING_VERSION}/{version()} seed {config.seed}",
        licence=LICENCE,
        description=f"phrases from Unicode CLDR in {len(config.languages)} languages; phrases of dev and test differ "
        "from those of train in more than digits and punctuation, and are unique to their language",
        splits=config.draw(PhraseDrawing(config).take),
    )


class PhraseDrawing:
    """A generator of phrases in many languages, with a queue for each language and split."""

    def __init__(self, config: Config) -> None:
        self.dice = Dice(f"languages/{DRAWING_VERSION}/{config.seed}")
        self.seed = config.seed
        self.seen: set[str] = set()  # phrases of train, and normal forms of dev and test
        self.queues: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)  # one queue per language and split
        self.languages = {tag: Language(tag) for tag in config.languages}
        self.shared = {tag: SharedNames(language, language) for tag, language in self.languages.items()}
        self.kinds: dict[str, list[PhraseKind]] = {}  # repeated by weight, so that a uniform draw respects the weights
        scripts: dict[str, str] = {}  # script from the Unicode name of the first letter of Monday: LATIN, CJK
        for tag, language in self.languages.items():
            excluded = {*DIGIT_KINDS, *missing_kinds(language)}
            self.kinds[tag] = [kind for kind in KINDS if kind.name not in excluded for _ in range(kind.weight)]
            scripts[tag] = unicodedata.name(language.locale.days["format"]["wide"][0][0]).split()[0]
        self.same_script = {
            tag: [other for other in scripts if other != tag and scripts[other] == scripts[tag]] for tag in scripts
        }

    def take(self, split: str, count: int) -> list[TextClassificationExample]:
        """Return phrases of a split, cycling through the languages.

        Phrases drawn for other splits wait in their queues.
        """
        examples, tags = [], list(self.languages)
        for number in range(count):
            tag = tags[number % len(tags)]
            queue, tries = self.queues[tag, split], 0
            while not queue and tries < MAX_TRIES:
                self._draw(tag)
                tries += 1
            if not queue:
                raise DataError(
                    f"The corpus languages has too few different phrases in {tag}. Lower data.train, data.dev or "
                    "data.test."
                )
            examples.append(TextClassificationExample(queue.popleft(), tag))
        return examples

    def _draw(self, tag: str) -> None:
        """Draw a phrase and put it in the queue of its split, unless it is a repetition or has too few letters.

        Dev and test accept only phrases that no other language writes with the same letters.
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
        if split == "train" or not self.is_ambiguous(tag, kind, meaning, text):
            self.seen.add(unique)
            self.queues[tag, split].append(text)

    def is_ambiguous(self, tag: str, kind: PhraseKind, meaning: Meaning, text: str) -> bool:
        """Return whether another language with the same script writes the meaning in the same way, such as 74 volt.

        Different kinds with the same meaning are also compared, because the long date format of one language may equal
        the medium date format of another language.
        """
        for other in self.same_script[tag]:
            for other_kind in dict.fromkeys(self.kinds[other]):
                if other_kind.draw is kind.draw:
                    with suppress(LookupError):  # CLDR has no name for it in this language
                        if text_of(other_kind.say(self.languages[other], *meaning)) == text:
                            return True
        return False
