"""A step of decoding in caches that are as large as they will be, so that the shapes of all steps are the same."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seqloom.core.tree import Growing
from seqloom.nn.masks import AttentionMask


@dataclass(frozen=True)
class FixedUpdate:
    """One token of each of R = B·k hypotheses. At step t they write to the slots t·k … t·k + k − 1.

    `owned` (R, P), which slots each hypothesis owns, is changed in place.
    """

    owned: Tensor
    step: Tensor  # t, on the device
    k: int

    @property
    def positions(self) -> Tensor:
        """How many tokens stand before each (k,)."""
        return self.step.expand(self.k)

    @cached_property
    def with_itself(self) -> Tensor:
        """What each may attend to (R, P), itself included."""
        owned = self.owned.view(-1, self.k, self.owned.shape[1])
        itself = torch.eye(self.k, dtype=torch.bool, device=owned.device).expand(len(owned), -1, -1)
        owned.index_copy_(2, self._slots, itself)
        return self.owned

    @cached_property
    def mask(self) -> AttentionMask:
        """The same as a mask (B, 1, k, P)."""
        return AttentionMask(self.with_itself.view(-1, 1, self.k, self.owned.shape[1]), each=True)

    @cached_property
    def _slots(self) -> Tensor:
        return self.step * self.k + torch.arange(self.k, device=self.step.device)

    def write_both(self, cache: Growing, new: Tensor) -> None:
        """Write keys and values (B, N, 2, k, d) in place."""
        cache.buffer.index_copy_(3, self._slots, new)

    def read(self, cache: Growing) -> tuple[Tensor, Tensor]:
        keys, values = cache.buffer.unbind(dim=2)
        return keys, values
