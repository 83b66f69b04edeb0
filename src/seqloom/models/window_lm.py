"""Feed-forward language model (Bengio et al. 2003), which predicts the next token from a window of previous tokens.

    x_t = [E y_{t-K}; …; E y_{t-1}]                              the last K tokens, concatenated
    h_t = g(W_L … g(W_1 x_t + b_1) … + b_L)
    p(y_t) = softmax(U h_t + b)
           = softmax(U h_t + D x_t + b)                          with direct connections

or another output layer of `seqloom.nn.softmax`. With tied embeddings, the input of the output layer is projected to the
size of the embeddings: softmax(E P h_t + b), or softmax(E P [h_t; x_t] + b) with direct connections. With direct
connections and without hidden layers, the model is log-bilinear (Mnih and Hinton 2007).

An n-gram model of order K + 1 reads the same tokens. The window before a text is filled with END.
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
    window: PositiveInt = 4  # K, the number of previous tokens; an n-gram model of order 5 reads 4
    embedding: PositiveInt = 64  # size of the token embeddings
    layers: Annotated[int, Ge(0)] = 1  # number of hidden layers; 0 requires direct=true
    hidden: PositiveInt = 256  # size of each hidden layer
    activation: Literal["tanh", "relu", "sigmoid", "gelu"] = "tanh"  # activation of the hidden layers
    direct: bool = False  # connect the embeddings of the window directly to the output layer
    dropout: Fraction = 0.0  # dropout on the embeddings of the window and on every hidden layer
    embedding_dropout: Fraction = 0.0  # probability that the embedding of a token type is 0 in a batch
    tied: bool = False  # share one matrix between input and output embeddings; h is projected if the sizes differ
    # draw all parameters uniformly from (-init, init); null: the defaults of the layers
    init: PositiveFloat | None = None
    softmax: SoftmaxConfig = FullSoftmaxConfig()  # the output layer: full, adaptive or sampled

    def problems(self) -> Iterator[str]:
        if self.layers == 0 and not self.direct:
            yield f"layers must be at least 1, or 0 with direct=true; got {self.layers}"
        yield from tied_problems(self.tied, self.softmax)

    @property
    def inputs(self) -> int:
        """The size of x."""
        return self.window * self.embedding

    @property
    def features(self) -> int:
        """The size of h, or of [h; x] with direct connections."""
        return (self.hidden if self.layers else 0) + (self.inputs if self.direct else 0)

    @property
    def output_width(self) -> int:
        """The input size of the output layer, which equals the embedding size if the embeddings are tied."""
        return self.embedding if self.tied else self.features

    def check(self, vocabulary: int) -> None:
        """Raise an error if the output layer does not support the vocabulary size."""
        self.softmax.check(self.output_width, vocabulary)

    def build(self, vocabulary: int) -> "WindowLM":
        return WindowLM(self, vocabulary)


class WindowLM(LeftToRightModel):
    """A language model that predicts the next token from the last K tokens.

    The state consists of the last K tokens (B, K), so a text can be split at any position. Padding may be at any
    position. A mask (B, T) is True at real tokens.
    """

    def __init__(self, config: WindowLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(vocabulary, config.embedding)
        sizes = [config.inputs] + [config.hidden] * config.layers
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        narrow = config.output_width != config.features
        self.project = nn.Linear(config.features, config.output_width, bias=False) if narrow else nn.Identity()
        self.output = config.softmax.build(config.output_width, vocabulary, self.embed.weight if config.tied else None)
        self.dropout, self.embedding_dropout = Dropout(config.dropout), EmbeddingDropout(config.embedding_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize with small embeddings and a zero output bias, so that all tokens are about equally probable."""
        scale = self.config.init
        nn.init.uniform_(self.embed.weight, -(scale or 0.1), scale or 0.1)
        if scale is not None:
            for parameter in (*self.hidden.parameters(), *self.project.parameters()):
                nn.init.uniform_(parameter, -scale, scale)
        self.output.initialize(scale)

    # Reading all tokens of a batch in one call

    def forward(self, tokens: Tensor, state: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the logits (B, T, V) of the next token, and the state after the last real token."""
        hidden, state = self.read(tokens, state, mask)
        return self.output(hidden), state

    def read(
        self, tokens: Tensor, state: Tensor | None = None, mask: Tensor | None = None, split_documents: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Compute the input of the output layer (B, T, H or D), and the state after the last real token.

        With `split_documents`, END replaces the tokens of previous documents in a window.
        """
        state = self.initial_state(len(tokens)).hidden if state is None else state
        window, state = token_windows(tokens, state, mask)
        return self.before_output(hide_previous_documents(window) if split_documents else window), state

    def before_output(self, window: Tensor) -> Tensor:
        """Compute the input of the output layer (…, H or D) from windows (…, K)."""
        x = self.dropout(self.embedding_dropout(self.embed, window).flatten(-2))  # (…, K·D)
        h, activation = x, ACTIVATIONS[self.config.activation]
        for layer in self.hidden:
            h = self.dropout(activation(layer(h)))  # (…, H)
        if self.config.direct and self.config.layers:
            h = torch.cat([h, x], dim=-1)
        projected: Tensor = self.project(h)
        return projected

    def loss(
        self, inputs: Tensor, targets: Tensor, state: Tensor | None = None, split_documents: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss of inputs and targets (B, T), and the state after the last token."""
        hidden, state = self.read(inputs, state, split_documents=split_documents)
        return self.output.loss(hidden.flatten(0, 1), targets.flatten()), state

    # Reading token by token

    def initial_state(self, rows: int) -> DecodeState:
        return DecodeState(torch.full((rows, self.config.window), END, device=self.embed.weight.device))

    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        window, hidden = token_windows(tokens, state.hidden, mask)
        return window, DecodeState(hidden)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Read tokens and predict the next token. A row without real tokens keeps its window and prediction."""
        _, hidden = token_windows(tokens, state.hidden, mask)
        return StepOutput(self.output.log_probs(self.before_output(hidden)), DecodeState(hidden))


def token_windows(tokens: Tensor, before: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the window (B, T, K) of each token (B, T), which contains the token and the K−1 real tokens before it.

    `before` (B, K) contains the K tokens before the first token. Also return the last K real tokens (B, K).
    """
    length, size = tokens.shape[1], before.shape[1]
    history = torch.cat([before, tokens], dim=1)  # (B, K + T)
    if mask is None:
        return history.unfold(1, size, 1)[:, 1:], history[:, length:].clone()
    real = F.pad(mask, (size, 0), value=True)
    history = history.gather(
        1, real.to(torch.int8).argsort(dim=1, stable=True)
    )  # padding comes first, and the order of real tokens is unchanged
    later = mask.sum(dim=1, keepdim=True) - mask.cumsum(dim=1)  # (B, T), number of real tokens after each position
    positions = (length - later).unsqueeze(2) + torch.arange(size, device=tokens.device)  # (B, T, K)
    return history.gather(1, positions.flatten(1)).view(*tokens.shape, size), history[:, length:].clone()


def hide_previous_documents(window: Tensor) -> Tensor:
    """Replace all tokens before the last END in windows (…, K) by END."""
    ended = (window == END).flip(-1).cumsum(dim=-1).flip(-1) > 0  # whether END is at this position or later
    return window.masked_fill(ended, END)
