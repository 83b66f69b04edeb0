"""One token of each hypothesis through a Transformer's decoder, in as few passes as it takes.

    x ← norm(x + attention(x, what was said)),   x ← norm(x + attention(x, source)),   x ← norm(x + FFN(x))

It computes what the blocks of `seqloom.nn.transformer` compute of one token, and is tested to. Queries, keys and values
are one product, with the scale of attention in the weights of the queries; `seqloom.nn.packed` has the products.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.tree import Growing
from seqloom.nn import decoder_compiled, decoder_gpu
from seqloom.nn.cache import FixedReading, Reading
from seqloom.nn.masks import AttentionMask
from seqloom.nn.multihead import MultiHeadAttention, softmax
from seqloom.nn.packed import Packed, made_of
from seqloom.nn.transformer import ACTIVATIONS, Residual, TransformerBlock

PRODUCTS = {function: name for name, function in ACTIVATIONS.items() if name in ("relu", "gelu", "gelu-tanh")}


def fits(blocks: Sequence[TransformerBlock]) -> bool:
    """Whether blocks are of the usual kind."""
    attentions = [
        part for block in blocks for part in (block.self_attention, block.cross_attention) if part is not None
    ]
    return usual(blocks, attentions)


def usual(blocks: Sequence[TransformerBlock], attentions: Sequence[MultiHeadAttention]) -> bool:
    """Whether nothing is to be learned, all heads have their own keys, nothing is turned or gated, and numbers are
    precise enough to be summed as they are."""
    weight = attentions[0].q.weight
    if torch.is_grad_enabled() or any(block.training for block in blocks):
        return False
    if weight.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(weight.device.type):
        return False
    return all(one.kv_heads == one.heads and one.rotary is None for one in attentions) and all(
        block.feed_forward.gate is None and block.feed_forward.activation in PRODUCTS for block in blocks
    )


def decoder_step(blocks: Sequence[TransformerBlock]) -> "DecoderStep":
    """That of a model's blocks, made once for the weights they have."""
    step: DecoderStep = made_of(blocks, lambda: DecoderStep(blocks))
    return step


class DecoderStep:
    def __init__(self, blocks: Sequence[TransformerBlock]) -> None:
        self.blocks = [_Block(block) for block in blocks]
        first = blocks[0].self_attention
        self.suits = decoder_compiled.suits(first.q.weight, first.head_width)
        self.suits_gpu = decoder_gpu.suits(first.q.weight)

    def __call__(
        self,
        y: Tensor,
        source: Sequence[tuple[Tensor, Tensor]],
        source_mask: AttentionMask | Tensor,
        caches: Sequence[Growing],
        reading: Reading | FixedReading,
        looking: int | None = None,
    ) -> tuple[Tensor, tuple[Growing, ...], Tensor]:
        """y (R, D) to the same shape, the caches after it, and where block number `looking` looked (B, N, k, S).

        `source` has the keys and values (B, N, S, d) of each block, `source_mask` (B, 1, 1, S) says which are real; or
        it is what is added to the scores, where every source has real ones.
        """
        between = self._between(reading, len(caches[0].buffer), source_mask, y)
        after, looked = [], y
        for number, block in enumerate(self.blocks):
            y, cache = block.look_back(y, caches[number], reading, between)
            y, where = block.look_at_source(y, source[number], source_mask, number == looking, between)
            y = block.feed_forward(y, between)
            after.append(cache)
            looked = where if number == looking else looked
        return y, tuple(after), looked

    def _between(
        self, reading: Reading | FixedReading, sources: int, source_mask: AttentionMask | Tensor, y: Tensor
    ) -> "Plain | Compiled":
        """Decided at the first token, which is read in the plain way; those who remain of many keep to it."""
        if isinstance(reading, Reading) and reading.known["compiled"] is None:
            many = sources >= decoder_compiled.SOURCES
            reading.known["compiled"] = self.suits and many and decoder_compiled.there()
        if isinstance(reading, FixedReading):
            suits = self.suits_gpu and decoder_gpu.suits_attention(self.blocks[0].width, reading.k)
            return OnGPU() if suits else Plain()
        return Plain() if reading.at is None else Compiled(reading, source_mask, y)


class _Block:
    def __init__(self, block: TransformerBlock) -> None:
        own, cross, feed = block.self_attention, block.cross_attention, block.feed_forward
        assert cross is not None and block.cross_residual is not None
        self.heads, self.width = own.heads, own.head_width
        self.own, self.own_out = joined(own, "qkv"), Packed.of(own.out)
        self.cross, self.cross_out = joined(cross, "q"), Packed.of(cross.out)
        self.up, self.down = Packed.of(feed.up, PRODUCTS[feed.activation]), Packed.of(feed.down)
        self.residuals = block.mixer_residual, block.cross_residual, block.feed_forward_residual

    def look_back(
        self, y: Tensor, cache: Growing, reading: Reading | FixedReading, between: "Plain | Compiled"
    ) -> tuple[Tensor, Growing]:
        residual = self.residuals[0]
        made = self.own(before(residual, y, between)).view(-1, 3, self.heads, self.width)
        heads, cache = between.look_back(made, cache, reading)
        return after(residual, y, self.own_out, heads, between), cache

    def look_at_source(
        self,
        y: Tensor,
        source: tuple[Tensor, Tensor],
        allowed: AttentionMask | Tensor,
        wanted: bool,
        between: "Plain | Compiled",
    ) -> tuple[Tensor, Tensor]:
        residual = self.residuals[1]
        q = self.cross(before(residual, y, between)).view(-1, self.heads, self.width)
        heads, looked = between.look_at_source(q, source, allowed, wanted)
        return after(residual, y, self.cross_out, heads, between), looked

    def feed_forward(self, y: Tensor, between: "Plain | Compiled") -> Tensor:
        residual = self.residuals[2]
        return after(residual, y, self.down, self.up(before(residual, y, between)), between)


