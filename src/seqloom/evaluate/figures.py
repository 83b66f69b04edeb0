"""What an evaluation found: figures by name, and how sure some of them are."""

from dataclasses import dataclass
from typing import Any

from seqloom.evaluate.intervals import Interval


@dataclass(frozen=True)
class Figures:
    metrics: dict[str, float]
    intervals: dict[str, Interval]  # of some of the metrics, 95 %

    def kept(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {**self.metrics, "intervals": {name: list(interval) for name, interval in self.intervals.items()}}
