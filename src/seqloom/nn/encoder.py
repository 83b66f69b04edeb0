"""What every encoder is: a sequence read whole, each vector made anew in the light of the others.

All take x (B, S, D) and a mask (B, S), True at real places, which stand first. None of them waits for a GPU.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Encoder(nn.Module, ABC):
    width: int  # of what comes out

    @abstractmethod
    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, S, D) to h (B, S, H), which means nothing at padding, and to where the reading ended (B, H)."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """h (B, S, H)"""
        return self.read(x, mask)[0]

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        """Where the heads of each layer look (B, N, S, S), 0 at padding; empty where there are no heads."""
        return []

    def notes(self) -> list[str]:
        """What it does beyond its equations, in words for whoever trains it."""
        return []
