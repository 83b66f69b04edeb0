"""A recurrent forecaster: a stack of cells reads the series, and says after every step what comes next.

    h_t = stack of cells (x_t, h_{t−1})          o_t = h_t

`seqloom.models.forecaster` says what x is, and what is made of o.
"""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.tree import Tree
from seqloom.models.forecaster import Forecaster, ForecasterConfig
from seqloom.nn.cells import cell_problems, make_cell
from seqloom.nn.dropout import make_dropout
from seqloom.nn.recurrent import Stack


@config
class RecurrentForecasterConfig(ForecasterConfig):
    kind: Literal["lstm"] = "lstm"
    cell: str = "lstm"  # `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0
    layers: PositiveInt = 1  # cells stacked on each other
    hidden: PositiveInt = 32  # width of every layer's state

    def problems(self) -> Iterator[str]:
        yield from cell_problems(self)

    def build(self, variables: int, season: int) -> "RecurrentForecaster":
        return RecurrentForecaster(self, variables, season)


class RecurrentForecaster(Forecaster):
    def __init__(self, config: RecurrentForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.hidden)
        widths = [self.inputs if depth == 0 else config.hidden for depth in range(config.layers)]
        self.stack = Stack([make_cell(config, width, config.hidden) for width in widths], config.dropout)
        self.dropout = make_dropout(config.dropout)

    def initial(self, rows: int) -> Tree:
        return self.stack.initial_state(rows)

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        hidden, carry = self.stack(x, carry)
        return self.dropout(hidden), carry

    def notes(self) -> list[str]:
        return self.stack.notes()
