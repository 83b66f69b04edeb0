"""The part of a training's state that is not a tensor."""

from dataclasses import asdict, dataclass
from typing import Any

from seqloom.core.errors import CheckpointError
from seqloom.core.expected import ANYTHING, check_tree


@dataclass
class Tally:
    """Everything about a training that is not a tensor."""

    step: int = 0
    tokens: int = 0
    evaluated: int = 0  # the last step that was evaluated
    best_step: int = 0
    best: dict[str, float] | None = None
    stale: int = 0  # evaluations since the best one
    since_decay: int = 0  # evaluations without a new best since plateau last lowered the rate
    decay: float = 1.0  # what plateau has multiplied the rate by
    skips: int = 0  # updates in a row that were not finite
    recent_loss: float = 0.0  # sum of the losses since the last report …
    recent_steps: int = 0  # … and over how many updates
    memory: int = 0  # most bytes in tensors during an update that was watched
    limit: int | None = None  # values of a batch that did not fit in memory, see `seqloom.train.halving`
    recorded: bool = True  # where steps can be; not any more, if there was no memory for it
    threads: int = 0  # of the CPU, which the last bits of the weights depend on; 0 on another device

    @classmethod
    def restored(cls, saved: Any, step: int, metric: str) -> "Tally":
        """The tally of the checkpoint of a step; `CheckpointError` if it cannot be one. `metric` chooses the best."""
        check_tree(saved, asdict(cls()) | {"best": ANYTHING, "limit": ANYTHING}, "tally")
        best, limit = saved["best"], saved["limit"]
        if best is not None and not (
            isinstance(best, dict) and metric in best and all(type(value) in (int, float) for value in best.values())
        ):
            raise CheckpointError(f"tally.best must be the metrics of an evaluation, {metric} among them")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise CheckpointError("tally.limit must be a number of values")
        tally = cls(**saved)
        counts = [value for value in saved.values() if type(value) is int]
        if tally.step != step or min(counts) < 0 or max(tally.evaluated, tally.best_step) > step or tally.decay <= 0:
            raise CheckpointError(f"tally does not describe a training at step {step}")
        return tally
