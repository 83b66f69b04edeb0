"""Sound files: decoding compared with other readers, resampling compared with SciPy, and messages on bad files."""

import io
import os
import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.data import sound as sound_module
from seqloom.data.sound import SampledSound, decode_sound, encode_wav, read_sound, resample
from seqloom.data.sound_files import open_sound

RATE = 8000


def wav(values, *, code=1, bits=16, channels=1, rate=RATE, size=None, extra=b""):
    """Write a WAV file, independently of `encode_wav`."""
    if code == 3:
        data = np.asarray(values, dtype=f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = np.asarray(values, dtype=np.uint8).tobytes()
    elif bits == 24:
        data = b"".join(int(value).to_bytes(3, "little", signed=True) for value in np.ravel(values))
    else:
        data = np.asarray(values, dtype=f"<i{bits // 8}").tobytes()
    width = channels * bits // 8
    chunk = struct.pack("<HHIIHH", code, channels, rate, rate * width, width, bits)
    size = len(data) if size is None else size
    body = b"WAVE" + extra + b"fmt " + struct.pack("<I", 16) + chunk + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(("bits", "scale"), [(16, 2**15), (24, 2**23), (32, 2**31)])
def test_integer_samples_are_divided_by_the_full_scale(bits, scale):
    values = [0, 1, -1, scale // 2, scale - 1, -scale]
    decoded = decode_sound(wav(values, bits=bits), "x.wav").samples
    np.testing.assert_allclose(decoded, np.array(values) / scale, atol=1e-7)


def test_bytes_are_unsigned():
    np.testing.assert_array_equal(decode_sound(wav([0, 128, 255], bits=8), "x.wav").samples, [-1, 0, 127 / 128])


@pytest.mark.parametrize("bits", [32, 64])
def test_floating_point_numbers_are_read_and_nan_is_silent(bits):
    decoded = decode_sound(wav([0.25, -0.5, np.nan, np.inf], code=3, bits=bits), "x.wav").samples
    np.testing.assert_array_equal(decoded, [0.25, -0.5, 0, 1])


def test_python_reads_and_writes_the_same_file():
    samples = np.random.default_rng(0).uniform(-1, 1, 1000).astype(np.float32)
    content = encode_wav(SampledSound("x", samples, 22050))
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 22050)
        integers = np.frombuffer(file.readframes(1000), dtype="<i2")
    decoded = decode_sound(content, "x.wav")
    np.testing.assert_array_equal(decoded.samples, integers / np.float32(32768))
    np.testing.assert_allclose(decoded.samples, samples, atol=1e-4)


def test_stereo_is_mixed_to_one_channel():
    decoded = decode_sound(wav([[1000, 3000], [-2000, 0]], channels=2), "x.wav")
    np.testing.assert_allclose(decoded.samples, [2000 / 2**15, -1000 / 2**15])


def test_other_chunks_and_extensible_formats_are_read():
    plain = wav([1, 2, 3], extra=b"LIST" + struct.pack("<I", 3) + b"abc\0")
    assert len(decode_sound(plain, "x.wav").samples) == 3
    guid = struct.pack("<HIH", 22, 0, 0)[:6] + struct.pack("<H", 3) + b"\0" * 14
    chunk = struct.pack("<HHIIHH", 0xFFFE, 1, RATE, 4 * RATE, 4, 32) + struct.pack("<HHI", 22, 32, 4) + guid[6:]
    data = np.array([0.5, -0.5], dtype=np.float32).tobytes()
    body = b"WAVEfmt " + struct.pack("<I", len(chunk)) + chunk + b"data" + struct.pack("<I", 8) + data
    np.testing.assert_array_equal(decode_sound(b"RIFF\0\0\0\0" + body, "x.wav").samples, [0.5, -0.5])


@pytest.mark.parametrize("extension", ["flac", "ogg"])
def test_flac_and_ogg_are_read(extension, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    tone = 0.5 * np.sin(np.arange(16000) * 2 * np.pi * 440 / 16000)
    path = tmp_path / f"tone.{extension}"
    soundfile.write(path, np.stack([tone, tone], axis=1), 16000)
    decoded = read_sound(path)
    assert decoded.rate == 16000
    np.testing.assert_allclose(decoded.samples, tone, atol=1e-4 if extension == "flac" else 0.05)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"one two three four", "its content has none of these formats: it is text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "its content has none of these formats."),
        (b"ID3" + bytes(40), "MP3 file. Convert it to WAV"),
        (wav([]), "zero samples"),
        (wav([1, 2, 3], size=8), "truncated: its header states 8 bytes of sound, but it has 6"),
        (wav([1, 2, 3])[:40], "has no samples"),
        (wav([1, 2, 3])[:30], "its format has"),
        (wav([1, 2], code=7, bits=8), "format is number 7 with 8 bits"),
        (wav([1, 2], bits=16, rate=10), "between 1,000 and 384,000 samples per second"),
        (wav([1, 2], channels=0), "between 1 and 32 channels, but it has 0"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0\0\0\0\0", "format must precede"),
        (b"fLaC" + bytes(100), "damaged or truncated"),
        (b"OggS" + bytes(100), "damaged or truncated"),
    ],
)
def test_bad_files_give_one_clear_line(content, message):
    if content[:4] in (b"fLaC", b"OggS"):
        pytest.importorskip("soundfile")
    with pytest.raises(DataError) as error:
        decode_sound(content, "bad.wav")
    assert message in str(error.value) and "bad.wav" in str(error.value) and "\n" not in str(error.value)


def test_truncated_flac_is_reported(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "noise.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-1, 1, 40000), RATE)
    path.write_bytes(path.read_bytes()[:30000])
    with pytest.raises(DataError, match="truncated"):
        read_sound(path)


def test_folders_pipes_and_missing_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ""):
        with pytest.raises(DataError, match=r"not a regular file|Is a directory"):
            read_sound(tmp_path / name)
    with pytest.raises(DataError, match="does not exist"):
        read_sound(tmp_path / "missing.wav")


def test_long_sounds_are_refused_in_memory_but_read_in_blocks(monkeypatch):
    monkeypatch.setattr(sound_module, "MAX_SOUND_SECONDS", 2)
    content = wav(np.arange(3 * RATE) % 100)
    with pytest.raises(DataError, match="at most 0 minutes"):
        decode_sound(content, "long.wav")
    blocks = list(open_sound(io.BytesIO(content), "long.wav").blocks(0.7))
    assert [len(block) for block in blocks] == [5600, 5600, 5600, 5600, 1600]
    np.testing.assert_array_equal(np.concatenate(blocks), (np.arange(3 * RATE) % 100) / np.float32(32768))


class Pipe(io.BytesIO):
    """A stream that returns a few bytes at a time and cannot be moved."""

    def read(self, size=-1):
        return super().read(min(size, 7))

    def seek(self, *position):
        raise io.UnsupportedOperation("seek")


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 6])
def test_streams_without_a_known_length_are_read_to_their_end(size):
    reader = open_sound(Pipe(wav([1, 2, 3, 4, 5], size=size)), "-", stream=True)
    expected = 3 if size == 6 else 5
    assert len(np.concatenate(list(reader.blocks()))) == expected


