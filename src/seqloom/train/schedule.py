"""Learning rates as pure functions of the step."""

import math
from typing import Literal

Schedule = Literal["constant", "inverse-sqrt", "cosine", "plateau"]


def learning_rate(schedule: Schedule, peak: float, step: int, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """The rate for the update that leads from `step` to `step + 1`.

    All schedules first climb linearly to `peak` over `warmup` steps. Then

        constant, plateau   peak                       (plateau is lowered by the evaluations, see `fit`)
        inverse-sqrt        peak · √(warmup / (step + 1))    with warmup at least 1
        cosine              floor + (peak − floor) · (1 + cos π·progress) / 2,   progress from 0 to 1 at `total`
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / (step + 1))
    if schedule == "cosine":
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2
    return peak
