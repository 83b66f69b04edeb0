"""Bidirectional language model (ELMo, Peters et al. 2018): one reads a text from its beginning, another from its end.

    x_k = E y_k          y_0 = y_{n+1} = END, the text between them
    →h_{k,j} from x_0 … x_k, layer j         p(y_{k+1} | y_0 … y_k) = softmax(W →h_{k,L} + b)
    ←h_{k,j} from x_{n+1} … x_k, layer j     p(y_{k−1} | y_{n+1} … y_k) = softmax(W ←h_{k,L} + b)

The two share E and the output layer; their cells have weights of their own. The loss is the mean of
both directions. A task that begins with it reads h_{k,0} = [x_k; x_k] and h_{k,j} = [→h_{k,j};
←h_{k,j}], mixed: `LayerMix`.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.tokens import EXTRA
from seqloom.models.backbones import Backbone
from seqloom.models.recurrent_lm import RecurrentLMOptions
from seqloom.nn.masks import EmbeddingDropout, at_last, make_dropout, reversed_steps
from seqloom.nn.pooling import LayerMix
from seqloom.nn.recurrent import Stack
from seqloom.nn.softmax import IGNORE_INDEX, FullSoftmax, score_in_pieces

Batch = dict[str, Tensor]  # tokens (B, S) of whole texts or pieces of them, mask (B, S); real ones first


@config
class BiLMConfig(RecurrentLMOptions):
    kind: Literal["bilm"] = "bilm"
    layers: PositiveInt = 2  # cells stacked on each other, in each direction
    hidden: PositiveInt = 256  # width of the token vectors and of every layer's state, in each direction
    tied: bool = False  # one matrix for input and output embeddings

    def direction(self) -> Stack:
        """Create the stack of one direction."""
        stack = self.stack(self.hidden, self.layers)
        if self.init is not None:
            stack.reset_parameters(self.init)
        return stack

    def build(self, vocabulary: int) -> "BiLM":
        return BiLM(self, vocabulary)


class Readings(NamedTuple):
    """The states of both directions, layer by layer."""

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
        self.forwards, self.backwards = config.direction(), config.direction()
        self.dropout = make_dropout(config.dropout, config.variational_dropout)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        scale = config.init or 0.1
        nn.init.uniform_(self.embed.weight, -scale, scale)

    def forward(self, tokens: Tensor, mask: Tensor) -> Readings:
        """Tokens (B, S), real ones first. Padding comes last in both directions; see `Stack.read`."""
        x = self.dropout(self.embedding_dropout(self.embed, tokens))
        order = reversed_steps(mask).unsqueeze(2)  # (B, S, 1)
        left = self.backwards.run_layers(x.take_along_dim(order, dim=1))[0]
        return Readings(x, self.forwards.run_layers(x)[0], [h.take_along_dim(order, dim=1) for h in left])

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embeddings, then each layer of both stacks."""
        layers = zip(self.forwards.layer_groups(), self.backwards.layer_groups(), strict=True)
        return [list(self.embed.parameters()), *([*forwards, *backwards] for forwards, backwards in layers)]


class BiLM(nn.Module):
    """Predicts every token twice: from those before it, and from those after it."""

    def __init__(self, config: BiLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.backbone = BothWays(config, vocabulary)
        self.output = FullSoftmax(config.hidden, vocabulary, self.backbone.embed.weight if config.tied else None)
        self.output.initialise(config.init)
        self.dropout = make_dropout(config.dropout, config.variational_dropout)

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says; both directions say the same."""
        return [*self.backbone.forwards.notes(), *self.config.dropout_notes()]

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """[→h_L; ←h_L] (B, S, 2H), which means nothing at padding."""
        return self.backbone(tokens, mask).levels()[-1]

    def top_layers(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """→h_L and ←h_L (B, S, H), with dropout."""
        readings = self.backbone(tokens, mask)
        return self.dropout(readings.right[-1]), self.dropout(readings.left[-1])

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, S, V) of the token after each, and of the one before it."""
        right, left = self.top_layers(tokens, mask)
        return self.output(right), self.output(left)

    def predictions(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each direction h (N, H) and its targets (N,): every token but the one it begins with."""
        tokens, mask = batch["tokens"], batch["mask"]
        right, left = self.top_layers(tokens, mask)
        for h, targets in ((right[:, :-1], tokens[:, 1:]), (left[:, 1:], tokens[:, :-1])):
            yield h.flatten(0, 1), targets.masked_fill(~mask[:, 1:], IGNORE_INDEX).flatten()

    def loss(self, batch: Batch) -> Tensor:
        """The mean of −log p over all predicted tokens, of both directions. Never waits for a GPU."""
        count = batch["mask"][:, 1:].sum().clamp(min=1)
        forwards, backwards = (self.output.total_loss(h, targets) for h, targets in self.predictions(batch))
        return (forwards + backwards) / (2 * count)

    def log_probs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B, S − 1) of tokens 1 … S − 1 from the left, and of 0 … S − 2 from the right; 0 at padding."""
        rows = len(batch["tokens"])
        right, left = (score_in_pieces(self.output, *pair).view(rows, -1) for pair in self.predictions(batch))
        return right, left


class BiLMBackbone(Backbone):
    """h = γ Σ_j s_j h_j: a mix of its token vectors and all its layers, learned by the task (ELMo)."""

    form = "ends"
    names: ClassVar[dict[str, str]] = {"ways.": "backbone.", "mix.": "mix."}
    fresh = ("mix.",)

    def __init__(self, config: BiLMConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary, predicts)
        self.output_size = 2 * config.hidden
        self.ways = BothWays(config, vocabulary + EXTRA)
        self.mix = LayerMix(1 + config.layers)

    def vectors(self) -> nn.Embedding:
        return self.ways.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        h: Tensor = self.mix(self.ways(tokens, mask).levels())
        return h

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        half = self.output_size // 2
        return torch.cat([at_last(h, mask)[:, :half], h[:, 0, half:]], dim=1)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Without the mix: it belongs to the task, and learns with the layers above."""
        return self.ways.layer_groups()

    def notes(self) -> list[str]:
        return self.ways.forwards.notes()
