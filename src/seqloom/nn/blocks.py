"""What a Transformer is piled up from: a layer f, the way around it, and a norm.

    after (2017)   x ← norm(x + f(x))             LayerNorm   γ ⊙ (x − μ) / √(σ² + ε) + β
    before         x ← x + f(norm(x))             RMSNorm     γ ⊙ x / √(mean(x²) + ε)

    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2        or with GELU (exact, or by a tanh), SiLU for max(0, ·)
    SwiGLU(x) = (SiLU(x W_1 + b_1) ⊙ (x W_3 + b_3)) W_2 + b_2

An encoder block mixes its places with each other, by self-attention or by another mixer (`seqloom.nn.mixers`), then
feeds each forward by itself. A decoder block looks at what was said, then at the source, then feeds forward; a block of
a text does without a source. Dropout falls on what f adds. Residuals and norms can be left out, to see what they are
good for.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.operations import compiled_region
from seqloom.core.tree import Growing
from seqloom.nn.cache import Reading
from seqloom.nn.dropout import Dropout
from seqloom.nn.masks import Allowed
from seqloom.nn.mixers import Mixer
from seqloom.nn.multihead import MultiHeadAttention

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


def make_norm(kind: Norm, width: int, epsilon: float | None = None) -> nn.Module:
    """`epsilon` is ε of the equations above; None is 1e-5 of a LayerNorm, 1e-6 of an RMSNorm."""
    if kind == "none":
        return nn.Identity()
    epsilon = EPSILON[kind] if epsilon is None else epsilon
    return nn.LayerNorm(width, eps=epsilon) if kind == "layer" else RMSNorm(width, eps=epsilon)


class RMSNorm(nn.RMSNorm):
    """torch's, with its gain in the precision of what it norms: of two precisions the fused kernel makes nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, tuple(self.normalized_shape), self.weight.to(x.dtype), self.eps)


class FeedForward(nn.Module):
    """The same two layers at every place, x (…, D) to (…, D), `inner` wide between them."""

    def __init__(
        self, width: int, inner: int, activation: Activation = "relu", *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if activation == "swiglu" else None
        self.down = nn.Linear(inner, width, bias=bias)
        self.dropout = Dropout(dropout)
        for linear in (self.up, self.gate, self.down):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if bias:
                    nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.up(x))
        if self.gate is not None:
            inner = inner * self.gate(x)
        fed: Tensor = self.down(self.dropout(inner))
        return fed


@dataclass(frozen=True)
class Frame:
    """How every layer of a stack is framed."""

    width: int
    norm: Norm = "layer"
    norm_first: bool = False
    residual: bool = True
    dropout: float = 0.0
    epsilon: float | None = None  # of its norms


class Around(nn.Module):
    """The norm before or after a layer, and the way around it."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.norm = make_norm(frame.norm, frame.width, frame.epsilon)
        self.dropout = Dropout(frame.dropout)
        self.first, self.residual = frame.norm_first, frame.residual

    def before(self, x: Tensor) -> Tensor:
        """What the layer sees of x."""
        return self.norm(x) if self.first else x

    def after(self, x: Tensor, made: Tensor) -> Tensor:
        """x and what the layer made of it, put together."""
        made = self.dropout(made)
        made = x + made if self.residual else made
        return made if self.first else self.norm(made)


class EncoderBlock(nn.Module):
    """A mixer and a feed-forward: x (B, S, D) and its mask (B, S) to the same shape, and to the mixer's weights."""

    recomputable = True  # see `seqloom.train.gradient_checkpointing`

    def __init__(self, mixer: Mixer, feed_forward: nn.Module, frame: Frame) -> None:
        super().__init__()
        self.mixer, self.feed_forward = mixer, feed_forward
        self.around_mixer, self.around_feed_forward = Around(frame), Around(frame)

    @compiled_region
    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        around = self.around_mixer
        mixed, looked = self.mixer(around.before(x), mask, weights)
        x = around.after(x, mixed)
        around = self.around_feed_forward
        return around.after(x, self.feed_forward(around.before(x))), looked


@dataclass(frozen=True)
class Past:
    """What the places of a target, or of a text, may look at: the same for every block."""

    mask: Tensor | Allowed | None = None  # (B, 1, T, ·)
    causal: bool = True
    places: Tensor | None = None  # (T,) or (B, T), for rotary positions; None counts from 0
    reading: Reading | None = None  # where there is also what was read before, in a cache


def look_back(
    attention: MultiHeadAttention, x: Tensor, past: Past, cache: Growing | None = None, weights: bool = False
) -> tuple[Tensor, Growing | None, Tensor | None]:
    """Self-attention of x (B, T, D) to itself and to what is in the cache: the same shape, the cache after it, and the
    weights (B, N, T, ·) if wanted."""
    reading = past.reading
    q, keys_values = attention.of_itself(x, past.places)
    if reading is not None and cache is not None:
        cache = reading.write(cache, keys_values)
        keys_values = reading.read(cache)
    made, looked = attention.attend(q, keys_values, past.mask, past.causal, weights)
    return made, cache, looked


class TextBlock(nn.Module):
    """Self-attention over a text and a feed-forward; which places of it a place may look at, `past` says."""

    recomputable = True  # see `seqloom.train.gradient_checkpointing`

    def __init__(self, attention: MultiHeadAttention, feed_forward: nn.Module, frame: Frame) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.around_attention, self.around_feed_forward = Around(frame), Around(frame)

    @compiled_region
    def forward(
        self, x: Tensor, past: Past, cache: Growing | None = None, weights: bool = False
    ) -> tuple[Tensor, Growing | None, Tensor | None]:
        """x (B, T, D) to the same shape, the cache after it, and the weights (B, N, T, ·) if wanted."""
        around = self.around_attention
        made, cache, looked = look_back(self.attention, around.before(x), past, cache, weights)
        x = around.after(x, made)
        around = self.around_feed_forward
        return around.after(x, self.feed_forward(around.before(x))), cache, looked


class DecoderBlock(nn.Module):
    """Self-attention over the target, attention over the source, and a feed-forward."""

    recomputable = True  # see `seqloom.train.gradient_checkpointing`

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: nn.Module,
        frame: Frame,
    ) -> None:
        super().__init__()
        self.self_attention, self.cross_attention, self.feed_forward = self_attention, cross_attention, feed_forward
        self.around_self, self.around_cross, self.around_feed_forward = Around(frame), Around(frame), Around(frame)

    @compiled_region
    def forward(
        self,
        x: Tensor,
        source: tuple[Tensor, Tensor],
        source_mask: Tensor | Allowed | None,
        past: Past,
        cache: Growing | None = None,
        wanted: Collection[str] = (),
    ) -> tuple[Tensor, Growing | None, dict[str, Tensor]]:
        """x (B, T, D) with the keys and values (B, Nkv, S, d) of its source: the same shape, and the cache after it.

        `source_mask` is (B, 1, 1, S). `wanted` names the weights to return: decoder (B, N, T, ·), cross (B, N, T, S).
        """
        around = self.around_self
        made, cache, own = look_back(self.self_attention, around.before(x), past, cache, "decoder" in wanted)
        x = around.after(x, made)
        around, attention = self.around_cross, self.cross_attention
        q = attention.queries(around.before(x))
        made, cross = attention.attend(q, source, source_mask, weights="cross" in wanted)
        x = around.after(x, made)
        around = self.around_feed_forward
        looked = {name: found for name, found in (("decoder", own), ("cross", cross)) if found is not None}
        return around.after(x, self.feed_forward(around.before(x))), cache, looked
