"""Generated two-dimensional tracks, with true positions and observations that have noise and gaps."""

from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeFloat, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig

if TYPE_CHECKING:
    from seqloom.data.vectors import Track

SUMMARY = "tracks of an object on a plane, observed with noise and gaps, and their true positions; no download"
FORM = "tracks"
VERSION = "1"  # increase this number when a change of `draw_track` alters the tracks
MissingFraction = Annotated[float, Ge(0), Le(0.8)]


@config
class Config(GeneratedConfig):
    corpus: Literal["track"] = "track"
    # type of motion: occasional turns of the heading, or a random walk of the velocity
    motion: Literal["turns", "drift"] = "turns"
    steps: Annotated[int, Ge(2)] = 120  # number of steps of a track, one second each
    noise: NonNegativeFloat = 6.0  # standard deviation of the observation noise along each axis, in metres
    gaps: MissingFraction = 0.15  # fraction of the steps without an observation, in gaps of 4 to 12 steps
    dropped: MissingFraction = 0.05  # fraction of single coordinates that are also missing
    train: PositiveInt = 24  # number of training tracks
    dev: PositiveInt = 12
    test: PositiveInt = 12


def load(config: Config) -> "Corpus[Track]":
    from seqloom.data.vectors import Motion, draw_track

    motion = Motion(config.motion, config.steps, config.noise, config.gaps, config.dropped)
    return Corpus(
        name="track",
        version=f"{VERSION} seed {config.seed}",
        description=f"{config.motion}: tracks of {config.steps} steps, observed within ±{config.noise:g} m",
        splits={
            split: [draw_track(motion, config.seed, split, number) for number in range(count)]
            for split, count in config.counts().items()
        },
    )
