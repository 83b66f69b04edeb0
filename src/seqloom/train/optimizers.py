"""The optimizers a recipe can name, and layer groups: what of a model learns when, and how fast.

Layer groups go from the embeddings (group 0) up to the head (top).

    discriminative rates   group l learns at lr · decay^(top − l)
    unfreezing             at step t, groups from max(freeze, top − ⌊t / every⌋) up learn

Both are pure functions of the step, so a training that is resumed learns the same. What does not
learn has no gradient: neither its weights nor the optimizer's state of them move.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict, runtime_checkable

import torch
from torch import nn

from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.tree import Expected, Tree, check_tree
from seqloom.train.config import FitConfig, OptimizerName


@runtime_checkable
class Layered(Protocol):
    """A model with layer groups."""

    def levels(self) -> Sequence[Sequence[nn.Parameter]]:
        """The parameters of each group, the lowest first; none in two."""
        ...


@dataclass(frozen=True)
class LayerGroups:
    """Which layer groups learn at a step, and at which rate."""

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
        count, notes = len(self.parameters), []
        if self.decay < 1:
            notes.append(f"level by level the rate goes from {lr * self.scale(0):.2g} below to {lr:.2g} at the top")
        if self.freeze:
            notes.append(f"{self.freeze} of {count} levels never learn, from the embeddings up")
        if self.every is not None:
            notes.append(f"at first only the top of {count} levels learns, one more every {self.every:,} steps")
        return notes


def build_layer_groups(model: nn.Module, config: FitConfig, steps_per_epoch: int) -> LayerGroups | None:
    """The layer groups of a model, if the recipe asks for them; refused if it has none, or not enough."""
    every = config.unfreeze_every
    options = {"layer_decay": config.layer_decay != 1, "unfreeze_every": every is not None, "freeze": config.freeze > 0}
    requested = [f"train.{name}" for name, is_given in options.items() if is_given]
    if not requested:
        return None
    if not isinstance(model, Layered):
        need, them = ("needs", "it") if len(requested) == 1 else ("need", "them")
        raise UsageError(
            f"{' and '.join(requested)} {need} a model with levels, one on a pretrained backbone; this is a "
            f"{type(model).__name__}. Leave {them} out."
        )
    parameters = [[parameter for parameter in group if parameter.requires_grad] for group in model.levels()]
    if config.freeze >= len(parameters):
        raise UsageError(
            f"train.freeze must leave something to learn: the model has {len(parameters)} levels, embeddings and head "
            f"among them, so at most {len(parameters) - 1}; got {config.freeze}."
        )
    steps = None if every is None else max(1, round(every * steps_per_epoch))
    return LayerGroups(parameters, config.layer_decay, steps, config.freeze)


class OptimizerState(TypedDict):
    """What `Optimizer.state_dict` returns."""

    state: dict[int, Tree]
    param_groups: list[dict[str, Tree]]


def build_optimizer(
    name: OptimizerName,
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    layer_groups: LayerGroups | None = None,
) -> torch.optim.Optimizer:
    """Weight decay falls on matrices only: biases and gains have no reason to shrink towards zero.

    With `layer_groups`, each has parameter groups of its own, whose `scale` the rate is to be
    multiplied by.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scaled: list[tuple[Sequence[nn.Parameter], float | None]] = [(trainable, None)]
    if layer_groups is not None:
        scaled = [(group, layer_groups.scale(number)) for number, group in enumerate(layer_groups.parameters)]
    groups: list[dict[str, object]] = []
    for parameters, scale in scaled:
        learning = [parameter for parameter in parameters if parameter.requires_grad]
        matrices, others = [p for p in learning if p.dim() >= 2], [p for p in learning if p.dim() < 2]
        for part, decay in ((matrices, weight_decay), (others, 0.0)):
            if part:
                groups.append({"params": part, "weight_decay": decay} | ({} if scale is None else {"scale": scale}))
    # One kernel for the whole update, where torch has one.
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in trainable)
    if name != "sgd":
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(groups, lr=lr, betas=betas, fused=fused)
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=fused)
    for parameter in trainable if momentum else ():  # torch's own begin as whatever the memory holds, and stay so
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)  # where an update is left out
    return optimizer


def validate_optimizer_state(optimizer: torch.optim.Optimizer, saved: Tree) -> OptimizerState:
    """What to load into the optimizer: the tensors of a saved `state_dict()`, and the settings of the recipe.

    `CheckpointError` unless the tensors belong to the optimizer's parameters. Adam has none for a
    parameter before its first gradient.
    """
    current = optimizer.state_dict()
    try:
        groups = [group["params"] for group in saved["param_groups"]]
    except (KeyError, TypeError):
        groups = None
    if groups != [group["params"] for group in current["param_groups"]] or not isinstance(saved.get("state"), dict):
        raise CheckpointError("optimizer must have a state and param_groups, which list the model's parameters")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expected: dict[int, dict[str, Expected]] = {}
    for number, parameter in enumerate(parameters):
        if number in saved["state"] or number in current["state"]:
            like = Expected.like(parameter)
            if isinstance(optimizer, torch.optim.SGD):
                expected[number] = {"momentum_buffer": like}
            else:
                step, squares = Expected((), torch.float32, low=0), Expected.like(parameter, low=0)
                expected[number] = {"step": step, "exp_avg": like, "exp_avg_sq": squares}
    check_tree(saved["state"], expected, "optimizer.state")
    return {"state": saved["state"], "param_groups": current["param_groups"]}
