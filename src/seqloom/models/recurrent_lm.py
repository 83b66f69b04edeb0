"""Recurrent language model: p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1}), the past represented by a recurrent state.

    x_t = E y_{t-1}          h_t = stack of cells (x_t, h_{t-1})          p(y_t) = softmax(W_hy h_t + b_y)

(or another output layer of `seqloom.nn.softmax`). E are the token vectors; y_0 is END, so that the
first token too is predicted from something.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveFloat, PositiveInt
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tokens import EXTRA
from seqloom.models.backbones import Backbone, NextTokenLayer
from seqloom.models.language_model import LeftToRightModel
from seqloom.nn.masks import EmbeddingDropout, last_real, make_dropout
from seqloom.nn.recurrent import Connections, RecurrentOptions, StackState
from seqloom.nn.softmax import FullSoftmaxConfig, SoftmaxConfig, tied_problems


@config
class RecurrentLMOptions(RecurrentOptions):
    """The keys that recurrent language models share, of one direction or of both."""

    layers: PositiveInt = 1  # cells stacked on each other
    hidden: PositiveInt = 256  # width of every layer's state
    connections: Connections = "none"  # around and between layers: none, residual, highway or dense
    dropout: Fraction = 0.0  # on the embeddings, between layers, and before the output layer; never through time
    variational_dropout: bool = False  # dropout drops the same at every step of a chunk
    embedding_dropout: Fraction = 0.0  # share of the token types that are the zero vector for one chunk
    weight_dropout: Fraction = 0.0  # share of the recurrent weights left out for one chunk
    tied: bool = False  # one matrix for input and output embeddings; where widths differ, h is projected to meet it
    init: PositiveFloat | None = None  # draw all parameters from (-init, init); None is each part's own habit

    longest = None  # it reads any number of tokens


@config
class RecurrentLMConfig(RecurrentLMOptions):
    kind: Literal["recurrent-lm"] = "recurrent-lm"
    embedding: PositiveInt | None = None  # width of the token vectors; None is as wide as hidden
    softmax: SoftmaxConfig = FullSoftmaxConfig()  # the output layer: full, adaptive or sampled
    bidirectional: bool = False  # refused: see below

    def problems(self) -> Iterator[str]:
        if self.bidirectional:
            yield (
                "bidirectional must be false: a left-to-right language model that reads both ways would see the "
                "word it must predict"
            )
        yield from tied_problems(self.tied, self.softmax)
        yield from super().problems()

    @property
    def embedding_size(self) -> int:
        """The width of the token vectors."""
        return self.hidden if self.embedding is None else self.embedding

    @property
    def output_width(self) -> int:
        """The width of the output layer's input: that of the embeddings where both are one matrix."""
        return self.embedding_size if self.tied else self.hidden

    def check(self, vocabulary: int) -> None:
        """Refuse a vocabulary that the output layer does not fit."""
        self.softmax.check(self.output_width, vocabulary)

    def build(self, vocabulary: int) -> "RecurrentLM":
        return RecurrentLM(self, vocabulary)


