"""Feed-forward language model (Bengio et al. 2003): the next token from a fixed window of those before it, no memory.

    x_t = [E y_{t-K}; …; E y_{t-1}]                              the K last tokens, side by side
    h_t = g(W_L … g(W_1 x_t + b_1) … + b_L)
    p(y_t) = softmax(U h_t + b)
           = softmax(U h_t + D x_t + b)                          with direct connections

(or another output layer of `seqloom.nn.softmax`). Where E is also the output's matrix, what it
meets is projected to its width: softmax(E P h_t + b), and softmax(E P [h_t; x_t] + b) with direct
connections. With these and no hidden layer, the model is log-bilinear (Mnih and Hinton 2007).

An n-gram of order K + 1 sees the same tokens. Before the first token of a text stand as many ENDs
as there is room for.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, Ge, PositiveFloat, PositiveInt
from seqloom.core import END
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.models.language_model import LeftToRightModel
from seqloom.nn.masks import Dropout, EmbeddingDropout
from seqloom.nn.softmax import FullSoftmaxConfig, SoftmaxConfig, tied_problems

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
}


@config
class WindowLMConfig:
    kind: Literal["window-lm"] = "window-lm"
    window: PositiveInt = 4  # K, the tokens it sees: those just before the one it predicts; an n-gram of order 5 sees 4
    embedding: PositiveInt = 64  # width of the token vectors
    layers: Annotated[int, Ge(0)] = 1  # hidden layers; 0 with direct connections alone
    hidden: PositiveInt = 256  # width of every hidden layer
    activation: Literal["tanh", "relu", "sigmoid", "gelu"] = "tanh"  # of the hidden layers
    direct: bool = False  # the output layer also sees the window's vectors themselves
    dropout: Fraction = 0.0  # on the window's vectors and on every hidden layer
    embedding_dropout: Fraction = 0.0  # share of the token types that are the zero vector for one chunk
    tied: bool = False  # one matrix for input and output embeddings; where widths differ, h is projected to meet it
    init: PositiveFloat | None = None  # draw all parameters from (-init, init); None is each part's own habit
    softmax: SoftmaxConfig = FullSoftmaxConfig()  # the output layer: full, adaptive or sampled

    def problems(self) -> Iterator[str]:
        if self.layers == 0 and not self.direct:
            yield f"layers must be at least 1, or 0 with direct=true, so that something is said; got {self.layers}"
        yield from tied_problems(self.tied, self.softmax)

    @property
    def inputs(self) -> int:
        """The width of x."""
        return self.window * self.embedding

    @property
    def features(self) -> int:
        """The width of h, or of [h; x] with direct connections."""
        return (self.hidden if self.layers else 0) + (self.inputs if self.direct else 0)

    @property
    def output_width(self) -> int:
        """The width of the output layer's input: that of the embeddings where both are one matrix."""
        return self.embedding if self.tied else self.features

    def check(self, vocabulary: int) -> None:
        """Refuse a vocabulary that the output layer does not fit."""
        self.softmax.check(self.output_width, vocabulary)

    def build(self, vocabulary: int) -> "WindowLM":
        return WindowLM(self, vocabulary)


class WindowLM(LeftToRightModel):
    """Predicts the next token from the last K; tokens before them have no influence.

    The state is these K tokens themselves (B, K), so chunks of a text may be cut anywhere; padding
    may stand anywhere too, marked by a mask (B, T) that is True at real tokens.
    """

    def __init__(self, config: WindowLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(vocabulary, config.embedding)
        widths = [config.inputs] + [config.hidden] * config.layers
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        narrow = config.output_width != config.features
        self.project = nn.Linear(config.features, config.output_width, bias=False) if narrow else nn.Identity()
        self.output = config.softmax.build(config.output_width, vocabulary, self.embed.weight if config.tied else None)
        self.dropout, self.embedding_dropout = Dropout(config.dropout), EmbeddingDropout(config.embedding_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small embeddings and an unbiased output, so that a fresh model thinks all tokens nearly equally likely."""
        scale = self.config.init
        nn.init.uniform_(self.embed.weight, -(scale or 0.1), scale or 0.1)
        if scale is not None:
            for parameter in (*self.hidden.parameters(), *self.project.parameters()):
                nn.init.uniform_(parameter, -scale, scale)
        self.output.initialise(scale)

    # All tokens of a chunk at once.

    def forward(self, tokens: Tensor, state: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens (B, T) to the logits (B, T, V) of the token after each, and the state after the last real one."""
        hidden, state = self.read(tokens, state, mask)
        return self.output(hidden), state

    def read(
        self, tokens: Tensor, state: Tensor | None = None, mask: Tensor | None = None, apart: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, T) to the input of the output layer (B, T, H or D), and the state after the last real one.

        `apart`: a window that reaches back beyond the beginning of its document sees END there.
        """
        state = self.initial_state(len(tokens)).carry if state is None else state
        window, state = windows(tokens, state, mask)
        return self.before_output(within_document(window) if apart else window), state

    def before_output(self, window: Tensor) -> Tensor:
        """Windows (…, K) to the input of the output layer (…, H or D): the equations above but for the softmax."""
        x = self.dropout(self.embedding_dropout(self.embed, window).flatten(-2))  # (…, K·D)
        h, activation = x, ACTIVATIONS[self.config.activation]
        for layer in self.hidden:
            h = self.dropout(activation(layer(h)))  # (…, H)
        if self.config.direct and self.config.layers:
            h = torch.cat([h, x], dim=-1)
        projected: Tensor = self.project(h)
        return projected

    def loss(
        self, inputs: Tensor, targets: Tensor, state: Tensor | None = None, apart: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The training loss, a mean over inputs and targets (B, T), and the state after the last token."""
        hidden, state = self.read(inputs, state, apart=apart)
        return self.output.loss(hidden.flatten(0, 1), targets.flatten()), state

    # Token by token.

    def initial_state(self, rows: int) -> DecodeState:
        return DecodeState(torch.full((rows, self.config.window), END, device=self.embed.weight.device))

    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        window, carry = windows(tokens, state.carry, mask)
        return window, DecodeState(carry)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """A row without any real token keeps its window, and so predicts what it predicted before."""
        _, carry = windows(tokens, state.carry, mask)
        return StepOutput(self.output.log_probs(self.before_output(carry)), DecodeState(carry))


def windows(tokens: Tensor, before: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of each of the tokens (B, T) that token and the K−1 real ones before it (B, T, K), given the K real ones `before`
    (B, K) the first; and the last K real ones (B, K)."""
    length, size = tokens.shape[1], before.shape[1]
    history = torch.cat([before, tokens], dim=1)  # (B, K + T)
    if mask is None:
        return history.unfold(1, size, 1)[:, 1:], history[:, length:].clone()
    real = F.pad(mask, (size, 0), value=True)
    history = history.gather(1, real.to(torch.int8).argsort(dim=1, stable=True))  # the real ones last, in their order
    later = mask.sum(dim=1, keepdim=True) - mask.cumsum(dim=1)  # (B, T), real tokens after each position
    positions = (length - later).unsqueeze(2) + torch.arange(size, device=tokens.device)  # (B, T, K)
    return history.gather(1, positions.flatten(1)).view(*tokens.shape, size), history[:, length:].clone()


def within_document(window: Tensor) -> Tensor:
    """Windows (…, K) in which all tokens before an END are END too: a document begins with the END before it."""
    ended = (window == END).flip(-1).cumsum(dim=-1).flip(-1) > 0  # whether an END stands here or later
    return window.masked_fill(ended, END)
