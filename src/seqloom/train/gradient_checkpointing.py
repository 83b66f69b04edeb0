"""Gradient checkpointing: less memory for more time. The activations of a layer are dropped, and computed once more in
the backward pass.

Of a stack of L parts with a values each, L·a values wait for the backward pass. Recomputed, it is what each part was
given, L·x, and the values of one part, a. Every part is computed twice forwards and once backwards, which takes about a
third more time. Random draws are made again as they were, so that the gradients are the same.

A part that may be treated so has `recomputable = True`: blocks of Transformers, layers of recurrent networks, and the
attention of their decoders, which else keeps its scores of every source at every step.
"""

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_layers(model: nn.Module) -> int:
    """Checkpoint every layer of this model that can be; how many that are. Layers within a layer follow it."""
    count = 0
    for part in model.children():
        if getattr(part, "recomputable", False):
            part.forward = MethodType(_checkpointed_forward, part)
            count += 1
        else:
            count += checkpoint_layers(part)
    return count


def _checkpointed_forward(part: Any, *arguments: Any, **named: Any) -> Any:
    forward = MethodType(type(part).forward, part)
    if part.training and torch.is_grad_enabled():
        return checkpoint(forward, *arguments, use_reentrant=False, **named)
    return forward(*arguments, **named)
