"""One token of each hypothesis through a Transformer's decoder, in few passes.

    x ← norm(x + attention(x, tokens before)),   x ← norm(x + attention(x, source)),   x ← norm(x + FFN(x))

It computes what `seqloom.nn.transformer.run_blocks` computes of one token, and is tested to.
Queries, keys and values are one product, with the scale of attention in the weights of the queries;
`packed` has the products. What lies between the products is computed by PyTorch (`TorchParts`), by
numba kernels (`NumbaParts`) or on a GPU by Triton (`GPUParts`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.accel.decoding import decoder_gpu, decoder_numba
from seqloom.accel.decoding.packed import PackedWeights, made_of
from seqloom.accel.decoding.slots import REUSES_SLOTS, FixedUpdate, SlotUpdate
from seqloom.core.tree import GrowingBuffer
from seqloom.nn.attention import MultiHeadAttention, SelfAttention, softmax
from seqloom.nn.cache import CacheUpdate
from seqloom.nn.masks import AttentionMask, AttentionScope
from seqloom.nn.transformer import (
    ACTIVATIONS,
    Residual,
    Source,
    StackOutput,
    TransformerBlock,
    TransformerStack,
    Wanted,
)

FUSED_ACTIVATIONS = {function: name for name, function in ACTIVATIONS.items() if name in ("relu", "gelu", "gelu-tanh")}


def applies(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    wanted: Wanted,
) -> bool:
    """One token of each hypothesis, on a CPU, of a usual decoder; weights of attention to the source only."""
    if scope.update is None or not scope.update.is_single_token or sources is None or x.device.type != "cpu":
        return False
    return all(names == ("cross",) for names in wanted.values()) and len(wanted) <= 1 and is_usual_decoder(stack)


def run(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    wanted: Wanted,
) -> StackOutput:
    assert scope.update is not None and caches is not None and sources is not None
    shown = next(iter(wanted), None)
    mask = AttentionMask.of(sources[0].mask)
    assert mask is not None
    keys_values = [source.keys_values for source in sources]
    y, new_caches, weights = decoder_step(stack)(x.flatten(0, 1), keys_values, mask, caches, scope.update, shown)
    return StackOutput(y.view(x.shape), new_caches, [], [] if shown is None else [weights])


def is_usual_decoder(stack: TransformerStack) -> bool:
    """Whether a stack can be run so: all its blocks attend to themselves and to a source; see `is_usual`."""
    attentions = []
    for block in stack:
        if type(block.mixer) is not SelfAttention or block.cross_attention is None:
            return False
        attentions += [block.mixer.attention, block.cross_attention]
    return is_usual(stack, attentions)


def is_usual(stack: TransformerStack, attentions: Sequence[MultiHeadAttention]) -> bool:
    """Whether no gradient is wanted, all heads have keys of their own, nothing is rotated or gated, and numbers are
    precise enough to be summed as they are."""
    weight = attentions[0].q.weight
    if torch.is_grad_enabled() or any(block.training for block in stack):
        return False
    if weight.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(weight.device.type):
        return False
    return all(one.kv_heads == one.heads and one.rotary is None for one in attentions) and all(
        block.feed_forward.gate is None and block.feed_forward.activation in FUSED_ACTIVATIONS for block in stack
    )


def decoder_step(stack: TransformerStack) -> "DecoderStep":
    """The step of a decoder, made once for the weights it has."""
    step: DecoderStep = made_of([stack], lambda: DecoderStep(stack))
    return step


class DecoderStep:
    def __init__(self, stack: TransformerStack) -> None:
        self.blocks = [PackedBlock(block) for block in stack]
        attention = next(iter(stack)).self_attention
        self.fits_numba = decoder_numba.suits(attention.q.weight, attention.head_width)
        self.fits_gpu = decoder_gpu.suits(attention.q.weight)

    def __call__(
        self,
        y: Tensor,
        sources: Sequence[tuple[Tensor, Tensor]],
        source_mask: AttentionMask | Tensor,
        caches: Sequence[GrowingBuffer],
        update: CacheUpdate | FixedUpdate,
        shown: int | None = None,
    ) -> tuple[Tensor, tuple[GrowingBuffer, ...], Tensor]:
        """y (R, D) to the same shape, the caches after it, and the source weights (B, N, k, S) of block `shown`.

        `sources` has the keys and values (B, N, S, d) of each block, `source_mask` (B, 1, 1, S)
        says which are real; or it is what is added to the scores, where every source has real ones.
        """
        parts = self._parts(update, len(caches[0].buffer), source_mask, y)
        new_caches, shown_weights = [], y
        for number, block in enumerate(self.blocks):
            y, cache = block.attend_to_cache(y, caches[number], update, parts)
            y, weights = block.attend_to_source(y, sources[number], source_mask, number == shown, parts)
            y = block.feed_forward(y, parts)
            new_caches.append(cache)
            shown_weights = weights if number == shown else shown_weights
        return y, tuple(new_caches), shown_weights

    def _parts(
        self, update: CacheUpdate | FixedUpdate, sources: int, source_mask: AttentionMask | Tensor, y: Tensor
    ) -> "TorchParts | NumbaParts":
        """Decided at the first token, which PyTorch reads; the sources that remain of many keep to it."""
        if isinstance(update, FixedUpdate):
            fits = self.fits_gpu and decoder_gpu.suits_attention(self.blocks[0].width, update.k)
            return GPUParts() if fits else TorchParts()
        if REUSES_SLOTS not in update.state:
            many = sources >= decoder_numba.SOURCES
            update.state[REUSES_SLOTS] = self.fits_numba and many and decoder_numba.there()
        return NumbaParts(update, source_mask, y) if isinstance(update, SlotUpdate) else TorchParts()


class PackedBlock:
    def __init__(self, block: TransformerBlock) -> None:
        own, cross, feed = block.self_attention, block.cross_attention, block.feed_forward
        assert cross is not None and block.cross_residual is not None
        self.heads, self.width = own.heads, own.head_width
        self.own, self.own_out = join_products(own, "qkv"), PackedWeights.of(own.out)
        self.cross, self.cross_out = join_products(cross, "q"), PackedWeights.of(cross.out)
        self.up, self.down = PackedWeights.of(feed.up, FUSED_ACTIVATIONS[feed.activation]), PackedWeights.of(feed.down)
        self.residuals = block.mixer_residual, block.cross_residual, block.feed_forward_residual

    def attend_to_cache(
        self, y: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate, parts: "TorchParts | NumbaParts"
    ) -> tuple[Tensor, GrowingBuffer]:
        residual = self.residuals[0]
        qkv = self.own(normed_input(residual, y, parts)).view(-1, 3, self.heads, self.width)
        heads, cache = parts.attend_to_cache(qkv, cache, update)
        return add_product(residual, y, self.own_out, heads, parts), cache

    def attend_to_source(
        self,
        y: Tensor,
        source: tuple[Tensor, Tensor],
        mask: AttentionMask | Tensor,
        wanted: bool,
        parts: "TorchParts | NumbaParts",
    ) -> tuple[Tensor, Tensor]:
        residual = self.residuals[1]
        q = self.cross(normed_input(residual, y, parts)).view(-1, self.heads, self.width)
        heads, weights = parts.attend_to_source(q, source, mask, wanted)
        return add_product(residual, y, self.cross_out, heads, parts), weights

    def feed_forward(self, y: Tensor, parts: "TorchParts | NumbaParts") -> Tensor:
        residual = self.residuals[2]
        return add_product(residual, y, self.down, self.up(normed_input(residual, y, parts)), parts)


def join_products(attention: MultiHeadAttention, names: str) -> PackedWeights:
    """The products of some of an attention's queries, keys and values as one."""
    layers = [{"q": attention.q, "k": attention.k, "v": attention.v}[name] for name in names]
    weights, biases = [layer.weight.detach() for layer in layers], [layer.bias for layer in layers]
    weights[0] = weights[0] * attention.scale
    bias = None if biases[0] is None else torch.cat([biases[0].detach() * attention.scale, *biases[1:]])
    return PackedWeights(torch.cat(weights), bias)


