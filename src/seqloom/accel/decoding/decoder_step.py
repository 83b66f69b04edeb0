"""A decoder step: one token of each hypothesis through a Transformer decoder, with fused operations.

    x ← norm(x + attention(x, previous tokens)),   x ← norm(x + attention(x, source)),   x ← norm(x + FFN(x))

The step computes `seqloom.nn.transformer.run_blocks` for one token. One matrix product computes queries, keys and
values; the query weights include the attention scale (`packed`). PyTorch (`TorchBackend`), numba kernels
(`NumbaBackend`) or Triton kernels on a GPU (`GPUBackend`) compute the operations between the matrix
products.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.accel.decoding import decoder_gpu, decoder_numba
from seqloom.accel.decoding.packed import PackedWeights, cached_by_weights
from seqloom.accel.decoding.slots import REUSES_SLOTS, FixedUpdate, SlotUpdate
from seqloom.core.tree import GrowingBuffer
from seqloom.nn.attention import MultiHeadAttention, softmax
from seqloom.nn.cache import CacheUpdate
from seqloom.nn.masks import AttentionMask, AttentionScope
from seqloom.nn.mixers import SelfAttention
from seqloom.nn.transformer import (
    ACTIVATIONS,
    Residual,
    Source,
    StackOutput,
    TransformerBlock,
    TransformerStack,
    WeightRequests,
)

FUSED_ACTIVATIONS = {function: name for name, function in ACTIVATIONS.items() if name in ("relu", "gelu", "gelu-tanh")}


def applies(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    return_weights: WeightRequests,
) -> bool:
    """Return whether the call runs a supported decoder on one token per hypothesis, on a CPU."""
    if scope.update is None or not scope.update.is_single_token or sources is None or x.device.type != "cpu":
        return False
    return (
        all(names == ("cross",) for names in return_weights.values())
        and len(return_weights) <= 1
        and is_supported_decoder(stack)
    )


def run(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    return_weights: WeightRequests,
) -> StackOutput:
    assert scope.update is not None and caches is not None and sources is not None
    layer = next(iter(return_weights), None)
    mask = AttentionMask.of(sources[0].mask)
    assert mask is not None
    keys_values = [source.keys_values for source in sources]
    step = decoder_step(stack)
    y, new_caches, weights = step(x.flatten(0, 1), keys_values, mask, caches, scope.update, layer)
    return StackOutput(y.view(x.shape), new_caches, [], [] if layer is None else [weights])


def is_supported_decoder(stack: TransformerStack) -> bool:
    """Return whether all blocks have self-attention and cross-attention, and `is_supported` holds."""
    attentions = []
    for block in stack:
        if type(block.mixer) is not SelfAttention or block.cross_attention is None:
            return False
        attentions += [block.mixer.attention, block.cross_attention]
    return is_supported(stack, attentions)


def is_supported(stack: TransformerStack, attentions: Sequence[MultiHeadAttention]) -> bool:
    """Return whether a stack is in inference mode and in full precision, and uses neither grouped queries nor rotary
    positions nor gates.
    """
    weight = attentions[0].q.weight
    if torch.is_grad_enabled() or any(block.training for block in stack):
        return False
    if weight.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(weight.device.type):
        return False
    return all(attention.kv_heads == attention.heads and attention.rotary is None for attention in attentions) and all(
        block.feed_forward.gate is None and block.feed_forward.activation in FUSED_ACTIVATIONS for block in stack
    )


def decoder_step(stack: TransformerStack) -> "DecoderStep":
    """Return the packed step of a decoder, cached by its weights."""
    step: DecoderStep = cached_by_weights([stack], lambda: DecoderStep(stack))
    return step


class DecoderStep:
    def __init__(self, stack: TransformerStack) -> None:
        self.blocks = [PackedBlock(block) for block in stack]
        attention = next(iter(stack)).self_attention
        self.supports_numba = decoder_numba.supports(attention.q.weight, attention.head_width)
        self.supports_gpu = decoder_gpu.supports_weight(attention.q.weight)

    def __call__(
        self,
        y: Tensor,
        sources: Sequence[tuple[Tensor, Tensor]],
        source_mask: AttentionMask | Tensor,
        caches: Sequence[GrowingBuffer],
        update: CacheUpdate | FixedUpdate,
        layer: int | None = None,
    ) -> tuple[Tensor, tuple[GrowingBuffer, ...], Tensor]:
        """Return the output (R, D) for y (R, D), the new caches, and the attention weights (B, N, k, S) to the source.

        `layer` selects the block whose attention weights are returned. `sources` contains the keys and values
        (B, N, S, d) of each block. `source_mask` (B, 1, 1, S) is True at real positions. If no source is empty,
        `source_mask` can instead be the tensor that is added to the scores.
        """
        backend = self._select_backend(update, len(caches[0].buffer), source_mask, y)
        new_caches, attention_weights = [], y
        for number, block in enumerate(self.blocks):
            y, cache = block.attend_to_cache(y, caches[number], update, backend)
            y, weights = block.attend_to_source(y, sources[number], source_mask, number == layer, backend)
            y = block.feed_forward(y, backend)
            new_caches.append(cache)
            attention_weights = weights if number == layer else attention_weights
        return y, tuple(new_caches), attention_weights

    def _select_backend(
        self, update: CacheUpdate | FixedUpdate, sources: int, source_mask: AttentionMask | Tensor, y: Tensor
    ) -> "TorchBackend | NumbaBackend":
        """Select the backend of the search. PyTorch computes the first token, and the backend computes later tokens."""
        if isinstance(update, FixedUpdate):
            is_supported = self.supports_gpu and decoder_gpu.supports_attention(self.blocks[0].width, update.k)
            return GPUBackend() if is_supported else TorchBackend()
        if REUSES_SLOTS not in update.state:
            has_many_sources = sources >= decoder_numba.MIN_SOURCES
            update.state[REUSES_SLOTS] = self.supports_numba and has_many_sources and decoder_numba.is_available()
        return NumbaBackend(update, source_mask, y) if isinstance(update, SlotUpdate) else TorchBackend()


class PackedBlock:
    def __init__(self, block: TransformerBlock) -> None:
        attention, cross, feed_forward = block.self_attention, block.cross_attention, block.feed_forward
        assert cross is not None and block.cross_residual is not None
        self.heads, self.width = attention.heads, attention.head_width
        self.qkv, self.self_out = concatenate_projections(attention, "qkv"), PackedWeights.of(attention.out)
        self.cross_q, self.cross_out = concatenate_projections(cross, "q"), PackedWeights.of(cross.out)
        self.up = PackedWeights.of(feed_forward.up, FUSED_ACTIVATIONS[feed_forward.activation])
        self.down = PackedWeights.of(feed_forward.down)
        self.residuals = block.mixer_residual, block.cross_residual, block.feed_forward_residual

    def attend_to_cache(
        self, y: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate, backend: "TorchBackend | NumbaBackend"
    ) -> tuple[Tensor, GrowingBuffer]:
        residual = self.residuals[0]
        qkv = self.qkv(normalize_input(residual, y, backend)).view(-1, 3, self.heads, self.width)
        heads, cache = backend.attend_to_cache(qkv, cache, update)
        return project_and_add(residual, y, self.self_out, heads, backend), cache

    def attend_to_source(
        self,
        y: Tensor,
        source: tuple[Tensor, Tensor],
        mask: AttentionMask | Tensor,
        return_weights: bool,
        backend: "TorchBackend | NumbaBackend",
    ) -> tuple[Tensor, Tensor]:
        residual = self.residuals[1]
        q = self.cross_q(normalize_input(residual, y, backend)).view(-1, self.heads, self.width)
        heads, weights = backend.attend_to_source(q, source, mask, return_weights)
        return project_and_add(residual, y, self.cross_out, heads, backend), weights

    def feed_forward(self, y: Tensor, backend: "TorchBackend | NumbaBackend") -> Tensor:
        residual = self.residuals[2]
        return project_and_add(residual, y, self.down, self.up(normalize_input(residual, y, backend)), backend)


def concatenate_projections(attention: MultiHeadAttention, names: str) -> PackedWeights:
    """Concatenate the projections `names` (q, k, v) of an attention layer."""
    layers = [{"q": attention.q, "k": attention.k, "v": attention.v}[name] for name in names]
    weights, biases = [layer.weight.detach() for layer in layers], [layer.bias for layer in layers]
    weights[0] = weights[0] * attention.scale
    bias = None if biases[0] is None else torch.cat([biases[0].detach() * attention.scale, *biases[1:]])
    return PackedWeights(torch.cat(weights), bias)


def normalize_input(residual: Residual, y: Tensor, backend: "TorchBackend | NumbaBackend") -> Tensor:
    """Return the input of the sublayer."""
    return backend.norm(residual.norm, y) if residual.norm_first else y


def project_and_add(
    residual: Residual, y: Tensor, product: PackedWeights, x: Tensor, backend: "TorchBackend | NumbaBackend"
) -> Tensor:
    """Apply the last product of the sublayer, the residual connection and the norm."""
    addend = y if residual.skip else None
    return product(x, addend) if residual.norm_first else backend.norm_product(residual.norm, product, x, addend)


class TorchBackend:
    """The operations between the matrix products, computed by PyTorch."""

    def attend_to_cache(
        self, qkv: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate
    ) -> tuple[Tensor, GrowingBuffer]:
        """Return the heads (R, N·d) of scaled queries, keys and values (R, 3, N, d), and the new cache."""
        by_source = qkv.view(len(cache.buffer), -1, *qkv.shape[1:])  # (B, k, 3, N, d)
        new = by_source[:, :, 1:].permute(0, 3, 2, 1, 4)  # (B, N, 2, k, d)
        if isinstance(update, FixedUpdate):
            update.write_keys_values(cache, new)
        else:
            cache.buffer[:, :, :, update.start : update.end] = new
        added = None if update.mask is None else update.mask.additive
        return _attend(by_source[:, :, 0], update.read(cache), added)[0], cache

    def attend_to_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], mask: AttentionMask | Tensor, return_weights: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the heads (R, N·d) of scaled queries (R, N, d), and the weights (B, N, k, S) if requested."""
        added, has_keys = (mask, None) if isinstance(mask, Tensor) else (mask.additive, mask.attending)
        return _attend(q.view(len(source[0]), -1, *q.shape[1:]), source, added, has_keys)

    def norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = norm(x)
        return y

    def norm_product(self, norm: nn.Module, product: PackedWeights, x: Tensor, addend: Tensor | None) -> Tensor:
        return product(x, addend, norm)


