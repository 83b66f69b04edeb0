"""Sequences of vectors made on the spot. Sequence i of a stream is a function of the stream's seed and i, nothing else.

So a batch can be drawn anywhere and again, alone or with others, and no sequence has to be kept.
Training reads one stream and never the same sequence twice; dev and test are the first sequences of
two other streams. Tracks, where something was on a plane and what was observed of it, are drawn in
the same way.
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
from seqloom.core.device import derive
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, Example

Indices = NDArray[np.uint64]


class Sequences(TypedDict):
    inputs: Tensor  # (B, T, D)
    targets: Tensor  # (B,)


def uniform(seed: int, indices: Indices, width: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), (N, width): place p of a row is a function of seed, the row's index and p.

    The mixing is splitmix64's, whose definition will not change as the generators of libraries may.
    A number has 24 bits: float32 holds it exactly, and its product with a whole number below 2²⁹ is
    exact in float64.
    """
    counter = indices[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)  # (N, width), wraps at 2⁶⁴
    z: Any = counter * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    numbers: NDArray[np.float64] = (z >> np.uint64(40)).astype(np.float64) * 2.0**-24
    return numbers


class VectorData(ABC):
    """Where a task on vectors gets its sequences."""

    name: ClassVar[str]
    version: ClassVar[str]  # of the drawing: a change of what is drawn is a new version
    inputs: int  # width of a vector
    outputs: int  # numbers to answer with

    def __init__(self, seed: int, held_out: Mapping[str, int]) -> None:
        self.seed, self.held_out = seed, dict(held_out)

    @abstractmethod
    def draw(self, seed: int, indices: Indices) -> Sequences:
        """These sequences of the stream of that seed, as hard as the recipe says."""

    @abstractmethod
    def blind(self, targets: Tensor) -> Tensor:
        """The best answers (B, outputs) of one who has not read the sequences."""

    def batch(self, seed: int, first: int, rows: int) -> Sequences:
        """`rows` sequences for training. Tasks that begin with easier ones say so here."""
        return self.draw(derive(seed, self.name, "train"), numbered(first, rows))

    def split(self, name: str) -> Sequences:
        if name not in self.held_out:
            raise DataError(
                f"The task {self.name} has no {name} split to evaluate: training draws new sequences at every step. "
                f"Choose {' or '.join(self.held_out)}."
            )
        return self.draw(derive(self.seed, self.name, name), numbered(0, self.held_out[name]))

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split."""
        found = {}
        for name in self.held_out:
            drawn = self.split(name)
            content = drawn["inputs"].numpy().tobytes() + drawn["targets"].numpy().tobytes()
            found[name] = hashlib.sha256(content).hexdigest()
        return found

    def describe(self) -> dict[str, Any]:
        """What a run remembers of its data."""
        shapes = {name: self.split(name)["inputs"].shape for name in self.held_out}
        return {
            "corpus": self.name,
            "version": self.version,
            "licence": "none needed: made by seqloom",
            "sha256": self.fingerprint(),
            "counts": {name: {"sequences": shape[0], "vectors": shape[0] * shape[1]} for name, shape in shapes.items()},
        }


def numbered(first: int, count: int) -> Indices:
    return np.arange(first, first + count, dtype=np.uint64)


def to_float32(numbers: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32))


# --- the adding problem -----------------------------------------------------------------------------------------------


@config
class VectorConfig:
    """How many sequences of vectors are drawn."""

    dev: PositiveInt = 1000  # sequences in dev
    test: PositiveInt = 1000  # sequences in test
    epoch: PositiveInt = 10_000  # sequences called an epoch; training never reads one twice
    seed: int = 0  # decides dev and test; training draws by the recipe's own seed


@config
class AddingConfig(VectorConfig):
    length: Annotated[int, Ge(2)] = 50  # steps of a sequence, one at least for each mark

    def data(self) -> "Adding":
        return Adding(self)


class Adding(VectorData):
    """The adding problem (Hochreiter and Schmidhuber, 1997): which two numbers were marked, and what is their sum?

        x_t = (value in [0, 1), mark)        mark = 1 at one step of each half, else 0        y = the two values marked

    Nothing but the marks says which numbers count, and the first must be kept for at least half of
    the sequence.
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
        drawn = uniform(seed, indices, self.length + 2)
        values, places = drawn[:, : self.length], drawn[:, self.length :]  # (B, T) and (B, 2)
        marks = np.zeros_like(values)
        rows = np.arange(len(indices))
        marks[rows, (places[:, 0] * half).astype(int)] = 1
        marks[rows, half + (places[:, 1] * (self.length - half)).astype(int)] = 1
        inputs = to_float32(np.stack([values, marks], axis=2))  # (B, T, 2)
        return {"inputs": inputs, "targets": to_float32((values * marks).sum(axis=1))}

    def blind(self, targets: Tensor) -> Tensor:
        """The mean of two numbers in [0, 1]; the error is then their variance, 2 · 1/12 = 1/6."""
        return torch.ones(len(targets), 1)


