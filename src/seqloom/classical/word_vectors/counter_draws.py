"""Random numbers by their place: draw n of a seed is a function of the two, whatever was drawn before or by whom.

    r_n = mix(seed + (n + 1) γ)        mix as SplitMix64 has it, γ = 0x9E3779B97F4A7C15, all modulo 2⁶⁴

So a block of text can be read by any thread, on any device, by tensors or by a compiled loop, and all draw the same.
"""

import numpy as np
import torch
from torch import Tensor

GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def signed(number: int) -> int:
    """The same 64 bits as torch's integers read them."""
    number %= 1 << 64
    return number - (1 << 64) if number >= 1 << 63 else number


def draws(seed: int, places: Tensor) -> Tensor:
    """r_n (…) as int64 for n in `places` (…)."""
    x = (places + 1) * signed(GAMMA) + signed(seed)
    x = (x ^ _shifted(x, 30)) * signed(FIRST)
    x = (x ^ _shifted(x, 27)) * signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x / 2^bits of an unsigned number: torch's own shift would bring in copies of the first bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def upper(r: Tensor) -> Tensor:
    """The upper 32 bits, as a number from 0 to 2³² − 1."""
    return _shifted(r, 32)


def below(r: Tensor, n: int) -> Tensor:
    """A whole number from 0 to n − 1: ⌊upper(r) · n / 2³²⌋."""
    return (upper(r) * n) >> 32


def lower(r: Tensor) -> Tensor:
    """The lower 24 bits as a number from 0 to 1, exact in float32."""
    return (r & 0xFFFFFF).float() / (1 << 24)


class Noise:
    """Draws from any distribution p (V,) with one number each: a column is drawn, and then it or its alias (Walker)."""

    def __init__(self, p: Tensor) -> None:
        share, alias = _aliases(p.double().numpy())
        self.share, self.alias = torch.from_numpy(share), torch.from_numpy(alias)

    def to(self, device: torch.device | str) -> "Noise":
        self.share, self.alias = self.share.to(device), self.alias.to(device)
        return self

    def __call__(self, r: Tensor) -> Tensor:
        column = below(r, len(self.share))
        return torch.where(lower(r) < self.share[column], column, self.alias[column])


def _aliases(p: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[np.ndarray, np.ndarray]:
    """Columns of equal height 1/V, each of at most two outcomes: itself up to `share`, above it `alias`."""
    height = (p / p.sum() * len(p)).tolist()
    share, alias = np.ones(len(p), np.float32), np.arange(len(p), dtype=np.int64)
    low = [place for place, own in enumerate(height) if own < 1]
    high = [place for place, own in enumerate(height) if own >= 1]
    while low and high:
        small, large = low.pop(), high[-1]
        share[small], alias[small] = height[small], large
        height[large] -= 1 - height[small]
        if height[large] < 1:
            low.append(high.pop())
    return share, alias