def normed_input(residual: Residual, y: Tensor, parts: "TorchParts | NumbaParts") -> Tensor:
    """What the sublayer reads."""
    return parts.norm(residual.norm, y) if residual.norm_first else y


def add_product(
    residual: Residual, y: Tensor, product: PackedWeights, x: Tensor, parts: "TorchParts | NumbaParts"
) -> Tensor:
    """The sublayer's last product, the residual and the norm."""
    plus = y if residual.skip else None
    return product(x, plus) if residual.norm_first else parts.norm_product(residual.norm, product, x, plus)


class TorchParts:
    """What lies between the products, by PyTorch."""

    def attend_to_cache(
        self, qkv: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate
    ) -> tuple[Tensor, GrowingBuffer]:
        """Scaled queries, keys and values (R, 3, N, d) to the heads (R, N·d) and the cache after them."""
        rows = qkv.view(len(cache.buffer), -1, *qkv.shape[1:])  # (B, k, 3, N, d)
        new = rows[:, :, 1:].permute(0, 3, 2, 1, 4)  # (B, N, 2, k, d)
        if isinstance(update, FixedUpdate):
            update.write_both(cache, new)
        else:
            cache.buffer[:, :, :, update.start : update.end] = new
        added = None if update.mask is None else update.mask.added
        return _attend(rows[:, :, 0], update.read(cache), added)[0], cache

    def attend_to_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], mask: AttentionMask | Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        """Scaled queries (R, N, d) to the heads (R, N·d), and to the weights (B, N, k, S) if wanted."""
        added, some = (mask, None) if isinstance(mask, Tensor) else (mask.added, mask.some)
        return _attend(q.view(len(source[0]), -1, *q.shape[1:]), source, added, some)

    def norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = norm(x)
        return y

    def norm_product(self, norm: nn.Module, product: PackedWeights, x: Tensor, plus: Tensor | None) -> Tensor:
        return product(x, plus, norm)


