"""Backbones: pretrained models without their output layers, which other models begin with.

    h_1 … h_S = backbone(x_1 … x_S)      x a row of tokens: one text, or two, between special tokens
    c = h_S                              a causal backbone (recurrent-lm, gpt) ends with [CLS], where c is read
    c = tanh(P h_1 + p)                  bert, electra begin with it
    c = [→h_S; ←h_1]                     bilm has read all where either direction ends
    c = 1/S Σ_j h_j                      the encoder of a transformer has no position that represents the text

A backbone has EXTRA more rows of embeddings than its tokenizer has tokens; where the pretrained
model had none, they keep their random initial values. A model on top of a backbone needs `read`,
`extract`, `output_size` and `layer_groups`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Kinds
from seqloom.core.errors import UsageError
from seqloom.models import EXTENSIONS, MODELS
from seqloom.nn.masks import at_last
from seqloom.nn.softmax import IGNORE_INDEX, linear_cross_entropy

if TYPE_CHECKING:
    from seqloom.models.bert import BERTConfig
    from seqloom.models.bilm import BiLMConfig
    from seqloom.models.electra import ElectraConfig
    from seqloom.models.gpt import GPTConfig
    from seqloom.models.recurrent_lm import RecurrentLMConfig
    from seqloom.models.transformer import TransformerConfig
    from seqloom.nn.backbone import TransformerBackbone

    AnyBackboneConfig: TypeAlias = (
        RecurrentLMConfig | GPTConfig | BERTConfig | ElectraConfig | BiLMConfig | TransformerConfig
    )
else:
    AnyBackboneConfig = Any

Form = Literal["bert", "causal", "ends"]  # how texts stand in a row: see `seqloom.text.model_inputs`
NEXT_TOKEN = ("output.", "project.")  # the weights that predict the next token; they may be left out
MAX_MISMATCHES = 8  # named one by one

BACKBONES = Kinds(
    "kind",
    {
        "recurrent-lm": "seqloom.models.recurrent_lm:RecurrentBackbone",
        "gpt": "seqloom.models.gpt:GPTBackbone",
        "bert": "seqloom.models.bert:BERTBackbone",
        "electra": "seqloom.models.bert:BERTBackbone",
        "bilm": "seqloom.models.bilm:BiLMBackbone",
        "transformer": "seqloom.models.encoder_backbone:EncoderBackbone",
        **{kind: extension["backbone"] for kind, extension in EXTENSIONS.items() if "backbone" in extension},
    },
)
BackboneConfig = Annotated[AnyBackboneConfig, Kinds("kind", {kind: MODELS.paths[kind] for kind in BACKBONES.names()})]


class Backbone(nn.Module, ABC):
    """For a tokenizer of `vocabulary` tokens. One that `predicts` keeps the layer that predicts the next token."""

    form: ClassVar[Form]
    names: ClassVar[dict[str, str]]  # prefixes of its weights -> their prefixes in the pretrained model
    fresh: ClassVar[tuple[str, ...]] = ()  # prefixes of weights that a pretrained model need not have
    output_size: int  # of h

    def __init__(self, vocabulary: int, predicts: bool = False) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        if predicts and self.form != "causal":
            raise ValueError("a backbone that reads both ways has no next token to predict")

    @classmethod
    def longest(cls, config: Any) -> int | None:
        """The most tokens of a row that a backbone with this config reads, special ones included; None for any."""
        longest: int | None = config.longest
        return longest

    @classmethod
    def can_predict(cls, config: Any) -> bool:
        """Whether a backbone with this config may predict the next token too."""
        return False

    @abstractmethod
    def vectors(self) -> nn.Embedding:
        """The embeddings of its tokens (V + EXTRA, D)."""

    @abstractmethod
    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, S), real ones first, to h (B, S, H), which means nothing at padding."""

    @abstractmethod
    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Its parameters from the embeddings (level 0) up, without those that predict the next token."""

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        """The vector of a whole row: h (B, S, H) to c (B, H)."""
        return at_last(h, mask)

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        """The attention weights of every layer (B, N, S, S), 0 at padding; empty without attention."""
        return []

    def notes(self) -> list[str]:
        """What it does beyond what its recipe says."""
        return []

    # The next token.

    def next_token_layer(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """h (…, H) as the output layer reads it, and W (V, H) and b (V,) of that."""
        raise ValueError("this backbone was built without what predicts the next token")

    def next_token_logits(self, h: Tensor) -> Tensor:
        """h (…, H) to logits (…, V) of the token after each."""
        return F.linear(*self.next_token_layer(h))

    def next_token_loss(self, h: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """The mean of −log p of each token of the text given those before it; special tokens are not predicted."""
        counted = mask[:, 1:] & (tokens[:, 1:] < self.vocabulary)
        targets = tokens[:, 1:].masked_fill(~counted, IGNORE_INDEX).flatten()
        hidden, weight, bias = self.next_token_layer(h[:, :-1])
        return linear_cross_entropy(hidden.flatten(0, 1), weight, bias, targets) / counted.sum().clamp(min=1)

    # Pretrained weights.

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor], whose: str) -> None:
        """Begin with the weights of a pretrained model; refused as a whole if they do not fit, each mismatch named."""
        given = {name: tensor for name, tensor in weights.items() if name.startswith(tuple(self.names.values()))}
        needed = self.as_pretrained(self.state_dict(keep_vars=True))
        needed = {name: tensor for name, tensor in needed.items() if name in given or not name.startswith(self.fresh)}
        if wrong := list(self._mismatches(needed, given)):
            more = f"; and {len(wrong) - MAX_MISMATCHES} more" if len(wrong) > MAX_MISMATCHES else ""
            raise UsageError(
                f"The weights of {whose} do not fit the backbone: {'; '.join(wrong[:MAX_MISMATCHES])}{more}."
            )
        for name, tensor in needed.items():
            tensor[: len(given[name])].copy_(given[name])  # of embeddings perhaps V rows of V + EXTRA

    @classmethod
    def as_pretrained(cls, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of such a backbone under the names they have in a pretrained model."""
        renamed = {}
        for name, tensor in weights.items():
            prefix = next(prefix for prefix in cls.names if name.startswith(prefix))
            renamed[cls.names[prefix] + name.removeprefix(prefix)] = tensor
        return renamed

    def _mismatches(self, needed: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
        for name, tensor in needed.items():
            if name not in given:
                why = ", nor anything that predicts the next token (loss.language_model)"
                yield f"{name} is not there{why if name.startswith(NEXT_TOKEN) else ''}"
                continue
            is_embedding = tensor is self.vectors().weight
            shapes = [tuple(tensor.shape), (self.vocabulary, *tensor.shape[1:])][: 1 + is_embedding]
            if tuple(given[name].shape) not in shapes:
                there, here = ("×".join(map(str, shape)) or "one number" for shape in (given[name].shape, shapes[-1]))
                yield f"{name} is {there} there and {here} here"
        unused = (name for name in given if name not in needed and not name.startswith(NEXT_TOKEN))
        yield from (f"{name} has no place here" for name in unused)


class NextTokenLayer(nn.Module):
    """The token after each position: s = W h + b over the tokenizer's V tokens; W may be the first V embeddings."""

    def __init__(self, width: int, vocabulary: int, tied: bool, bias: bool = True) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def layer(self, embeddings: Tensor) -> tuple[Tensor, Tensor | None]:
        """W and b."""
        return embeddings[: self.vocabulary] if self.weight is None else self.weight, self.bias


class TransformerTextBackbone(Backbone):
    """The backbone of GPT, BERT and ELECTRA, under the name `transformer`."""

    transformer: "TransformerBackbone"

    def vectors(self) -> nn.Embedding:
        return self.transformer.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.transformer.read(tokens, mask, segments)

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        return self.transformer.attentions(tokens, mask)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return self.transformer.layer_groups()


def backbone_class(config: AnyBackboneConfig) -> type[Backbone]:
    """The backbone of a model with this config."""
    kind: type[Backbone] = BACKBONES.find(config.kind)
    return kind


def build_backbone(config: AnyBackboneConfig, vocabulary: int, predicts: bool = False) -> Backbone:
    """Create the backbone of a model with this config, with random weights."""
    backbone: Backbone = BACKBONES.find(config.kind)(config, vocabulary, predicts)
    return backbone
