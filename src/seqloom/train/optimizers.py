"""The optimizers a recipe can name."""

from typing import Literal

import torch
from torch import nn

OptimizerName = Literal["sgd", "adam", "adamw"]


def build_optimizer(
    name: OptimizerName,
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """Weight decay falls on matrices only: biases and gains have no reason to shrink towards zero."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=_fusable(trainable))
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, betas=betas, fused=_fusable(trainable))


def _fusable(parameters: list[nn.Parameter]) -> bool:
    """One kernel for the whole update, where torch has one."""
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters)
