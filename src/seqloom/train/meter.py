"""How fast a training is."""

import time

from seqloom.core.protocols import Task
from seqloom.train.events import Progress
from seqloom.train.state import StepResult


class Meter:
    """Time spent in updates only: evaluations, saves, and what has to be prepared before steps can be made are left
    out."""

    def __init__(self) -> None:
        self.seconds = self.tokens = self.steps = 0.0
        self._reported = (0.0, 0.0, 0.0)  # seconds, tokens and steps at the last report

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began

    def add(self, result: StepResult) -> None:
        """A step was made."""
        self.tokens, self.steps = self.tokens + result.tokens, self.steps + 1
        self.seconds -= result.preparation_seconds

    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def progress(self, step: int, total: int, values: dict[str, float], task: Task) -> Progress:
        now = (self.seconds, self.tokens, self.steps)
        seconds, tokens, steps = (a - b for a, b in zip(now, self._reported, strict=True))
        self._reported = now
        left = (total - step) * seconds / steps
        speed = tokens / seconds if seconds else 0.0
        return Progress(step, total, values, speed, left, task.monitor.unit, task.counted)
