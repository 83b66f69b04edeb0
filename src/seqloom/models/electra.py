"""ELECTRA (Clark et al. 2020): a small generator fills the gaps of a text, and the model says which tokens it replaced.

    generator    h = blocks(P x)          p(w_j) = softmax(E · norm(g(W h_j + b)) + c)      at the gaps
    a text       w̃_j ~ p(w_j) at the gaps, w_j elsewhere          w̃_j is replaced where w̃_j ≠ w_j
    the model    h = backbone([CLS] w̃ [SEP])  p(replaced_j) = σ(u · g(U h_j + v) + c)           at every token
    loss         mean −log p(w_j) over the gaps + λ · mean −log p(replaced_j, or not) over all tokens

x are the embeddings of tokens, places and segments; both share them, the generator through P. What
is drawn has no gradient: the generator learns as any masked language model does, not to deceive. It
is `model.backbone` that is fine-tuned.
"""

import math
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Gt, Le, PositiveFloat, PositiveInt
from seqloom.core import END
from seqloom.core.tokens import Specials
from seqloom.models.bert import Batch, EncoderOptions, MaskedLanguageModel, MaskedTokenLayer
from seqloom.nn.backbone import draw_matrices
from seqloom.nn.masks import AttentionScope
from seqloom.nn.softmax import IGNORE_INDEX, at_least_float32
from seqloom.nn.transformer import ACTIVATIONS, make_norm


@config
class GeneratorConfig:
    """What fills the gaps: like the model, but narrower."""

    size_ratio: Annotated[float, Gt(0), Le(1)] = 0.25  # of the model's heads, rounded up, each as wide as the model's
    layers: PositiveInt | None = None  # blocks stacked on each other; None is as many as the model has


@config
class ElectraConfig(EncoderOptions):
    kind: Literal["electra"] = "electra"
    generator: GeneratorConfig = GeneratorConfig()
    detection_weight: PositiveFloat = 50.0  # λ: what telling replaced tokens weighs beside filling gaps

    def narrow(self) -> EncoderOptions:
        """The shape of the generator's blocks."""
        heads = math.ceil(self.generator.size_ratio * self.heads)
        d_model = heads * self.d_model // self.heads
        d_ff, layers = self.feed_forward_size * heads // self.heads, self.generator.layers or self.layers
        return replace(self, d_model=d_model, heads=heads, kv_heads=None, d_ff=d_ff, layers=layers)

    def build(self, vocabulary: int) -> "Electra":
        return Electra(self, vocabulary)


class Generator(MaskedTokenLayer):
    """x (B, S, D), embedded by the model, to logits of V tokens."""

    def __init__(self, config: ElectraConfig, vocabulary: int) -> None:
        super().__init__()
        shape = config.narrow()
        self.project = nn.Linear(config.d_model, shape.d_model)
        self.blocks, self.norm = shape.stack(shape.layers), shape.final_norm()
        self.dense = nn.Linear(shape.d_model, config.d_model)
        self.dense_norm = make_norm(config.norm, config.d_model, config.norm_epsilon)
        self.activation = ACTIVATIONS[config.activation]
        self.output = None if config.tied else nn.Parameter(torch.empty(vocabulary, config.d_model))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        draw_matrices(self, shape)
        for linear in (self.project, self.dense):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, scope: AttentionScope) -> Tensor:
        """h (B, S, G)"""
        h: Tensor = self.norm(self.blocks(self.project(x), scope).x)
        return h


class Detected(NamedTuple):
    """The predictions of generator and model for a batch."""

    masked: Tensor  # logits (B, P, V) of the generator at the gaps
    tokens: Tensor  # (B, S), the text with what was drawn in its gaps
    replaced: Tensor  # (B, S): what was drawn is not what stood there
    counted: Tensor  # (B, S): tokens of the text; special ones and padding are never replaced
    logits: Tensor  # (B, S) of being replaced


