"""Log-mel features compared with an independent computation, and the random changes in training."""

import numpy as np
import pytest
from scipy import signal

from seqloom.config import ConfigError
from seqloom.data.features_sound import LogMelConfig, SpecAugmentConfig, deltas, mel_filters, warp
from seqloom.data.sound import SampledSound

NOISE = SampledSound("x", np.random.default_rng(0).normal(0, 0.1, 5000).astype(np.float32), 8000)


def triangle(frequency, left, centre, right):
    if left <= frequency <= centre:
        return (frequency - left) / (centre - left)
    return (right - frequency) / (right - centre) if centre <= frequency <= right else 0.0


def test_log_mel_equals_scipy_and_filters_written_out():
    features = LogMelConfig(rate=8000, mels=12, normalize="none", deltas=0, low=100.0, high=3500.0)
    frame, step, size = 200, 80, 256
    window = signal.get_window("hann", frame)
    complete = (len(NOISE.samples) - frame) // step + 1
    frames = [NOISE.samples[t * step : t * step + frame].astype(np.float64) for t in range(complete)]
    spectra = [np.fft.fft(np.pad(x * window, (0, size - frame)))[: size // 2 + 1] for x in frames]
    power = np.abs(np.array(spectra)) ** 2
    lowest, highest = (2595 * np.log10(1 + f / 700) for f in (100, 3500))
    mels = np.linspace(lowest, highest, 14)
    hertz = [700 * (10 ** (mel / 2595) - 1) for mel in mels]
    bands = np.array([[triangle(k * 8000 / size, *hertz[m : m + 3]) for k in range(size // 2 + 1)] for m in range(12)])
    np.testing.assert_allclose(features.vectors(NOISE), np.log(power @ bands.T), rtol=1e-5)


def test_filters_have_height_1_and_neighbours_sum_to_1():
    filters = mel_filters(10, 4096, 16000, 0.0, 8000.0)
    assert filters.max(axis=1) == pytest.approx(np.ones(10), abs=0.02)
    inner = filters[:, np.argmax(filters[0]) + 1 : np.argmax(filters[-1])]
    np.testing.assert_allclose(inner.sum(axis=0), 1, atol=1e-9)


def test_normalized_features_have_mean_0_and_variance_1():
    vectors = LogMelConfig(rate=8000, mels=10, deltas=0, normalize="variance").vectors(NOISE)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(vectors.std(axis=0), 1, atol=1e-5)
    louder = SampledSound("x", 5 * NOISE.samples, 8000)
    vectors_of_louder = LogMelConfig(rate=8000, mels=10, deltas=0, normalize="variance").vectors(louder)
    np.testing.assert_allclose(vectors_of_louder, vectors, atol=1e-4)


def test_level_makes_recordings_equally_loud():
    features = LogMelConfig(rate=8000, mels=10, deltas=0)
    vectors = features.vectors(NOISE)
    assert vectors.max() == pytest.approx(1)
    np.testing.assert_allclose(features.vectors(SampledSound("x", 5 * NOISE.samples, 8000)), vectors, atol=1e-5)
    plain = LogMelConfig(rate=8000, mels=10, deltas=0, normalize="none").vectors(NOISE)
    np.testing.assert_allclose(np.diff(vectors, axis=0), np.diff(plain, axis=0) / 5, atol=1e-5)


def test_deltas_are_slopes_of_a_regression():
    values = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    result = deltas(values)
    for t in range(2, 7):
        slopes = [np.polyfit(range(-2, 3), values[t - 2 : t + 3, d], 1)[0] for d in range(3)]
        np.testing.assert_allclose(result[t], slopes, atol=1e-5)


def test_sizes_and_times():
    features = LogMelConfig(rate=16000, mels=20, deltas=2)
    vectors = features.vectors(SampledSound("x", np.zeros(16000, dtype=np.float32), 16000))
    assert vectors.shape == (98, features.size) == (98, 60)
    assert features.times(98)[-1] == pytest.approx(0.97)
    assert features.vectors(SampledSound("x", np.ones(3, dtype=np.float32), 16000)).shape == (1, 60)
    assert np.isfinite(vectors).all()


def test_sounds_of_any_rate_give_similar_features():
    features = LogMelConfig(rate=8000, mels=10, high=3000.0, deltas=0)
    tones = [np.sin(2 * np.pi * (300 + 500 * (t := np.arange(rate) / rate)) * t) for rate in (8000, 44100)]
    slow, fast = (
        features.vectors(SampledSound("x", tone.astype(np.float32), rate))
        for tone, rate in zip(tones, (8000, 44100), strict=True)
    )
    assert np.abs(slow - fast).mean() < 0.1


# --- random changes ---------------------------------------------------------------------------------------------------


def draw(options, seed):
    features = LogMelConfig(rate=8000, mels=10, spec_augment=options)
    vectors = features.vectors(NOISE)
    return vectors, features.augment(vectors, np.random.default_rng(seed))


def test_changes_depend_only_on_the_generator():
    options = SpecAugmentConfig(stretch=0.2, warp=0.1, bands=3, frames=8)
    first, again, other = (draw(options, seed)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or not np.array_equal(first, other)


def test_without_options_nothing_changes():
    before, after = draw(SpecAugmentConfig(), 1)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("normalize", ["none", "level", "mean", "variance"])
def test_small_changes_keep_the_scale(normalize):
    """Features after a small change are close to the features before it, whatever the normalization."""
    options = SpecAugmentConfig(stretch=1e-6, warp=1e-6)
    features = LogMelConfig(rate=8000, mels=10, normalize=normalize, spec_augment=options)
    vectors = features.vectors(NOISE)
    np.testing.assert_allclose(features.augment(vectors, np.random.default_rng(0)), vectors, atol=1e-3)


def test_masks_are_neighbouring_bands_and_frames_of_limited_width():
    for seed in range(20):
        before, after = draw(SpecAugmentConfig(bands=4, band_masks=1), seed)
        masked = np.flatnonzero((after == 0).all(axis=0))
        assert len(masked) % 2 == 0 and len(masked) // 2 <= 4
        np.testing.assert_array_equal(masked[: len(masked) // 2] + 10, masked[len(masked) // 2 :])
        assert len(masked) < 4 or np.ptp(masked[: len(masked) // 2]) == len(masked) // 2 - 1
        before, after = draw(SpecAugmentConfig(frames=5, frame_masks=1), seed)
        rows = np.flatnonzero((after == 0).all(axis=1))
        assert len(rows) <= 5 and (len(rows) < 2 or np.ptp(rows) == len(rows) - 1)
        kept = np.setdiff1d(np.arange(len(before)), rows)
        np.testing.assert_array_equal(before[kept], after[kept])


def test_stretching_changes_only_the_number_of_frames():
    lengths = {len(draw(SpecAugmentConfig(stretch=0.2), seed)[1]) for seed in range(20)}
    count = len(draw(SpecAugmentConfig(), 0)[0])
    assert min(lengths) >= count / 1.2 - 1 and max(lengths) <= count / 0.8 + 1 and len(lengths) > 5


def test_warping_moves_a_tone_to_another_band():
    features = LogMelConfig(rate=8000, mels=40, deltas=0, spec_augment=SpecAugmentConfig(warp=0.2))
    tone = np.sin(2 * np.pi * 1000 * np.arange(4000) / 8000) * np.linspace(0, 1, 4000)
    static = features.log_mel(SampledSound("x", tone.astype(np.float32), 8000))
    higher = features.log_mel(
        SampledSound("x", np.sin(2 * np.pi * 1200 * np.arange(4000) / 8000).astype(np.float32), 8000)
    )
    assert abs(warp(static, features, 1.2)[-1].argmax() - higher[-1].argmax()) <= 1
    assert static[-1].argmax() < higher[-1].argmax()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 4000.0, "rate": 8000}, "low < high"),
        ({"high": 5000.0, "rate": 8000}, "low < high"),
        ({"step_ms": 30.0}, "step_ms must be at most"),
        ({"frame_ms": 0.5, "step_ms": 0.5}, "16 to 16,384 samples"),
    ],
)
def test_impossible_options_are_reported(options, message):
    with pytest.raises(ConfigError, match=message):
        LogMelConfig(**options)