class GPUParts(TorchParts):
    """The same by Triton kernels, where all steps have one shape."""

    def attend_to_cache(
        self, qkv: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate
    ) -> tuple[Tensor, GrowingBuffer]:
        assert isinstance(update, FixedUpdate)
        return decoder_gpu.attend_to_cache(qkv, cache.buffer, update.with_itself, update.step), cache

    def attend_to_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], mask: AttentionMask | Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(mask, Tensor)
        return decoder_gpu.attend_to_source(q, *source, mask), q


class NumbaParts:
    """The same by numba kernels, for one step."""

    def __init__(self, update: SlotUpdate, mask: AttentionMask | Tensor, y: Tensor) -> None:
        assert isinstance(mask, AttentionMask)
        self.owned, self.slots, self.mask = update.state["owned"], update.slots, mask.mask[:, 0, 0].contiguous()
        self.heads = torch.empty_like(y)  # (R, N·d), of one layer after the other

    def attend_to_cache(
        self, qkv: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate
    ) -> tuple[Tensor, GrowingBuffer]:
        return decoder_numba.attend_to_cache(qkv, cache.buffer, self.owned, self.slots, self.heads), cache

    def attend_to_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], mask: AttentionMask | Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        keys, values = source[0].contiguous(), source[1].contiguous()
        if not wanted:
            return decoder_numba.attend_to_source(q, keys, values, self.mask, self.heads), q
        (R, N, _), (B, S) = q.shape, self.mask.shape
        weights = q.new_empty(R, N, S)
        heads = decoder_numba.attend_to_source(q, keys, values, self.mask, self.heads, weights)
        return heads, weights.view(B, R // B, N, S).transpose(1, 2)

    def norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        return self._norm(norm, x, torch.empty_like(x))

    def norm_product(self, norm: nn.Module, product: PackedWeights, x: Tensor, plus: Tensor | None) -> Tensor:
        y = product(x, plus)
        return self._norm(norm, y, y)

    def _norm(self, norm: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
            return decoder_numba.layer_norm(x, norm.weight, norm.bias, norm.eps, out)
        y: Tensor = norm(x)
        return y


def _attend(
    q: Tensor, keys_values: tuple[Tensor, Tensor], added: Tensor | None, some: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scaled queries (B, k, N, d) to the heads (B·k, N·d), and to the weights (B, N, k, S).

    `some` (B, 1, 1, 1) is False where a source has nothing to attend to: its heads are zero.
    """
    B, k, N, d = q.shape
    keys, values = (part.flatten(0, 1) for part in keys_values)  # (B·N, S, d)
    scores = torch.bmm(q.transpose(1, 2).reshape(B * N, k, d), keys.transpose(1, 2)).view(B, N, k, -1)
    weights = softmax(scores if added is None else scores.add_(added))
    weights = weights if some is None else weights * some
    heads = torch.bmm(weights.view(B * N, k, -1), values)
    return heads.view(B, N, k, d).transpose(1, 2).reshape(B * k, N * d), weights
