"""Texts that a model wrote for examples, compared with the correct texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from seqloom.core import Json


class HasTargetTexts(Protocol):
    """An example with texts that a model should write."""

    @property
    def target_texts(self) -> Sequence[str]:
        """The correct texts, at least one."""
        ...


TargetsT = TypeVar("TargetsT", bound=HasTargetTexts)


@dataclass(frozen=True)
class WrittenText(Generic[TargetsT]):
    """An example and the text that a model wrote for it."""

    example: TargetsT
    text: str

    @property
    def is_exact(self) -> bool:
        """Whether the text equals a target text up to white space."""
        return self.text.split() in [target.split() for target in self.example.target_texts]


@dataclass(frozen=True)
class WrittenTextReport(Generic[TargetsT]):
    """The evaluation of the texts that a model writes."""

    metrics: dict[str, float]
    decoding: str  # description of the search
    lines: list[WrittenText[TargetsT]]  # in the order of the split

    def to_dict(self) -> dict[str, Json]:
        """Return the values that a run stores."""
        return {**self.metrics, "decoding": self.decoding}

    def examples(self, limit: int = 5) -> list[WrittenText[TargetsT]]:
        """Choose evenly spaced examples, mistakes first."""
        chosen: list[WrittenText[TargetsT]] = []
        for exact in (False, True):
            lines = [line for line in self.lines if line.is_exact is exact]
            count = min(limit - len(chosen), len(lines))
            chosen += [lines[number * len(lines) // count] for number in range(count)]
        return chosen
