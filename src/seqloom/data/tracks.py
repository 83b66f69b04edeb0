"""Tracks: where something was on a plane, step by step, and what was observed of it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqloom.core.seeding import derive
from seqloom.data.corpus import Corpus, Example
from seqloom.data.vectors import numbered, uniform

Values = NDArray[np.float64]
DECIMALS = 3  # kept of a place, so that every machine makes the same tracks


@dataclass(frozen=True)
class Track(Example):
    """Places (T, 2): those observed, NaN where one was not, and the true ones."""

    form: ClassVar = "tracks"

    name: str
    observed: Values
    truth: Values

    @property
    def mask(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.observed)

    def __len__(self) -> int:
        return len(self.truth)

    def content(self) -> bytes:
        """Return the positions, observed and true."""
        observed = np.nan_to_num(self.observed, nan=np.inf)
        head = f"{self.name}\n{len(self)}\n".encode()
        return head + observed.astype("<f8").tobytes() + self.truth.astype("<f8").tobytes()

    @classmethod
    def sizes(cls, corpus: Corpus["Track"], split: str) -> dict[str, int]:
        """Return tracks, their steps, and how many of the two values of each step are missing."""
        tracks = corpus.split(split)
        missing = sum(int((~track.mask).sum()) for track in tracks)
        return {"tracks": len(tracks), "steps": sum(map(len, tracks)), "missing": missing}


@dataclass(frozen=True)
class Motion:
    """How tracks are drawn. Lengths are metres, a step is a second."""

    kind: str  # turns, or drift
    steps: int
    noise: float  # deviation of an observation from the truth, along each axis
    gaps: float  # share of steps of which nothing is observed, in a row
    lost: float  # share of single values that are missing besides


def draw_track(motion: Motion, seed: int, split: str, number: int) -> Track:
    """Track `number` of a split: a function of these four and nothing else."""
    numbers = uniform(derive(seed, "track", split), numbered(number, 1), 16 * motion.steps)[0].reshape(motion.steps, 16)
    normal = _normal(numbers[:, :8])  # (T, 4)
    velocity = _turning(normal) if motion.kind == "turns" else _drifting(normal)
    truth = np.cumsum(velocity, axis=0)
    observed = truth + motion.noise * _normal(numbers[:, 8:12])
    observed[_gap(numbers[:, 12], numbers[:, 13], motion.gaps)] = np.nan
    observed[numbers[:, 14:16] < motion.lost] = np.nan
    observed[0] = np.where(np.isnan(observed[0]), truth[0], observed[0])
    return Track(f"{split} {number + 1}", observed.round(DECIMALS), truth.round(DECIMALS))


def _normal(uniform_numbers: Values) -> Values:
    """N(0, 1) from pairs of numbers in [0, 1), by Box and Muller (T, k / 2)."""
    half = uniform_numbers.shape[1] // 2
    radius = np.sqrt(-2 * np.log1p(-uniform_numbers[:, :half]))
    found: Values = radius * np.cos(2 * np.pi * uniform_numbers[:, half:])
    return found


def _turning(normal: Values) -> Values:
    """A heading whose rate of turning wanders around straight on, and a speed that wanders around 4 m/s (T, 2)."""
    rate, speed, heading = 0.0, 4.0, np.pi * normal[0, 2]
    found = np.empty((len(normal), 2))
    for t, row in enumerate(normal):
        rate = 0.92 * rate + 0.04 * row[0]
        speed = 4 + 0.95 * (speed - 4) + 0.15 * row[1]
        heading += rate
        found[t] = speed * np.cos(heading), speed * np.sin(heading)
    return found


def _drifting(normal: Values) -> Values:
    """Each velocity takes steps of its own, N(0, 0.4²): a model of constant velocity, but for when it changes."""
    found: Values = 3 * normal[0, 2:] + 0.4 * np.cumsum(normal[:, :2], axis=0)
    return found


def _gap(begins: Values, lengths: Values, share: float) -> NDArray[np.bool_]:
    """Steps of which nothing is observed: gaps of 4 to 12 steps, so many that about that share of all is gone."""
    gone = np.zeros(len(begins), dtype=bool)
    left = 0
    for t in range(len(begins)):
        if left == 0 and begins[t] < share / (8 * (1 - share)):
            left = 4 + int(9 * lengths[t])
        gone[t] = left > 0
        left = max(left - 1, 0)
    return gone
