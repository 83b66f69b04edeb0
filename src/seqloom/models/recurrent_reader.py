"""A recurrent network that reads a sequence of vectors and computes a single output.

    h_t = stack of cells (x_t, h_{t-1})          y = W_hy h_T + b_y

Instead of h_T, a bidirectional reader uses [→h_T; ←h_1] or another combination of `seqloom.nn.bidirectional`. The task
interprets y as numbers or as logits.
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
        """Create the model for vectors of size `inputs` and outputs of size `outputs`."""
        return RecurrentReader(self, inputs, outputs)


class RecurrentReader(nn.Module):
    """A recurrent network whose output is computed from the last output of the top layer."""

    def __init__(self, config: RecurrentReaderConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.config = config
        self.stack = config.directed_stack(inputs)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.stack.output_size, outputs)

    def forward(self, x: Tensor, state: Tree = None) -> Tensor:
        """Compute y (B, outputs) from vectors (B, T, D), T ≥ 1, without padding."""
        if x.dim() == 3 and x.shape[1] == 0:
            raise ValueError("a sequence must have at least one vector; got none")
        hidden, state = self.stack(x, state)  # (B, T, H)
        last = self.stack.ends(state) if isinstance(self.stack, BidirectionalStack) else hidden[:, -1]
        y: Tensor = self.output(self.dropout(last))
        return y

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return self.stack.notes()

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Return the gates and states of every step as one dict of tensors (B, T, H) per layer."""
        if isinstance(self.stack, BidirectionalStack):
            raise UsageError("A trace needs a unidirectional model; train with model.bidirectional=false.")
        return self.stack.trace(x, state)
