"""Recurrent reader: many vectors in, one answer out.

    h_t = stack of cells (x_t, h_{t-1})          y = W_hy h_T + b_y

Read from both ends, h_T is [→h_T; ←h_1], or another combination of `seqloom.nn.bidirectional`.

What y means is the task's business: numbers where it measures a distance, logits where it chooses. How wide x and y are
is the data's: see `build`.
"""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree
from seqloom.nn.bidirectional import BidirectionalStack, Combination, Depth, make_stack, stack_problems
from seqloom.nn.dropout import make_dropout
from seqloom.nn.recurrent import Stack, StackState


@config
class RecurrentReaderConfig:
    kind: Literal["recurrent-reader"] = "recurrent-reader"
    cell: str = "lstm"  # `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0
    layers: int = 1  # cells stacked on each other
    hidden: int = 64  # width of every layer's state
    dropout: float = 0.0  # between layers, and before the answer; never through time
    bidirectional: bool = False  # read from both ends, with weights of their own
    combine: Combination = "concat"  # the two directions: concat, sum or mix
    depth: Depth = "each"  # combine them after each layer, or keep them apart up to the top

    def problems(self) -> Iterator[str]:
        yield from stack_problems(self)

    def stack(self, inputs: int) -> Stack | BidirectionalStack:
        return make_stack(self, inputs)

    def build(self, inputs: int, outputs: int) -> "RecurrentReader":
        """For vectors `inputs` wide and answers of `outputs` numbers."""
        return RecurrentReader(self, inputs, outputs)


class RecurrentReader(nn.Module):
    """Reads vectors from first to last and answers once, from where the top layer then stands."""

    def __init__(self, config: RecurrentReaderConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.config = config
        self.stack = config.stack(inputs)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.stack.width, outputs)

    def forward(self, x: Tensor, state: Tree = None) -> Tensor:
        """Vectors (B, T, D), all rows of one length T ≥ 1, to answers (B, outputs)."""
        if x.dim() == 3 and x.shape[1] == 0:
            raise ValueError("a sequence must have at least one vector; got none")
        hidden, state = self.stack(x, state)  # (B, T, H)
        last = self.stack.ends(state) if isinstance(self.stack, BidirectionalStack) else hidden[:, -1]
        answer: Tensor = self.output(self.dropout(last))
        return answer

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, in words for whoever trains it."""
        return self.stack.notes()

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Gates and states of every layer at every step: one dict of (B, T, H) per layer."""
        if isinstance(self.stack, BidirectionalStack):
            raise UsageError("A trace shows one direction over time, and this model reads both; train it one way.")
        return self.stack.trace(x, state)
