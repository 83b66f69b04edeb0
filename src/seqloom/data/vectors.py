"""Generated sequences of vectors. Sequence i of a stream is a function of the seed of the stream and i.

Batches are therefore reproducible, and no sequence has to be stored. Training reads one stream without
repetition; dev and test are the first sequences of two other streams. Tracks, the true and observed
positions of an object on a plane, are drawn in the same way.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, Example

Indices = NDArray[np.uint64]


class Sequences(TypedDict):
    inputs: Tensor  # (B, T, D)
    targets: Tensor  # (B,)


def uniform(seed: int, indices: Indices, width: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1), (N, width): each is a function of the seed, the index of its row and its column.

    They are mixed by splitmix64, whose definition is fixed, unlike the generators of libraries. A number
    has 24 bits: it is exact in float32, and its product with an integer below 2²⁹ is exact in float64.
    """
    counter = indices[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)  # (N, width), wraps at 2⁶⁴
    z: Any = counter * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    numbers: NDArray[np.float64] = (z >> np.uint64(40)).astype(np.float64) * 2.0**-24
    return numbers


class VectorData(ABC):
    """Base class of generated sequences of vectors."""

    name: ClassVar[str]
    version: ClassVar[str]  # increase it when a change alters the sequences
    inputs: int  # size of a vector
    outputs: int  # size of the output

    def __init__(self, seed: int, held_out: Mapping[str, int]) -> None:
        self.seed, self.held_out = seed, dict(held_out)

    @abstractmethod
    def draw(self, seed: int, indices: Indices) -> Sequences:
        """Return sequences of the stream of a seed."""

    @abstractmethod
    def blind(self, targets: Tensor) -> Tensor:
        """Return the best predictions (B, outputs) that do not depend on the sequences."""

    def batch(self, seed: int, first: int, rows: int) -> Sequences:
        """Return `rows` training sequences; subclasses may draw easier ones."""
        return self.draw(derive_seed(seed, self.name, "train"), index_range(first, rows))

    def split(self, name: str) -> Sequences:
        if name not in self.held_out:
            raise DataError(
                f"The task {self.name} has no {name} split, because training draws new sequences at every step. "
                f"Use {' or '.join(self.held_out)}."
            )
        return self.draw(derive_seed(self.seed, self.name, name), index_range(0, self.held_out[name]))

    def fingerprint(self) -> dict[str, str]:
        """Return the sha256 of each split."""
        digests = {}
        for name in self.held_out:
            sequences = self.split(name)
            content = sequences["inputs"].numpy().tobytes() + sequences["targets"].numpy().tobytes()
            digests[name] = hashlib.sha256(content).hexdigest()
        return digests

    def describe(self) -> dict[str, Any]:
        """Return the description of the data for a run."""
        shapes = {name: self.split(name)["inputs"].shape for name in self.held_out}
        return {
            "corpus": self.name,
            "version": self.version,
            "licence": "none needed: made by seqloom",
            "sha256": self.fingerprint(),
            "counts": {name: {"sequences": shape[0], "vectors": shape[0] * shape[1]} for name, shape in shapes.items()},
        }


def index_range(first: int, count: int) -> Indices:
    return np.arange(first, first + count, dtype=np.uint64)


def to_float32(numbers: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32))


# --- the adding problem -----------------------------------------------------------------------------------------------


@config
class VectorConfig:
    """The number of generated sequences."""

    dev: PositiveInt = 1000  # sequences in dev
    test: PositiveInt = 1000  # sequences in test
    epoch: PositiveInt = 10_000  # sequences per epoch; training does not repeat any
    seed: int = 0  # determines dev and test; training uses the seed of the recipe


@config
class AddingConfig(VectorConfig):
    length: Annotated[int, Ge(2)] = 50  # steps of a sequence

    def data(self) -> "Adding":
        return Adding(self)


class Adding(VectorData):
    """The adding problem (Hochreiter and Schmidhuber, 1997): predict the sum of two marked numbers.

        x_t = (value in [0, 1), mark)        mark = 1 at one step of each half, else 0        y = the sum of both values

    The model has to detect the marks and remember the first value.
    """

    name = "adding"
    version = "1"
    inputs = 2
    outputs = 1

    def __init__(self, config: AddingConfig) -> None:
        super().__init__(config.seed, {"dev": config.dev, "test": config.test})
        self.length = config.length

    def draw(self, seed: int, indices: Indices) -> Sequences:
        half = self.length // 2
        numbers = uniform(seed, indices, self.length + 2)
        values, positions = numbers[:, : self.length], numbers[:, self.length :]  # (B, T) and (B, 2)
        marks = np.zeros_like(values)
        rows = np.arange(len(indices))
        marks[rows, (positions[:, 0] * half).astype(int)] = 1
        marks[rows, half + (positions[:, 1] * (self.length - half)).astype(int)] = 1
        inputs = to_float32(np.stack([values, marks], axis=2))  # (B, T, 2)
        return {"inputs": inputs, "targets": to_float32((values * marks).sum(axis=1))}

    def blind(self, targets: Tensor) -> Tensor:
        """Return the mean of the sum of two numbers in [0, 1]; the error is then its variance, 2 · 1/12 = 1/6."""
        return torch.ones(len(targets), 1)


# --- the recall problem -----------------------------------------------------------------------------------------------


