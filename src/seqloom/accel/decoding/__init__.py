"""Faster implementations of decoding: packed weights, fused Transformer steps, numba and Triton kernels."""

import torch
from torch import Tensor

from seqloom.accel.decoding import decoder_step, encoder_pass, slots
from seqloom.accel.decoding.packed import packed_layer
from seqloom.nn.cache import extend_caches, write_slots
from seqloom.nn.softmax import FullSoftmax, best_next_tokens, next_token_log_probs
from seqloom.nn.transformer import TransformerStack, run_blocks, source_keys_values


def install() -> None:
    run_blocks.register(decoder_step.applies, decoder_step.run)
    run_blocks.register(encoder_pass.applies, encoder_pass.run)
    source_keys_values.register(encoder_pass.can_pack_keys_values, encoder_pass.packed_keys_values)
    source_keys_values.register(needs_no_gradient, contiguous_keys_values)
    extend_caches.register(slots.applies, slots.extend)
    write_slots.register(needs_no_gradient, write_in_place)
    next_token_log_probs.register(is_inference, packed_log_probs)
    best_next_tokens.register(is_inference, packed_best_tokens)


def contiguous_keys_values(stack: TransformerStack, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Compute keys and values in contiguous memory, because a decoder reads them at every step."""
    return tuple((k.contiguous(), v.contiguous()) for k, v in source_keys_values.definition(stack, x))


def needs_no_gradient(*_: object, **__: object) -> bool:
    return not torch.is_grad_enabled()


def write_in_place(buffer: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
    for part, new in enumerate((keys, values)):
        buffer[:, :, part, start : start + new.shape[2]] = new
    return buffer


def is_inference(output: FullSoftmax, *_: object, **__: object) -> bool:
    return not (torch.is_grad_enabled() or output.training)


def packed_log_probs(output: FullSoftmax, hidden: Tensor) -> Tensor:
    return packed_layer(output).log_softmax(hidden)


def packed_best_tokens(output: FullSoftmax, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return packed_layer(output).best_tokens(hidden, count)
