"""Recurrent language model: p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1}), the past summed up in a recurrent state.

    x_t = E y_{t-1}          h_t = stack of cells (x_t, h_{t-1})          p(y_t) = softmax(W_hy h_t + b_y)

E are the token vectors; y_0 is END, so that the first token too is predicted from something.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.config import config
from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.nn.cells import Cell, cell_class
from seqloom.nn.recurrent import Stack, StackState

SCORED_AT_ONCE = 2048  # positions whose logits over the whole vocabulary are held in memory together


def precise(logits: Tensor) -> Tensor:
    """At least float32: a softmax over a vocabulary loses too much in half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@config
class RecurrentLMConfig:
    kind: Literal["recurrent-lm"] = "recurrent-lm"
    cell: str = "lstm"  # elman, lstm, gru or gru-cho; `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0
    layers: int = 1  # cells stacked on each other
    hidden: int = 256  # width of every layer's state
    embedding: int | None = None  # width of the token vectors; None is as wide as hidden
    dropout: float = 0.0  # on the embeddings, between layers, and before the output layer; never through time
    tied: bool = False  # one matrix for input and output embeddings
    init: float | None = None  # draw all parameters from (-init, init); None is each part's own habit
    bidirectional: bool = False  # refused: see below

    def __post_init__(self) -> None:
        options = cell_class(self.cell).options
        if self.bidirectional:
            raise ValueError(
                "bidirectional must be false: a left-to-right language model that reads both ways would see the "
                "word it must predict"
            )
        if self.activation != "tanh" and "activation" not in options:
            raise ValueError(f"activation can be chosen for the elman cell only; leave it out for {self.cell!r}")
        if self.forget_bias is not None and "forget_bias" not in options:
            raise ValueError(f"forget_bias belongs to the lstm cell only; leave it out for {self.cell!r}")
        for name, value in (("layers", self.layers), ("hidden", self.hidden), ("embedding", self.width)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {self.dropout}")
        if self.init is not None and self.init <= 0:
            raise ValueError(f"init must be above 0; got {self.init}")
        if self.tied and self.width != self.hidden:
            raise ValueError(
                f"tied needs embedding and hidden of one size, as one matrix serves both; got embedding {self.width} "
                f"and hidden {self.hidden}"
            )

    @property
    def width(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    def cells(self) -> list[Cell]:
        kind = cell_class(self.cell)
        values = {name: getattr(self, name) for name in kind.options}
        options = {name: value for name, value in values.items() if value is not None}
        return [kind(self.width if depth == 0 else self.hidden, self.hidden, **options) for depth in range(self.layers)]

    def build(self, vocabulary: int) -> "RecurrentLM":
        return RecurrentLM(self, vocabulary)


class RecurrentLM(nn.Module):
    """Reads tokens from left to right and predicts the next one.

    Feed END before the first token: there is no prediction from nothing. The state is a value (one dict per layer),
    passed in and out; padding may stand anywhere, marked by a mask (B, T) that is True at real tokens.

    In training, dropout falls on the embeddings, between layers, and on the top layer's output.
    """

    def __init__(self, config: RecurrentLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(vocabulary, config.width)
        self.stack = Stack(config.cells(), config.dropout)
        self.output = nn.Linear(config.hidden, vocabulary)
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()
        if config.tied:
            self.output.weight = self.embed.weight

    def reset_parameters(self) -> None:
        """Small embeddings and an unbiased output, so that a fresh model thinks all tokens nearly equally likely."""
        scale = self.config.init
        nn.init.uniform_(self.embed.weight, -(scale or 0.1), scale or 0.1)
        nn.init.zeros_(self.output.bias)
        if scale is None:
            return
        for cell in self.stack.cells:
            cell.reset_parameters(scale)
        nn.init.uniform_(self.output.weight, -scale, scale)
        nn.init.uniform_(self.output.bias, -scale, scale)

    def forward(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Tokens (B, T) to the logits (B, T, V) of the token after each, and the state after the last real one."""
        hidden, state = self.read(tokens, state, mask)
        return self.output(hidden), state

    def read(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Tokens (B, T) to what the output layer sees (B, T, H), and the state after the last real one."""
        x = self.dropout(self.embed(tokens))  # (B, T, D)
        hidden, state = self.stack(x, state, mask)
        return self.dropout(hidden), state

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        if source is not None:
            raise UsageError("A language model continues tokens and takes no source; feed the text to step instead.")
        return DecodeState(self.stack.initial_state(1 if rows is None else rows))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """The top layer's h stands still at padding: after reading, it is the output at each row's last real token.

        A row without any real token keeps its state, and so predicts what it predicted before.
        """
        _, carry = self.read(tokens, state.carry, mask)
        logits = self.output(self.dropout(carry[-1]["h"]))  # (B, V)
        return StepOutput(precise(logits).log_softmax(dim=-1), DecodeState(carry))

    def score(
        self, inputs: Tensor, targets: Tensor, state: DecodeState, mask: Tensor | None = None
    ) -> tuple[Tensor, DecodeState]:
        """log p of each target (B, T), zero where masked. Logits are made for a few positions at a time."""
        hidden, carry = self.read(inputs, state.carry, mask)
        pieces = zip(hidden.flatten(0, 1).split(SCORED_AT_ONCE), targets.flatten().split(SCORED_AT_ONCE), strict=True)
        scores = torch.cat([self._log_probs(*piece) for piece in pieces]).view_as(targets)  # (B, T)
        return scores if mask is None else scores.where(mask, 0), DecodeState(carry)

    def _log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return -F.cross_entropy(precise(self.output(hidden)), targets, reduction="none")

    def trace(self, tokens: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Gates and states of every layer at every step: one dict of (B, T, H) per layer."""
        return self.stack.trace(self.dropout(self.embed(tokens)), state)
