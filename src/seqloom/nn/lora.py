"""Low-rank adaptation (LoRA, Hu et al. 2022): a frozen matrix and a trained update of low rank.

    y = W x + b + α/r · B A x          W and b are frozen; A (r, inputs) and B (outputs, r) are trained

B is initially 0, so training starts from the pretrained model. The adapted matrix W + α/r · B A has the shape of W, so
a trained model is saved without A and B and predicts as fast as the original model.
"""

import copy
import math
from collections.abc import Collection, Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.nn.masks import Dropout

A, B = "lora_A", "lora_B"


class LoRALinear(nn.Linear):
    """A linear layer whose weights are frozen, with a trained update of low rank."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = linear.in_features, linear.out_features, scale
        self.weight, self.bias = linear.weight, linear.bias
        self.dropout = Dropout(dropout)
        self.lora_A = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_B = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * F.linear(F.linear(self.dropout(x), self.lora_A), self.lora_B)


def add_lora(model: nn.Module, targets: Collection[str], rank: int, scale: float, dropout: float = 0.0) -> None:
    """Freeze a model, and add low-rank updates to its linear layers with the names `targets`; `scale` is α/r."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank, scale, dropout))


def merge_lora(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return weights by name with W + scale · B A in place of W, A and B."""
    merged = {name: weight for name, weight in weights.items() if not name.endswith((A, B))}
    for name in weights:
        if name.endswith(A):
            prefix = name.removesuffix(A)
            update = weights[prefix + B] @ weights[name]
            merged[f"{prefix}weight"] = weights[f"{prefix}weight"] + scale * update
    return merged


def without_lora(model: nn.Module) -> nn.Module:
    """Return a copy of an adapted model with plain linear layers, which have the matrices W + α/r · B A."""
    plain, scale = copy.deepcopy(model), 0.0
    for module in list(plain.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoRALinear):
                scale = child.scale
                setattr(module, name, nn.Linear(child.in_features, child.out_features, child.bias is not None, "meta"))
    plain.load_state_dict(merge_lora(model.state_dict(), scale), assign=True)
    return plain
