"""BERT (Devlin et al. 2018): a Transformer that reads to both sides, learned from texts with gaps.

    h = backbone([CLS] a [SEP] b [SEP])                                     `seqloom.nn.backbone`
    masked tokens    p(w_j) = softmax(E · norm(g(W h_j + b)) + c)       E, the tokens' own vectors; g as in the blocks
    next sentence    p(b follows a) = softmax(U · tanh(P h_[CLS] + p) + u)

Its loss is the mean of −log p over the tokens that were chosen, and, where there are pairs, that of
the pairs besides. RoBERTa (Liu et al. 2019) is the same without the pairs, its masks drawn anew in
every epoch: the task decides.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.tokens import EXTRA, Specials
from seqloom.models.backbones import TransformerTextBackbone
from seqloom.nn.backbone import BackboneOptions, TransformerBackbone
from seqloom.nn.softmax import IGNORE_INDEX, at_least_float32, linear_cross_entropy
from seqloom.nn.transformer import ACTIVATIONS, make_norm

if TYPE_CHECKING:
    from seqloom.models.electra import ElectraConfig

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

    def backbone(self, vocabulary: int) -> TransformerBackbone:
        """Create its backbone, for the tokens of a tokenizer and [CLS], [SEP], [MASK]."""
        return TransformerBackbone(self, vocabulary + EXTRA, causal=False, segments=SEGMENTS)


@config
class BERTConfig(EncoderOptions):
    kind: Literal["bert"] = "bert"

    def build(self, vocabulary: int) -> "BERT":
        return BERT(self, vocabulary)


class BERTOutput(NamedTuple):
    """The predictions for a batch."""

    masked: Tensor  # logits (B, P, V) at the positions that were asked for
    next: Tensor  # logits (B, 2): b follows a, or is from elsewhere


class MaskedTokenLayer(nn.Module):
    """s = E · norm(g(W h + b)) + c: h (…, H) at masked tokens to logits (…, V); E the first V embeddings if tied."""

    dense: nn.Linear
    dense_norm: nn.Module
    output: nn.Parameter | None
    bias: nn.Parameter
    activation: Callable[[Tensor], Tensor]

    def layer_input(self, h: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input of the output layer (…, D), and its W (V, D) and b (V,)."""
        weight = embeddings[: len(self.bias)] if self.output is None else self.output
        return self.dense_norm(self.activation(self.dense(h))), weight, self.bias


class MaskedLanguageModel(nn.Module):
    """The base of BERT and ELECTRA."""

    backbone: TransformerBackbone

    def read(self, tokens: Tensor, *text: Tensor | None, **named: Tensor | None) -> Tensor:
        """h (B, S, D) of a text, with the arguments of `TransformerBackbone.read`."""
        return self.backbone.read(tokens, *text, **named)

    def attentions(self, tokens: Tensor, *text: Tensor | None, **named: Tensor | None) -> list[Tensor]:
        """The attention weights of every layer (B, N, S, S), with the same arguments."""
        return self.backbone.attentions(tokens, *text, **named)


class BERT(MaskedLanguageModel, MaskedTokenLayer):
    """Tokens go from 0 to V + 2: those of the tokenizer, then [CLS], [SEP], [MASK]. It predicts the first V only."""

    def __init__(self, config: BERTConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary, self.specials = config, vocabulary, Specials.after(vocabulary)
        self.backbone = config.backbone(vocabulary)
        d_model = config.d_model
        self.dense = nn.Linear(d_model, d_model)
        self.dense_norm = make_norm(config.norm, d_model, config.norm_epsilon)
        self.activation = ACTIVATIONS[config.activation]
        self.output = None if config.tied else nn.Parameter(self.dense.weight.new_empty(vocabulary, d_model))
        self.bias = nn.Parameter(self.dense.weight.new_zeros(vocabulary))
        self.pool = nn.Linear(d_model, d_model)
        self.next = nn.Linear(d_model, SEGMENTS)
        for linear in (self.dense, self.pool, self.next):
            nn.init.normal_(linear.weight, std=config.init)
            nn.init.zeros_(linear.bias)
        if self.output is not None:
            nn.init.normal_(self.output, std=config.init)

    def masked_logits(self, h: Tensor) -> Tensor:
        """Logits (…, V) of the tokens at positions whose h (…, D) are given."""
        return F.linear(*self.layer_input(h, self.backbone.embed.weight))

    def gap_logits(self, tokens: Tensor, mask: Tensor, gaps: Tensor) -> Tensor:
        """Logits (M, V) of the tokens at the gaps (B, S) of a text, row by row."""
        return self.masked_logits(self.read(tokens, mask)[gaps])

    def next_logits(self, h: Tensor) -> Tensor:
        """h (B, S, D), with [CLS] first, to logits (B, 2)."""
        logits: Tensor = self.next(self.pool(h[:, 0]).tanh())
        return logits

    def read_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """h of all positions (B, S, D), and of those that were asked for (B, P, D)."""
        h = self.read(batch["tokens"], batch.get("mask"), batch.get("segments"), batch.get("documents"))
        return h, h.gather(1, batch["positions"].unsqueeze(2).expand(-1, -1, h.shape[2]))

    def forward(self, batch: Batch) -> BERTOutput:
        """Only the positions that were asked for are predicted: logits of all would take most of the time."""
        h, asked = self.read_batch(batch)
        return BERTOutput(self.masked_logits(asked), self.next_logits(h))

    def loss(self, batch: Batch) -> Tensor:
        """The mean of −log p over the targets (B, P) that are not below 0; if the batch has `other` (B,), 1 where the
        second text is not what follows the first, also the mean over its pairs. Never waits for a GPU."""
        h, asked = self.read_batch(batch)
        known = batch["targets"] >= 0
        targets = batch["targets"].masked_fill(~known, IGNORE_INDEX).flatten()
        hidden, weight, bias = self.layer_input(asked, self.backbone.embed.weight)
        value = linear_cross_entropy(hidden.flatten(0, 1), weight, bias, targets) / known.sum().clamp(min=1)
        if "other" not in batch:
            return value
        return value + F.cross_entropy(at_least_float32(self.next_logits(h)), batch["other"])


class BERTBackbone(TransformerTextBackbone):
    """The backbone of BERT or ELECTRA, and the layer above [CLS]."""

    form = "bert"
    names: ClassVar[dict[str, str]] = {"transformer.": "backbone.", "pool.": "pool."}
    fresh = ("pool.",)  # electra has none

    def __init__(self, config: "BERTConfig | ElectraConfig", vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary, predicts)
        self.output_size = config.d_model
        self.transformer = config.backbone(vocabulary)
        self.pool = nn.Linear(config.d_model, config.d_model)
        nn.init.normal_(self.pool.weight, std=config.init)
        nn.init.zeros_(self.pool.bias)

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        return self.pool(h[:, 0]).tanh()

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups = super().layer_groups()
        groups[-1].extend(self.pool.parameters())
        return groups
