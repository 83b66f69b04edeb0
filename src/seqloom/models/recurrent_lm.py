"""Recurrent language model: p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1}), the past summed up in a recurrent state.

    x_t = E y_{t-1}          h_t = stack of cells (x_t, h_{t-1})          p(y_t) = softmax(W_hy h_t + b_y)

(or another output layer of `seqloom.nn.softmax`). E are the token vectors; y_0 is END, so that the first token too is
predicted from something.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.nn.cells import Cell, cell_problems, make_cell
from seqloom.nn.connections import Connections, input_widths
from seqloom.nn.dropout import EmbeddingDropout, dropout_notes, make_dropout
from seqloom.nn.masks import last_real
from seqloom.nn.recurrent import Stack, StackState
from seqloom.nn.softmax import SCORED_AT_ONCE, FullSoftmaxConfig, SampledSoftmax, SoftmaxConfig


@config
class RecurrentLMConfig:
    kind: Literal["recurrent-lm"] = "recurrent-lm"
    cell: str = "lstm"  # elman, lstm, gru, gru-cho, mut1, mut2 or mut3; `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0
    layers: int = 1  # cells stacked on each other
    hidden: int = 256  # width of every layer's state
    embedding: int | None = None  # width of the token vectors; None is as wide as hidden
    connections: Connections = "none"  # around and between layers: none, residual, highway or dense
    dropout: float = 0.0  # on the embeddings, between layers, and before the output layer; never through time
    variational: bool = False  # dropout drops the same at every step of a chunk
    embedding_dropout: float = 0.0  # share of the token types that are the zero vector for one chunk
    weight_dropout: float = 0.0  # share of the recurrent weights left out for one chunk
    tied: bool = False  # one matrix for input and output embeddings; where widths differ, h is projected to meet it
    init: float | None = None  # draw all parameters from (-init, init); None is each part's own habit
    softmax: SoftmaxConfig = FullSoftmaxConfig()  # the output layer: full, adaptive or sampled
    bidirectional: bool = False  # refused: see below

    def problems(self) -> Iterator[str]:
        if self.bidirectional:
            yield (
                "bidirectional must be false: a left-to-right language model that reads both ways would see the "
                "word it must predict"
            )
        for name, value in (("layers", self.layers), ("hidden", self.hidden), ("embedding", self.width)):
            if value < 1:
                yield f"{name} must be at least 1; got {value}"
        for name in ("dropout", "embedding_dropout", "weight_dropout"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be at least 0 and below 1; got {getattr(self, name)}"
        if self.init is not None and self.init <= 0:
            yield f"init must be above 0; got {self.init}"
        if self.tied and self.softmax.kind == "adaptive":
            yield (
                "tied needs one output matrix over all tokens, and an adaptive softmax has several, of different "
                "widths; set tied to false, or softmax.kind to full or sampled"
            )
        yield from cell_problems(self)

    @property
    def width(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    def cells(self) -> list[Cell]:
        widths = input_widths(self.connections, self.width, self.hidden, self.layers)
        return [make_cell(self, width, self.hidden) for width in widths]

    @property
    def output_width(self) -> int:
        """How wide the output layer's input is: as wide as the embeddings where both are one matrix."""
        return self.width if self.tied else self.hidden

    def check(self, vocabulary: int) -> None:
        """Does all of it fit a vocabulary of this size?"""
        self.softmax.check(self.output_width, vocabulary)

    def build(self, vocabulary: int) -> "RecurrentLM":
        return RecurrentLM(self, vocabulary)


