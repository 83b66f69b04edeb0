"""ELECTRA (Clark et al. 2020): a small generator replaces masked tokens, and a discriminator detects the replacements.

    generator    h = blocks(P x)          p(w_j) = softmax(E · norm(g(W h_j + b)) + c)      at masked positions
    input        w̃_j ~ p(w_j) at masked positions, w_j elsewhere       replaced_j = (w̃_j ≠ w_j)
    discriminator  h = backbone([CLS] w̃ [SEP])  p(replaced_j) = σ(u · g(U h_j + v) + c)           at every token
    loss         mean −log p(w_j) over the masked tokens + λ · mean −log p(replaced_j) over all tokens

Generator and discriminator share the embeddings x of tokens, positions and segments. The generator projects the
embeddings with P. The gradient does not flow through the sampled tokens: the generator is trained as a masked language
model, not adversarially. Fine-tuning uses `model.backbone`, the discriminator.
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
    """The configuration of the generator, a narrower version of the discriminator."""

    # number of heads as a fraction of the discriminator's heads, rounded up
    size_ratio: Annotated[float, Gt(0), Le(1)] = 0.25
    layers: PositiveInt | None = None  # number of blocks; null: the same as in the discriminator


@config
class ElectraConfig(EncoderOptions):
    kind: Literal["electra"] = "electra"
    generator: GeneratorConfig = GeneratorConfig()
    detection_weight: PositiveFloat = 50.0  # λ, the weight of the detection loss

    def generator_options(self) -> EncoderOptions:
        """Return the options of the generator's blocks."""
        heads = math.ceil(self.generator.size_ratio * self.heads)
        d_model = heads * self.d_model // self.heads
        d_ff, layers = self.feed_forward_size * heads // self.heads, self.generator.layers or self.layers
        return replace(self, d_model=d_model, heads=heads, kv_heads=None, d_ff=d_ff, layers=layers)

    def build(self, vocabulary: int) -> "Electra":
        return Electra(self, vocabulary)


class Generator(MaskedTokenLayer):
    """The generator, which reads the embeddings x (B, S, D) of the discriminator."""

    def __init__(self, config: ElectraConfig, vocabulary: int) -> None:
        super().__init__()
        shape = config.generator_options()
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
        """Compute the generator's h (B, S, G)."""
        h: Tensor = self.norm(self.blocks(self.project(x), scope).x)
        return h


class ElectraOutput(NamedTuple):
    """The predictions of generator and discriminator for a batch."""

    masked: Tensor  # logits (B, P, V) of the generator at masked positions
    tokens: Tensor  # (B, S), the input of the discriminator, with sampled tokens
    replaced: Tensor  # (B, S): whether the sampled token differs from the original
    counted: Tensor  # (B, S): False at special tokens and padding, which are not counted in the detection loss
    logits: Tensor  # logits of `replaced` (B, S)


class Electra(MaskedLanguageModel):
    """ELECTRA for tokens 0 … V + 2: V tokens of the tokenizer, then [CLS], [SEP], [MASK]."""

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

    # --- generator --------------------------------------------------------------------------------------------------

    def generate(self, tokens: Tensor, *text: Tensor | None, **named: Tensor | None) -> Tensor:
        """Compute the generator's h (B, S, G) of tokens (B, S), with the arguments of `TransformerBackbone.read`."""
        h: Tensor = self.generator(*self.backbone.embed_tokens(tokens, *text, **named))
        return h

    def masked_logits(self, h: Tensor) -> Tensor:
        """Compute the generator's logits (…, V) from its h (…, G)."""
        return F.linear(*self.generator.layer_input(h, self.backbone.embed.weight))

    def logits_at(self, tokens: Tensor, mask: Tensor, selected: Tensor) -> Tensor:
        """Compute the generator's logits (M, V) at the M selected positions (B, S) of texts, row by row."""
        return self.masked_logits(self.generate(tokens, mask)[selected])

    # --- discriminator ----------------------------------------------------------------------------------------------

    def detection_logits(self, h: Tensor) -> Tensor:
        """Compute the detection logits (…) from h (…, D)."""
        return self.detect(self.activation(self.dense(h))).squeeze(-1)

    def forward(self, batch: Batch, draws: Tensor | None = None) -> ElectraOutput:
        """Sample the masked tokens and predict which tokens were replaced. `draws` (B, P) are uniform on [0, 1)."""
        tokens, positions, targets, mask = (batch[name] for name in ("tokens", "positions", "targets", "mask"))
        groups = batch.get("segments"), batch.get("documents")
        h = self.generate(tokens, mask, *groups)
        masked = self.masked_logits(h.gather(1, positions.unsqueeze(2).expand(-1, -1, h.shape[2])))  # (B, P, V)
        draws = torch.rand(targets.shape, device=tokens.device) if draws is None else draws
        sampled = sample_tokens(masked.detach(), draws)
        inputs, original = (replace_tokens(tokens, positions, targets >= 0, new) for new in (sampled, targets))
        logits = self.detection_logits(self.read(inputs, mask, *groups))
        return ElectraOutput(masked, inputs, inputs != original, mask & (original < self.vocabulary), logits)

    def losses(self, outputs: ElectraOutput, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return two sums of −log p: over the targets (B, P) ≥ 0, and over the detection labels of all tokens."""
        counted = targets.masked_fill(targets < 0, IGNORE_INDEX).flatten()
        generator_loss = F.cross_entropy(at_least_float32(outputs.masked).flatten(0, 1), counted, reduction="sum")
        logits = at_least_float32(outputs.logits)
        detection_loss = F.binary_cross_entropy_with_logits(logits, outputs.replaced.to(logits.dtype), reduction="none")
        return generator_loss, detection_loss.where(outputs.counted, 0).sum()

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean generator loss plus λ times the mean detection loss, without device synchronization."""
        outputs, targets = self(batch), batch["targets"]
        generator_loss, detection_loss = self.losses(outputs, targets)
        detection = detection_loss / outputs.counted.sum().clamp(min=1)
        return generator_loss / (targets >= 0).sum().clamp(min=1) + self.config.detection_weight * detection


@torch.no_grad()
def sample_tokens(logits: Tensor, draws: Tensor) -> Tensor:
    """Sample a token (…) from logits (…, V) by inverting the cumulative distribution at draws (…).

    END is never sampled.
    """
    logits = at_least_float32(logits).clone()
    logits[..., END] = -torch.inf
    sums = logits.softmax(dim=-1).cumsum(dim=-1)
    sampled = (sums <= draws.unsqueeze(-1) * sums[..., -1:]).sum(dim=-1)
    return sampled.clamp(max=logits.shape[-1] - 1)


def replace_tokens(tokens: Tensor, positions: Tensor, selected: Tensor, new: Tensor) -> Tensor:
    """Return tokens (B, S) in which the selected positions (B, P) contain the tokens `new` (B, P)."""
    return tokens.scatter(1, positions, new.where(selected, tokens.gather(1, positions)))