def test_silence_and_clipping_are_noted():
    tone = np.sin(np.arange(8000) / 5).astype(np.float32)
    assert SampledSound("x", 0 * tone, RATE).quality == ("silent",)
    assert SampledSound("x", 0.5 * tone, RATE).quality == ()
    (note,) = SampledSound("x", np.clip(3 * tone, -1, 1), RATE).quality
    assert note.startswith("clipped: ")


# --- resampling -------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 400),
    st.sampled_from([(8000, 16000), (16000, 8000), (44100, 16000), (22050, 8000), (48000, 44100), (7, 5), (3, 11)]),
)
def test_resampling_matches_scipy(length, rates):
    from scipy.signal import resample_poly

    samples = np.random.default_rng(length).uniform(-1, 1, length).astype(np.float32)
    expected = resample_poly(samples.astype(np.float64), rates[1], rates[0])
    np.testing.assert_allclose(resample(samples, *rates), expected, atol=1e-6)


def test_resampling_keeps_a_tone_and_removes_frequencies_above_the_band():
    times = np.arange(44100) / 44100
    low, high = (np.sin(2 * np.pi * hertz * times).astype(np.float32) for hertz in (1000, 7000))
    middle = slice(1000, 7000)
    expected = np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)
    np.testing.assert_allclose(resample(low, 44100, 8000)[middle], expected[middle], atol=0.01)
    assert np.abs(resample(high, 44100, 8000)[middle]).max() < 0.01