class RecurrentLM(nn.Module):
    """Reads tokens from left to right and predicts the next one.

    Feed END before the first token: there is no prediction from nothing. The state is a value (one dict per layer),
    passed in and out; padding may stand anywhere, marked by a mask (B, T) that is True at real tokens.

    In training, dropout falls on the embeddings, between layers, and on the top layer's output; `embedding_dropout`
    takes whole token types and `weight_dropout` recurrent weights. In evaluation nothing is dropped.
    """

    def __init__(self, config: RecurrentLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(vocabulary, config.width)
        self.stack = Stack(
            config.cells(),
            config.dropout,
            config.connections,
            variational=config.variational,
            weight_dropout=config.weight_dropout,
        )
        # Where E and W_hy are one matrix, h meets it in the width of the embeddings: p(y_t) = softmax(E P h_t + b_y).
        narrow = config.output_width != config.hidden
        self.project = nn.Linear(config.hidden, config.width, bias=False) if narrow else nn.Identity()
        self.output = config.softmax.build(config.output_width, vocabulary, self.embed.weight if config.tied else None)
        self.dropout = make_dropout(config.dropout, config.variational)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small embeddings and an unbiased output, so that a fresh model thinks all tokens nearly equally likely."""
        scale = self.config.init
        nn.init.uniform_(self.embed.weight, -(scale or 0.1), scale or 0.1)
        if scale is not None:
            self.stack.reset_parameters(scale)
            for matrix in self.project.parameters():
                nn.init.uniform_(matrix, -scale, scale)
        self.output.initialise(scale)

    def set_counts(self, counts: Tensor) -> None:
        """How often each token (V,) stands in the training text: some ways to sample the softmax draw by it."""
        if isinstance(self.output, SampledSoftmax):
            self.output.set_counts(counts)

    def forward(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Tokens (B, T) to the logits (B, T, V) of the token after each, and the state after the last real one."""
        hidden, state = self.read(tokens, state, mask)
        return self.output(hidden), state

    def read(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Tokens (B, T) to what the output layer sees (B, T, H or D), and the state after the last real one."""
        hidden, state = self.stack(self.embedded(tokens), state, mask)
        return self._last(hidden), state

    def _last(self, hidden: Tensor) -> Tensor:
        """The stack's output (…, H) to what the output layer sees: dropped in the width in which it is met."""
        seen: Tensor = self.dropout(self.project(hidden))
        return seen

    def embedded(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to what the stack reads (B, T, D)."""
        return self.dropout(self.embedding_dropout(self.embed, tokens))

    def loss(self, inputs: Tensor, targets: Tensor, state: StackState | None = None) -> tuple[Tensor, StackState]:
        """What training lowers, a mean over inputs and targets (B, T), and the state after the last token."""
        hidden, state = self.read(inputs, state)
        return self.output.loss(hidden.flatten(0, 1), targets.flatten()), state

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, in words for whoever trains it."""
        return [*self.stack.notes(), *dropout_notes(self.config.dropout, self.config.variational)]

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        if source is not None:
            raise UsageError("A language model continues tokens and takes no source; feed the text to step instead.")
        rows = 1 if rows is None else rows
        carry = self.stack.initial_state(rows)
        return DecodeState(
            (*carry, {"y": self.embed.weight.new_zeros(rows, self.config.hidden)}) if self.around else carry
        )

    @property
    def around(self) -> bool:
        """Whether something goes around the layers, so that the top layer's h is not all the output layer sees.

        Then the state between two steps has one more part, the output at the last real token: {"y": (B, H)}.
        """
        return len(self.stack.around) > 0

    def _advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        """Outputs of the stack (B, T, H), and the state after them."""
        hidden, carry = self.stack(self.embedded(tokens), state.carry, mask)
        if self.around:
            carry = (*carry, {"y": last_real(state.carry[-1]["y"], hidden, mask)})
        return hidden, DecodeState(carry)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """The top of the state stands still at padding: after reading, it is the output at each row's last real token.

        A row without any real token keeps its state, and so predicts what it predicted before.
        """
        _, state = self._advance(tokens, state, mask)
        last = state.carry[-1]["y" if self.around else "h"]  # (B, H)
        return StepOutput(self.output.log_probs(self._last(last)), state)

    def score(
        self, inputs: Tensor, targets: Tensor, state: DecodeState, mask: Tensor | None = None
    ) -> tuple[Tensor, DecodeState]:
        """log p of each target (B, T), zero where masked. Logits are made for a few positions at a time."""
        hidden, state = self._advance(inputs, state, mask)
        hidden = self._last(hidden)
        pieces = zip(hidden.flatten(0, 1).split(SCORED_AT_ONCE), targets.flatten().split(SCORED_AT_ONCE), strict=True)
        scores = torch.cat([self.output.target_log_probs(*piece) for piece in pieces]).view_as(targets)  # (B, T)
        return scores if mask is None else scores.where(mask, 0), state

    def trace(self, tokens: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Gates and states of every layer at every step: one dict of (B, T, H) per layer."""
        return self.stack.trace(self.embedded(tokens), state)
