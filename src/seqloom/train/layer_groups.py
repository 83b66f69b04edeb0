"""Layer groups: what of a model learns when, and how fast, from the embeddings (group 0) up to the head (top).

    discriminative rates   group l learns at lr · decay^(top − l)
    unfreezing             at step t, groups from max(freeze, top − ⌊t / every⌋) up learn

Both are pure functions of the step, so a training that is resumed learns the same. What does not learn has no gradient:
neither its weights nor the optimizer's state of them move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from seqloom.core.errors import UsageError
from seqloom.train.config import FitConfig


@dataclass(frozen=True)
class LayerGroups:
    parameters: Sequence[Sequence[nn.Parameter]]  # of each group, the lowest first; none in two
    decay: float = 1.0
    every: int | None = None  # steps until one more group learns; None: all learn from the beginning
    freeze: int = 0  # so many from below never learn

    @property
    def top(self) -> int:
        return len(self.parameters) - 1

    def scale(self, group: int) -> float:
        """What the learning rate of a group is multiplied by."""
        return self.decay ** (self.top - group)

    def lowest(self, step: int) -> int:
        """The lowest group that learns in the update from `step` to `step + 1`."""
        unfrozen = 0 if self.every is None else self.top - step // self.every
        return max(self.freeze, unfrozen, 0)

    def unfreeze(self, step: int) -> None:
        """Let the groups that learn at this step learn, and no others."""
        lowest = self.lowest(step)
        for number, parameters in enumerate(self.parameters):
            for parameter in parameters:
                parameter.requires_grad_(number >= lowest)

    def notes(self, lr: float) -> list[str]:
        """What the user is told when training begins."""
        notes = []
        if self.decay < 1:
            notes.append(f"level by level the rate goes from {lr * self.scale(0):.2g} below to {lr:.2g} at the top")
        if self.freeze:
            notes.append(f"{self.freeze} of {len(self.parameters)} levels never learn, from the embeddings up")
        if self.every is not None:
            notes.append(
                f"at first only the top of {len(self.parameters)} levels learns, one more every {self.every:,} steps"
            )
        return notes


def build_layer_groups(model: nn.Module, config: FitConfig, steps_per_epoch: int) -> LayerGroups | None:
    """The layer groups of a model, if the recipe asks for them; refused if it has none, or not enough."""
    options = {
        "train.layer_decay": config.layer_decay != 1,
        "train.unfreeze_every": config.unfreeze_every is not None,
        "train.freeze": config.freeze > 0,
    }
    requested = [name for name, is_given in options.items() if is_given]
    if not requested:
        return None
    levels = getattr(model, "levels", None)
    if levels is None:
        need, them = ("needs", "it") if len(requested) == 1 else ("need", "them")
        raise UsageError(
            f"{' and '.join(requested)} {need} a model with levels, one on a pretrained body; this is a "
            f"{type(model).__name__}. Leave {them} out."
        )
    parameters = [[parameter for parameter in group if parameter.requires_grad] for group in levels()]
    if config.freeze >= len(parameters):
        raise UsageError(
            f"train.freeze must leave something to learn: the model has {len(parameters)} levels, embeddings and head "
            f"among them, so at most {len(parameters) - 1}; got {config.freeze}."
        )
    every = config.unfreeze_every
    steps = None if every is None else max(1, round(every * steps_per_epoch))
    return LayerGroups(parameters, config.layer_decay, steps, config.freeze)
