"""The features of pen strokes: offsets between points at equal distances, with a pen-up flag.

    unit   u = 4 · the standard deviation of y along the strokes, about the height of the writing
    points p_1 … p_S at distances of `spacing` · u along each stroke
    x_s = [Δx / spacing, Δy / spacing, pen-up, y],   Δ = (p_s − p_{s−1}) / u,   y = (y_s − mean y) / u

The first point of a stroke has the flag 1, and its offset is the movement of the lifted pen. The features depend
neither on the position and the size of the writing nor on the speed of the pen.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from seqloom.config import config
from seqloom.config.constraints import Fraction, NonNegativeFloat, PositiveFloat
from seqloom.core.errors import DataError, UsageError
from seqloom.data.files import decode_text
from seqloom.data.strokes import Points, Strokes, parse_strokes, parse_writings, read_writings
from seqloom.data.transcriptions import SignalFeatures, Vectors, check_length

MIN_FLATNESS = 0.05  # the unit is at least this fraction of the width, so that a horizontal line has few points
MAX_UP = 3.0  # maximum offset of the lifted pen, in units of the height


@config
class PenOffsetsConfig(SignalFeatures):
    """Offsets of a pen. The random changes apply only to training."""

    kind: Literal["pen-offsets"] = "pen-offsets"
    spacing: PositiveFloat = 0.1  # distance between two points of a stroke, as a fraction of the height of the writing
    slant: NonNegativeFloat = 0.0  # maximum random slant: x is changed by up to this multiple of y
    stretch: Fraction = 0.0  # maximum random change of the width, as a fraction
    rotate: NonNegativeFloat = 0.0  # maximum random rotation in degrees
    jitter: NonNegativeFloat = 0.0  # standard deviation of random changes of the offsets, as a fraction of `spacing`

    signal_type = Strokes
    recordings = "pen strokes"
    size = 4

    def vectors(self, signal: Strokes) -> Vectors:
        points, is_up = resample(signal.strokes, self.spacing * height_of(signal), signal.name)
        scaled = (points - points.mean(axis=0)) / height_of(signal)  # (S, 2)
        offsets = np.diff(scaled, axis=0, prepend=scaled[:1]).clip(-MAX_UP, MAX_UP)
        columns = [offsets / self.spacing, is_up[:, None], scaled[:, 1:]]
        return np.concatenate(columns, axis=1).astype(np.float32)

    def times(self, count: int) -> NDArray[np.float64]:
        return np.arange(count, dtype=np.float64)

    @property
    def augments(self) -> bool:
        return any((self.slant, self.stretch, self.rotate, self.jitter))

    def augment(self, vectors: Vectors, draws: np.random.Generator) -> Vectors:
        """Slant, stretch and rotate the writing as a whole, and change each offset at random."""
        slant, stretch, rotate = draws.uniform(-1, 1, 3) * (self.slant, self.stretch, np.radians(self.rotate))
        rotation = np.array([[np.cos(rotate), -np.sin(rotate)], [np.sin(rotate), np.cos(rotate)]])
        change = rotation @ np.array([[1 + stretch, -slant], [0, 1]])  # y increases downwards: a slant to the right
        offsets = vectors[:, :2] @ change.T + draws.normal(0, self.jitter, (len(vectors), 2)) * (vectors[:, 2:3] == 0)
        y = np.cumsum(offsets[:, 1]) * self.spacing
        return np.column_stack([offsets, vectors[:, 2], y - y.mean()]).astype(np.float32)

    def read_file(self, path: Path) -> Iterator[Strokes]:
        return (example.signal for example in read_writings(path) if isinstance(example.signal, Strokes))

    def read_stream(self, stream: BinaryIO) -> Iterator[Strokes]:
        writings = parse_writings(decode_text(stream.read(), "standard input"), "standard input")
        return (example.signal for example in writings if isinstance(example.signal, Strokes))

    def as_signal(self, values: Any) -> Strokes:
        try:
            return values if isinstance(values, Strokes) else parse_strokes(values, "the writing")
        except DataError as error:
            raise UsageError(str(error)) from None


def height_of(signal: Strokes) -> float:
    """Return u, the unit of the features: 4 standard deviations of y along the strokes."""
    left, top, right, bottom = signal.bounds
    lines = [(stroke[:-1] - [0, top], stroke[1:] - [0, top]) for stroke in signal.strokes]
    starts, ends = (np.concatenate(points) for points in zip(*lines, strict=True))
    weights, a, b = np.linalg.norm(ends - starts, axis=1), starts[:, 1], ends[:, 1]
    deviation = 0.0
    if weights.sum() > 0:
        weights = weights / weights.sum()
        variance = weights @ (a * a + a * b + b * b) / 3 - (weights @ (a + b) / 2) ** 2
        deviation = math.sqrt(max(0.0, variance))
    return max(4 * deviation, MIN_FLATNESS * (right - left), bottom - top if not deviation else 0.0) or 1.0


def resample(strokes: tuple[Points, ...], distance: float, name: str) -> tuple[Points, NDArray[np.float64]]:
    """Return points (S, 2) at equal distances along each stroke, with both of its ends, and the pen-up flags (S,)."""
    pieces, flags = [], []
    lengths = [np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(each, axis=0), axis=1))]) for each in strokes]
    counts = [1 + round(float(length[-1]) / distance) if length[-1] > 0 else 1 for length in lengths]
    counts = [max(2, count) if length[-1] > 0 else 1 for count, length in zip(counts, lengths, strict=True)]
    check_length(name, sum(counts), "points")
    for stroke, length, count in zip(strokes, lengths, counts, strict=True):
        positions = np.linspace(0, length[-1], count)
        pieces.append(np.column_stack([np.interp(positions, length, stroke[:, axis]) for axis in (0, 1)]))
        flags.append(np.arange(count) == 0)
    return np.concatenate(pieces), np.concatenate(flags).astype(np.float64)
