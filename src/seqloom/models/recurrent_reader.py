"""Recurrent reader: many vectors in, one answer out.

    h_t = stack of cells (x_t, h_{t-1})          y = W_hy h_T + b_y

Read from both ends, h_T is [→h_T; ←h_1], or another combination of `seqloom.nn.bidirectional`.

The task decides what y means: numbers where it measures a distance, logits where it chooses. The
data decides how wide x and y are: see `build`.
"""

from typing import Literal

from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree
from seqloom.nn.bidirectional import BidirectionalStack, DirectionOptions
from seqloom.nn.masks import make_dropout
from seqloom.nn.recurrent import StackState


@config
class RecurrentReaderConfig(DirectionOptions):
    kind: Literal["recurrent-reader"] = "recurrent-reader"

    def build(self, inputs: int, outputs: int) -> "RecurrentReader":
        """For vectors `inputs` wide and answers of `outputs` numbers."""
        return RecurrentReader(self, inputs, outputs)


class RecurrentReader(nn.Module):
    """Reads vectors from first to last and answers once, from the last output of the top layer."""

    def __init__(self, config: RecurrentReaderConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.config = config
        self.stack = config.directed_stack(inputs)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.stack.output_size, outputs)

    def forward(self, x: Tensor, state: Tree = None) -> Tensor:
        """Vectors (B, T, D), all rows of one length T ≥ 1, to answers (B, outputs)."""
        if x.dim() == 3 and x.shape[1] == 0:
            raise ValueError("a sequence must have at least one vector; got none")
        hidden, state = self.stack(x, state)  # (B, T, H)
        last = self.stack.ends(state) if isinstance(self.stack, BidirectionalStack) else hidden[:, -1]
        answer: Tensor = self.output(self.dropout(last))
        return answer

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, for whoever trains it."""
        return self.stack.notes()

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Gates and states of every layer at every step: one dict of (B, T, H) per layer."""
        if isinstance(self.stack, BidirectionalStack):
            raise UsageError("A trace shows one direction over time, and this model reads both; train it one way.")
        return self.stack.trace(x, state)