class Electra(MaskedLanguageModel):
    """Tokens go from 0 to V + 2: those of the tokenizer, then [CLS], [SEP], [MASK]. Gaps are shown as [MASK]."""

    def __init__(self, config: ElectraConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary, self.specials = config, vocabulary, Specials.after(vocabulary)
        self.backbone = config.backbone(vocabulary)
        self.generator = Generator(config, vocabulary)
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.detect = nn.Linear(config.d_model, 1)
        self.activation = ACTIVATIONS[config.activation]
        for linear in (self.dense, self.detect):
            nn.init.normal_(linear.weight, std=config.init)
            nn.init.zeros_(linear.bias)

    # --- the generator ----------------------------------------------------------------------------------------------

    def generate(self, tokens: Tensor, *text: Tensor | None, **named: Tensor | None) -> Tensor:
        """The generator's h (B, S, G) of a text (B, S) with gaps, with the arguments of `TransformerBackbone.read`."""
        h: Tensor = self.generator(*self.backbone.embed_tokens(tokens, *text, **named))
        return h

    def masked_logits(self, h: Tensor) -> Tensor:
        """The generator's logits (…, V) at positions whose h (…, G) are given."""
        return F.linear(*self.generator.layer_input(h, self.backbone.embed.weight))

    def gap_logits(self, tokens: Tensor, mask: Tensor, gaps: Tensor) -> Tensor:
        """Logits (M, V) of the tokens at the gaps (B, S) of a text, row by row."""
        return self.masked_logits(self.generate(tokens, mask)[gaps])

    # --- the model --------------------------------------------------------------------------------------------------

    def detection_logits(self, h: Tensor) -> Tensor:
        """h (…, D) to logits (…) of the token having been replaced."""
        return self.detect(self.activation(self.dense(h))).squeeze(-1)

    def forward(self, batch: Batch, draws: Tensor | None = None) -> Detected:
        """`draws` (B, P), each from [0, 1), decide what is drawn at the gaps; None draws them."""
        tokens, places, targets, mask = (batch[name] for name in ("tokens", "positions", "targets", "mask"))
        rest = batch.get("segments"), batch.get("documents")
        h = self.generate(tokens, mask, *rest)
        masked = self.masked_logits(h.gather(1, places.unsqueeze(2).expand(-1, -1, h.shape[2])))  # (B, P, V)
        drawn = draw(masked.detach(), torch.rand(targets.shape, device=tokens.device) if draws is None else draws)
        shown, real = (put(tokens, places, targets >= 0, these) for these in (drawn, targets))
        logits = self.detection_logits(self.read(shown, mask, *rest))
        return Detected(masked, shown, shown != real, mask & (real < self.vocabulary), logits)

    def losses(self, outputs: Detected, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of −log p over the gaps whose targets (B, P) are not below 0, and over all tokens of the text."""
        known = targets.masked_fill(targets < 0, IGNORE_INDEX).flatten()
        filling = F.cross_entropy(at_least_float32(outputs.masked).flatten(0, 1), known, reduction="sum")
        logits = at_least_float32(outputs.logits)
        detecting = F.binary_cross_entropy_with_logits(logits, outputs.replaced.to(logits.dtype), reduction="none")
        return filling, detecting.where(outputs.counted, 0).sum()

    def loss(self, batch: Batch) -> Tensor:
        """That of the gaps, and λ times that of what is replaced. Never waits for a GPU."""
        outputs, targets = self(batch), batch["targets"]
        filling, detecting = self.losses(outputs, targets)
        each = detecting / outputs.counted.sum().clamp(min=1)
        return filling / (targets >= 0).sum().clamp(min=1) + self.config.detection_weight * each


@torch.no_grad()
def draw(logits: Tensor, draws: Tensor) -> Tensor:
    """A token (…) for each row of logits (…, V), by draws (…) from [0, 1): the first whose share, and that of those
    before it, is above the draw. END is never drawn."""
    logits = at_least_float32(logits).clone()
    logits[..., END] = -torch.inf
    sums = logits.softmax(dim=-1).cumsum(dim=-1)
    drawn = (sums <= draws.unsqueeze(-1) * sums[..., -1:]).sum(dim=-1)
    return drawn.clamp(max=logits.shape[-1] - 1)


def put(tokens: Tensor, places: Tensor, known: Tensor, these: Tensor) -> Tensor:
    """Tokens (B, S) with `these` (B, P) at the places (B, P) that are known; at the others they stay."""
    return tokens.scatter(1, places, these.where(known, tokens.gather(1, places)))
