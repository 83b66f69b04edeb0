"""Texts that espeak-ng speaks with many voices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqloom.data.corpus import frame
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice
from seqloom.data.sound import Sound
from seqloom.data.sound_files import Samples
from seqloom.data.synthesis import TimedPhoneme, Voice, speak, synthesizer

VARIANTS = read_asset("voices.txt")  # the variants of each split
WORDS_PER_MINUTE, PITCH, PITCH_RANGE = (120, 220), (20, 80), (25, 75)  # minimum and maximum of each voice parameter
EDGE = 0.02  # parts at the start and the end that are quieter than this fraction of the maximum are removed


@dataclass(frozen=True, eq=False)
class SpokenText(Sound):
    """A text and the voice that speaks it. The sound is synthesized when it is read, in about ten milliseconds."""

    name: str
    text: str
    voice: Voice

    @property
    def rate(self) -> int:  # type: ignore[override]
        return synthesizer().rate

    def read(self) -> Samples:
        samples = speak(self.text, self.voice).samples
        return samples[slice(*loud_part(samples))]

    def phonemes(self) -> list[TimedPhoneme]:
        """Return the phonemes with their starts in the sound."""
        utterance = speak(self.text, self.voice)
        start = loud_part(utterance.samples)[0] / utterance.rate
        return [TimedPhoneme(name, time - start) for name, time in utterance.phonemes]

    def content(self) -> bytes:
        version = f"espeak-ng {synthesizer().version}"
        return b"".join(map(frame, (version, self.text, repr(self.voice))))


def loud_part(samples: Samples) -> tuple[int, int]:
    """Return the first sample of a sound and the sample after the last, without silence at the start and the end."""
    loud = np.flatnonzero(np.abs(samples) > EDGE * np.abs(samples).max(initial=0))
    return (int(loud[0]), int(loud[-1]) + 1) if len(loud) else (0, len(samples))


def draw_voice(dice: Dice, languages: Sequence[str], split: str) -> Voice:
    """Draw a voice of a split, and how it speaks."""
    limits = (WORDS_PER_MINUTE, PITCH, PITCH_RANGE)
    return Voice(dice.one_of(languages), dice.one_of(VARIANTS[split]), *(dice.between(*limit) for limit in limits))
