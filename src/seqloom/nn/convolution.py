"""Convolution over a sequence: at every place, features of the few vectors around it.

    y_t = ReLU(Σ_i W_i x_{t+i} + b),   i = −⌊(k−1)/2⌋ … ⌊k/2⌋

Windows of several widths k stand side by side. Beyond the ends, and at padding, x is zero.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.nn.masks import zero_padding


class Windows(nn.Module):
    """x (B, S, D) and a mask (B, S) to y (B, S, widths · filters), zero at padding."""

    def __init__(self, inputs: int, filters: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.width = filters * len(widths)
        self.layers = nn.ModuleList(nn.Conv1d(inputs, filters, width) for width in widths)
        self.widths = tuple(widths)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = zero_padding(x, mask).transpose(1, 2)  # (B, D, S)
        around = [F.pad(x, ((width - 1) // 2, width // 2)) for width in self.widths]
        y = torch.cat([layer(part) for layer, part in zip(self.layers, around, strict=True)], dim=1)
        return zero_padding(F.relu(y).transpose(1, 2), mask)


def window_problems(filters: int, widths: Sequence[int]) -> Iterator[str]:
    if filters < 1:
        yield f"filters must be at least 1; got {filters}"
    if not widths or min(widths) < 1 or len(set(widths)) < len(widths):
        yield f"widths must be whole numbers above 0, each once; got {list(widths)}"
