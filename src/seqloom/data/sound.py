"""Sounds as samples in memory, and conversion of their sampling rate.

A `Sound` has one channel of samples between −1 and 1 and a sampling rate. `resample` converts between any two rates
with a polyphase filter: if up/down is the reduced ratio of the rates, the signal is thought of as having up − 1 zeros
after each sample, is filtered by a low-pass filter h, and each `down`-th value is kept:

    y[n] = Σ_k h[n·down − k·up] x[k]

Only the values of h at n·down − k·up are multiplied. They form the same set for each n with the same remainder of
n·down modulo up, a phase of the filter.
"""

import io
import zipfile
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.limits import MAX_SOUND_SECONDS
from seqloom.data.files import convert_read_errors
from seqloom.data.sound_files import (
    SOUND_EXTENSIONS,
    Samples,
    SoundReader,
    check_sound_bytes,
    open_sound,
    open_sound_file,
)
from seqloom.data.transcriptions import Signal

HALF_LENGTH = 10  # zero crossings of the low-pass filter on each side
KAISER_BETA = 5.0  # shape of the window of the low-pass filter
SILENCE = 1e-4  # a sound whose samples are all smaller is silent (−80 dB of full scale)
FULL_SCALE = 0.999  # samples of at least this size may be clipped
CLIPPED_FRACTION = 1e-3  # a sound with a larger fraction of samples at full scale is clipped
SILENT = "silent"
CLIPPED = "clipped: {:.1%} of the samples are at full scale"


class Sound(Signal):
    """A sound of one channel."""

    rate: int  # samples per second

    @abstractmethod
    def read(self) -> Samples:
        """Return the samples."""

    @cached_property
    def is_silent(self) -> bool:  # type: ignore[override]
        """Whether all samples are close to 0."""
        return float(np.abs(self.read()).max(initial=0)) < SILENCE

    @cached_property
    def quality(self) -> tuple[str, ...]:  # type: ignore[override]
        """Notes for the user on silence and clipping."""
        if self.is_silent:
            return (SILENT,)
        clipped = float((np.abs(self.read()) >= FULL_SCALE).mean())
        return (CLIPPED.format(clipped),) if clipped > CLIPPED_FRACTION else ()

    def at_rate(self, rate: int) -> Samples:
        """Return the samples at another rate."""
        return resample(self.read(), self.rate, rate)

    def content(self) -> bytes:
        samples = np.ascontiguousarray(self.read())
        return b"%d %d\n" % (self.rate, len(samples)) + samples.tobytes()


@dataclass(frozen=True, eq=False)
class SampledSound(Sound):
    """A sound whose samples are in memory."""

    name: str
    samples: Samples
    rate: int
    start: float = 0.0
    part: tuple[float, float] | None = None

    @property
    def seconds(self) -> float:
        """The duration."""
        return len(self.samples) / self.rate

    def read(self) -> Samples:
        return self.samples


def read_sound(path: Path) -> SampledSound:
    """Read a WAV, FLAC or OGG file into memory."""
    with open_sound_file(path) as reader:
        return read_all_blocks(reader)


def read_zip_sounds(path: Path) -> dict[str, SampledSound]:
    """Read the sound files of a ZIP archive, with their names without folders as keys, sorted by name.

    Names are never used as paths. Entries without the extension of a sound format are left out.
    """
    sounds: dict[str, SampledSound] = {}
    with convert_read_errors(path):
        try:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    name = entry.filename.replace("\\", "/").rsplit("/", 1)[-1]
                    if entry.is_dir() or name.startswith(".") or not name.lower().endswith(SOUND_EXTENSIONS):
                        continue
                    check_sound_bytes(entry.file_size, f"{name} in {path}")
                    if name in sounds:
                        raise DataError(f"{path} must not contain two sounds with the same name: {name}.")
                    sounds[name] = replace(decode_sound(archive.read(entry), f"{name} in {path}"), name=name)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # RuntimeError: encrypted archive
            raise DataError(f"{path} must be a readable ZIP archive of sounds ({error}).") from None
    return dict(sorted(sounds.items()))


def decode_sound(content: bytes, name: str) -> SampledSound:
    """Decode the content of a sound file."""
    check_sound_bytes(len(content), name)
    return read_all_blocks(open_sound(io.BytesIO(content), name))


def read_all_blocks(reader: SoundReader) -> SampledSound:
    """Read all samples; raise `DataError` if there are none or too many."""
    blocks, count = list[Samples](), 0
    for block in reader.blocks():
        blocks.append(block)
        count += len(block)
        if count > MAX_SOUND_SECONDS * reader.rate:
            raise DataError(
                f"{reader.name} must have at most {MAX_SOUND_SECONDS / 60:.0f} minutes of sound, but it has more. "
                "Divide it."
            )
    if count == 0:
        raise DataError(f"{reader.name} must contain sound, but it has zero samples.")
    return SampledSound(reader.name, np.concatenate(blocks), reader.rate)


def encode_wav(sound: SampledSound) -> bytes:
    """Encode a sound as a WAV file with 16 bits."""
    values = np.rint(np.clip(sound.samples, -1, 1) * 32767).astype("<i2").tobytes()
    header = b"fmt " + (16).to_bytes(4, "little") + (1).to_bytes(2, "little") * 2
    header += sound.rate.to_bytes(4, "little") + (2 * sound.rate).to_bytes(4, "little") + b"\x02\0\x10\0"
    header += b"data" + len(values).to_bytes(4, "little")
    return b"RIFF" + (4 + len(header) + len(values)).to_bytes(4, "little") + b"WAVE" + header + values


# --- resampling -------------------------------------------------------------------------------------------------------


def resample(samples: Samples, old_rate: int, new_rate: int) -> Samples:
    """Convert samples from one rate to another with a polyphase filter."""
    divisor = gcd(old_rate, new_rate)
    up, down = new_rate // divisor, old_rate // divisor
    if up == down:
        return samples
    count = -(-len(samples) * up // down)
    h = low_pass(max(up, down)) * up
    half = len(h) // 2  # y[n] is centred at n·down: h[i] multiplies x[k] with k·up = n·down + half − i
    taps = -(-len(h) // up)
    phases = np.zeros((up, taps))  # phases[p, j] = h[p + j·up]
    phases.T.flat[: len(h)] = h
    padded = np.concatenate([np.zeros(taps), samples, np.zeros(taps + half // up + 1)])
    windows = sliding_window_view(padded, taps)  # windows[s] contains x[s − taps … s − 1]
    result = np.empty(count)
    for first in range(min(up, count)):
        newest, phase = divmod(first * down + half, up)  # the last x[k] that y[first] reads, and its index in h
        chosen = windows[newest + 1 :: down][: -(-(count - first) // up)]
        result[first::up] = chosen @ phases[phase, ::-1]
    return result.astype(np.float32)


@lru_cache(maxsize=4)
def low_pass(ratio: int) -> NDArray[np.float64]:
    """Return a low-pass filter with the cutoff 1/ratio of the band and the sum 1, by the window method."""
    half = HALF_LENGTH * ratio
    h = np.sinc(np.arange(-half, half + 1) / ratio) * np.kaiser(2 * half + 1, KAISER_BETA)
    return np.asarray(h / h.sum())
