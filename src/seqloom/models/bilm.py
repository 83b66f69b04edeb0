"""Bidirectional language model (ELMo, Peters et al. 2018): a forward and a backward language model.

    x_k = E y_k          y_0 = y_{n+1} = END
    →h_{k,j} from x_0 … x_k, layer j         p(y_{k+1} | y_0 … y_k) = softmax(W →h_{k,L} + b)
    ←h_{k,j} from x_{n+1} … x_k, layer j     p(y_{k−1} | y_{n+1} … y_k) = softmax(W ←h_{k,L} + b)

The two directions share E and the output layer, but not the weights of their cells. The loss is the mean over both
directions. As a backbone, the model returns a learned mixture (`LayerMix`) of h_{k,0} = [x_k; x_k] and h_{k,j} =
[→h_{k,j}; ←h_{k,j}].
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
from seqloom.nn.masks import EmbeddingDropout, make_dropout, reversal_indices, select_last
from seqloom.nn.pooling import LayerMix
from seqloom.nn.recurrent import Stack
from seqloom.nn.softmax import IGNORE_INDEX, FullSoftmax, score_in_pieces

Batch = dict[str, Tensor]  # tokens (B, S) and mask (B, S), padding last


@config
class BiLMConfig(RecurrentLMOptions):
    kind: Literal["bilm"] = "bilm"
    layers: PositiveInt = 2  # number of layers in each direction
    hidden: PositiveInt = 256  # size of the token embeddings and of the state of each layer and direction
    tied: bool = False  # share one matrix between input and output embeddings

    def direction(self) -> Stack:
        """Create the stack of one direction."""
        stack = self.stack(self.hidden, self.layers)
        if self.init is not None:
            stack.reset_parameters(self.init)
        return stack

    def build(self, vocabulary: int) -> "BiLM":
        return BiLM(self, vocabulary)


class BiLMStates(NamedTuple):
    """The states of both directions, layer by layer."""

    x: Tensor  # token embeddings (B, S, H)
    forwards: list[Tensor]  # →h_1 … →h_L, each (B, S, H)
    backwards: list[Tensor]  # ←h_1 … ←h_L, each (B, S, H)

    def layer_states(self) -> list[Tensor]:
        """Return h_0 … h_L, each (B, S, 2H)."""
        pairs = [(self.x, self.x), *zip(self.forwards, self.backwards, strict=True)]
        return [torch.cat(pair, dim=2) for pair in pairs]


class BiLMEncoder(nn.Module):
    """A forward and a backward stack over the same token embeddings."""

    def __init__(self, config: BiLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, config.hidden)
        self.forwards, self.backwards = config.direction(), config.direction()
        self.dropout = make_dropout(config.dropout, config.variational_dropout)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        scale = config.init or 0.1
        nn.init.uniform_(self.embed.weight, -scale, scale)

    def forward(self, tokens: Tensor, mask: Tensor) -> BiLMStates:
        """Read tokens (B, S) with padding last. Padding also comes last in the reversed order; see `Stack.read`."""
        x = self.dropout(self.embedding_dropout(self.embed, tokens))
        order = reversal_indices(mask).unsqueeze(2)  # (B, S, 1)
        backwards = self.backwards.run_layers(x.take_along_dim(order, dim=1))[0]
        return BiLMStates(x, self.forwards.run_layers(x)[0], [h.take_along_dim(order, dim=1) for h in backwards])

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the embeddings, followed by the parameters of each layer of both stacks."""
        layers = zip(self.forwards.layer_groups(), self.backwards.layer_groups(), strict=True)
        return [list(self.embed.parameters()), *([*forwards, *backwards] for forwards, backwards in layers)]


class BiLM(nn.Module):
    """A language model that predicts every token once from the previous tokens and once from the following tokens."""

    def __init__(self, config: BiLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.backbone = BiLMEncoder(config, vocabulary)
        self.output = FullSoftmax(config.hidden, vocabulary, self.backbone.embed.weight if config.tied else None)
        self.output.initialize(config.init)
        self.dropout = make_dropout(config.dropout, config.variational_dropout)

    def notes(self) -> list[str]:
        """Return the notes of the forward direction; the backward direction has the same notes."""
        return [*self.backbone.forwards.notes(), *self.config.dropout_notes()]

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Compute [→h_L; ←h_L] (B, S, 2H), undefined at padding."""
        return self.backbone(tokens, mask).layer_states()[-1]

    def top_layers(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute →h_L and ←h_L (B, S, H), with dropout."""
        states = self.backbone(tokens, mask)
        return self.dropout(states.forwards[-1]), self.dropout(states.backwards[-1])

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits (B, S, V) of the token after each position and of the token before each position."""
        forwards, backwards = self.top_layers(tokens, mask)
        return self.output(forwards), self.output(backwards)

    def predictions(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield h (N, H) and targets (N,) of each direction.

        The targets are all tokens except the first token in reading order.
        """
        tokens, mask = batch["tokens"], batch["mask"]
        forwards, backwards = self.top_layers(tokens, mask)
        for h, targets in ((forwards[:, :-1], tokens[:, 1:]), (backwards[:, 1:], tokens[:, :-1])):
            yield h.flatten(0, 1), targets.masked_fill(~mask[:, 1:], IGNORE_INDEX).flatten()

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean of −log p over the targets of both directions, without device synchronization."""
        count = batch["mask"][:, 1:].sum().clamp(min=1)
        forwards, backwards = (self.output.total_loss(h, targets) for h, targets in self.predictions(batch))
        return (forwards + backwards) / (2 * count)

    def log_probs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log p (B, S − 1) of tokens 1 … S − 1 (forwards) and of 0 … S − 2 (backwards); 0 at padding."""
        B = len(batch["tokens"])
        forwards, backwards = (score_in_pieces(self.output, *pair).view(B, -1) for pair in self.predictions(batch))
        return forwards, backwards


class BiLMBackbone(Backbone):
    """The ELMo backbone h = γ Σ_j s_j h_j.

    h is a mixture of the token embeddings and all layers. The task learns the weights of the mixture.
    """

    form = "ends"
    pretrained_names: ClassVar[dict[str, str]] = {"encoder.": "backbone.", "mix.": "mix."}
    optional_names = ("mix.",)

    def __init__(self, config: BiLMConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary, predicts)
        self.output_size = 2 * config.hidden
        self.encoder = BiLMEncoder(config, vocabulary + EXTRA)
        self.mix = LayerMix(1 + config.layers)

    def token_embedding(self) -> nn.Embedding:
        return self.encoder.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        h: Tensor = self.mix(self.encoder(tokens, mask).layer_states())
        return h

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        half = self.output_size // 2
        return torch.cat([select_last(h, mask)[:, :half], h[:, 0, half:]], dim=1)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the layers without the mixture weights, which are trained with the layers of the task."""
        return self.encoder.layer_groups()

    def notes(self) -> list[str]:
        return self.encoder.forwards.notes()
