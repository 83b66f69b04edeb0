"""Tracks on a plane, made on the spot: the truth is known, and what is observed of it has noise and gaps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus

if TYPE_CHECKING:
    from seqloom.data.tracks import Track

SUMMARY = "places of something that moves on a plane, observed with noise and gaps; the truth is known"
FORM = "tracks"
VERSION = "1"  # of the drawing; a change of what it draws is a new version


@config
class Config:
    corpus: Literal["track"] = "track"
    motion: Literal["turns", "drift"] = "turns"  # a heading that turns now and then, or velocities that wander
    steps: int = 120  # of a track, a second each
    noise: float = 6.0  # metres: deviation of an observation from the truth, along each axis
    gaps: float = 0.15  # share of steps of which nothing is observed, in gaps of 4 to 12
    lost: float = 0.05  # share of single coordinates that are missing besides
    train: int = 24  # tracks
    dev: int = 12
    test: int = 12
    seed: int = 0  # decides the tracks

    def problems(self) -> Iterator[str]:
        if self.steps < 2:
            yield f"steps must be at least 2, got {self.steps}"
        if self.noise < 0:
            yield f"noise must be 0 or more, got {self.noise:g}"
        for name in ("gaps", "lost"):
            if not 0 <= getattr(self, name) <= 0.8:
                yield f"{name} must be from 0 to 0.8, got {getattr(self, name):g}"
        if min(self.train, self.dev, self.test) < 1:
            yield "train, dev and test must each be at least 1"


def load(config: Config) -> "Corpus[Track]":
    from seqloom.data.tracks import Motion, draw_track

    motion = Motion(config.motion, config.steps, config.noise, config.gaps, config.lost)
    counts = {"train": config.train, "dev": config.dev, "test": config.test}
    return Corpus(
        name="track",
        version=f"{VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=f"{config.motion}: {config.steps} steps of a track, observed within ±{config.noise:g} m",
        splits={
            split: [draw_track(motion, config.seed, split, number) for number in range(count)]
            for split, count in counts.items()
        },
    )
