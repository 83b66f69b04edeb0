"""Chance, one stream of it per row: what a row draws depends on its own seed, never on the rows beside it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.seeding import derive, generator

BLOCK = 64  # draws made ahead, so that a GPU waits for random numbers once in so many tokens


def row_seeds(seed: int | Sequence[int], rows: int) -> list[int]:
    """One seed per row: given one by one, or derived from a single seed and the row's place."""
    if isinstance(seed, int):
        return [derive(seed, "row", row) for row in range(rows)]
    if len(seed) != rows:
        raise UsageError(f"Give one seed, or one for each row: {rows} rows came with {len(seed)} seeds.")
    return list(seed)


class Draws:
    """Uniform numbers in [0, 1) from generators on the CPU, so that every device draws the same ones."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [generator(seed, "draws") for seed in seeds]
        self._device = device
        self._block = torch.empty(0)

    def at(self, step: int, rows: Tensor) -> Tensor:
        """The draws (B,) of the given rows at this step; steps must be asked for in order."""
        place = step % BLOCK
        if place == 0:
            draws = [torch.rand(BLOCK, generator=source, dtype=torch.float64) for source in self._generators]
            self._block = torch.stack(draws, dim=1).to(self._device)  # (BLOCK, rows)
        return self._block[place].index_select(0, rows)


def choose(log_probs: Tensor, draws: Tensor) -> Tensor:
    """Sample (B,) from log-probabilities (B, V) by inverting the distribution: the first v with P(≤ v) > u.

    In double precision, so that devices which round sums differently still agree. A token without probability is never
    returned, even where the rounding of a parallel sum opens a gap for it.
    """
    probs = log_probs.double().exp()
    cumulative = probs.cumsum(-1)
    wanted = draws.unsqueeze(1) * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, wanted, right=True).clamp_(max=probs.shape[1] - 1)
    possible = probs.gather(1, found) > 0
    return torch.where(possible, found, probs.argmax(-1, keepdim=True)).squeeze(1)
