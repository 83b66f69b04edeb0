"""Dropout on a CPU, where torch draws one number after the other on a single core."""

import torch
from torch import Tensor

from seqloom.nn import dropout


def install() -> None:
    dropout.drop.register(on_cpu, drop)


def on_cpu(x: Tensor, share: float) -> bool:
    return x.device.type == "cpu"


def drop(x: Tensor, share: float) -> Tensor:
    """Draw 64 bits for four numbers each. The share is rounded to 1/65536, and what is kept divided accordingly."""
    levels = 1 << 16
    dropped = min(round(share * levels), levels - 1)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    level = drawn[: x.numel()].view(x.shape)  # −levels/2 … levels/2 − 1
    kept = torch.ge(level, dropped - levels // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return x * kept.mul_(levels / (levels - dropped))
