"""Chunked cross-entropy of an output layer, which never stores the logits of all positions.

    ∂loss/∂s = p − t

A batch of N positions has N·V logits, which take hundreds of megabytes. The gradients of h, W and b are therefore
computed for one chunk of positions at a time, while the logits of the chunk are in the CPU cache. Small chunks bring no
benefit on a GPU, so a chunk on a GPU has half a gigabyte of logits.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.accel.double_backward import refuse_double_backward
from seqloom.core.operations import always
from seqloom.nn import softmax
from seqloom.nn.masks import zero_padding
from seqloom.nn.softmax import IGNORE_INDEX, at_least_float32, summed_cross_entropy

CPU_CHUNK_LOGITS = 1 << 21
MIN_CHUNK_ROWS = 64  # smaller chunks would read W too often
GPU_CHUNK_LOGITS = 1 << 27


def install() -> None:
    """Register the chunked losses and log-probabilities."""
    softmax.linear_cross_entropy.register(should_chunk, linear_cross_entropy)
    softmax.target_log_probs.register(always, target_log_probs)
    softmax.linear_log_softmax.register(is_cpu_inference, linear_log_softmax)


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Return the number of positions in a chunk."""
    if device.type != "cpu":
        return max(MIN_CHUNK_ROWS, GPU_CHUNK_LOGITS // vocabulary)
    return max(MIN_CHUNK_ROWS, CPU_CHUNK_LOGITS // vocabulary)


def should_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> bool:
    return hidden.device.type == "cpu" or len(hidden) > chunk_rows(len(weight), hidden.device)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Return the sum of the losses, computed chunk by chunk without device synchronization.

    The forward pass also computes the gradients, which cannot be differentiated again.
    """
    counted = targets != IGNORE_INDEX
    if hidden.device.type != "cpu":  # selecting positions would synchronize the device
        hidden = zero_padding(hidden, counted)
    elif not counted.all():
        hidden, targets = hidden[counted], targets[counted]
    rows = chunk_rows(len(weight), hidden.device)
    is_half = weight.dtype not in (torch.float32, torch.float64)  # half precision is too coarse to accumulate gradients
    if is_half or not torch.is_grad_enabled():
        rows = len(hidden) if is_half and torch.is_grad_enabled() else rows
        chunks = _split_chunks(hidden, targets, rows)
        losses = (summed_cross_entropy(F.linear(h, weight, bias), y, label_smoothing) for h, y in chunks)
        return functools.reduce(torch.add, losses)
    may_ignore = hidden.device.type != "cpu"  # checking the targets would synchronize the device
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing, rows, may_ignore)
    return total


def target_log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return log p (N,) of the targets (N,), computed chunk by chunk."""
    chunks = _split_chunks(hidden, targets, chunk_rows(len(weight), hidden.device))
    scores = [-F.cross_entropy(at_least_float32(F.linear(h, weight, bias)), y, reduction="none") for h, y in chunks]
    return torch.cat(scores) if scores else at_least_float32(hidden.new_zeros(0))


def is_cpu_inference(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return hidden.device.type == "cpu" and not torch.is_grad_enabled()


def linear_log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the log softmax chunk by chunk, because large buffers would be allocated again in every call."""
    rows, size = hidden.reshape(-1, hidden.shape[-1]), chunk_rows(len(weight), hidden.device)
    log_probs = at_least_float32(rows[:0]).new_empty(len(rows), len(weight))
    for chunk, out in zip(rows.split(size), log_probs.split(size), strict=True):
        torch.log_softmax(at_least_float32(F.linear(chunk, weight, bias)), dim=-1, out=out)
    return log_probs.view(*hidden.shape[:-1], len(weight))


def _split_chunks(hidden: Tensor, targets: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(hidden.split(rows), targets.split(rows), strict=True)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        rows: int,
        may_ignore: bool,
    ) -> Tensor:
        """Compute the loss and the gradients; with `may_ignore`, targets may be `IGNORE_INDEX`.

        Matrix products use the autocast dtype, if enabled; everything else is at least float32.
        """
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        gradients = [
            torch.zeros_like(chunk) if chunk is not None and needed else None
            for chunk, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        with torch.autocast(device, enabled=False):
            weight_cast, bias_cast = weight.to(dtype), None if bias is None else bias.to(dtype)
            total = at_least_float32(hidden.new_zeros(()))
            workspace = total.new_empty(2, min(rows, len(hidden)), len(weight))  # reused by all chunks
            for first in range(0, len(hidden), rows):
                chunk = slice(first, first + rows)
                h, y = hidden[chunk].to(dtype), targets[chunk]
                logits, log_p = workspace[:, : len(h)]
                _linear_into(h, weight_cast, bias_cast, logits)
                gradient, loss = _gradient_and_loss(logits, log_p, y, label_smoothing, may_ignore)
                total += loss
                _add_gradients(gradients, chunk, gradient, h, weight_cast)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        gradients = (
            None if gradient is None else gradient * grad_output.to(gradient.dtype) for gradient in ctx.saved_tensors
        )
        return *gradients, None, None, None, None


def _linear_into(h: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor) -> None:
    """Write W h + b for h (n, H) to `logits` (n, V)."""
    if h.dtype != logits.dtype:
        logits.copy_(F.linear(h, weight, bias))
    elif bias is None:
        torch.mm(h, weight.t(), out=logits)
    else:
        torch.addmm(bias, h, weight.t(), out=logits)


def _add_gradients(gradients: list[Tensor | None], chunk: slice, d_logits: Tensor, h: Tensor, weight: Tensor) -> None:
    """Add the contribution of a chunk of h (n, H) to the required gradients of h, W and b."""
    d_hidden, d_weight, d_bias = gradients
    if d_bias is not None:
        d_bias += d_logits.sum(dim=0)
    d_logits = d_logits.to(h.dtype)
    if d_hidden is not None:
        d_hidden[chunk] = d_logits @ weight
    if d_weight is not None and d_weight.dtype == h.dtype:
        d_weight.addmm_(d_logits.t(), h)
    elif d_weight is not None:
        d_weight += d_logits.t() @ h


def _gradient_and_loss(
    logits: Tensor, log_p: Tensor, targets: Tensor, label_smoothing: float, may_ignore: bool
) -> tuple[Tensor, Tensor]:
    """Return p − t (n, V), zero for ignored targets, and the summed loss of logits (n, V) and targets (n,).

    `log_p` (n, V) is a workspace.
    """
    torch.log_softmax(logits, dim=1, out=log_p)
    counted, targets = (targets != IGNORE_INDEX).unsqueeze(1), targets.unsqueeze(1)
    targets = targets.masked_fill(~counted, 0) if may_ignore else targets
    losses = -(1 - label_smoothing) * log_p.gather(1, targets)
    if label_smoothing:
        losses -= label_smoothing * log_p.mean(dim=1, keepdim=True)
    p = log_p.exp_()
    if label_smoothing:
        p -= label_smoothing / p.shape[1]
    p.scatter_add_(1, targets, p.new_full(targets.shape, label_smoothing - 1))
    if may_ignore:
        p, losses = p.mul_(counted), losses * counted
    return p, losses.sum()
