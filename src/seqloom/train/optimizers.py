"""Optimizers, and layer groups with their own learning rates and gradual unfreezing.

Layer groups are numbered from the embeddings (group 0) to the head (top).

    discriminative rates   group l has the learning rate lr · decay^(top − l)
    unfreezing             at step t, the groups from max(freeze, top − ⌊t / every⌋) to the top are trained

Learning rates and unfreezing depend only on the step, so a resumed run gives the same result. A frozen group has no
gradient, so its weights and its optimizer state do not change.
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

    def layer_groups(self) -> Sequence[Sequence[nn.Parameter]]:
        """Return the parameters of each group, lowest group first. Each parameter belongs to at most one group."""
        ...


@dataclass(frozen=True)
class LayerGroups:
    """The layer groups of a model, their learning rates and the schedule of unfreezing."""

    parameters: Sequence[Sequence[nn.Parameter]]  # parameters of each group, lowest group first
    decay: float = 1.0
    every: int | None = None  # steps until the next group is unfrozen; None: all groups are trained from the start
    freeze: int = 0  # number of lowest groups that are never trained

    @property
    def top(self) -> int:
        return len(self.parameters) - 1

    def scale(self, group: int) -> float:
        """Return the factor by which the learning rate of a group is multiplied."""
        return self.decay ** (self.top - group)

    def lowest(self, step: int) -> int:
        """Return the lowest group that is trained in the step from `step` to `step + 1`."""
        unfrozen = 0 if self.every is None else self.top - step // self.every
        return max(self.freeze, unfrozen, 0)

    def unfreeze(self, step: int) -> None:
        """Freeze the groups below the lowest trained group of this step and unfreeze all other groups."""
        lowest = self.lowest(step)
        for number, parameters in enumerate(self.parameters):
            for parameter in parameters:
                parameter.requires_grad_(number >= lowest)

    def notes(self, lr: float) -> list[str]:
        """Return the notes for the user when training begins."""
        count, notes = len(self.parameters), []
        if self.decay < 1:
            lowest = lr * self.scale(0)
            notes.append(f"{count} layer groups have learning rates from {lowest:.2g} (embeddings) to {lr:.2g} (head)")
        if self.freeze:
            notes.append(f"{self.freeze} of {count} layer groups are frozen, starting with the embeddings")
        if self.every is not None:
            notes.append(
                f"at first, only the top layer group of {count} is trained; "
                f"another group is unfrozen every {self.every:,} steps"
            )
        return notes


def build_layer_groups(model: nn.Module, config: FitConfig, steps_per_epoch: int) -> LayerGroups | None:
    """Return the layer groups of a model if the recipe uses them.

    Raise `UsageError` if the model has too few groups.
    """
    every = config.unfreeze_every
    options = {"layer_decay": config.layer_decay != 1, "unfreeze_every": every is not None, "freeze": config.freeze > 0}
    requested = [f"train.{name}" for name, is_given in options.items() if is_given]
    if not requested:
        return None
    if not isinstance(model, Layered):
        need, them = ("needs", "it") if len(requested) == 1 else ("need", "them")
        raise UsageError(
            f"{' and '.join(requested)} {need} a model with layer groups, such as one with a pretrained backbone; this "
            f"is a {type(model).__name__}. Leave {them} out."
        )
    parameters = [[parameter for parameter in group if parameter.requires_grad] for group in model.layer_groups()]
    if config.freeze >= len(parameters):
        raise UsageError(
            f"train.freeze must be at most {len(parameters) - 1}, because the model has {len(parameters)} layer groups "
            f"including embeddings and head; got {config.freeze}."
        )
    steps = None if every is None else max(1, round(every * steps_per_epoch))
    return LayerGroups(parameters, config.layer_decay, steps, config.freeze)


class OptimizerState(TypedDict):
    """The result of `Optimizer.state_dict`."""

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
    """Build an optimizer that applies weight decay to matrices, but not to biases and gains.

    With `layer_groups`, the parameter groups of each layer group have a `scale`, which is the factor of their learning
    rate.
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
    # Fused optimizers update all parameters in one kernel.
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in trainable)
    if name != "sgd":
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(groups, lr=lr, betas=betas, fused=fused)
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=fused)
    for parameter in trainable if momentum else ():  # torch leaves buffers uninitialized if a step has no gradient
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def validate_optimizer_state(optimizer: torch.optim.Optimizer, saved: Tree) -> OptimizerState:
    """Return the state to load, which consists of the tensors of a saved `state_dict()` and the settings of the recipe.

    Raise `CheckpointError` unless the tensors match the optimizer's parameters. Adam has no state for a parameter that
    has not had a gradient.
    """
    current = optimizer.state_dict()
    try:
        groups = [group["params"] for group in saved["param_groups"]]
    except (KeyError, TypeError):
        groups = None
    if groups != [group["params"] for group in current["param_groups"]] or not isinstance(saved.get("state"), dict):
        raise CheckpointError("optimizer must have a state and param_groups that list the model's parameters")
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
