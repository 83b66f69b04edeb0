"""Corpora of speech: splits by recording, speaker, phrase and voice, strings of digits, and labels of frames."""

import zipfile

import numpy as np
import pytest

from seqloom.config import ConfigError
from seqloom.core.errors import DataError
from seqloom.data.corpora import load, spoken_numbers, spoken_phonemes
from seqloom.data.corpora.digits_speech import DIGITS, SPEAKERS, Config
from seqloom.data.features_sound import LogMelConfig
from seqloom.data.files import use_data_folder
from seqloom.data.sound import SampledSound, encode_wav
from seqloom.data.sound_labels import LabelledSound, Segment
from seqloom.data.transcriptions import Vectors

TAKES = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small archive with the names of the data set: constant sounds whose value shows the digit."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "fsdd").mkdir()
    with zipfile.ZipFile(folder / "fsdd" / "recordings.zip", "w") as archive:
        for digit in range(10):
            for number, speaker in enumerate(SPEAKERS):
                for take in range(TAKES):
                    sound = SampledSound("x", np.full(80 + take, (digit + 1) / 20 + number / 1000, np.float32), 8000)
                    archive.writestr(f"recordings/{digit}_{speaker}_{take}.wav", encode_wav(sound))
        archive.writestr("recordings/readme.txt", "not a sound")
    return folder


def read(data, **options):
    with use_data_folder(data):
        return load(Config(**options))


def takes(examples):
    return {int(example.name.removesuffix(".wav").split("_")[2]) for example in examples}


def test_customary_split_depends_on_the_number_of_the_recording(data):
    corpus = read(data)
    assert {split: takes(corpus.splits[split]) for split in corpus.splits} == {
        "train": {10, 11},
        "dev": {5, 6, 7, 8, 9},
        "test": {0, 1, 2, 3, 4},
    }
    for example in corpus.splits["test"]:
        digit, speaker, _ = example.name.split("_")
        assert (example.text, example.group) == (DIGITS[int(digit)], speaker)
        assert np.median(example.signal.read()) == pytest.approx((int(digit) + 1) / 20, abs=0.006)


def test_a_speaker_is_left_out(data):
    corpus = read(data, test_speaker="lucas")
    groups = {split: {example.group for example in corpus.splits[split]} for split in corpus.splits}
    others = set(SPEAKERS) - {"lucas"}
    assert groups == {"train": others, "dev": others, "test": {"lucas"}}
    assert len(corpus.splits["test"]) == 10 * TAKES
    corpus = read(data, test_speaker="lucas", dev_speaker="george")
    groups = {split: {example.group for example in corpus.splits[split]} for split in corpus.splits}
    assert groups == {"train": others - {"george"}, "dev": {"george"}, "test": {"lucas"}}
    assert takes(corpus.splits["train"]) == set(range(TAKES))


def test_strings_join_recordings_of_one_speaker_and_one_split(data):
    corpus = read(data, digits=(2, 7), strings=(50, 20, 30))
    assert {split: len(examples) for split, examples in corpus.splits.items()} == {"train": 50, "dev": 20, "test": 30}
    lengths = {len(example.text.split()) for example in corpus.splits["train"]}
    assert lengths == set(range(2, 8))
    for split, expected in (("train", {10, 11}), ("test", {0, 1, 2, 3, 4})):
        for example in corpus.splits[split]:
            names = [part.name.removesuffix(".wav").split("_") for part in example.signal.parts]
            assert " ".join(DIGITS[int(digit)] for digit, _, _ in names) == example.text
            assert {speaker for _, speaker, _ in names} == {example.group}
            assert {int(take) for _, _, take in names} <= expected
    again = read(data, digits=(2, 7), strings=(50, 20, 30))
    assert again.fingerprint() == corpus.fingerprint()
    other = read(data, digits=(2, 7), strings=(50, 20, 30), seed=1)
    assert other.fingerprint()["train"] != corpus.fingerprint()["train"]


