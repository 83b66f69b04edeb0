"""Backbones: pretrained models without their output layers, used as the first part of other models.

    h_1 … h_S = backbone(x_1 … x_S)      x_j are the tokens of one or two texts, with special tokens
    c = h_S                              recurrent-lm, gpt: the last token is [CLS]
    c = tanh(P h_1 + p)                  bert, electra: the first token is [CLS]
    c = [→h_S; ←h_1]                     bilm: the last state of each direction
    c = 1/S Σ_j h_j                      transformer: the mean over the encoder's states

The embedding matrix of a backbone has EXTRA rows for special tokens after the rows of the tokenizer. If the pretrained
model lacks these rows, they keep their random initial values. A model on top of a backbone uses `read`, `extract`,
`output_size` and `layer_groups`.
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
from seqloom.nn.masks import select_last
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

Form = Literal["bert", "causal", "ends"]  # the positions of the special tokens: see `seqloom.text.model_inputs`
NEXT_TOKEN = ("output.", "project.")  # prefixes of the weights of next-token prediction, which are optional
MAX_MISMATCHES = 8  # maximum number of mismatches in an error message

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
    """The base class of backbones for `vocabulary` tokens.

    With `predicts`, a backbone keeps its next-token output layer.
    """

    form: ClassVar[Form]
    pretrained_names: ClassVar[dict[str, str]]  # prefix of the backbone's weights → prefix in the pretrained model
    optional_names: ClassVar[tuple[str, ...]] = ()  # prefixes of weights that a pretrained model may lack
    output_size: int  # H

    def __init__(self, vocabulary: int, predicts: bool = False) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        if predicts and self.form != "causal":
            raise ValueError("a bidirectional backbone cannot predict the next token")

    @classmethod
    def longest(cls, config: Any) -> int | None:
        """Return the maximum number of tokens per row, including special tokens; None means no limit."""
        longest: int | None = config.longest
        return longest

    @classmethod
    def can_predict(cls, config: Any) -> bool:
        """Return whether a backbone with this config supports next-token prediction."""
        return False

    @abstractmethod
    def token_embedding(self) -> nn.Embedding:
        """Return the token embedding (V + EXTRA, D)."""

    @abstractmethod
    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        """Compute h (B, S, H) from tokens (B, S) with padding last. At padding, h is undefined."""

    @abstractmethod
    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters by layer, embeddings first, without the next-token output layer."""

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        """Compute the vector c (B, H) of a row from h (B, S, H)."""
        return select_last(h, mask)

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        """Return the attention weights (B, N, S, S) of every layer, 0 at padding.

        The list is empty if the backbone has no attention.
        """
        return []

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return []

    # Next-token prediction

    def next_token_layer(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the input of the output layer for h (…, H), and W (V, H) and b (V,) of this layer."""
        raise ValueError("this backbone was built without a next-token output layer; build it with predicts=True")

    def next_token_logits(self, h: Tensor) -> Tensor:
        """Compute the logits (…, V) of the next token from h (…, H)."""
        return F.linear(*self.next_token_layer(h))

    def next_token_loss(self, h: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the mean of −log p of each token given the previous tokens. Special tokens are not predicted."""
        counted = mask[:, 1:] & (tokens[:, 1:] < self.vocabulary)
        targets = tokens[:, 1:].masked_fill(~counted, IGNORE_INDEX).flatten()
        hidden, weight, bias = self.next_token_layer(h[:, :-1])
        return linear_cross_entropy(hidden.flatten(0, 1), weight, bias, targets) / counted.sum().clamp(min=1)

    # Pretrained weights

    @torch.no_grad()
    def load_pretrained(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Copy the weights of a pretrained model.

        If the weights do not match, raise an error that lists the mismatches.
        """
        prefixes = tuple(self.pretrained_names.values())
        given = {name: tensor for name, tensor in weights.items() if name.startswith(prefixes)}
        renamed, optional = self.rename_to_pretrained(self.state_dict(keep_vars=True)), self.optional_names
        needed = {name: tensor for name, tensor in renamed.items() if name in given or not name.startswith(optional)}
        if mismatches := list(self._mismatches(needed, given)):
            more = f"; and {len(mismatches) - MAX_MISMATCHES} more" if len(mismatches) > MAX_MISMATCHES else ""
            raise UsageError(
                f"The weights of {origin} do not match the backbone: {'; '.join(mismatches[:MAX_MISMATCHES])}{more}."
            )
        for name, tensor in needed.items():
            tensor[: len(given[name])].copy_(given[name])  # an embedding may have V rows instead of V + EXTRA

    @classmethod
    def rename_to_pretrained(cls, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the weights of a backbone to their names in a pretrained model."""
        renamed = {}
        for name, tensor in weights.items():
            prefix = next(prefix for prefix in cls.pretrained_names if name.startswith(prefix))
            renamed[cls.pretrained_names[prefix] + name.removeprefix(prefix)] = tensor
        return renamed

    def _mismatches(self, needed: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
        for name, tensor in needed.items():
            if name not in given:
                hint = "; loss.language_model needs the output layer of a language model"
                yield f"{name} is missing{hint if name.startswith(NEXT_TOKEN) else ''}"
                continue
            is_embedding = tensor is self.token_embedding().weight
            shapes = [tuple(tensor.shape), (self.vocabulary, *tensor.shape[1:])][: 1 + is_embedding]
            if tuple(given[name].shape) not in shapes:
                got, expected = ("×".join(map(str, shape)) or "a scalar" for shape in (given[name].shape, shapes[-1]))
                yield f"{name} must be {expected}; got {got}"
        unused = (name for name in given if name not in needed and not name.startswith(NEXT_TOKEN))
        yield from (f"{name} is unexpected" for name in unused)


class NextTokenLayer(nn.Module):
    """The next-token output layer: s = W h + b over V tokens. If tied, W consists of the first V embeddings."""

    def __init__(self, width: int, vocabulary: int, tied: bool, bias: bool = True) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def layer(self, embeddings: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return W and b."""
        return embeddings[: self.vocabulary] if self.weight is None else self.weight, self.bias


class TransformerTextBackbone(Backbone):
    """The base class of the backbones of GPT, BERT and ELECTRA."""

    transformer: "TransformerBackbone"

    def token_embedding(self) -> nn.Embedding:
        return self.transformer.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.transformer.read(tokens, mask, segments)

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        return self.transformer.attentions(tokens, mask)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return self.transformer.layer_groups()


def backbone_class(config: AnyBackboneConfig) -> type[Backbone]:
    """Return the backbone class of a model config."""
    kind: type[Backbone] = BACKBONES.find(config.kind)
    return kind


def build_backbone(config: AnyBackboneConfig, vocabulary: int, predicts: bool = False) -> Backbone:
    """Create the backbone of a model config with random weights."""
    backbone: Backbone = BACKBONES.find(config.kind)(config, vocabulary, predicts)
    return backbone
