"""What of a model learns when, and how fast: its parameters in levels, from the embeddings (0) up to the head (top).

    rates        level l learns at lr · decay^(top − l)                                  discriminative rates
    unfreezing   at step t, levels from max(freeze, top − ⌊t / every⌋) up learn          every: steps, of so many epochs

Both are pure functions of the step, so a training that is stopped and gone on with learns the same. What does not learn
has no gradient: neither its weights nor the optimizer's numbers of them move.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from seqloom.core.errors import UsageError


class LevelChoice(Protocol):
    """What a recipe's `train` section says of levels."""

    @property
    def lr(self) -> float: ...
    @property
    def layer_decay(self) -> float: ...
    @property
    def unfreeze_every(self) -> float | None: ...
    @property
    def freeze(self) -> int: ...


@dataclass(frozen=True)
class Levels:
    parameters: Sequence[Sequence[nn.Parameter]]  # of each level, the lowest first; none in two
    decay: float = 1.0
    every: int | None = None  # steps until one more level learns; None: all learn from the beginning
    freeze: int = 0  # so many from below never learn

    @property
    def top(self) -> int:
        return len(self.parameters) - 1

    def scale(self, level: int) -> float:
        """What the rate is multiplied by."""
        return self.decay ** (self.top - level)

    def lowest(self, step: int) -> int:
        """The lowest level that learns in the update from `step` to `step + 1`."""
        thawed = 0 if self.every is None else self.top - step // self.every
        return max(self.freeze, thawed, 0)

    def thaw(self, step: int) -> None:
        """Have what learns at this step learn, and nothing else."""
        lowest = self.lowest(step)
        for number, level in enumerate(self.parameters):
            for parameter in level:
                parameter.requires_grad_(number >= lowest)

    def notes(self, lr: float) -> list[str]:
        """What is told when training begins."""
        found = []
        if self.decay < 1:
            found.append(f"level by level the rate goes from {lr * self.scale(0):.2g} below to {lr:.2g} at the top")
        if self.freeze:
            found.append(f"{self.freeze} of {len(self.parameters)} levels never learn, from the embeddings up")
        if self.every is not None:
            found.append(
                f"at first only the top of {len(self.parameters)} levels learns, one more every {self.every:,} steps"
            )
        return found


def levels_of(model: Any, choice: LevelChoice, steps_per_epoch: int) -> Levels | None:
    """The levels of a model, where the recipe asks for them; refused if it has none, or not enough."""
    asked = [f"train.{name}" for name, given in _asked(choice).items() if given]
    if not asked:
        return None
    if not hasattr(model, "levels"):
        need, them = ("needs", "it") if len(asked) == 1 else ("need", "them")
        raise UsageError(
            f"{' and '.join(asked)} {need} a model with levels, one on a pretrained body; this is a "
            f"{type(model).__name__}. Leave {them} out."
        )
    parameters = [[parameter for parameter in level if parameter.requires_grad] for level in model.levels()]
    if choice.freeze >= len(parameters):
        raise UsageError(
            f"train.freeze must leave something to learn: the model has {len(parameters)} levels, embeddings and head "
            f"among them, so at most {len(parameters) - 1}; got {choice.freeze}."
        )
    every = choice.unfreeze_every
    steps = None if every is None else max(1, round(every * steps_per_epoch))
    return Levels(parameters, choice.layer_decay, steps, choice.freeze)


def _asked(choice: LevelChoice) -> dict[str, bool]:
    return {
        "layer_decay": choice.layer_decay != 1,
        "unfreeze_every": choice.unfreeze_every is not None,
        "freeze": choice.freeze > 0,
    }