def test_synthetic_voices_are_added_to_train(data):
    pytest.importorskip("espeakng_loader")
    corpus = read(data, synthetic=40)
    people = [example for example in corpus.splits["train"] if example.group in SPEAKERS]
    assert len(corpus.splits["train"]) == len(people) + 40
    assert {example.text for example in corpus.splits["train"][-40:]} <= set(DIGITS)
    corpus = read(data, synthetic=40, people=False)
    assert len(corpus.splits["train"]) == 40 and len(corpus.splits["test"]) == 250


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_speaker": "lukas"}, "did you mean lucas"),
        ({"test_speaker": "lucas", "dev_speaker": "lucas"}, "must differ"),
        ({"digits": (3, 2)}, "minimum, maximum"),
        ({"people": False}, "train must have examples"),
    ],
)
def test_impossible_options_are_reported(options, message):
    with pytest.raises(ConfigError, match=message):
        Config(**options)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["recordings/seven_george_1.wav"], "must be named DIGIT_SPEAKER_NUMBER.wav"),
        (["recordings/1_george_1.wav"], "recordings of all digits for"),
        (["a/1_george_1.wav", "b/1_george_1.wav"], "two sounds with the same name"),
    ],
)
def test_other_archives_are_refused(names, message, tmp_path):
    (tmp_path / "fsdd").mkdir()
    with zipfile.ZipFile(tmp_path / "fsdd" / "recordings.zip", "w") as archive:
        for name in names:
            archive.writestr(name, encode_wav(SampledSound("x", np.zeros(5, np.float32), 8000)))
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_missing_and_damaged_archives_are_reported(tmp_path):
    with pytest.raises(DataError, match="Free Spoken Digit Dataset needs"):
        read(tmp_path)
    (tmp_path / "fsdd").mkdir()
    (tmp_path / "fsdd" / "recordings.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match="readable ZIP archive"):
        read(tmp_path)


# --- synthetic voices -------------------------------------------------------------------------------------------------


def test_phrases_and_voices_of_dev_and_test_are_not_in_train():
    pytest.importorskip("espeakng_loader")
    config = spoken_numbers.Config(train=60, dev=12, test=12)
    corpus = load(config)
    texts = [example.text for examples in corpus.splits.values() for example in examples]
    assert len(texts) == len(set(texts)) == 84
    variants = {
        split: {example.group.partition("+")[2] for example in examples} for split, examples in corpus.splits.items()
    }
    assert not variants["train"] & (variants["dev"] | variants["test"]) and not variants["dev"] & variants["test"]
    languages = [example.group.partition("+")[0] for example in corpus.splits["train"]]
    assert languages == ["en-us", "de", "fr"] * 20
    assert load(config).fingerprint() == corpus.fingerprint()
    with pytest.raises(DataError, match=r"data\.train must be lower"):
        load(spoken_numbers.Config(languages=("en",), kinds=("number",), train=20_000, dev=1, test=1))


def test_phonemes_label_the_frames_at_their_times():
    pytest.importorskip("espeakng_loader")
    corpus = load(spoken_phonemes.Config(train=12, dev=3, test=3))
    labels = {label for example in corpus.splits["train"] for label in example.labels()}
    assert {"pause", "s", "n"} <= labels
    assert not any(mark in label for label in labels for mark in "',%")
    loudness: dict[str, list[Vectors]] = {"pause": [], "s": []}
    features = LogMelConfig(rate=16000, normalize="none", deltas=0)
    for example in corpus.splits["train"]:
        static = features.log_mel(example.signal)
        times = features.times(len(static)) + features.frame_ms / 2000
        for row, label in zip(static, example.labels_at(times), strict=True):
            if label in loudness:
                loudness[label].append(row)
    hiss = np.mean(loudness["s"], axis=0)
    assert hiss[-10:].mean() > np.mean(loudness["pause"], axis=0)[-10:].mean() + 2
    assert hiss[-10:].mean() > hiss[:10].mean()  # the energy of s is at high frequencies


def test_labels_are_found_at_given_times():
    sound = SampledSound("x", np.zeros(1000, np.float32), 1000)
    example = LabelledSound(sound, (Segment("a", 0.1), Segment("b", 0.5)), "ab")
    assert example.labels_at(np.array([0.0, 0.1, 0.49, 0.5, 0.9])) == ["a", "a", "a", "b", "b"]
