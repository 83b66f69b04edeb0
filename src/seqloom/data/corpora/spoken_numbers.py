"""Phrases of Unicode CLDR in several languages, which synthetic voices speak: numbers, durations, dates, names."""

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.core.words import did_you_mean
from seqloom.data.corpora.cldr import KINDS, LICENCE, MAX_TRIES, PhraseKind, SharedNames, missing_kinds, version
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.generated import Dice
from seqloom.data.phrases import Language, find, require_babel, text_of

if TYPE_CHECKING:
    from seqloom.data.transcriptions import TranscribedExample

SUMMARY = "numbers and other phrases of Unicode CLDR, spoken by synthetic voices; no download (needs espeak-ng)"
FORM = "transcription"
DRAWING_VERSION = "1"  # increase this number when a change of this module alters the phrases or voices
VOICES = {"en": "en-us", "pt": "pt-br", "zh": "cmn", "no": "nb"}  # languages whose voices have other names


@config
class Config(GeneratedConfig):
    corpus: Literal["spoken-numbers"] = "spoken-numbers"
    languages: tuple[str, ...] = ("en", "de", "fr")  # tags of languages, as for the corpus cldr
    # kinds of phrases, as for the corpus cldr: number, numbers, duration, full date, countries, languages …
    kinds: tuple[str, ...] = ("number", "numbers")
    train: PositiveInt = 6000  # number of phrases over all languages
    dev: PositiveInt = 300
    test: PositiveInt = 600

    def problems(self) -> Iterator[str]:
        names = [kind.name for kind in KINDS]
        for name in self.kinds:
            if name not in names:
                yield f"kinds contains {name!r}, which is unknown; {did_you_mean(name, names)}"
        if not self.kinds or not self.languages:
            yield "kinds and languages must not be empty"
        try:
            require_babel()
        except ResourceError:
            return  # a recipe can be read without babel; `load` reports that it is missing
        for tag in self.languages:
            find(tag)


def load(config: Config) -> "Corpus[TranscribedExample]":
    """Draw the phrases and voices. No phrase and no voice variant is in two splits."""
    from seqloom.data.synthesis import synthesizer

    require_babel()
    drawings = [SpokenPhrases(tag, config) for tag in config.languages]

    def take(split: str, count: int) -> "list[TranscribedExample]":
        return [drawings[number % len(drawings)].draw_example(split, number + 1) for number in range(count)]

    splits = config.draw(take)
    return Corpus(
        name="spoken-numbers",
        version=f"{DRAWING_VERSION} {version()} espeak-ng {synthesizer().version} seed {config.seed}",
        licence=f"{LICENCE}; GPL-3.0 (espeak-ng; not its output)",
        description=f"phrases of {len(config.kinds)} kinds in {', '.join(config.languages)}, spoken by espeak-ng",
        splits=splits,
    )


class SpokenPhrases:
    """A generator of different phrases in one language, with the voices that speak them."""

    def __init__(self, tag: str, config: Config) -> None:
        self.language = Language(tag)
        self.names = SharedNames(self.language, self.language)
        self.dice = Dice(f"spoken-numbers/{DRAWING_VERSION}/{config.seed}/{tag}")
        self.voice = VOICES.get(self.language.locale.language, self.language.locale.language)
        missing = missing_kinds(self.language)
        self.kinds = [kind for kind in KINDS if kind.name in config.kinds and kind.name not in missing]
        self.seen: set[str] = set()

    def draw_example(self, split: str, number: int) -> "TranscribedExample":
        """Draw a phrase that was not drawn before, and a voice of the split."""
        from seqloom.data.spoken_texts import SpokenText, draw_voice
        from seqloom.data.transcriptions import TranscribedExample

        text = self._draw_text(split)
        voice = draw_voice(self.dice, (self.voice,), split)
        name = f"{split} {number}"
        return TranscribedExample(SpokenText(name, text, voice), text, voice.name)

    def _draw_text(self, split: str) -> str:
        while self.kinds:
            kind = self._draw_kind()
            for _ in range(MAX_TRIES):
                text = text_of(kind.say(self.language, *kind.draw(self.dice, self.names)))
                if text not in self.seen:
                    self.seen.add(text)
                    return text
            self.kinds.remove(kind)
        raise DataError(
            f"data.{split} must be lower: no different phrases of these kinds are left in {self.language.tag}. Lower "
            "data.train, or add kinds."
        )

    def _draw_kind(self) -> PhraseKind:
        sums = list(accumulate(kind.weight for kind in self.kinds))
        number = self.dice.below(sums[-1])
        return next(kind for kind, upper in zip(self.kinds, sums, strict=True) if number < upper)