class RecurrentLM(LeftToRightModel):
    """Reads tokens from left to right and predicts the next one.

    The state is a value (one dict per layer), passed in and out; padding may stand anywhere, marked
    by a mask (B, T) that is True at real tokens. In training, dropout falls on the embeddings,
    between layers, and on the top layer's output; `embedding_dropout` takes whole token types and
    `weight_dropout` recurrent weights.
    """

    def __init__(self, config: RecurrentLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(vocabulary, config.embedding_size)
        self.stack = config.stack(config.embedding_size, config.layers)
        # Where E and W_hy are one matrix, h meets it in the width of the embeddings: p(y_t) = softmax(E P h_t + b_y).
        narrow = config.output_width != config.hidden
        self.project = nn.Linear(config.hidden, config.embedding_size, bias=False) if narrow else nn.Identity()
        self.output = config.softmax.build(config.output_width, vocabulary, self.embed.weight if config.tied else None)
        self.dropout = make_dropout(config.dropout, config.variational_dropout)
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

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, for whoever trains it."""
        return [*self.stack.notes(), *self.config.dropout_notes()]

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to the input of the stack (B, T, D)."""
        return self.dropout(self.embedding_dropout(self.embed, tokens))

    def read(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Tokens (B, T) to the input of the output layer (B, T, H or D), and the state after the last real one."""
        hidden, state = self.stack(self.embed_tokens(tokens), state, mask)
        return self.dropout(self.project(hidden)), state

    def forward(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Tokens (B, T) to the logits (B, T, V) of the token after each, and the state after the last real one."""
        hidden, state = self.read(tokens, state, mask)
        return self.output(hidden), state

    def loss(self, inputs: Tensor, targets: Tensor, state: StackState | None = None) -> tuple[Tensor, StackState]:
        """The training loss, a mean over inputs and targets (B, T), and the state after the last token."""
        hidden, state = self.read(inputs, state)
        return self.output.loss(hidden.flatten(0, 1), targets.flatten()), state

    def trace(self, tokens: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Gates and states of every layer at every step: one dict of (B, T, H) per layer."""
        return self.stack.trace(self.embed_tokens(tokens), state)

    # Token by token.

    def initial_state(self, rows: int) -> DecodeState:
        """With residual or highway connections the output layer reads more than the top layer's h. Then the state has
        one more part, the output at the last real token: {"y": (B, H)}."""
        carry: tuple[Any, ...] = self.stack.initial_state(rows)
        if self.stack.around:
            carry = (*carry, {"y": self.embed.weight.new_zeros(rows, self.config.hidden)})
        return DecodeState(carry)

    def _run(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        hidden, carry = self.stack(self.embed_tokens(tokens), state.carry, mask)
        if self.stack.around:
            carry = (*carry, {"y": last_real(state.carry[-1]["y"], hidden, mask)})
        return hidden, DecodeState(carry)

    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        hidden, state = self._run(tokens, state, mask)
        return self.dropout(self.project(hidden)), state

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """The top of the state stands still at padding: after reading, it is the output at each row's last real token.

        A row without any real token keeps its state, and so predicts what it predicted before.
        """
        _, state = self._run(tokens, state, mask)
        last = state.carry[-1]["y" if self.stack.around else "h"]  # (B, H)
        return StepOutput(self.output.log_probs(self.dropout(self.project(last))), state)


class RecurrentBackbone(Backbone):
    """The cells of a recurrent language model, h of the top layer: semi-supervised learning (Dai and Le 2015)."""

    form = "causal"
    names: ClassVar[dict[str, str]] = {name: name for name in ("embed.", "stack.", "project.", "output.")}

    def __init__(self, config: RecurrentLMConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary, predicts)
        self.output_size = config.hidden
        self.embed = nn.Embedding(vocabulary + EXTRA, config.embedding_size)
        self.stack = config.stack(config.embedding_size, config.layers)
        self.dropout = make_dropout(config.dropout, config.variational_dropout)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        scale = config.init or 0.1
        nn.init.uniform_(self.embed.weight, -scale, scale)
        self.project: nn.Module | None = None
        self.output = NextTokenLayer(config.output_width, vocabulary, config.tied) if predicts else None
        if predicts and config.output_width != config.hidden:
            self.project = nn.Linear(config.hidden, config.output_width, bias=False)

    @classmethod
    def can_predict(cls, config: RecurrentLMConfig) -> bool:
        return config.softmax.kind == "full"

    def vectors(self) -> nn.Embedding:
        return self.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.stack.read(self.dropout(self.embedding_dropout(self.embed, tokens)), mask)[0]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [list(self.embed.parameters()), *self.stack.layer_groups()]

    def next_token_layer(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.output is None:
            return super().next_token_layer(h)
        return h if self.project is None else self.project(h), *self.output.layer(self.embed.weight)

    def notes(self) -> list[str]:
        return self.stack.notes()
