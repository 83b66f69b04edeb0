"""Sequences of vectors made on the spot. Sequence i of a stream is a function of the stream's seed and i, nothing else.

So a batch can be drawn anywhere and again, alone or with others, and no sequence has to be kept. Training reads one
stream and never the same sequence twice; dev and test are the first sequences of two other streams.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import DataError
from seqloom.core.seeding import derive

Indices = NDArray[np.uint64]


class Sequences(TypedDict):
    inputs: Tensor  # (B, T, D)
    targets: Tensor  # (B,)


def uniform(seed: int, indices: Indices, width: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), (N, width): place p of a row is a function of seed, the row's index and p.

    The mixing is splitmix64's, whose definition will not change as the generators of libraries may. A number has 24
    bits: float32 holds it exactly, and its product with a whole number below 2²⁹ is exact in float64.
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


def held_out_problem(dev: int, test: int) -> str | None:
    return None if min(dev, test) >= 1 else f"dev and test must each be at least 1, got {dev} and {test}"


def to_float32(numbers: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32))
