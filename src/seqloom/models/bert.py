"""BERT (Devlin et al. 2018): a bidirectional Transformer encoder trained to predict masked tokens.

    h = backbone([CLS] a [SEP] b [SEP])                                     `seqloom.nn.backbone`
    masked tokens    p(w_j) = softmax(E · norm(g(W h_j + b)) + c)       E: token embeddings; g: blocks' activation
    next sentence    p(b follows a) = softmax(U · tanh(P h_[CLS] + p) + u)

The loss is the mean of −log p over the masked tokens, plus the mean over the pairs if the batch contains pairs. RoBERTa
(Liu et al. 2019) has no pairs and draws new masks in every epoch; the task selects either variant.
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

# tokens, mask, segments or documents (B, S); positions and targets (B, P) of masked tokens; other (B,): see `BERT.loss`
Batch = dict[str, Tensor]
FOLLOWS, OTHER = 0, 1  # the two classes of a pair
SEGMENTS = 2
MIN_CONTEXT = 3  # [CLS], a token, [SEP]


@config
class EncoderOptions(BackboneOptions):
    """The options that BERT and ELECTRA share."""

    norm_first: bool = False  # normalize before each sublayer and after the last block, instead of after each sublayer
    embed_norm: bool = True  # normalize the embeddings
    tied: bool = True  # share one matrix between input and output embeddings
    context: int | None = None  # maximum number of tokens; null: the number of learned positions, or else no limit

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        learned = self.positions.longest
        if self.context is not None and not MIN_CONTEXT <= self.context <= (learned or self.context):
            limit = "" if learned is None else f" and at most the {learned} learned positions"
            yield f"context must be at least {MIN_CONTEXT}{limit}; got {self.context}"

    @property
    def longest(self) -> int | None:
        return self.context or self.positions.longest

    def backbone(self, vocabulary: int) -> TransformerBackbone:
        """Create the backbone for `vocabulary` tokens and [CLS], [SEP], [MASK]."""
        return TransformerBackbone(self, vocabulary + EXTRA, causal=False, segments=SEGMENTS)


@config
class BERTConfig(EncoderOptions):
    kind: Literal["bert"] = "bert"

    def build(self, vocabulary: int) -> "BERT":
        return BERT(self, vocabulary)


class BERTOutput(NamedTuple):
    """The predictions for a batch."""

    masked: Tensor  # logits (B, P, V) at the masked positions
    next: Tensor  # logits (B, 2) for the classes "b follows a" and "b does not follow a"


class MaskedTokenLayer(nn.Module):
    """The output layer s = E · norm(g(W h + b)) + c for masked tokens.

    If tied, E consists of the first V embeddings.
    """

    dense: nn.Linear
    dense_norm: nn.Module
    output: nn.Parameter | None
    bias: nn.Parameter
    activation: Callable[[Tensor], Tensor]

    def layer_input(self, h: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the input of the linear layer (…, D), and W (V, D) and b (V,) of this layer."""
        weight = embeddings[: len(self.bias)] if self.output is None else self.output
        return self.dense_norm(self.activation(self.dense(h))), weight, self.bias


class MaskedLanguageModel(nn.Module):
    """The base class of BERT and ELECTRA."""

    backbone: TransformerBackbone

    def read(self, tokens: Tensor, *text: Tensor | None, **named: Tensor | None) -> Tensor:
        """Compute h (B, S, D) of a text, with the arguments of `TransformerBackbone.read`."""
        return self.backbone.read(tokens, *text, **named)

    def attentions(self, tokens: Tensor, *text: Tensor | None, **named: Tensor | None) -> list[Tensor]:
        """Return the attention weights of every layer (B, N, S, S), with the arguments of `read`."""
        return self.backbone.attentions(tokens, *text, **named)


class BERT(MaskedLanguageModel, MaskedTokenLayer):
    """BERT for tokens 0 … V + 2: V tokens of the tokenizer, then [CLS], [SEP], [MASK].

    BERT predicts only the first V tokens.
    """

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
        """Compute the logits (…, V) of masked tokens from h (…, D)."""
        return F.linear(*self.layer_input(h, self.backbone.embed.weight))

    def logits_at(self, tokens: Tensor, mask: Tensor, selected: Tensor) -> Tensor:
        """Compute the logits (M, V) at the M selected positions (B, S) of texts, row by row."""
        return self.masked_logits(self.read(tokens, mask)[selected])

    def next_logits(self, h: Tensor) -> Tensor:
        """Compute the logits (B, 2) of the next-sentence task from h (B, S, D), with [CLS] first."""
        logits: Tensor = self.next(self.pool(h[:, 0]).tanh())
        return logits

    def read_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return h of all positions (B, S, D) and of the masked positions (B, P, D)."""
        h = self.read(batch["tokens"], batch.get("mask"), batch.get("segments"), batch.get("documents"))
        return h, h.gather(1, batch["positions"].unsqueeze(2).expand(-1, -1, h.shape[2]))

    def forward(self, batch: Batch) -> BERTOutput:
        """Compute the logits at the masked positions only.

        The computation of the logits at all positions would dominate the run time.
        """
        h, selected = self.read_batch(batch)
        return BERTOutput(self.masked_logits(selected), self.next_logits(h))

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean of −log p over the targets (B, P) ≥ 0, without device synchronization.

        If the batch contains `other` (B,), the mean over the pairs is added. `other` is 1 if the second text does not
        follow the first.
        """
        h, selected = self.read_batch(batch)
        counted = batch["targets"] >= 0
        targets = batch["targets"].masked_fill(~counted, IGNORE_INDEX).flatten()
        hidden, weight, bias = self.layer_input(selected, self.backbone.embed.weight)
        value = linear_cross_entropy(hidden.flatten(0, 1), weight, bias, targets) / counted.sum().clamp(min=1)
        if "other" not in batch:
            return value
        return value + F.cross_entropy(at_least_float32(self.next_logits(h)), batch["other"])


class BERTBackbone(TransformerTextBackbone):
    """The backbone of BERT or ELECTRA, with the pooling layer above [CLS]."""

    form = "bert"
    pretrained_names: ClassVar[dict[str, str]] = {"transformer.": "backbone.", "pool.": "pool."}
    optional_names = ("pool.",)  # ELECTRA has no pooling layer

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
