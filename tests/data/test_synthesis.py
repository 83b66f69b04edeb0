"""Synthetic speech: it depends only on the text and the voice, and its phonemes have times."""

import subprocess
import sys

import numpy as np
import pytest

from seqloom.core.errors import DataError, ResourceError
from seqloom.data import synthesis
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice
from seqloom.data.joined_sound import JoinedSound
from seqloom.data.sound import SampledSound
from seqloom.data.spoken_texts import VARIANTS, SpokenText, draw_voice
from seqloom.data.synthesis import Voice, speak

pytest.importorskip("espeakng_loader")
ALICE = Voice("en-us", "f2", 150, 40, 40)


def test_a_sound_does_not_depend_on_previous_sounds():
    first = speak("three, seven, nine", ALICE)
    speak("etwas anderes", Voice("de", "m3"))
    again = speak("three, seven, nine", ALICE)
    np.testing.assert_array_equal(first.samples, again.samples)
    assert first.phonemes == again.phonemes
    assert not np.array_equal(first.samples, speak("three, seven, five", ALICE).samples)


def test_another_process_synthesizes_the_same_sound():
    program = (
        "from seqloom.data.synthesis import *; import hashlib; "
        "print(hashlib.sha256(speak('zero', Voice('en-us', 'croak')).samples.tobytes()).hexdigest())"
    )
    outputs = {subprocess.run([sys.executable, "-c", program], capture_output=True).stdout for _ in range(2)}
    assert len(outputs) == 1 and len(outputs.pop()) == 65


def test_speed_and_pitch_change_the_sound():
    fast, slow = (speak("seven", Voice("en-us", "", words, 50, 50)).samples for words in (250, 100))
    assert len(fast) < 0.8 * len(slow)

    def pitch(value):
        samples = speak("aaaah", Voice("en-us", "", 100, value, 0)).samples[4000:12000]
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))[:400]
        return spectrum[20:].argmax()

    assert pitch(10) != pitch(90)


def test_phonemes_are_in_order_and_within_the_sound():
    text = SpokenText("x", "seven", ALICE)
    names, starts = zip(*text.phonemes(), strict=True)
    assert "s" in names[0] and "v" in names
    assert list(starts) == sorted(starts) and starts[0] < 0.1
    assert starts[-1] <= speak("seven", ALICE).samples.size / 22050


def test_unknown_voices_are_reported():
    with pytest.raises(DataError, match="espeak-ng has no voice xx"):
        speak("one", Voice("xx"))


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ResourceError, match=r"pip install 'seqloom\[speech\]'"):
        synthesis.Synthesizer()


def test_silence_around_spoken_texts_is_removed():
    samples = SpokenText("x", "one", ALICE).read()
    whole = speak("one", ALICE).samples
    assert 1000 < len(samples) < len(whole)
    assert np.abs(samples[:50]).max() > 0.005 and np.abs(samples[-50:]).max() > 0.005


def test_every_variant_of_the_voices_exists_and_belongs_to_one_split():
    names = [name for split in VARIANTS.values() for name in split]
    assert len(names) == len(set(names)) and set(VARIANTS) == {"train", "dev", "test"}
    assert read_asset("voices.txt") == VARIANTS
    for name in names:
        assert len(speak("a", Voice("en-us", name)).samples) > 0
    voices = {split: {draw_voice(Dice(split), ("en-us", "de"), split) for _ in range(100)} for split in VARIANTS}
    assert all(voice.variant in VARIANTS[split] for split, drawn in voices.items() for voice in drawn)


def test_joined_recordings_are_in_order_with_pauses_between_them():
    tones = [SampledSound(str(n), np.full(800, n / 10, dtype=np.float32), 8000) for n in (3, 5, 7)]
    joined = JoinedSound("train 1", tuple(tones), 0)
    samples = joined.read()
    np.testing.assert_array_equal(samples, JoinedSound("train 1", tuple(tones), 0).read())
    assert not np.array_equal(samples, JoinedSound("train 2", tuple(tones), 0).read())
    for start, tone in zip(joined.starts(), tones, strict=True):
        first = round(start * 8000)
        assert abs(float(np.median(samples[first + 5 : first + 795])) - tone.samples[0]) < 1e-6
    assert len(samples) == 2400 + sum(round(pause * 8000) for pause in joined.pauses)
    quiet = samples[np.abs(samples) < 0.1]
    assert 0 < quiet.std() < 0.03
