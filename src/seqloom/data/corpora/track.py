"""Tracks on a plane, made on the spot: the truth is known, and what is observed of it has noise and gaps."""

from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeFloat, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig

if TYPE_CHECKING:
    from seqloom.data.vectors import Track

SUMMARY = "places of something that moves on a plane, observed with noise and gaps; the truth is known"
FORM = "tracks"
VERSION = "1"  # of the drawing; a change of what it draws is a new version
MissingShare = Annotated[float, Ge(0), Le(0.8)]


@config
class Config(GeneratedConfig):
    corpus: Literal["track"] = "track"
    motion: Literal["turns", "drift"] = "turns"  # a heading that turns now and then, or velocities that wander
    steps: Annotated[int, Ge(2)] = 120  # of a track, a second each
    noise: NonNegativeFloat = 6.0  # metres: deviation of an observation from the truth, along each axis
    gaps: MissingShare = 0.15  # share of steps of which nothing is observed, in gaps of 4 to 12
    dropped: MissingShare = 0.05  # share of single coordinates that are missing besides
    train: PositiveInt = 24  # tracks
    dev: PositiveInt = 12
    test: PositiveInt = 12


def load(config: Config) -> "Corpus[Track]":
    from seqloom.data.vectors import Motion, draw_track

    motion = Motion(config.motion, config.steps, config.noise, config.gaps, config.dropped)
    return Corpus(
        name="track",
        version=f"{VERSION} seed {config.seed}",
        description=f"{config.motion}: {config.steps} steps of a track, observed within ±{config.noise:g} m",
        splits={
            split: [draw_track(motion, config.seed, split, number) for number in range(count)]
            for split, count in config.counts().items()
        },
    )
