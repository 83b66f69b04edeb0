"""Tracks are a function of their seed and have the configured noise and gaps."""

import numpy as np
import pytest

from seqloom.config import build, to_mapping
from seqloom.core.errors import DataError, UsageError
from seqloom.data.corpora import CorpusConfig, load
from seqloom.data.corpora.track import Config
from seqloom.data.vectors import Motion, Track, draw_track

SMALL = {"train": 3, "dev": 2, "test": 2, "steps": 40}


def test_tracks_depend_only_on_seed() -> None:
    first, repeated, other = (load(Config(seed=seed, **SMALL)) for seed in (0, 0, 1))  # type: ignore[arg-type]
    assert first.fingerprint() == repeated.fingerprint()
    assert not set(first.fingerprint().values()) & set(other.fingerprint().values())
    assert first.version == "1 seed 0" and other.version == "1 seed 1"
    assert first.sizes("dev")["tracks"] == 2 and first.sizes("dev")["steps"] == 80


def test_tracks_are_unique_and_independent_of_their_number() -> None:
    small, large = load(Config(**SMALL)), load(Config(**{**SMALL, "train": 9}))  # type: ignore[arg-type]
    np.testing.assert_array_equal(small.split("train")[2].truth, large.split("train")[2].truth)
    starts = [tuple(track.truth[:5].ravel()) for split in large.splits for track in large.split(split)]
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("kind", ["turns", "drift"])
def test_noise_and_missing_fractions_match_config(kind: str) -> None:
    motion = Motion(kind, 120, noise=6.0, gaps=0.15, dropped=0.05)
    tracks = [draw_track(motion, 0, "train", number) for number in range(60)]
    errors = np.concatenate([(track.observed - track.truth)[track.mask.all(axis=1)].ravel() for track in tracks])
    assert errors.std() == pytest.approx(6.0, rel=0.05) and abs(errors.mean()) < 0.2
    missing = np.concatenate([~track.mask.any(axis=1) for track in tracks])
    single = np.concatenate([track.mask.sum(axis=1) == 1 for track in tracks])
    assert missing.mean() == pytest.approx(0.15, abs=0.04)
    assert single.mean() == pytest.approx(2 * 0.05 * 0.85, abs=0.02)
    assert all(track.mask[0].all() for track in tracks)  # the first step is completely observed
    speeds = np.concatenate([np.linalg.norm(np.diff(track.truth, axis=0), axis=1) for track in tracks])
    assert 1 < np.median(speeds) < 10


def test_observations_without_noise_are_the_true_values() -> None:
    motion = Motion("turns", 50, noise=0.0, gaps=0.0, dropped=0.0)
    track = draw_track(motion, 0, "train", 0)
    np.testing.assert_array_equal(track.observed, track.truth)


def test_config_round_trips_and_is_validated() -> None:
    built = build(CorpusConfig[Track], {"corpus": "track", "motion": "drift"})
    assert isinstance(built, Config) and build(CorpusConfig[Track], to_mapping(built)) == built
    wrong = {"corpus": "track", "steps": 1, "noise": -1.0, "gaps": 0.9, "dropped": -0.1, "dev": 0}
    with pytest.raises(UsageError) as raised:
        build(CorpusConfig[Track], wrong)
    for message in ("steps: must", "noise: must", "gaps: must", "dropped: must", "dev: must be at least 1"):
        assert message in str(raised.value)


def test_missing_split_is_reported() -> None:
    with pytest.raises(DataError, match="no split 'other'"):
        load(Config(**SMALL)).split("other")  # type: ignore[arg-type]
