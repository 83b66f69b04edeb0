"""Bodies: what a pretrained model is without its output layer, taken over to learn something else.

    h_1 … h_S = body(x_1 … x_S)          x a row of tokens: one text, or two, between special tokens
    c = h_S                              a causal body (recurrent-lm, gpt) ends with [CLS] and sums the row up there
    c = tanh(P h_1 + p)                  bert, electra begin with it
    c = [→h_S; ←h_1]                     bilm has read all where either direction ends
    c = 1/S Σ_j h_j                      the encoder of a transformer has no place that sums a text up

A body has EXTRA more rows of embeddings than its tokenizer has tokens; where the pretrained model had none, they begin
as they are drawn. What a model on top of a body needs of it is `read`, `extract`, `width` and `levels`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Discriminator
from seqloom.core.errors import UsageError
from seqloom.core.tokens import EXTRA
from seqloom.models.bert import SEGMENTS, BERTConfig
from seqloom.models.bilm import BiLMConfig, BothWays
from seqloom.models.electra import ElectraConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.backbone import TransformerBackbone
from seqloom.nn.cache import AttentionScope
from seqloom.nn.cross_entropy import IGNORE_INDEX, linear_cross_entropy
from seqloom.nn.dropout import EmbeddingDropout, make_dropout
from seqloom.nn.embedded import Embedded
from seqloom.nn.masks import at_last, zero_padding
from seqloom.nn.mix import LayerMix
from seqloom.nn.recurrent import Stack
from seqloom.nn.transformer import TransformerStack

Form = Literal["bert", "causal", "ends"]  # how texts stand in a row: see `seqloom.text.specials`
AnyBodyConfig = RecurrentLMConfig | GPTConfig | BERTConfig | ElectraConfig | BiLMConfig | TransformerConfig
BodyConfig = Annotated[AnyBodyConfig, Discriminator("kind")]
LEFT = ("output.", "project.")  # what predicts the next token may stay behind
SHOWN = 8  # mismatches named one by one


class Body(nn.Module, ABC):
    """For a tokenizer of `vocabulary` tokens. One that `predicts` keeps what says the next token, V outputs."""

    form: ClassVar[Form]
    taken: ClassVar[dict[str, str]]  # how names of its weights begin -> how they begin in the pretrained model
    drawn: ClassVar[tuple[str, ...]] = ()  # how those begin that a pretrained model need not have: they stay as drawn
    width: int  # of h

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    @abstractmethod
    def vectors(self) -> nn.Embedding:
        """Those of its tokens (V + EXTRA, D)."""

    @abstractmethod
    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, S), real ones first, to h (B, S, H), which means nothing at padding."""

    @abstractmethod
    def levels(self) -> list[list[nn.Parameter]]:
        """Its parameters from the embeddings (level 0) up, without what predicts the next token."""

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        """What [CLS] says of the whole row: h (B, S, H) to c (B, H)."""
        return at_last(h, mask)

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        """Where every head of every layer looks (B, N, S, S), 0 at padding; empty where there are none."""
        return []

    def notes(self) -> list[str]:
        """What it does beyond what its recipe says."""
        return []

    # --- the next token ---------------------------------------------------------------------------------------------

    def telling(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """h (…, H) as the output layer reads it, and W (V, H) and b (V,) of that."""
        raise ValueError("this body was built without what predicts the next token")

    def next_token_logits(self, h: Tensor) -> Tensor:
        """h (…, H) to logits (…, V) of the token after each."""
        return F.linear(*self.telling(h))

    def next_token_loss(self, h: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """The mean of −log p of each token of the text given those before it; special tokens are not predicted."""
        counted = mask[:, 1:] & (tokens[:, 1:] < self.vocabulary)
        targets = tokens[:, 1:].masked_fill(~counted, IGNORE_INDEX).flatten()
        seen, weight, bias = self.telling(h[:, :-1])
        return linear_cross_entropy(seen.flatten(0, 1), weight, bias, targets) / counted.sum().clamp(min=1)

    # --- taking over ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor], whose: str) -> None:
        """Begin with the weights of a pretrained model; refused as a whole if they do not fit, each mismatch named."""
        there = {name: tensor for name, tensor in weights.items() if name.startswith(tuple(self.taken.values()))}
        own = {self._name_there(name): tensor for name, tensor in self.state_dict(keep_vars=True).items()}
        own = {name: tensor for name, tensor in own.items() if name in there or not name.startswith(self.drawn)}
        if wrong := list(self._mismatches(own, there)):
            more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            raise UsageError(f"The weights of {whose} do not fit the body: {'; '.join(wrong[:SHOWN])}{more}.")
        for name, tensor in own.items():
            tensor[: len(there[name])].copy_(there[name])  # of embeddings perhaps V rows of V + EXTRA

    @classmethod
    def _name_there(cls, name: str) -> str:
        mine = next(start for start in cls.taken if name.startswith(start))
        return cls.taken[mine] + name.removeprefix(mine)

    @classmethod
    def as_pretrained(cls, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of such a body under the names they have in a pretrained model."""
        return {cls._name_there(name): tensor for name, tensor in weights.items()}

    def _mismatches(self, own: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> Iterator[str]:
        rows = self.vectors().weight
        for name, tensor in own.items():
            if name not in there:
                why = (
                    ", nor anything that predicts the next token (loss.language_model)" if name.startswith(LEFT) else ""
                )
                yield f"{name} is not there{why}"
                continue
            wanted, found = tuple(tensor.shape), tuple(there[name].shape)
            without = (self.vocabulary, *wanted[1:]) if tensor is rows else wanted
            if found not in (wanted, without):
                yield f"{name} is {_shape(found)} there and {_shape(without)} here"
        left = (name for name in there if name not in own and not name.startswith(LEFT))
        yield from (f"{name} has no place here" for name in left)


def _shape(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, sizes)) or "one number"


class Predicting(nn.Module):
    """The token after each place: s = W h + b over the tokenizer's V tokens; W may be the first V embeddings."""

    def __init__(self, width: int, vocabulary: int, tied: bool, bias: bool = True) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def layer(self, embeddings: Tensor) -> tuple[Tensor, Tensor | None]:
        """W and b."""
        return embeddings[: self.vocabulary] if self.weight is None else self.weight, self.bias


class RecurrentBody(Body):
    """The cells of a recurrent language model, h of the top layer: semi-supervised learning (Dai and Le 2015)."""

    form = "causal"
    taken: ClassVar[dict[str, str]] = {name: name for name in ("embed.", "stack.", "project.", "output.")}

    def __init__(self, config: RecurrentLMConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary)
        self.width = config.hidden
        self.embed = nn.Embedding(vocabulary + EXTRA, config.width)
        self.stack = Stack(
            config.cells(),
            config.dropout,
            config.connections,
            variational=config.variational,
            weight_dropout=config.weight_dropout,
        )
        self.dropout = make_dropout(config.dropout, config.variational)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        scale = config.init or 0.1
        nn.init.uniform_(self.embed.weight, -scale, scale)
        self.project: nn.Module | None = None
        self.output: Predicting | None = None
        if predicts:
            self.output = Predicting(config.output_width, vocabulary, config.tied)
            if config.output_width != config.hidden:
                self.project = nn.Linear(config.hidden, config.output_width, bias=False)

    def vectors(self) -> nn.Embedding:
        return self.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        x = self.dropout(self.embedding_dropout(self.embed, tokens))
        return self.stack.read(x, mask)[0]

    def levels(self) -> list[list[nn.Parameter]]:
        layers = [list(layer.parameters()) for layer in self.stack.layers]
        for layer, way in zip(layers, self.stack.around, strict=False):  # there need be none
            layer.extend(way.parameters())
        return [list(self.embed.parameters()), *layers]

    def telling(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.output is None:
            return super().telling(h)
        return h if self.project is None else self.project(h), *self.output.layer(self.embed.weight)

    def notes(self) -> list[str]:
        return self.stack.notes()


class GPTBody(Body):
    form = "causal"
    taken: ClassVar[dict[str, str]] = {"transformer.": "body.", "output.": "output."}

    def __init__(self, config: GPTConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary)
        self.width = config.width
        self.transformer = TransformerBackbone(
            config, vocabulary + EXTRA, causal=True, begin=config.begin, window=config.sliding_window
        )
        output = Predicting(config.width, vocabulary, config.tied, config.output_bias) if predicts else None
        self.output = output

    def vectors(self) -> nn.Embedding:
        return self.transformer.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.transformer.read(tokens, mask)

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        return self.transformer.attentions(tokens, mask)

    def levels(self) -> list[list[nn.Parameter]]:
        return self.transformer.levels()

    def telling(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return super().telling(h) if self.output is None else (h, *self.output.layer(self.transformer.embed.weight))


class BERTBody(Body):
    form = "bert"
    taken: ClassVar[dict[str, str]] = {"transformer.": "body.", "pool.": "pool."}
    drawn = ("pool.",)  # electra has none

    def __init__(self, config: BERTConfig | ElectraConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary)
        if predicts:
            raise ValueError("a body that reads both ways has no next token to predict")
        self.width = config.width
        self.transformer = TransformerBackbone(config, vocabulary + EXTRA, causal=False, segments=SEGMENTS)
        self.pool = nn.Linear(config.width, config.width)
        nn.init.normal_(self.pool.weight, std=config.init)
        nn.init.zeros_(self.pool.bias)

    def vectors(self) -> nn.Embedding:
        return self.transformer.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.transformer.read(tokens, mask, segments)

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        return self.transformer.attentions(tokens, mask)

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        return self.pool(h[:, 0]).tanh()

    def levels(self) -> list[list[nn.Parameter]]:
        levels = self.transformer.levels()
        levels[-1].extend(self.pool.parameters())
        return levels


class BiLMBody(Body):
    """h = γ Σ_j s_j h_j: a mix of its token vectors and all its layers, learned by the task (ELMo)."""

    form = "ends"
    taken: ClassVar[dict[str, str]] = {"ways.": "body.", "mix.": "mix."}
    drawn = ("mix.",)

    def __init__(self, config: BiLMConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary)
        if predicts:
            raise ValueError("a body that reads both ways has no next token to predict")
        self.width = 2 * config.hidden
        self.ways = BothWays(config, vocabulary + EXTRA)
        self.mix = LayerMix(1 + config.layers)

    def vectors(self) -> nn.Embedding:
        return self.ways.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        h: Tensor = self.mix(self.ways(tokens, mask).levels())
        return h

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        half = self.width // 2
        return torch.cat([at_last(h, mask)[:, :half], h[:, 0, half:]], dim=1)

    def levels(self) -> list[list[nn.Parameter]]:
        """Without the mix: it is the task's own, and learns with what stands above."""
        return self.ways.levels()

    def notes(self) -> list[str]:
        return self.ways.notes()


class EncoderBody(Body):
    """The encoder of an encoder–decoder, which reads END a END; with `source_begin` that token stands first."""

    form = "ends"
    embeddings: ClassVar[str] = "source_embed.embed.weight"
    taken: ClassVar[dict[str, str]] = {name: name for name in ("source_embed.", "encoder.", "encoder_norm.")}

    def __init__(self, config: TransformerConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary)
        if predicts:
            raise ValueError("a body that reads both ways has no next token to predict")
        self.width, self.begin = config.width, config.source_begin
        self.source_embed = Embedded(config, nn.Embedding(vocabulary + EXTRA, config.width), "text")
        self.encoder = TransformerStack(config.encoder_block(depth) for depth in range(config.encoder_layers))
        self.encoder_norm = config.final_norm()
        nn.init.normal_(self.vectors().weight, std=config.width**-0.5)

    def vectors(self) -> nn.Embedding:
        return self.source_embed.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        return self._run_encoder(tokens, mask)[0]

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        _, weights = self._run_encoder(tokens, mask, weights=True)
        return [layer.masked_fill(~mask[:, None, :, None], 0) for layer in weights]

    def _run_encoder(self, tokens: Tensor, mask: Tensor, weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        S = tokens.shape[1]
        if self.begin is not None:
            tokens = torch.cat([torch.full_like(tokens[:, :1], self.begin), tokens[:, 1:]], dim=1)
        x = self.source_embed(tokens, torch.arange(S, device=tokens.device), S, mask.sum(dim=1))
        wanted = self.encoder.all_self_weights() if weights else None
        output = self.encoder(x, AttentionScope.within(mask), wanted=wanted)
        return self.encoder_norm(output.x), output.self_weights

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        return zero_padding(h, mask).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)

    def levels(self) -> list[list[nn.Parameter]]:
        levels = [list(part.parameters()) for part in (self.source_embed, *self.encoder)]
        levels[-1].extend(self.encoder_norm.parameters())
        return levels

    def take(self, weights: Mapping[str, Tensor], whose: str) -> None:
        """Of a denoiser's tokens without its sentinels."""
        rows = weights.get(self.embeddings)
        super().take(weights if rows is None else {**weights, self.embeddings: rows[: self.vocabulary + EXTRA]}, whose)


BODIES: dict[str, type[Any]] = {
    "recurrent-lm": RecurrentBody,
    "gpt": GPTBody,
    "bert": BERTBody,
    "electra": BERTBody,
    "bilm": BiLMBody,
    "transformer": EncoderBody,
}


def build_body(config: AnyBodyConfig, vocabulary: int, predicts: bool = False) -> Body:
    """The body of a model with this config, freshly drawn."""
    body: Body = BODIES[config.kind](config, vocabulary, predicts)
    return body


def form_of(config: AnyBodyConfig) -> Form:
    form: Form = BODIES[config.kind].form
    return form


def most_read(config: AnyBodyConfig) -> int | None:
    """The most tokens of a row it was made for, special ones included; None for any number."""
    if isinstance(config, GPTConfig):
        return config.window
    if isinstance(config, TransformerConfig):
        return config.positions.longest
    return None if isinstance(config, RecurrentLMConfig) else config.longest


def can_predict(config: AnyBodyConfig) -> bool:
    """Whether what predicts the next token can be taken over too."""
    return isinstance(config, GPTConfig) or (isinstance(config, RecurrentLMConfig) and config.softmax.kind == "full")
