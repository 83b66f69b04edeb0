"""Windows of long recordings: they cover every sample once, cut at quiet moments, and need little memory."""

import io
from collections.abc import Iterator

import numpy as np
import pytest

from seqloom.core.errors import DataError
from seqloom.data.features_sound import LogMelConfig
from seqloom.data.sound import SampledSound, encode_wav
from seqloom.data.sound_files import Samples, open_sound
from seqloom.data.sound_windows import OVERLAP, find_cut, read_windows

RATE = 1000


class ReaderOfParts:
    """A sound reader that yields given samples."""

    name, rate = "talk", RATE

    def __init__(self, samples):
        self.samples = samples

    def blocks(self, seconds: float = 10.0) -> Iterator[Samples]:
        size = int(seconds * RATE)
        for start in range(0, len(self.samples), size):
            yield self.samples[start : start + size]


def talk(seconds, pauses):
    """Return noise with pauses of 0.3 seconds."""
    samples = np.random.default_rng(0).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)
    for pause in pauses:
        samples[int((pause - 0.15) * RATE) : int((pause + 0.15) * RATE)] *= 0.001
    return samples


def test_short_recordings_are_one_window():
    samples = talk(3, [])
    (window,) = read_windows(ReaderOfParts(samples), 4)
    assert (window.start, window.part) == (0, None)
    np.testing.assert_array_equal(window.samples, samples)


@pytest.mark.parametrize("seconds", [4.6, 9, 31.7, 100])
def test_windows_keep_each_moment_once_and_overlap_on_both_sides(seconds):
    samples = talk(seconds, [])
    windows = list(read_windows(ReaderOfParts(samples), 4))
    assert len(windows) > 1
    position = 0.0
    for window in windows:
        assert window.part is not None
        start, end = window.part
        assert start == position and end - start <= 4
        assert window.start == pytest.approx(max(0, start - OVERLAP))
        assert window.start + window.seconds == pytest.approx(min(seconds, end + OVERLAP))
        first = round(window.start * RATE)
        np.testing.assert_array_equal(window.samples, samples[first : first + len(window.samples)])
        position = end
    assert position == pytest.approx(seconds)


def test_cuts_are_in_pauses():
    pauses = [2.5, 5.0, 8.1, 10.9]
    windows = list(read_windows(ReaderOfParts(talk(12, pauses)), 4))
    cuts = [window.part[0] for window in windows[1:] if window.part is not None]
    assert len(cuts) == len(windows) - 1 >= 3
    assert all(min(abs(cut - pause) for pause in pauses) < 0.15 for cut in cuts)


def test_the_quietest_part_is_searched_in_the_last_half():
    samples = talk(10, [1.0, 7.0])
    assert find_cut(samples, RATE) == pytest.approx(7000, abs=150)
    assert find_cut(np.zeros(10, dtype=np.float32), RATE) <= 10


def test_recordings_without_samples_are_refused():
    with pytest.raises(DataError, match="zero samples"):
        list(read_windows(ReaderOfParts(np.zeros(0, dtype=np.float32)), 4))


def test_endless_stream_is_read_window_by_window():
    class Endless(io.BytesIO):
        """A stream that counts the bytes that are read."""

        count = 0

        def read(self, size=-1):
            self.count += size
            if self.count <= len(header):
                return header[self.count - size : self.count]
            return bytes(size)

    header = encode_wav(SampledSound("x", np.zeros(0, dtype=np.float32), 8000))
    header = header[:-4] + b"\xff" * 4
    stream = Endless()
    windows = LogMelConfig(rate=8000, window=2.0).read_stream(stream)
    parts = [next(windows).part for _ in range(5)]
    cuts = [part[0] for part in parts if part is not None]
    assert len(cuts) == 5 and cuts == sorted(set(cuts)) and cuts[0] == 0
    assert stream.count < 20 * 2 * 8000  # about the five windows, and not more


def test_windows_of_a_file_equal_windows_of_a_stream(tmp_path):
    content = encode_wav(SampledSound("x", talk(9, [3.0]), RATE))
    path = tmp_path / "talk.wav"
    path.write_bytes(content)
    features = LogMelConfig(rate=4000, window=4.0)
    from_file, from_stream = list(features.read_file(path)), list(features.read_stream(io.BytesIO(content)))
    assert [window.part for window in from_file] == [window.part for window in from_stream]
    assert from_file[0].name == str(path)
    total = open_sound(io.BytesIO(content), "x")
    assert sum(len(block) for block in total.blocks()) == 9 * RATE
