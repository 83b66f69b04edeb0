"""The optimizers a recipe can name."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from seqloom.core.errors import CheckpointError
from seqloom.core.expected import Expected, check_tree
from seqloom.train.config import OptimizerName
from seqloom.train.layer_groups import LayerGroups


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

    With `layer_groups`, each has parameter groups of its own, whose `scale` the rate is to be multiplied by.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if layer_groups is None:
        groups = _groups(trainable, weight_decay)
    else:
        groups = [
            {**group, "scale": layer_groups.scale(number)}
            for number, parameters in enumerate(layer_groups.parameters)
            for group in _groups([p for p in parameters if p.requires_grad], weight_decay)
        ]
    optimizer: torch.optim.Optimizer
    if name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=_fusable(trainable))
        for parameter in trainable if momentum else ():  # torch's own begin as whatever the memory holds, and stay so
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)  # where an update is left out
    else:
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        optimizer = kind(groups, lr=lr, betas=betas, fused=_fusable(trainable))
    optimizer.register_step_post_hook(count_step)
    return optimizer


def count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raise the versions of the parameters after a step: torch's fused optimizers leave them as they were."""
    increment_version([parameter for group in optimizer.param_groups for parameter in group["params"]])


def _groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _fusable(parameters: list[nn.Parameter]) -> bool:
    """One kernel for the whole update, where torch has one."""
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters)


def validated_state(optimizer: torch.optim.Optimizer, saved: Any) -> dict[str, Any]:
    """What to load into the optimizer: the tensors of a saved `state_dict()`, and the settings of the recipe.

    `CheckpointError` unless the tensors belong to the optimizer's parameters. Adam has none for a parameter before its
    first gradient.
    """
    own = optimizer.state_dict()
    try:
        groups = [group["params"] for group in saved["param_groups"]]
    except (KeyError, TypeError):
        groups = None
    if groups != [group["params"] for group in own["param_groups"]] or not isinstance(saved.get("state"), dict):
        raise CheckpointError("optimizer must have a state and param_groups, which list the model's parameters")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expected = {
        number: _expected_tensors(optimizer, parameter)
        for number, parameter in enumerate(parameters)
        if number in saved["state"] or number in own["state"]
    }
    check_tree(saved["state"], expected, "optimizer.state")
    return {"state": saved["state"], "param_groups": own["param_groups"]}


def _expected_tensors(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Expected]:
    """What the optimizer keeps of a parameter."""
    like = Expected.like(parameter)
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": like}
    step = Expected((), torch.float32, low=0)
    return {"step": step, "exp_avg": like, "exp_avg_sq": Expected.like(parameter, low=0)}
