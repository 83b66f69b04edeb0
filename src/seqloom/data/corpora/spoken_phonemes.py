"""English phrases of Unicode CLDR, which synthetic voices speak, with the phoneme of each frame."""

from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.data.corpora import spoken_numbers
from seqloom.data.corpus import Corpus

if TYPE_CHECKING:
    from seqloom.data.sound_labels import LabelledSound

SUMMARY = "spoken phrases with the phoneme of each frame, by synthetic voices; no download (needs espeak-ng)"
FORM = "sound-labels"
PAUSE = "pause"  # the label of frames without speech
STRESS = "',%=|"  # signs of espeak-ng for stress and syllables, which are not part of a phoneme


@config
class Config(spoken_numbers.Config):
    corpus: Literal["spoken-phonemes"] = "spoken-phonemes"  # type: ignore[assignment]
    languages: tuple[str, ...] = ("en",)
    kinds: tuple[str, ...] = ("number", "countries", "languages")
    train: PositiveInt = 2000
    dev: PositiveInt = 200
    test: PositiveInt = 400


def load(config: Config) -> "Corpus[LabelledSound]":
    """Draw phrases and voices as for `spoken-numbers`, and label the sounds by the phonemes of espeak-ng."""
    from seqloom.data.sound_labels import LabelledSound, Segment
    from seqloom.data.spoken_texts import SpokenText

    corpus = spoken_numbers.load(config)
    splits: dict[str, list[LabelledSound]] = {}
    for split, examples in corpus.splits.items():
        splits[split] = []
        for example in examples:
            assert isinstance(example.signal, SpokenText)
            segments = tuple(Segment(label_of(name), start) for name, start in example.signal.phonemes())
            splits[split].append(LabelledSound(example.signal, segments, example.text, example.group))
    return Corpus(
        name="spoken-phonemes",
        version=corpus.version,
        licence=corpus.licence,
        description=corpus.description,
        splits=splits,
    )


def label_of(phoneme: str) -> str:
    """Return the label of a phoneme of espeak-ng, without its stress."""
    name = phoneme.strip(STRESS)
    return PAUSE if not name.strip("_:") else name
