"""The Transformer: residual sublayers, blocks, stacks of blocks, and their configuration.

    norm after (2017)    x ← norm(x + f(x))             LayerNorm   γ ⊙ (x − μ) / √(σ² + ε) + β
    norm first           x ← x + f(norm(x))             RMSNorm     γ ⊙ x / √(mean(x²) + ε)

    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2              or GELU (exact or tanh) or SiLU instead of max(0, ·)
    SwiGLU(x) = (SiLU(x W_1 + b_1) ⊙ (x W_3 + b_3)) W_2 + b_2

Encoders, decoders, GPT, BERT, ELECTRA and forecasters are stacks of the same kind of block. `AttentionScope` defines
the positions that a block may attend to. Only decoder blocks attend to a source.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, Gt, Lt, PositiveInt
from seqloom.core.operations import compiled_region, operation
from seqloom.core.tree import GrowingBuffer
from seqloom.nn.attention import AttentionOptions, MultiHeadAttention, head_problems
from seqloom.nn.cache import empty_cache
from seqloom.nn.masks import EVERYWHERE, AttentionMask, AttentionScope, Dropout
from seqloom.nn.mixers import Mixer, SelfAttention
from seqloom.nn.positions import PositionsConfig

Extra = TypeVar("Extra")
Norm = Literal["layer", "rms", "none"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
}
EPSILON = {"layer": 1e-5, "rms": 1e-6}


class RMSNorm(nn.RMSNorm):
    """An RMSNorm whose gain is converted to the dtype of its input, as the fused kernel requires."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, tuple(self.normalized_shape), self.weight.to(x.dtype), self.eps)


def make_norm(kind: Norm, d_model: int, epsilon: float | None = None) -> nn.Module:
    """Create a norm. `epsilon` is ε in the equations above; None means 1e-5 for a LayerNorm and 1e-6 for an RMSNorm."""
    if kind == "none":
        return nn.Identity()
    epsilon = EPSILON[kind] if epsilon is None else epsilon
    return nn.LayerNorm(d_model, eps=epsilon) if kind == "layer" else RMSNorm(d_model, eps=epsilon)


class FeedForward(nn.Module):
    """The position-wise feed-forward layer, which maps (…, D) to (…, D). Its inner size is `d_ff`."""

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation = "relu", *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if activation == "swiglu" else None
        self.down = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        for parameter in self.parameters():
            (nn.init.xavier_uniform_ if parameter.dim() == 2 else nn.init.zeros_)(parameter)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.up(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        output: Tensor = self.down(self.dropout(hidden))
        return output


@dataclass(frozen=True)
class ResidualConfig:
    """The configuration of all residual connections of a stack."""

    d_model: int
    norm: Norm = "layer"
    norm_first: bool = False
    skip: bool = True  # False computes norm(f(x)) to measure the effect of residual connections
    dropout: float = 0.0
    epsilon: float | None = None  # ε of the norms


class Residual(nn.Module):
    """A residual connection: x + dropout(sublayer(norm(x))) with norm_first, else norm(x + dropout(sublayer(x)))."""

    def __init__(self, config: ResidualConfig) -> None:
        super().__init__()
        self.norm = make_norm(config.norm, config.d_model, config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.norm_first, self.skip = config.norm_first, config.skip

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], tuple[Tensor, Extra]]) -> tuple[Tensor, Extra]:
        """Return the output (B, T, D) for x (B, T, D), together with the second return value of the sublayer."""
        output, extra = sublayer(self.norm(x) if self.norm_first else x)
        output = self.dropout(output)
        x = x + output if self.skip else output
        return x if self.norm_first else self.norm(x), extra


class Source(NamedTuple):
    """The keys and values (B, Nkv, S, d) that a decoder block attends to, and their mask (B, 1, 1, S)."""

    keys_values: tuple[Tensor, Tensor]
    mask: Tensor | AttentionMask | None = None


class BlockOutput(NamedTuple):
    x: Tensor  # (B, T, D)
    cache: GrowingBuffer | None  # includes the keys and values of these positions
    self_weights: Tensor | None  # (B, N, T, ·) if requested
    cross_weights: Tensor | None  # (B, N, T, S) if requested


