"""Bidirectional language model (ELMo, Peters et al. 2018): one reads a text from its beginning, another from its end.

    x_k = E y_k          y_0 = y_{n+1} = END, the text between them
    →h_{k,j} from x_0 … x_k, layer j         p(y_{k+1} | y_0 … y_k) = softmax(W →h_{k,L} + b)
    ←h_{k,j} from x_{n+1} … x_k, layer j     p(y_{k−1} | y_{n+1} … y_k) = softmax(W ←h_{k,L} + b)

The two share E and the output layer; their cells have weights of their own. The loss is the mean of both directions.
A task that begins with it reads h_{k,0} = [x_k; x_k] and h_{k,j} = [→h_{k,j}; ←h_{k,j}], mixed: `seqloom.nn.mix`.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.nn.cells import Cell, cell_problems, make_cell
from seqloom.nn.connections import Connections, input_widths
from seqloom.nn.cross_entropy import IGNORE_INDEX
from seqloom.nn.dropout import EmbeddingDropout, dropout_notes, make_dropout
from seqloom.nn.masks import turned
from seqloom.nn.recurrent import Stack
from seqloom.nn.softmax import SCORED_AT_ONCE, FullSoftmax

Batch = dict[str, Tensor]  # tokens (B, S) of whole texts or pieces of them, mask (B, S); real ones first


@config
class BiLMConfig:
    kind: Literal["bilm"] = "bilm"
    cell: str = "lstm"  # `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0
    layers: int = 2  # cells stacked on each other, in each direction
    hidden: int = 256  # width of the token vectors and of every layer's state, in each direction
    connections: Connections = "none"  # around and between layers: none, residual, highway or dense
    dropout: float = 0.0  # on the embeddings, between layers, and before the output layer; never through time
    variational: bool = False  # dropout drops the same at every step of a row
    embedding_dropout: float = 0.0  # share of the token types that are the zero vector for one batch
    weight_dropout: float = 0.0  # share of the recurrent weights left out for one batch
    tied: bool = False  # one matrix for input and output embeddings
    init: float | None = None  # draw all parameters from (-init, init); None is each part's own habit

    longest = None  # it reads any number of tokens

    def problems(self) -> Iterator[str]:
        for name in ("layers", "hidden"):
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1; got {getattr(self, name)}"
        for name in ("dropout", "embedding_dropout", "weight_dropout"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be at least 0 and below 1; got {getattr(self, name)}"
        if self.init is not None and self.init <= 0:
            yield f"init must be above 0; got {self.init}"
        yield from cell_problems(self)

    def cells(self) -> list[Cell]:
        widths = input_widths(self.connections, self.hidden, self.hidden, self.layers)
        return [make_cell(self, width, self.hidden) for width in widths]

    def stack(self) -> Stack:
        stack = Stack(
            self.cells(),
            self.dropout,
            self.connections,
            variational=self.variational,
            weight_dropout=self.weight_dropout,
        )
        if self.init is not None:
            stack.reset_parameters(self.init)
        return stack

    def build(self, vocabulary: int) -> "BiLM":
        return BiLM(self, vocabulary)


class Readings(NamedTuple):
    """What both directions make of a text, layer by layer."""

    x: Tensor  # (B, S, H), the token vectors
    right: list[Tensor]  # →h_1 … →h_L, (B, S, H) each
    left: list[Tensor]  # ←h_1 … ←h_L

    def levels(self) -> list[Tensor]:
        """h_0 … h_L, (B, S, 2H) each."""
        pairs = [(self.x, self.x), *zip(self.right, self.left, strict=True)]
        return [torch.cat(pair, dim=2) for pair in pairs]


class BothWays(nn.Module):
    """Two stacks over the same token vectors, `rows` of them, one from each end."""

    def __init__(self, config: BiLMConfig, rows: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, config.hidden)
        self.forwards, self.backwards = config.stack(), config.stack()
        self.dropout = make_dropout(config.dropout, config.variational)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        scale = config.init or 0.1
        nn.init.uniform_(self.embed.weight, -scale, scale)

    def forward(self, tokens: Tensor, mask: Tensor) -> Readings:
        """Tokens (B, S), real ones first. Nothing is heard of padding, which comes last for both; see `Stack.read`."""
        x = self.dropout(self.embedding_dropout(self.embed, tokens))
        order = turned(mask).unsqueeze(2)  # (B, S, 1)
        left = self.backwards.run_layers(x.take_along_dim(order, dim=1))[0]
        return Readings(x, self.forwards.run_layers(x)[0], [h.take_along_dim(order, dim=1) for h in left])

    def levels(self) -> list[list[nn.Parameter]]:
        """The embeddings, then each layer of both stacks."""
        found = [list(self.embed.parameters())]
        for depth in range(len(self.forwards.layers)):
            parts = [stack.layers[depth] for stack in (self.forwards, self.backwards)]
            parts += [stack.around[depth] for stack in (self.forwards, self.backwards) if len(stack.around)]
            found.append([parameter for part in parts for parameter in part.parameters()])
        return found

    def notes(self) -> list[str]:
        return self.forwards.notes()  # the other says the same


class BiLM(nn.Module):
    """Predicts every token twice: from those before it, and from those after it."""

    def __init__(self, config: BiLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.body = BothWays(config, vocabulary)
        self.output = FullSoftmax(config.hidden, vocabulary, self.body.embed.weight if config.tied else None)
        self.output.initialise(config.init)
        self.dropout = make_dropout(config.dropout, config.variational)

    def notes(self) -> list[str]:
        return [*self.body.notes(), *dropout_notes(self.config.dropout, self.config.variational)]

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """[→h_L; ←h_L] (B, S, 2H), which means nothing at padding."""
        return self.body(tokens, mask).levels()[-1]

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, S, V) of the token after each, and of the one before it."""
        right, left = self._tops(tokens, mask)
        return self.output(right), self.output(left)

    def _tops(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        found = self.body(tokens, mask)
        return self.dropout(found.right[-1]), self.dropout(found.left[-1])

    def _told(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each direction h (N, H) and what it has to tell (N,): every token but the one it begins with."""
        tokens, mask = batch["tokens"], batch["mask"]
        right, left = self._tops(tokens, mask)
        for h, targets in ((right[:, :-1], tokens[:, 1:]), (left[:, 1:], tokens[:, :-1])):
            yield h.flatten(0, 1), targets.masked_fill(~mask[:, 1:], IGNORE_INDEX).flatten()

    def loss(self, batch: Batch) -> Tensor:
        """The mean of −log p over all tokens that are told, of both directions. Never waits for a GPU."""
        count = batch["mask"][:, 1:].sum().clamp(min=1)
        forwards, backwards = (self.output.total_loss(h, targets) for h, targets in self._told(batch))
        return (forwards + backwards) / (2 * count)

    def log_probs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B, S − 1) of tokens 1 … S − 1 from the left, and of 0 … S − 2 from the right; 0 at padding."""
        right, left = (self._scored(h, targets).view(len(batch["tokens"]), -1) for h, targets in self._told(batch))
        return right, left

    def _scored(self, h: Tensor, targets: Tensor) -> Tensor:
        """A few at a time, since each has V logits."""
        pieces = zip(h.split(SCORED_AT_ONCE), targets.split(SCORED_AT_ONCE), strict=True)
        return torch.cat([self.output.target_log_probs(*piece) for piece in pieces])