def joined(attention: MultiHeadAttention, parts: str) -> Packed:
    """The products of some of a layer's queries, keys and values as one."""
    layers: list[Any] = [getattr(attention, part) for part in parts]
    weights, biases = [layer.weight.detach() for layer in layers], [layer.bias for layer in layers]
    weights[0] = weights[0] * attention.scale
    if biases[0] is None:
        return Packed(torch.cat(weights), None)
    return Packed(torch.cat(weights), torch.cat([biases[0].detach() * attention.scale, *biases[1:]]))


def before(residual: Residual, y: Tensor, between: "Plain | Compiled") -> Tensor:
    """What the layer sees."""
    return between.normed(residual.norm, y) if residual.norm_first else y


def after(residual: Residual, y: Tensor, product: Packed, x: Tensor, between: "Plain | Compiled") -> Tensor:
    """The layer's last product, the way around the layer, and the norm."""
    plus = y if residual.skip else None
    return product(x, plus) if residual.norm_first else between.normed_product(residual.norm, product, x, plus)


class Plain:
    """What lies between the products, by PyTorch. `Compiled` computes the same."""

    def look_back(self, made: Tensor, cache: Growing, reading: Reading | FixedReading) -> tuple[Tensor, Growing]:
        """Scaled queries, keys and values (R, 3, N, d) to what the queries see (R, N·d) of their own tokens, and to
        the cache after them."""
        own = made.view(len(cache.buffer), -1, *made.shape[1:])  # (B, k, 3, N, d)
        cache = reading.write_both(cache, own[:, :, 1:].permute(0, 3, 2, 1, 4))
        added = None if reading.allowed is None else reading.allowed.added
        return _attended(own[:, :, 0], reading.read(cache), added)[0], cache

    def look_at_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], allowed: AttentionMask | Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        """Scaled queries (R, N, d) to what they see (R, N·d); and to where they looked (B, N, k, S), if wanted."""
        added, some = (allowed, None) if isinstance(allowed, Tensor) else (allowed.added, allowed.some)
        return _attended(q.view(len(source[0]), -1, *q.shape[1:]), source, added, some)

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        made: Tensor = norm(x)
        return made

    def normed_product(self, norm: nn.Module, product: Packed, x: Tensor, plus: Tensor | None) -> Tensor:
        return product(x, plus, norm)


class OnGPU(Plain):
    """The same by kernels of our own, where all steps have one shape."""

    def look_back(self, made: Tensor, cache: Growing, reading: Reading | FixedReading) -> tuple[Tensor, Growing]:
        assert isinstance(reading, FixedReading)
        return decoder_gpu.look_back(made, cache.buffer, reading.with_itself, reading.at), cache

    def look_at_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], allowed: AttentionMask | Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(allowed, Tensor)
        return decoder_gpu.look_at_source(q, *source, allowed), q


class Compiled:
    """The same by machine code, of one step."""

    def __init__(self, reading: Reading, allowed: AttentionMask | Tensor, y: Tensor) -> None:
        assert reading.at is not None and isinstance(allowed, AttentionMask)
        self.own, self.at, self.mask = reading.known["own"], reading.at, allowed.mask[:, 0, 0].contiguous()
        self.seen = torch.empty_like(y)  # (R, N·d), by one layer after the other

    def look_back(self, made: Tensor, cache: Growing, reading: Reading | FixedReading) -> tuple[Tensor, Growing]:
        return decoder_compiled.look_back(made, cache.buffer, self.own, self.at, self.seen), cache

    def look_at_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], allowed: AttentionMask | Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        keys, values = source[0].contiguous(), source[1].contiguous()
        if not wanted:
            return decoder_compiled.look_at_source(q, keys, values, self.mask, self.seen), q
        (R, N, _), (B, S) = q.shape, self.mask.shape
        looked = q.new_empty(R, N, S)
        seen = decoder_compiled.look_at_source(q, keys, values, self.mask, self.seen, looked)
        return seen, looked.view(B, R // B, N, S).transpose(1, 2)

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        return self._normed(norm, x, torch.empty_like(x))

    def normed_product(self, norm: nn.Module, product: Packed, x: Tensor, plus: Tensor | None) -> Tensor:
        made = product(x, plus)
        return self._normed(norm, made, made)

    def _normed(self, norm: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
            return decoder_compiled.layer_norm(x, norm.weight, norm.bias, norm.eps, out)
        made: Tensor = norm(x)
        return made


def _attended(
    q: Tensor, keys_values: tuple[Tensor, Tensor], added: Tensor | None, some: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Queries (B, k, N, d), scaled, to what they see (B·k, N·d), and to where they looked (B, N, k, S).

    `some` (B, 1, 1, 1) is False where a source has nothing to look at, and zeros are seen.
    """
    B, k, N, d = q.shape
    keys, values = (part.flatten(0, 1) for part in keys_values)  # (B·N, S, d)
    scores = torch.bmm(q.transpose(1, 2).reshape(B * N, k, d), keys.transpose(1, 2)).view(B, N, k, -1)
    looked = softmax(scores if added is None else scores.add_(added))
    looked = looked if some is None else looked * some
    heads = torch.bmm(looked.view(B * N, k, -1), values)
    return heads.view(B, N, k, d).transpose(1, 2).reshape(B * k, N * d), looked
