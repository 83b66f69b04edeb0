"""Pooling: one vector for a whole sequence h_1 … h_S of them.

    last        c = where the reading ended: h_S; read both ways, →h_S and ←h_1 combined
    mean        c = 1/S Σ_j h_j
    max         c_i = max_j h_ji, each number by itself
    attention   e_j = vᵀ tanh(W h_j + b)     α = softmax(e)     c = Σ_j α_j h_j

Only real places count; a sequence without any gives zeros. Adding one is a class and its entry in `POOLINGS`.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.nn.attention import masked_softmax
from seqloom.nn.masks import zero_padding

PoolingKind = Literal["last", "mean", "max", "attention"]


class Pooling(nn.Module):
    """For vectors `width` wide."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        """h (B, S, H), a mask (B, S) and where the reading ended (B, H) to c (B, H), and α (B, S) if there are any."""
        raise NotImplementedError


class Last(Pooling):
    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        return ends, None


class Mean(Pooling):
    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        total = zero_padding(h, mask).sum(dim=1)
        return total / mask.sum(dim=1, keepdim=True).clamp(min=1), None


class Max(Pooling):
    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        largest = h.masked_fill(~mask.unsqueeze(2), torch.finfo(h.dtype).min).amax(dim=1)
        return largest.where(mask.any(dim=1, keepdim=True), 0), None


class Attend(Pooling):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.weight = nn.Linear(width, width)
        self.v = nn.Linear(width, 1, bias=False)

    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        h = zero_padding(h, mask)
        weights = masked_softmax(self.v(torch.tanh(self.weight(h))).squeeze(2), mask)
        return (weights.to(h.dtype).unsqueeze(1) @ h).squeeze(1), weights


POOLINGS: dict[PoolingKind, type[Pooling]] = {"last": Last, "mean": Mean, "max": Max, "attention": Attend}
