"""One token of each hypothesis through a Transformer's decoder, in as few passes as it takes.

    x ← norm(x + attention(x, what was said)),   x ← norm(x + attention(x, source)),   x ← norm(x + FFN(x))

It computes what the blocks of `seqloom.nn.blocks` compute of one token, and is tested to. Queries, keys and values are
one product, with the scale of attention in the weights of the queries; `seqloom.nn.packed` has the products.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.tree import Growing
from seqloom.nn.blocks import ACTIVATIONS, Around, DecoderBlock
from seqloom.nn.cache import FixedReading, Reading
from seqloom.nn.masks import Allowed
from seqloom.nn.multihead import MultiHeadAttention, softmax
from seqloom.nn.packed import Packed, made_once

PRODUCTS = {function: name for name, function in ACTIVATIONS.items() if name in ("relu", "gelu", "gelu-tanh")}


def fits(blocks: Sequence[DecoderBlock]) -> bool:
    """Whether blocks are of the usual kind: all heads have their own keys, nothing is turned or gated, and numbers are
    precise enough to be summed as they are."""
    weight = blocks[0].self_attention.q.weight
    if torch.is_grad_enabled() or any(block.training for block in blocks):
        return False
    if weight.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(weight.device.type):
        return False
    attentions = [attention for block in blocks for attention in (block.self_attention, block.cross_attention)]
    usual = all(one.kv_heads == one.heads and one.rotary is None for one in attentions)
    return usual and all(
        getattr(block.feed_forward, "gate", True) is None and block.feed_forward.activation in PRODUCTS
        for block in blocks
    )


def decoder_step(owner: nn.Module, blocks: Sequence[DecoderBlock]) -> "DecoderStep":
    """That of a model's blocks, made once for the weights they have."""

    def weights() -> Iterator[Tensor]:
        return (weight for block in blocks for weight in block.parameters())

    first = blocks[0].self_attention.q.weight
    step: DecoderStep = made_once(owner, first, weights, lambda: DecoderStep(blocks))
    return step


class DecoderStep:
    def __init__(self, blocks: Sequence[DecoderBlock]) -> None:
        self.blocks = [_Block(block) for block in blocks]

    def __call__(
        self,
        y: Tensor,
        source: Sequence[tuple[Tensor, Tensor]],
        source_mask: Allowed | Tensor,
        caches: Sequence[Growing],
        reading: Reading | FixedReading,
        looking: int | None = None,
    ) -> tuple[Tensor, tuple[Growing, ...], Tensor]:
        """y (R, D) to the same shape, the caches after it, and where block number `looking` looked (B, N, k, S).

        `source` has the keys and values (B, N, S, d) of each block, `source_mask` (B, 1, 1, S) says which are real; or
        it is what is added to the scores, where every source has real ones.
        """
        added, some = (source_mask, None) if isinstance(source_mask, Tensor) else (source_mask.added, source_mask.some)
        own_added = None if reading.allowed is None else reading.allowed.added
        after, looked = [], y
        for number, block in enumerate(self.blocks):
            y, cache = block.look_back(y, caches[number], reading, own_added)
            y, where = block.look_at_source(y, source[number], added, some)
            y = block.feed_forward(y)
            after.append(cache)
            looked = where if number == looking else looked
        return y, tuple(after), looked


class _Block:
    def __init__(self, block: DecoderBlock) -> None:
        own, cross, feed = block.self_attention, block.cross_attention, block.feed_forward
        self.heads, self.width = own.heads, own.head_width
        self.own, self.own_out = _joined(own, "qkv"), Packed.of(own.out)
        self.cross, self.cross_out = _joined(cross, "q"), Packed.of(cross.out)
        self.up, self.down = Packed.of(feed.up, PRODUCTS[feed.activation]), Packed.of(feed.down)  # type: ignore
        self.arounds: tuple[Around, Around, Around] = block.around_self, block.around_cross, block.around_feed_forward

    def look_back(
        self, y: Tensor, cache: Growing, reading: Reading | FixedReading, added: Tensor | None
    ) -> tuple[Tensor, Growing]:
        around, B = self.arounds[0], len(cache.buffer)
        made = self.own(around.before(y)).view(B, -1, 3, self.heads, self.width)  # (B, k, 3, N, d)
        cache = reading.write_both(cache, made[:, :, 1:].permute(0, 3, 2, 1, 4))
        heads, _ = _attended(made[:, :, 0], reading.read(cache), added)
        return _after(around, y, self.own_out, heads), cache

    def look_at_source(
        self, y: Tensor, source: tuple[Tensor, Tensor], added: Tensor, some: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        around, B = self.arounds[1], len(source[0])
        q = self.cross(around.before(y)).view(B, -1, self.heads, self.width)
        heads, looked = _attended(q, source, added, some)
        return _after(around, y, self.cross_out, heads), looked

    def feed_forward(self, y: Tensor) -> Tensor:
        around = self.arounds[2]
        return _after(around, y, self.down, self.up(around.before(y)))


def _joined(attention: MultiHeadAttention, parts: str) -> Packed:
    """The products of some of a layer's queries, keys and values as one."""
    layers: list[Any] = [getattr(attention, part) for part in parts]
    weights, biases = [layer.weight.detach() for layer in layers], [layer.bias for layer in layers]
    weights[0] = weights[0] * attention.scale
    if biases[0] is None:
        return Packed(torch.cat(weights), None)
    return Packed(torch.cat(weights), torch.cat([biases[0].detach() * attention.scale, *biases[1:]]))


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


def _after(around: Around, y: Tensor, product: Packed, x: Tensor) -> Tensor:
    """The layer's last product, the way around the layer, and the norm."""
    made = product(x, y if around.residual else None)
    return made if around.first else around.norm(made)