class TransformerBlock(nn.Module):
    """A block: self-attention or another mixer, optional cross-attention, and a feed-forward layer, with residuals."""

    recomputable = True  # see `seqloom.train.wrappers.checkpoint_activations`

    def __init__(
        self,
        mixer: Mixer,
        feed_forward: FeedForward,
        residual: ResidualConfig,
        cross_attention: MultiHeadAttention | None = None,
    ) -> None:
        super().__init__()
        self.mixer, self.cross_attention, self.feed_forward = mixer, cross_attention, feed_forward
        self.mixer_residual = Residual(residual)
        self.cross_residual = None if cross_attention is None else Residual(residual)
        self.feed_forward_residual = Residual(residual)

    @property
    def self_attention(self) -> MultiHeadAttention:
        if not isinstance(self.mixer, SelfAttention):
            raise TypeError(f"the block has {type(self.mixer).__name__} instead of self-attention")
        return self.mixer.attention

    @compiled_region
    def forward(
        self,
        x: Tensor,
        scope: AttentionScope = EVERYWHERE,
        cache: GrowingBuffer | None = None,
        source: Source | None = None,
        return_weights: Collection[str] = (),
    ) -> BlockOutput:
        """Apply the block to x (B, T, D). `return_weights` lists the attention weights to return: self, cross."""
        x, (cache, self_weights) = self.mixer_residual(
            x, lambda h: self.mixer.mix(h, scope, cache, "self" in return_weights)
        )
        cross_weights = None
        if self.cross_attention is not None and self.cross_residual is not None:
            assert source is not None, "a decoder block needs a source"
            attend = partial(self.cross_attention.attend_to, keys_values=source.keys_values, mask=source.mask)
            x, cross_weights = self.cross_residual(x, lambda h: attend(h, weights="cross" in return_weights))
        x, _ = self.feed_forward_residual(x, lambda h: (self.feed_forward(h), None))
        return BlockOutput(x, cache, self_weights, cross_weights)


WeightRequests = Mapping[int, Collection[str]]  # the attention weights to return for each block: self, cross


class StackOutput(NamedTuple):
    x: Tensor  # (B, T, D)
    caches: tuple[GrowingBuffer, ...]  # one per block, if caches were passed
    self_weights: list[Tensor]  # (B, N, T, ·) of the blocks whose weights were requested
    cross_weights: list[Tensor]  # (B, N, T, S) of the blocks whose weights were requested


class TransformerStack(nn.ModuleList):
    """A stack of Transformer blocks."""

    def __iter__(self) -> Iterator[TransformerBlock]:
        return super().__iter__()  # type: ignore[return-value]

    def forward(
        self,
        x: Tensor,
        scope: AttentionScope = EVERYWHERE,
        caches: Sequence[GrowingBuffer] | None = None,
        sources: Sequence[Source] | None = None,
        return_weights: WeightRequests | None = None,
    ) -> StackOutput:
        """Apply all blocks to x (B, T, D). `caches` and `sources` have one entry per block."""
        return run_blocks(self, x, scope, caches, sources, return_weights or {})

    def attentions(self, x: Tensor, scope: AttentionScope, mask: Tensor | None = None) -> list[Tensor]:
        """Return the self-attention weights (B, N, T, T) of every block with attention, 0 at padding."""
        weights = self(x, scope, return_weights=dict.fromkeys(range(len(self)), ("self",))).self_weights
        return weights if mask is None else [layer.masked_fill(~mask[:, None, :, None], 0) for layer in weights]

    def empty_caches(self, sources: int) -> tuple[GrowingBuffer, ...]:
        """Return empty KV caches, one for each block."""
        return tuple(empty_cache(block.self_attention, sources) for block in self)


