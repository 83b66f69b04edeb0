"""English words, written with the letters of two single-stroke alphabets."""

from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt, Probability
from seqloom.data.corpus import Corpus, GeneratedConfig, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqloom.data.transcriptions import TranscribedExample

SUMMARY = "pen strokes of English words in two alphabets; dev and test have other words than train"
FORM = "transcription"
ALPHABETS = ("print", "script")


@config
class Config(GeneratedConfig):
    corpus: Literal["pen-letters"] = "pen-letters"
    train: PositiveInt = 4000
    dev: PositiveInt = 300
    test: PositiveInt = 500
    # fraction of the training words that are invented, so that a model cannot only learn a list of words
    invented: Probability = 0.5
    alphabets: tuple[str, ...] = ALPHABETS  # print, script or both

    def problems(self) -> "Iterator[str]":
        if not self.alphabets or not set(self.alphabets) <= set(ALPHABETS):
            yield f"alphabets must be print, script or both; got {', '.join(self.alphabets) or 'none'}"


def load(config: Config) -> "Corpus[TranscribedExample]":
    """Write the words."""
    from seqloom.data.handwriting import embedded_alphabets, write_examples

    writers = {name: embedded_alphabets()[name] for name in config.alphabets}
    splits = config.draw(lambda split, count: write_examples(split, count, writers, config.invented, config.seed))
    return Corpus(
        name="pen-letters",
        version=f"{version_of(splits)} seed {config.seed}",
        description="pen strokes of English words, written with the Hershey alphabets Simplex Roman and Simplex Script",
        licence="public domain: Hershey Fonts, created by A. V. Hershey at the U.S. National Bureau of Standards",
        splits=splits,
    )
