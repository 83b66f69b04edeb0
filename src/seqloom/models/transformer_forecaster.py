"""A Transformer as a forecaster: every step looks back at those before it, `context` of them at most.

    e_j = W x_j + PE(j)
    e ← e + attention(norm(e)),  e ← e + FFN(norm(e))          L times, no place looking ahead
    o_j = norm(e_j)

`seqloom.models.forecaster` says what x is, and what is made of o; `seqloom.nn.blocks` has the blocks.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.tree import Tree
from seqloom.models.forecaster import Forecaster, ForecasterConfig
from seqloom.nn.blocks import Activation, FeedForward, Frame, Past, TextBlock, make_norm
from seqloom.nn.dropout import Dropout
from seqloom.nn.multihead import MultiHeadAttention, head_problems
from seqloom.nn.positions import PositionsConfig


@config
class TransformerForecasterConfig(ForecasterConfig):
    kind: Literal["transformer"] = "transformer"
    layers: int = 2  # blocks stacked on each other
    width: int = 32  # of every vector in them
    heads: int = 4  # of each attention; each is width / heads wide
    feed_forward: int | None = None  # width inside the feed-forward layers; None is 4 × width
    activation: Activation = "gelu"  # of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    positions: PositionsConfig = PositionsConfig(kind="rotary")

    def problems(self) -> Iterator[str]:
        for name, value in (("layers", self.layers), ("width", self.width), ("feed_forward", self.inner)):
            if value < 1:
                yield f"{name} must be at least 1; got {value}"
        yield from super().problems()
        yield from head_problems(self.width, self.heads, None)
        if self.heads >= 1:
            yield from self.positions.width_problems(self.width, self.heads)
        longest = self.positions.longest
        if longest is not None and self.context is not None and self.context > longest:
            yield f"context must be at most the {longest} learned positions; got {self.context}"

    @property
    def inner(self) -> int:
        return 4 * self.width if self.feed_forward is None else self.feed_forward

    def block(self) -> TextBlock:
        attention = MultiHeadAttention(self.width, self.heads, rotary=self.positions.rotary())
        frame = Frame(self.width, "layer", norm_first=True, dropout=self.dropout)
        return TextBlock(attention, FeedForward(self.width, self.inner, self.activation), frame)

    def build(self, variables: int, season: int) -> "TransformerForecaster":
        return TransformerForecaster(self, variables, season)


class TransformerForecaster(Forecaster):
    def __init__(self, config: TransformerForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.width)
        self.embed = nn.Linear(self.inputs, config.width)
        self.positions = config.positions.added(config.width)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(config.block() for _ in range(config.layers))
        self.norm = make_norm("layer", config.width)

    def initial(self, rows: int) -> Tree:
        """The inputs it can still look at: none yet."""
        return self.scale.new_zeros(rows, 0, self.inputs)

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """With a carry the last `context` inputs are read anew, from place 0."""
        whole = x if carry is None else torch.cat([carry, x], dim=1)[:, -self.context :]
        places = torch.arange(whole.shape[1], device=x.device)
        e = self.embed(whole)
        if self.positions is not None:
            e = e + self.positions(places, like=e).to(e.dtype)
        e, past = self.dropout(e), Past(causal=True, places=places)
        for block in self.blocks:
            e, _, _ = block(e, past)
        return self.norm(e), whole[:, max(0, whole.shape[1] - self.context + 1) :]