# --- the recall problem -----------------------------------------------------------------------------------------------


@config
class RecallConfig(VectorConfig):
    lag: PositiveInt = 20  # steps between the symbol and the question
    min_lag: PositiveInt = 1  # training asks after so many to lag steps; as much as lag for that one alone
    symbols: Annotated[int, Ge(2)] = 8  # different symbols; guessing is right once in so many

    def problems(self) -> Iterator[str]:
        if self.min_lag > self.lag:
            yield f"min_lag must be from 1 to lag ({self.lag}), got {self.min_lag}"

    def data(self) -> "Recall":
        return Recall(self)


class Recall(VectorData):
    """The recall problem: a symbol is shown, others follow, and then it is asked for.

        s  d_1 … d_lag  ?          s, d_i any of K symbols          y = s

    Every x_t is one-hot over the K symbols and the question mark. The others come from the same
    alphabet, so only being the first makes s worth keeping, and it must be kept over `lag` steps
    that each offer something else to keep. Training asks after `min_lag` to `lag` steps, one of
    these for all of a batch; dev and test always after `lag`.
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
        indices = numbered(first, rows)
        (where,) = uniform(derive(seed, self.name, "lag"), indices[:1], 1)[0]
        lag = self.min_lag + int(where * (self.lag - self.min_lag + 1))
        return self._draw(derive(seed, self.name, "train"), indices, lag)

    def _draw(self, seed: int, indices: Indices, lag: int) -> Sequences:
        drawn = torch.from_numpy((uniform(seed, indices, lag + 1) * self.symbols).astype("int64"))  # (B, 1 + lag)
        question = torch.full((len(drawn), 1), self.symbols)
        inputs = torch.nn.functional.one_hot(torch.cat([drawn, question], dim=1), self.inputs)  # (B, lag + 2, K + 1)
        return {"inputs": inputs.float(), "targets": drawn[:, 0]}

    def blind(self, targets: Tensor) -> Tensor:
        """All symbols are equally likely."""
        return torch.zeros(len(targets), self.outputs)


# --- tracks --------------------------------------------------------------------------------


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
    """Return track `number` of a split: a function of these four and nothing else."""
    numbers = uniform(derive(seed, "track", split), numbered(number, 1), 16 * motion.steps)[0].reshape(motion.steps, 16)
    normal = _normal(numbers[:, :8])  # (T, 4)
    if motion.kind == "turns":
        # a heading whose rate of turning wanders around straight on, and a speed that wanders around 4 m/s
        rate, speed, heading = 0.0, 4.0, np.pi * normal[0, 2]
        velocity = np.empty((len(normal), 2))
        for t, row in enumerate(normal):
            rate = 0.92 * rate + 0.04 * row[0]
            speed = 4 + 0.95 * (speed - 4) + 0.15 * row[1]
            heading += rate
            velocity[t] = speed * np.cos(heading), speed * np.sin(heading)
    else:  # steps of N(0, 0.4²): a model of constant velocity, but for when it changes
        velocity = 3 * normal[0, 2:] + 0.4 * np.cumsum(normal[:, :2], axis=0)
    truth = np.cumsum(velocity, axis=0)
    observed = truth + motion.noise * _normal(numbers[:, 8:12])
    left = 0
    for t, (begins, length) in enumerate(numbers[:, 12:14]):  # gaps of 4 to 12 steps, about that share of all
        if left == 0 and begins < motion.gaps / (8 * (1 - motion.gaps)):
            left = 4 + int(9 * length)
        if left > 0:
            observed[t] = np.nan
        left = max(left - 1, 0)
    observed[numbers[:, 14:16] < motion.lost] = np.nan
    observed[0] = np.where(np.isnan(observed[0]), truth[0], observed[0])
    return Track(f"{split} {number + 1}", observed.round(DECIMALS), truth.round(DECIMALS))


def _normal(uniform_numbers: Values) -> Values:
    """Return N(0, 1) from pairs of numbers in [0, 1), by Box and Muller (T, k / 2)."""
    half = uniform_numbers.shape[1] // 2
    radius = np.sqrt(-2 * np.log1p(-uniform_numbers[:, :half]))
    normal: Values = radius * np.cos(2 * np.pi * uniform_numbers[:, half:])
    return normal
