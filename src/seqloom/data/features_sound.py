"""Log-mel features of a sound: the logarithm of the energy in frequency bands, in short frames.

    frames      x_t[n] = x[t·H + n] w[n],  n = 0 … N − 1      N = frame, H = step, w = the Hann window
    spectrum    P_t[k] = |Σ_n x_t[n] exp(−2πi kn/F)|²          F = the power of 2 not below N
    bands       E_t[m] = Σ_k M[m, k] P_t[k]                   M: triangles, equally spaced in mel
    mel         mel(f) = 2595 log₁₀(1 + f/700)
    features    v_t[m] = log max(E_t[m], 10⁻¹⁰)
    normalize   v̂_t[m] = 1 + (v_t[m] − max_{t,m}) / 5          level: all recordings are equally loud
                v̂_t[m] = (v_t[m] − mean_t) / deviation_t       variance: for each band, over the frames
    deltas      Δ_t = Σ_j j (v̂_{t+j} − v̂_{t−j}) / (2 Σ_j j²),  j = 1 … 2; edges are repeated

In training, `augment` changes the features at random: it stretches time, shifts the frequencies of the voice, and masks
bands and frames (SpecAugment, Park et al. 2019).
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeInt, PositiveFloat
from seqloom.core.errors import UsageError
from seqloom.data.sound import Sound
from seqloom.data.sound_files import Samples, open_sound, open_sound_file
from seqloom.data.sound_windows import read_windows
from seqloom.data.transcriptions import SignalFeatures, Vectors, check_length

FLOOR = 1e-10  # smallest energy of a band
DELTA_REACH = 2  # frames on each side from which a delta is computed
LEVEL_SCALE = 5.0  # divisor of features with the normalization level, whose values lie between about −2 and 1
MIN_DEVIATION = 1e-3  # smallest divisor in normalization


@config
class SpecAugmentConfig:
    """Random changes to the features in training. The values are drawn for each example and step."""

    stretch: Annotated[float, Ge(0), Le(0.5)] = 0.0  # maximum relative change of the speed
    warp: Annotated[float, Ge(0), Le(0.5)] = 0.0  # maximum relative change of the frequencies of the voice
    bands: NonNegativeInt = 0  # maximum number of neighbouring bands in a mask
    band_masks: NonNegativeInt = 2  # number of masks of bands
    frames: NonNegativeInt = 0  # maximum number of neighbouring frames in a mask
    frame_masks: NonNegativeInt = 2  # number of masks of frames

    @property
    def is_active(self) -> bool:
        """Whether features are changed."""
        return any((self.stretch, self.warp, self.bands * self.band_masks, self.frames * self.frame_masks))


@config
class LogMelConfig(SignalFeatures):
    kind: Literal["log-mel"] = "log-mel"
    rate: Annotated[int, Ge(4000), Le(48000)] = 16_000  # sounds are converted to this number of samples per second
    mels: Annotated[int, Ge(4), Le(256)] = 40  # number of frequency bands
    frame_ms: PositiveFloat = 25.0  # length of a frame in milliseconds
    step_ms: PositiveFloat = 10.0  # time between the starts of two frames in milliseconds
    low: Annotated[float, Ge(0)] = 60.0  # lowest frequency of the bands in Hz
    high: PositiveFloat | None = None  # highest frequency of the bands in Hz; null: half the rate
    # of each recording: level makes its loudest value 1; mean and variance make each band have mean 0 (and variance 1)
    normalize: Literal["none", "level", "mean", "variance"] = "level"
    deltas: Annotated[int, Ge(0), Le(2)] = 1  # 0: none; 1: differences over time; 2: also differences of differences
    # maximum length in seconds of a sound that is transcribed as a whole; longer sounds are divided at quiet moments
    window: Annotated[float, Ge(2), Le(600)] = 20.0
    spec_augment: SpecAugmentConfig = SpecAugmentConfig()  # random changes in training

    signal_type = Sound
    recordings = "sounds"

    def problems(self) -> Iterator[str]:
        if not self.low < self.highest <= self.rate / 2:
            yield f"low < high ≤ rate/2 must hold; got low={self.low}, high={self.highest}, rate={self.rate}"
        if self.step_ms > self.frame_ms:
            yield f"step_ms must be at most frame_ms={self.frame_ms}, or samples are skipped; got {self.step_ms}"
        if not 16 <= self.frame <= 1 << 14 or self.step < 1:
            yield f"a frame must have 16 to 16,384 samples, and a step at least 1; got {self.frame} and {self.step}"

    @property
    def highest(self) -> float:
        """The highest frequency of the bands."""
        return self.rate / 2 if self.high is None else self.high

    @property
    def frame(self) -> int:
        """The length of a frame in samples."""
        return round(self.rate * self.frame_ms / 1000)

    @property
    def step(self) -> int:
        """The time between two frames in samples."""
        return round(self.rate * self.step_ms / 1000)

    @property
    def size(self) -> int:
        """The number of values of a vector."""
        return self.mels * (1 + self.deltas)

    def vectors(self, signal: Sound) -> Vectors:
        static = self.log_mel(signal)
        check_length(signal.name, len(static), "frames")
        return self.add_deltas(self.normalized(static))

    def log_mel(self, sound: Sound) -> Vectors:
        """Return the logarithm of the energies of the bands (T, mels)."""
        energies = power_spectrum(sound.at_rate(self.rate), self.frame, self.step) @ self.filters.T
        return np.log(np.maximum(energies, FLOOR)).astype(np.float32)

    @property
    def filters(self) -> NDArray[np.float64]:
        """The weights M (mels, F/2 + 1) of the frequencies in each band."""
        return mel_filters(self.mels, transform_size(self.frame), self.rate, self.low, self.highest)

    def normalized(self, static: Vectors) -> Vectors:
        """Normalize features (T, mels)."""
        if self.normalize == "level":
            return 1 + (static - static.max()) / LEVEL_SCALE
        if self.normalize in ("mean", "variance"):
            static = static - static.mean(axis=0)
        if self.normalize == "variance":
            static = static / np.maximum(static.std(axis=0), MIN_DEVIATION)
        return static

    def add_deltas(self, static: Vectors) -> Vectors:
        """Append the deltas of features (T, mels)."""
        parts = [static]
        for _ in range(self.deltas):
            parts.append(deltas(parts[-1]))
        return np.concatenate(parts, axis=1).astype(np.float32)

    def times(self, count: int) -> NDArray[np.float64]:
        """Return the start of each frame in seconds."""
        return np.arange(count) * self.step / self.rate

    @property
    def augments(self) -> bool:
        return self.spec_augment.is_active

    def augment(self, vectors: Vectors, draws: np.random.Generator) -> Vectors:
        """Stretch time, shift the frequencies of the voice, and mask bands and frames."""
        options, static = self.spec_augment, vectors[:, : self.mels]
        if options.stretch:
            static = stretch(static, 1 + draws.uniform(-options.stretch, options.stretch))
        if options.warp:
            static = warp(static, self, 1 + draws.uniform(-options.warp, options.warp))
        changed = self.add_deltas(static) if options.stretch or options.warp else vectors.copy()
        mask_bands(changed, self.mels, options, draws)
        mask_frames(changed, options, draws)
        return changed

    def read_file(self, path: Path) -> Iterator[Sound]:
        with open_sound_file(path) as reader:
            yield from read_windows(reader, self.window)

    def read_stream(self, stream: BinaryIO) -> Iterator[Sound]:
        yield from read_windows(open_sound(stream, "standard input", stream=True), self.window)

    def as_signal(self, values: Any) -> Sound:
        if not isinstance(values, Sound):
            raise UsageError(f"A sound must be a file or a SampledSound; got {type(values).__name__}.")
        return values


# --- equations --------------------------------------------------------------------------------------------------------


def transform_size(frame: int) -> int:
    """Return the power of 2 that is not below the length of a frame."""
    return 1 << (frame - 1).bit_length()


def power_spectrum(samples: Samples, frame: int, step: int) -> NDArray[np.float64]:
    """Return P (T, F/2 + 1) of all complete frames; a shorter sound is padded with zeros to one frame."""
    if len(samples) < frame:
        samples = np.pad(samples, (0, frame - len(samples)))
    frames = np.lib.stride_tricks.sliding_window_view(samples, frame)[::step]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    return np.asarray(np.abs(np.fft.rfft(frames * window, transform_size(frame))) ** 2)


def to_mel(frequency: float) -> float:
    """Convert a frequency in Hz to mel."""
    return float(2595 * np.log10(1 + frequency / 700))


def from_mel(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert mel to frequencies in Hz."""
    return np.asarray(700 * (10 ** (mel / 2595) - 1))


