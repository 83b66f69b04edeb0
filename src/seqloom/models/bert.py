"""BERT (Devlin et al. 2018): a Transformer that reads to both sides, learned from texts with gaps.

    h = body([CLS] a [SEP] b [SEP])                                     `seqloom.nn.backbone`
    masked tokens    p(w_j) = softmax(E · norm(g(W h_j + b)) + c)       E, the tokens' own vectors; g as in the blocks
    next sentence    p(b follows a) = softmax(U · tanh(P h_[CLS] + p) + u)

Its loss is the mean of −log p over the tokens that were chosen, and, where there are pairs, that of the pairs besides.
RoBERTa (Liu et al. 2019) is the same without the pairs, its masks drawn anew in every epoch: the task decides.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.tokens import EXTRA, Specials
from seqloom.nn.backbone import BackboneOptions, TransformerBackbone
from seqloom.nn.cross_entropy import IGNORE_INDEX, linear_cross_entropy
from seqloom.nn.softmax import at_least_float32
from seqloom.nn.transformer import ACTIVATIONS, make_norm

# tokens (B, S), mask (B, S), segments or documents (B, S), places (B, P), targets (B, P), other (B,): see `BERT.loss`
Batch = dict[str, Tensor]
FOLLOWS, OTHER = 0, 1  # the two answers on a pair
SEGMENTS = 2
MIN_CONTEXT = 3  # [CLS], a token, [SEP]


@config
class EncoderOptions(BackboneOptions):
    """The keys that the configs of BERT and ELECTRA share."""

    norm_first: bool = False  # norms stand before each layer, and once more at the end; not after it, as in 2018
    embed_norm: bool = True  # the embeddings are normed too
    tied: bool = True  # masked tokens are told with the embeddings; not with vectors of their own
    context: int | None = None  # the most tokens it reads at once; None is all learned positions, or else any number

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        places = self.positions.longest
        if self.context is not None and not MIN_CONTEXT <= self.context <= (places or self.context):
            most = "" if places is None else f" and at most the {places} learned positions"
            yield f"context must be at least {MIN_CONTEXT}{most}; got {self.context}"

    @property
    def longest(self) -> int | None:
        return self.context or self.positions.longest


@config
class BERTConfig(EncoderOptions):
    kind: Literal["bert"] = "bert"

    def build(self, vocabulary: int) -> "BERT":
        return BERT(self, vocabulary)


class Told(NamedTuple):
    """What a model thinks of a batch."""

    masked: Tensor  # logits (B, P, V) at the places that were asked for
    next: Tensor  # logits (B, 2): b follows a, or is from elsewhere


class BERT(nn.Module):
    """Tokens go from 0 to V + 2: those of the tokenizer, then [CLS], [SEP], [MASK]. It tells the first V only."""

    def __init__(self, config: BERTConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary, self.specials = config, vocabulary, Specials.after(vocabulary)
        self.body = TransformerBackbone(config, vocabulary + EXTRA, causal=False, segments=SEGMENTS)
        width = config.width
        self.dense = nn.Linear(width, width)
        self.dense_norm = make_norm(config.norm, width, config.norm_epsilon)
        self.activation = ACTIVATIONS[config.activation]
        self.output = None if config.tied else nn.Parameter(self.dense.weight.new_empty(vocabulary, width))
        self.bias = nn.Parameter(self.dense.weight.new_zeros(vocabulary))
        self.pool = nn.Linear(width, width)
        self.next = nn.Linear(width, SEGMENTS)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.dense, self.pool, self.next):
            nn.init.normal_(linear.weight, std=self.config.init)
            nn.init.zeros_(linear.bias)
        if self.output is not None:
            nn.init.normal_(self.output, std=self.config.init)

    def read(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """h (B, S, D); see `TransformerBackbone.read`."""
        return self.body.read(tokens, mask, segments, documents)

    def telling(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h (…, D) as the output layer reads it, and W (V, D) and b (V,) of that."""
        vectors = self.body.embed.weight[: self.vocabulary] if self.output is None else self.output
        return self.dense_norm(self.activation(self.dense(h))), vectors, self.bias

    def masked_logits(self, h: Tensor) -> Tensor:
        """What stands at places whose h (…, D) are given: logits (…, V)."""
        return F.linear(*self.telling(h))

    def gap_logits(self, tokens: Tensor, mask: Tensor, gaps: Tensor) -> Tensor:
        """What may stand at the gaps (B, S) of a text, row by row: logits (M, V)."""
        return self.masked_logits(self.read(tokens, mask)[gaps])

    def next_logits(self, h: Tensor) -> Tensor:
        """h (B, S, D), with [CLS] first, to logits (B, 2)."""
        logits: Tensor = self.next(self.pool(h[:, 0]).tanh())
        return logits

    def forward(self, batch: Batch) -> Told:
        """Only the places that were asked for are told: making logits of all would cost most of the time."""
        h, asked = self._asked(batch)
        return Told(self.masked_logits(asked), self.next_logits(h))

    def _asked(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """h of all places (B, S, D), and of those that were asked for (B, P, D)."""
        h = self.read(batch["tokens"], batch.get("mask"), batch.get("segments"), batch.get("documents"))
        return h, h.gather(1, batch["places"].unsqueeze(2).expand(-1, -1, h.shape[2]))

    def loss(self, batch: Batch) -> Tensor:
        """The mean of −log p over the targets (B, P) that are not below 0; if the batch has `other` (B,), 1 where the
        second text is not what follows the first, also the mean over its pairs. Never waits for a GPU."""
        h, asked = self._asked(batch)
        known = batch["targets"] >= 0
        goal = batch["targets"].masked_fill(~known, IGNORE_INDEX).flatten()
        told, weight, bias = self.telling(asked)
        value = linear_cross_entropy(told.flatten(0, 1), weight, bias, goal) / known.sum().clamp(min=1)
        return (
            value + F.cross_entropy(at_least_float32(self.next_logits(h)), batch["other"])
            if "other" in batch
            else value
        )

    def attentions(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> list[Tensor]:
        """Where every head of every layer looked: (B, N, S, S) by layer."""
        return self.body.attentions(tokens, mask, segments, documents)
