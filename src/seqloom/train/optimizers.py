"""The optimizers a recipe can name."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from seqloom.train.levels import Levels

OptimizerName = Literal["sgd", "adam", "adamw"]


def build_optimizer(
    name: OptimizerName,
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    levels: Levels | None = None,
) -> torch.optim.Optimizer:
    """Weight decay falls on matrices only: biases and gains have no reason to shrink towards zero.

    With `levels`, each has groups of its own, whose `scale` the rate is to be multiplied by.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if levels is None:
        groups = _groups(trainable, weight_decay)
    else:
        groups = [
            {**group, "scale": levels.scale(number)}
            for number, level in enumerate(levels.parameters)
            for group in _groups([p for p in level if p.requires_grad], weight_decay)
        ]
    if name == "sgd":
        sgd = torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=_fusable(trainable))
        for parameter in trainable if momentum else ():  # torch's own begin as whatever the memory holds, and stay so
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)  # where a first update is left out
        return sgd
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, betas=betas, fused=_fusable(trainable))


def _groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _fusable(parameters: list[nn.Parameter]) -> bool:
    """One kernel for the whole update, where torch has one."""
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters)
