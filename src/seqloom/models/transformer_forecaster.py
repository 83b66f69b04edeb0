"""A Transformer as a forecaster: every step attends to those before it, `context` of them at most.

    e_j = W x_j + PE(j)
    e ← e + attention(norm(e)),  e ← e + FFN(norm(e))          L times, no position attending ahead
    o_j = norm(e_j)

`seqloom.models.forecaster` says what x is, and what is made of o; `seqloom.nn.transformer` has the blocks.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.tree import Tree
from seqloom.models.forecaster import Forecaster, ForecasterConfig
from seqloom.nn.cache import AttentionScope
from seqloom.nn.dropout import Dropout
from seqloom.nn.positions import PositionsConfig
from seqloom.nn.transformer import TransformerOptions


@config
class TransformerForecasterConfig(TransformerOptions, ForecasterConfig):
    kind: Literal["transformer"] = "transformer"
    layers: PositiveInt = 2  # blocks stacked on each other
    width: PositiveInt = 32  # of every vector in them
    positions: PositionsConfig = PositionsConfig(kind="rotary")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.longest is not None and self.context is not None and self.context > self.longest:
            yield f"context must be at most the {self.longest} learned positions; got {self.context}"

    def build(self, variables: int, season: int) -> "TransformerForecaster":
        return TransformerForecaster(self, variables, season)


class TransformerForecaster(Forecaster):
    def __init__(self, config: TransformerForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.width)
        self.embed = nn.Linear(self.inputs, config.width)
        self.positions = config.positions.added(config.width)
        self.dropout = Dropout(config.dropout)
        self.blocks, self.norm = config.stack(config.layers), config.final_norm()

    def initial(self, rows: int) -> Tree:
        """The inputs it can still look at: none yet."""
        return self.scale.new_zeros(rows, 0, self.inputs)

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """With a carry the last `context` inputs are read anew, from position 0."""
        whole = x if carry is None else torch.cat([carry, x], dim=1)[:, -self.context :]
        positions = torch.arange(whole.shape[1], device=x.device)
        e = self.embed(whole)
        if self.positions is not None:
            e = e + self.positions(positions, like=e).to(e.dtype)
        scope = AttentionScope(is_causal=True, positions=positions)
        e = self.norm(self.blocks(self.dropout(e), scope).x)
        return e, whole[:, max(0, whole.shape[1] - self.context + 1) :]