class GPUBackend(TorchBackend):
    """The operations between the matrix products of a decoding step of fixed shape, computed by Triton kernels."""

    def attend_to_cache(
        self, qkv: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate
    ) -> tuple[Tensor, GrowingBuffer]:
        assert isinstance(update, FixedUpdate)
        return decoder_gpu.attend_to_cache(qkv, cache.buffer, update.attendable, update.step), cache

    def attend_to_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], mask: AttentionMask | Tensor, return_weights: bool
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(mask, Tensor)
        return decoder_gpu.attend_to_source(q, *source, mask), q


class NumbaBackend:
    """The operations between the matrix products of a decoding step, computed by numba kernels."""

    def __init__(self, update: SlotUpdate, mask: AttentionMask | Tensor, y: Tensor) -> None:
        assert isinstance(mask, AttentionMask)
        self.owned, self.slots, self.mask = update.state["owned"], update.slots, mask.mask[:, 0, 0].contiguous()
        self.heads = torch.empty_like(y)  # (R, N·d), reused by all layers

    def attend_to_cache(
        self, qkv: Tensor, cache: GrowingBuffer, update: CacheUpdate | FixedUpdate
    ) -> tuple[Tensor, GrowingBuffer]:
        return decoder_numba.attend_to_cache(qkv, cache.buffer, self.owned, self.slots, self.heads), cache

    def attend_to_source(
        self, q: Tensor, source: tuple[Tensor, Tensor], mask: AttentionMask | Tensor, return_weights: bool
    ) -> tuple[Tensor, Tensor]:
        keys, values = source[0].contiguous(), source[1].contiguous()
        if not return_weights:
            return decoder_numba.attend_to_source(q, keys, values, self.mask, self.heads), q
        (R, N, _), (B, S) = q.shape, self.mask.shape
        weights = q.new_empty(R, N, S)
        heads = decoder_numba.attend_to_source(q, keys, values, self.mask, self.heads, weights)
        return heads, weights.view(B, R // B, N, S).transpose(1, 2)

    def norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        return self._norm(norm, x, torch.empty_like(x))

    def norm_product(self, norm: nn.Module, product: PackedWeights, x: Tensor, addend: Tensor | None) -> Tensor:
        y = product(x, addend)
        return self._norm(norm, y, y)

    def _norm(self, norm: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
            return decoder_numba.layer_norm(x, norm.weight, norm.bias, norm.eps, out)
        y: Tensor = norm(x)
        return y


def _attend(
    q: Tensor, keys_values: tuple[Tensor, Tensor], added: Tensor | None, has_keys: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the heads (B·k, N·d) of scaled queries (B, k, N, d), and the weights (B, N, k, S).

    `has_keys` (B, 1, 1, 1) is False for an empty source, whose heads are zero.
    """
    B, k, N, d = q.shape
    keys, values = (part.flatten(0, 1) for part in keys_values)  # (B·N, S, d)
    scores = torch.bmm(q.transpose(1, 2).reshape(B * N, k, d), keys.transpose(1, 2)).view(B, N, k, -1)
    weights = softmax(scores if added is None else scores.add_(added))
    weights = weights if has_keys is None else weights * has_keys
    heads = torch.bmm(weights.view(B * N, k, -1), values)
    return heads.view(B, N, k, d).transpose(1, 2).reshape(B * k, N * d), weights
