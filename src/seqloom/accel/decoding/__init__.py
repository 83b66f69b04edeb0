"""Faster implementations of decoding: packed weights, few passes through a Transformer, numba and Triton kernels."""

import torch
from torch import Tensor

from seqloom.accel.decoding import decoder_step, encoder_pass, slots
from seqloom.accel.decoding.packed import packed_once
from seqloom.nn.cache import extend_caches, write_slots
from seqloom.nn.softmax import FullSoftmax, best_next_tokens, next_token_log_probs
from seqloom.nn.transformer import TransformerStack, run_blocks, source_keys_values


def install() -> None:
    run_blocks.register(decoder_step.applies, decoder_step.run)
    run_blocks.register(encoder_pass.applies, encoder_pass.run)
    source_keys_values.register(encoder_pass.keys_values_apply, encoder_pass.keys_values)
    source_keys_values.register(needs_no_gradient, contiguous_keys_values)
    extend_caches.register(slots.applies, slots.extend)
    write_slots.register(needs_no_gradient, write_in_place)
    next_token_log_probs.register(predicts, predict_next)
    best_next_tokens.register(predicts, predict_best)


def contiguous_keys_values(stack: TransformerStack, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Keys and values in contiguous memory: a decoder comes back to them at every step."""
    return tuple((k.contiguous(), v.contiguous()) for k, v in source_keys_values.definition(stack, x))


def needs_no_gradient(*_: object, **__: object) -> bool:
    return not torch.is_grad_enabled()


def write_in_place(buffer: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
    for part, new in enumerate((keys, values)):
        buffer[:, :, part, start : start + new.shape[2]] = new
    return buffer


def predicts(output: FullSoftmax, *_: object, **__: object) -> bool:
    return not (torch.is_grad_enabled() or output.training)


def predict_next(output: FullSoftmax, hidden: Tensor) -> Tensor:
    return packed_once(output).log_softmax(hidden)


def predict_best(output: FullSoftmax, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return packed_once(output).best(hidden, count)
