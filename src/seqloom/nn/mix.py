"""A mix of layers: what a task wants of each layer of a model that was trained on something else.

    h = γ Σ_j s_j h_j          s = softmax(w)          j = 0 … L

The s_j are shares, and sum to 1; γ is how large the mix is. Both are learned by the task, from equal shares and γ = 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LayerMix(nn.Module):
    """Of so many layers, all of one width."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))  # w
        self.scale = nn.Parameter(torch.ones(1))  # γ

    @property
    def shares(self) -> Tensor:
        """s (L + 1,)"""
        return self.weights.softmax(dim=0)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Each (B, S, H), the lowest first, to (B, S, H)."""
        mixed = torch.zeros_like(layers[0])
        for share, h in zip(self.shares.to(mixed.dtype).unbind(), layers, strict=True):
            mixed = mixed + share * h
        return self.scale.to(mixed.dtype) * mixed