@config
class RecallConfig(VectorConfig):
    lag: PositiveInt = 20  # steps between the symbol and the question
    min_lag: PositiveInt = 1  # training uses random lags from min_lag to lag
    symbols: Annotated[int, Ge(2)] = 8  # number of different symbols; chance accuracy is 1/symbols

    def problems(self) -> Iterator[str]:
        if self.min_lag > self.lag:
            yield f"min_lag must be from 1 to lag ({self.lag}), got {self.min_lag}"

    def data(self) -> "Recall":
        return Recall(self)


class Recall(VectorData):
    """The recall problem: predict the first symbol of a sequence at its end.

        s  d_1 … d_lag  ?          s, d_i any of K symbols          y = s

    Every x_t is one-hot over the K symbols and the question mark. The distractors d_i come from the
    same alphabet, so that only its position identifies s. In training, the lag of a batch is random
    from `min_lag` to `lag`; in dev and test it is `lag`.
    """

    name = "recall"
    version = "1"

    def __init__(self, config: RecallConfig) -> None:
        super().__init__(config.seed, {"dev": config.dev, "test": config.test})
        self.lag, self.min_lag, self.symbols = config.lag, config.min_lag, config.symbols
        self.inputs, self.outputs = self.symbols + 1, self.symbols

    def draw(self, seed: int, indices: Indices) -> Sequences:
        return self._draw(seed, indices, self.lag)

    def batch(self, seed: int, first: int, rows: int) -> Sequences:
        indices = index_range(first, rows)
        (number,) = uniform(derive_seed(seed, self.name, "lag"), indices[:1], 1)[0]
        lag = self.min_lag + int(number * (self.lag - self.min_lag + 1))
        return self._draw(derive_seed(seed, self.name, "train"), indices, lag)

    def _draw(self, seed: int, indices: Indices, lag: int) -> Sequences:
        symbols = torch.from_numpy((uniform(seed, indices, lag + 1) * self.symbols).astype("int64"))  # (B, 1 + lag)
        question = torch.full((len(symbols), 1), self.symbols)
        inputs = torch.nn.functional.one_hot(torch.cat([symbols, question], dim=1), self.inputs)  # (B, lag + 2, K + 1)
        return {"inputs": inputs.float(), "targets": symbols[:, 0]}

    def blind(self, targets: Tensor) -> Tensor:
        """Return equal logits, because all symbols are equally likely."""
        return torch.zeros(len(targets), self.outputs)


# --- tracks --------------------------------------------------------------------------------


Values = NDArray[np.float64]
DECIMALS = 3  # of a coordinate, so that tracks are the same on every machine


@dataclass(frozen=True)
class Track(Example):
    """Positions (T, 2): observed ones, with NaN for missing coordinates, and true ones."""

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
        """Return the numbers of tracks, steps and missing coordinates."""
        tracks = corpus.split(split)
        missing = sum(int((~track.mask).sum()) for track in tracks)
        return {"tracks": len(tracks), "steps": sum(map(len, tracks)), "missing": missing}


@dataclass(frozen=True)
class Motion:
    """The parameters of tracks. Lengths are in metres, and a step is a second."""

    kind: str  # turns or drift
    steps: int
    noise: float  # standard deviation of an observation along each axis
    gaps: float  # fraction of steps in gaps without observation
    dropped: float  # fraction of other coordinates that are missing


def draw_track(motion: Motion, seed: int, split: str, number: int) -> Track:
    """Draw track `number` of a split, which depends only on the arguments."""
    numbers = uniform(derive_seed(seed, "track", split), index_range(number, 1), 16 * motion.steps)[0].reshape(
        motion.steps, 16
    )
    normal = _normal(numbers[:, :8])  # (T, 4)
    if motion.kind == "turns":
        # autoregressive processes of first order: the turning rate around 0, the speed around 4 m/s
        rate, speed, heading = 0.0, 4.0, np.pi * normal[0, 2]
        velocity = np.empty((len(normal), 2))
        for t, row in enumerate(normal):
            rate = 0.92 * rate + 0.04 * row[0]
            speed = 4 + 0.95 * (speed - 4) + 0.15 * row[1]
            heading += rate
            velocity[t] = speed * np.cos(heading), speed * np.sin(heading)
    else:  # a random walk of the velocity, with steps of N(0, 0.4²)
        velocity = 3 * normal[0, 2:] + 0.4 * np.cumsum(normal[:, :2], axis=0)
    truth = np.cumsum(velocity, axis=0)
    observed = truth + motion.noise * _normal(numbers[:, 8:12])
    remaining = 0
    for t, (start, length) in enumerate(numbers[:, 12:14]):  # gaps of 4 to 12 steps
        if remaining == 0 and start < motion.gaps / (8 * (1 - motion.gaps)):
            remaining = 4 + int(9 * length)
        if remaining > 0:
            observed[t] = np.nan
        remaining = max(remaining - 1, 0)
    observed[numbers[:, 14:16] < motion.dropped] = np.nan
    observed[0] = np.where(np.isnan(observed[0]), truth[0], observed[0])
    return Track(f"{split} {number + 1}", observed.round(DECIMALS), truth.round(DECIMALS))


def _normal(uniform_numbers: Values) -> Values:
    """Transform pairs of uniform numbers (T, k) to N(0, 1), (T, k / 2), by the method of Box and Muller."""
    half = uniform_numbers.shape[1] // 2
    radius = np.sqrt(-2 * np.log1p(-uniform_numbers[:, :half]))
    normal: Values = radius * np.cos(2 * np.pi * uniform_numbers[:, half:])
    return normal