@lru_cache(maxsize=8)
def mel_filters(mels: int, size: int, rate: int, low: float, high: float) -> NDArray[np.float64]:
    """Return triangular filters M (mels, size/2 + 1).

    Filter m rises from edge m to edge m + 1 and falls to edge m + 2.
    """
    edges = from_mel(np.linspace(to_mel(low), to_mel(high), mels + 2))
    frequencies = np.arange(size // 2 + 1) * rate / size
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return np.asarray(np.minimum(rising, falling).clip(0))


def deltas(static: Vectors) -> Vectors:
    """Return the slope of each value over time."""
    padded = np.pad(static, ((DELTA_REACH, DELTA_REACH), (0, 0)), mode="edge")
    count = len(static)
    total = sum(
        j * (padded[DELTA_REACH + j :][:count] - padded[DELTA_REACH - j :][:count]) for j in range(1, DELTA_REACH + 1)
    )
    return np.asarray(total / (2 * sum(j * j for j in range(1, DELTA_REACH + 1))), dtype=np.float32)


# --- random changes ---------------------------------------------------------------------------------------------------


def interpolate_rows(values: Vectors, positions: NDArray[np.float64]) -> Vectors:
    """Return rows of `values` at fractional positions, by linear interpolation."""
    positions = positions.clip(0, len(values) - 1)
    below = np.floor(positions).astype(np.int64)
    above = np.minimum(below + 1, len(values) - 1)
    weight = (positions - below).astype(np.float32)[:, None]
    return np.asarray(values[below] * (1 - weight) + values[above] * weight)


def stretch(static: Vectors, speed: float) -> Vectors:
    """Change the number of frames by 1/speed."""
    count = max(1, round(len(static) / speed))
    return interpolate_rows(static, np.linspace(0, len(static) - 1, count))


def warp(static: Vectors, features: LogMelConfig, factor: float) -> Vectors:
    """Multiply all frequencies by a factor, as in a shorter vocal tract."""
    low, high = to_mel(features.low), to_mel(features.highest)
    centres = np.linspace(low, high, features.mels + 2)[1:-1]
    sources = np.array([to_mel(frequency) for frequency in from_mel(centres) / factor])
    positions = (sources - centres[0]) / (centres[1] - centres[0])
    return interpolate_rows(static.T, positions).T


def mask_bands(vectors: Vectors, mels: int, options: SpecAugmentConfig, draws: np.random.Generator) -> None:
    """Replace neighbouring bands by 0."""
    for _ in range(options.band_masks if options.bands else 0):
        width = int(draws.integers(0, min(options.bands, mels) + 1))
        start = int(draws.integers(0, mels - width + 1))
        for offset in range(0, vectors.shape[1], mels):
            vectors[:, offset + start : offset + start + width] = 0


def mask_frames(vectors: Vectors, options: SpecAugmentConfig, draws: np.random.Generator) -> None:
    """Replace neighbouring frames by 0."""
    for _ in range(options.frame_masks if options.frames else 0):
        width = int(draws.integers(0, min(options.frames, len(vectors)) + 1))
        start = int(draws.integers(0, len(vectors) - width + 1))
        vectors[start : start + width] = 0
