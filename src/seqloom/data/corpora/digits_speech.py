"""Spoken English digits, single or joined to strings: the Free Spoken Digit Dataset, and synthetic voices."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeInt, PositiveInt
from seqloom.core.errors import DataError
from seqloom.core.words import did_you_mean
from seqloom.data.corpus import Corpus
from seqloom.data.files import DataSet
from seqloom.data.generated import Dice

if TYPE_CHECKING:
    from seqloom.data.sound import Sound
    from seqloom.data.transcriptions import TranscribedExample

SUMMARY = "spoken digits of five speakers, single or joined to strings (needs SEQLOOM_DATA)"
FORM = "transcription"
SOURCE = DataSet("Free Spoken Digit Dataset", "https://github.com/Jakobovski/free-spoken-digit-dataset; CC BY-SA 4.0")
FILE = "fsdd/recordings.zip"
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "yweweler")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEST_TAKES, DEV_TAKES = range(5), range(5, 10)  # numbers of the recordings of each digit and speaker
ENGLISH = ("en-us", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbcwmd", "en-us-nyc")
Length = Annotated[int, Ge(1), Le(20)]


@config
class Config:
    corpus: Literal["digits-speech"] = "digits-speech"
    digits: tuple[Length, Length] = (1, 1)  # minimum and maximum number of digits of a recording
    # number of strings of train, dev and test, each by one speaker; unused for single digits
    strings: tuple[PositiveInt, PositiveInt, PositiveInt] = (6000, 300, 1000)
    test_speaker: str | None = None  # all recordings of this speaker are test; null: takes 0 to 4 of all speakers
    dev_speaker: str | None = None  # all recordings of this speaker are dev; null: takes 5 to 9 of the other speakers
    people: bool = True  # train on recordings of people; false: only on synthetic voices
    synthetic: NonNegativeInt = 0  # number of digits or strings in train that synthetic voices speak
    seed: int = 0  # seed of the strings and the synthetic voices

    def problems(self) -> Iterator[str]:
        if self.digits[0] > self.digits[1]:
            yield f"digits must be [minimum, maximum]; got {list(self.digits)}"
        for key, speaker in (("test_speaker", self.test_speaker), ("dev_speaker", self.dev_speaker)):
            if speaker is not None and speaker not in SPEAKERS:
                yield f"{key} must be null or one of {', '.join(SPEAKERS)}; {did_you_mean(speaker, SPEAKERS)}"
        if self.test_speaker is not None and self.test_speaker == self.dev_speaker:
            yield f"test_speaker and dev_speaker must differ; both are {self.test_speaker}"
        if not self.people and not self.synthetic:
            yield "train must have examples: set people: true, or synthetic to a positive number"


def load(config: Config) -> "Corpus[TranscribedExample]":
    """Load the recordings, join them to strings, and add synthetic voices to train."""
    splits = {split: _strings(config, split, takes) for split, takes in _recordings(config).items()}
    if not config.people:
        splits["train"] = []
    splits["train"] += _synthetic(config)
    kind = "single digits" if config.digits[1] == 1 else f"strings of {config.digits[0]} to {config.digits[1]} digits"
    voices = f", with {config.synthetic:,} recordings of synthetic voices in train" if config.synthetic else ""
    return Corpus(
        name="digits-speech",
        licence="CC BY-SA 4.0",
        description=f"spoken English {kind}{voices}",
        splits=splits,
    )


def _recordings(config: Config) -> "dict[str, list[tuple[int, str, Sound]]]":
    """Return the digit, the speaker and the sound of each recording of each split."""
    from seqloom.data.sound import read_zip_sounds

    path = SOURCE.file(FILE)
    splits: dict[str, list[tuple[int, str, Sound]]] = {"train": [], "dev": [], "test": []}
    for name, sound in read_zip_sounds(path).items():
        digit, speaker, take = _parse_name(name, str(path))
        if config.test_speaker is not None:
            is_test = speaker == config.test_speaker
        else:
            is_test = take in TEST_TAKES and speaker != config.dev_speaker
        is_dev = take in DEV_TAKES if config.dev_speaker is None else speaker == config.dev_speaker
        splits["test" if is_test else "dev" if is_dev else "train"].append((digit, speaker, sound))
    for split, recordings in splits.items():
        if len({digit for digit, _, _ in recordings}) < len(DIGITS):
            raise DataError(f"{path} must have recordings of all digits for {split}. Download it again.")
    return splits


def _parse_name(name: str, archive: str) -> tuple[int, str, int]:
    """Return the digit, the speaker and the take in a file name such as 7_jackson_32.wav."""
    parts = name.removesuffix(".wav").split("_")
    if len(parts) != 3 or not (parts[0].isdecimal() and len(parts[0]) == 1 and parts[2].isdecimal()):
        raise DataError(f"The files of {archive} must be named DIGIT_SPEAKER_NUMBER.wav; got {name}.")
    return int(parts[0]), parts[1], int(parts[2])


def _strings(config: Config, split: str, recordings: "Sequence[tuple[int, str, Sound]]") -> "list[TranscribedExample]":
    """Return single recordings, or strings that join recordings of one speaker."""
    from seqloom.data.joined_sound import JoinedSound
    from seqloom.data.transcriptions import TranscribedExample

    if config.digits == (1, 1):
        return [TranscribedExample(sound, DIGITS[digit], speaker) for digit, speaker, sound in recordings]
    takes: dict[tuple[str, int], list[Sound]] = {}
    for digit, speaker, sound in recordings:
        takes.setdefault((speaker, digit), []).append(sound)
    speakers = sorted({speaker for speaker, _ in takes})
    dice = Dice(f"digits-speech {config.seed} {split}")
    examples = []
    for number in range(config.strings[("train", "dev", "test").index(split)]):
        speaker = dice.one_of(speakers)
        digits = [dice.below(len(DIGITS)) for _ in range(dice.between(*config.digits))]
        parts = tuple(dice.one_of(takes[speaker, digit]) for digit in digits)
        text = " ".join(DIGITS[digit] for digit in digits)
        examples.append(TranscribedExample(JoinedSound(f"{split} {number + 1}", parts, config.seed), text, speaker))
    return examples


def _synthetic(config: Config) -> "list[TranscribedExample]":
    """Return digits or strings that synthetic voices speak, one digit at a time."""
    from seqloom.data.joined_sound import JoinedSound
    from seqloom.data.spoken_texts import SpokenText, draw_voice
    from seqloom.data.transcriptions import TranscribedExample

    dice = Dice(f"digits-speech synthetic {config.seed}")
    examples = []
    for number in range(config.synthetic):
        voice = draw_voice(dice, ENGLISH, "train")
        words = [DIGITS[dice.below(len(DIGITS))] for _ in range(dice.between(*config.digits))]
        name = f"synthetic {number + 1}"
        parts = tuple(SpokenText(f"{name}, {word}", word, voice) for word in words)
        sound = parts[0] if len(parts) == 1 else JoinedSound(name, parts, config.seed)
        examples.append(TranscribedExample(sound, " ".join(words), voice.name))
    return examples