@operation
def run_blocks(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    return_weights: WeightRequests,
) -> StackOutput:
    """Apply all blocks of a stack to x (B, T, D)."""
    new_caches: list[GrowingBuffer] = []
    self_weights, cross_weights = list[Tensor](), list[Tensor]()
    for depth, block in enumerate(stack):
        cache = None if caches is None else caches[depth]
        source = None if sources is None else sources[depth]
        output: BlockOutput = block(x, scope, cache, source, return_weights.get(depth, ()))
        x = output.x
        new_caches += [] if output.cache is None else [output.cache]
        self_weights += [] if output.self_weights is None else [output.self_weights]
        cross_weights += [] if output.cross_weights is None else [output.cross_weights]
    return StackOutput(x, tuple(new_caches), self_weights, cross_weights)


@operation
def source_keys_values(stack: TransformerStack, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the keys and values (B, Nkv, S, d) of encoder outputs x (B, S, D) for each decoder block."""
    return tuple(block.cross_attention.keys_values(x) for block in stack if block.cross_attention is not None)


@config
class TransformerOptions:
    """The recipe keys of every Transformer."""

    kind: str = ""
    d_model: PositiveInt = 128  # size of the vectors
    heads: PositiveInt = 4  # number of attention heads; the size of a head is d_model / heads
    # number of key and value heads, each shared by a group of heads; null means heads
    kv_heads: PositiveInt | None = None
    d_ff: PositiveInt | None = None  # inner size of the feed-forward layers; null means 4 × d_model
    activation: Activation = "gelu"  # activation of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    norm: Norm = "layer"  # normalization: layer, rms or none
    # ε of the normalization; null means 1e-5 for layer and 1e-6 for rms
    norm_epsilon: Annotated[float, Gt(0), Lt(1)] | None = None
    # normalize before each sublayer and after the last block; false: after each sublayer (2017)
    norm_first: bool = True
    positions: PositionsConfig = PositionsConfig()
    bias: bool = True  # use biases in the linear layers of the blocks
    dropout: Fraction = 0.1  # dropout on the embeddings and on the output of each sublayer
    attention_dropout: Fraction = 0.0  # dropout on the attention weights

    # Only some Transformers have the following values as keys.
    residual = True  # residual connections
    scale = True  # divide attention scores by √(d_model / heads)
    activation_dropout = 0.0  # dropout inside the feed-forward layers

    def problems(self) -> Iterator[str]:
        yield from head_problems(self.d_model, self.heads, self.kv_heads)
        if self.heads >= 1:
            yield from self.positions.size_problems(self.d_model, self.heads)

    @property
    def feed_forward_size(self) -> int:
        """The inner size of the feed-forward layers."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def longest(self) -> int | None:
        """The maximum number of positions; None means no limit."""
        return self.positions.longest

    def attention(self, rotary: bool = True) -> MultiHeadAttention:
        """Create an attention layer. `rotary` applies rotary positions, if configured, to queries and keys."""
        positions = self.positions.rotary() if rotary else None
        return MultiHeadAttention(self.d_model, self.heads, rotary=positions, **self.attention_options())

    def attention_options(self) -> AttentionOptions:
        """Return the attention options other than d_model, heads and positions."""
        return {"kv_heads": self.kv_heads, "bias": self.bias, "scale": self.scale, "dropout": self.attention_dropout}

    def block(self, mixer: Mixer | None = None, cross_attention: bool = False) -> TransformerBlock:
        """Create a block. The default mixer is self-attention."""
        mixer = SelfAttention(self.attention()) if mixer is None else mixer
        source = self.attention(rotary=False) if cross_attention else None
        layer = FeedForward(
            self.d_model, self.feed_forward_size, self.activation, bias=self.bias, dropout=self.activation_dropout
        )
        form = ResidualConfig(self.d_model, self.norm, self.norm_first, self.residual, self.dropout, self.norm_epsilon)
        return TransformerBlock(mixer, layer, form, source)

    def stack(self, layers: int) -> TransformerStack:
        """Create a stack of blocks with self-attention."""
        return TransformerStack(self.block() for _ in range(layers))

    def final_norm(self) -> nn.Module:
        """Create the norm after the last block. Without norm_first, it is the identity."""
        return make_norm(self.norm if self.norm_first else "none", self.d_model, self.norm_epsilon)
