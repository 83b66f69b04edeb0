"""A feed-forward forecaster: no memory but a window of delay taps on the last values.

    o_t = layers of tanh or another g over [x_t; x_{t−1}; … x_{t−n+1}],  n = `context`

It is the autoregressive model with a network in place of the matrix; `seqloom.models.forecaster` says what x is, and
what is made of o.
"""

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.tree import Tree
from seqloom.models.forecaster import Forecaster, ForecasterConfig
from seqloom.nn.dropout import make_dropout

AHEAD = 8  # predictions that are learnt from one training window
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


@config
class WindowForecasterConfig(ForecasterConfig):
    kind: Literal["ffn"] = "ffn"
    layers: PositiveInt = 1  # hidden layers
    hidden: PositiveInt = 64  # width of each
    activation: Literal["tanh", "relu", "gelu"] = "relu"  # g
    direct: bool = True  # add a linear function of the window: what is left to the network is what that cannot say

    def build(self, variables: int, season: int) -> "WindowForecaster":
        return WindowForecaster(self, variables, season)


class WindowForecaster(Forecaster):
    def __init__(self, config: WindowForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.hidden)
        taps = self.context * self.inputs
        widths = [taps, *[config.hidden] * config.layers]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.activation = ACTIVATIONS[config.activation]()
        self.direct = nn.Linear(taps, config.hidden, bias=False) if config.direct else None
        self.dropout = make_dropout(config.dropout)

    @property
    def window(self) -> int:
        return self.memory + AHEAD

    def initial(self, rows: int) -> Tree:
        """The inputs before the first: nothing known."""
        return self.scale.new_zeros(rows, self.context - 1, self.inputs)

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """Without a carry only whole windows are read: (B, T − n + 1, H)."""
        whole = x if carry is None else torch.cat([carry, x], dim=1)
        h = taps = whole.unfold(1, self.context, 1).flatten(2)  # (B, T', 2C · n)
        for layer in self.layers:
            h = self.dropout(self.activation(layer(h)))
        if self.direct is not None:
            h = h + self.direct(taps)
        return h, whole[:, whole.shape[1] - self.context + 1 :]
