"""Recurrent language model: p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1}), with a recurrent state for y_1 … y_{t-1}.

    x_t = E y_{t-1}          h_t = stack of cells (x_t, h_{t-1})          p(y_t) = softmax(W_hy h_t + b_y)

or another output layer of `seqloom.nn.softmax`. E is the matrix of token embeddings, and y_0 is END.
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
from seqloom.nn.masks import EmbeddingDropout, make_dropout, select_last_real
from seqloom.nn.recurrent import Connections, RecurrentOptions, StackState
from seqloom.nn.softmax import FullSoftmaxConfig, SoftmaxConfig, tied_problems


@config
class RecurrentLMOptions(RecurrentOptions):
    """The options that `recurrent-lm` and `bilm` share."""

    layers: PositiveInt = 1  # number of layers
    hidden: PositiveInt = 256  # size of each layer's state
    connections: Connections = "none"  # connections around and between layers: none, residual, highway or dense
    dropout: Fraction = 0.0  # dropout on the embeddings, between layers and before the output layer
    variational_dropout: bool = False  # use the same dropout mask at all steps of a row
    embedding_dropout: Fraction = 0.0  # probability that the embedding of a token type is 0 in a batch
    weight_dropout: Fraction = 0.0  # probability that a recurrent weight is 0 in a batch
    tied: bool = False  # share one matrix between input and output embeddings; h is projected if the sizes differ
    # draw all parameters uniformly from (-init, init); null: the defaults of the layers
    init: PositiveFloat | None = None

    longest = None  # no limit on the number of tokens


@config
class RecurrentLMConfig(RecurrentLMOptions):
    kind: Literal["recurrent-lm"] = "recurrent-lm"
    embedding: PositiveInt | None = None  # size of the token embeddings; null: the same as hidden
    softmax: SoftmaxConfig = FullSoftmaxConfig()  # the output layer: full, adaptive or sampled
    bidirectional: bool = False  # must be false; the model kind `bilm` is bidirectional

    def problems(self) -> Iterator[str]:
        if self.bidirectional:
            yield (
                "bidirectional must be false: a bidirectional language model would read the token that it must predict"
            )
        yield from tied_problems(self.tied, self.softmax)
        yield from super().problems()

    @property
    def embedding_size(self) -> int:
        """The size of the token embeddings."""
        return self.hidden if self.embedding is None else self.embedding

    @property
    def output_width(self) -> int:
        """The input size of the output layer, which equals the embedding size if the embeddings are tied."""
        return self.embedding_size if self.tied else self.hidden

    def check(self, vocabulary: int) -> None:
        """Raise an error if the output layer does not support the vocabulary size."""
        self.softmax.check(self.output_width, vocabulary)

    def build(self, vocabulary: int) -> "RecurrentLM":
        return RecurrentLM(self, vocabulary)


class RecurrentLM(LeftToRightModel):
    """A recurrent language model that predicts the next token.

    The state is a tuple with one dict per layer; methods take the state as an argument and return the next state.
    Padding may be at any position. A mask (B, T) is True at real tokens.
    """

    def __init__(self, config: RecurrentLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(vocabulary, config.embedding_size)
        self.stack = config.stack(config.embedding_size, config.layers)
        # With tied embeddings, h is projected to their size: p(y_t) = softmax(E P h_t + b_y).
        narrow = config.output_width != config.hidden
        self.project = nn.Linear(config.hidden, config.embedding_size, bias=False) if narrow else nn.Identity()
        self.output = config.softmax.build(config.output_width, vocabulary, self.embed.weight if config.tied else None)
        self.dropout = make_dropout(config.dropout, config.variational_dropout)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize with small embeddings and a zero output bias, so that all tokens are about equally probable."""
        scale = self.config.init
        nn.init.uniform_(self.embed.weight, -(scale or 0.1), scale or 0.1)
        if scale is not None:
            self.stack.reset_parameters(scale)
            for matrix in self.project.parameters():
                nn.init.uniform_(matrix, -scale, scale)
        self.output.initialize(scale)

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return [*self.stack.notes(), *self.config.dropout_notes()]

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Compute the input of the stack (B, T, D) from tokens (B, T)."""
        return self.dropout(self.embedding_dropout(self.embed, tokens))

    def read(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Compute the input of the output layer (B, T, H or D), and the state after the last real token."""
        hidden, state = self.stack(self.embed_tokens(tokens), state, mask)
        return self.dropout(self.project(hidden)), state

    def forward(
        self, tokens: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Compute the logits (B, T, V) of the next token, and the state after the last real token."""
        hidden, state = self.read(tokens, state, mask)
        return self.output(hidden), state

    def loss(self, inputs: Tensor, targets: Tensor, state: StackState | None = None) -> tuple[Tensor, StackState]:
        """Return the mean loss of inputs and targets (B, T), and the state after the last token."""
        hidden, state = self.read(inputs, state)
        return self.output.loss(hidden.flatten(0, 1), targets.flatten()), state

    def trace(self, tokens: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Return the gates and states of every step as one dict of tensors (B, T, H) per layer."""
        return self.stack.trace(self.embed_tokens(tokens), state)

    # Reading token by token

    def initial_state(self, rows: int) -> DecodeState:
        """Return the state before the first token.

        With residual or highway connections, the output at the last real token differs from the top layer's h, so the
        state also contains this output as {"y": (B, H)}.
        """
        hidden: tuple[Any, ...] = self.stack.initial_state(rows)
        if self.stack.around:
            hidden = (*hidden, {"y": self.embed.weight.new_zeros(rows, self.config.hidden)})
        return DecodeState(hidden)

    def _run(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        outputs, hidden = self.stack(self.embed_tokens(tokens), state.hidden, mask)
        if self.stack.around:
            hidden = (*hidden, {"y": select_last_real(state.hidden[-1]["y"], outputs, mask)})
        return outputs, DecodeState(hidden)

    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        outputs, state = self._run(tokens, state, mask)
        return self.dropout(self.project(outputs)), state

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Read tokens and predict the next token. A row without real tokens keeps its state and prediction.

        Padding does not change the state, so the top layer of the state is the output at the last real token.
        """
        _, state = self._run(tokens, state, mask)
        last = state.hidden[-1]["y" if self.stack.around else "h"]  # (B, H)
        return StepOutput(self.output.log_probs(self.dropout(self.project(last))), state)


class RecurrentBackbone(Backbone):
    """The stack of a recurrent language model as a backbone (Dai and Le 2015); h is the output of the top layer."""

    form = "causal"
    pretrained_names: ClassVar[dict[str, str]] = {name: name for name in ("embed.", "stack.", "project.", "output.")}

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

    def token_embedding(self) -> nn.Embedding:
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
