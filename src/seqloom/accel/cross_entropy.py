"""The loss of an output layer over a large vocabulary without ever holding all its logits.

    ∂loss/∂s = p − t

A few positions at a time are carried all the way, from h to the gradients of h, W and b, while
their logits are still in the processor's cache. A batch of N positions has N·V logits, hundreds of
megabytes, which would otherwise be written to and read from memory many times over. A GPU has no
use for small pieces: it computes up to half a gigabyte of logits at once, and pieces of that size
beyond.
"""

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

LOGITS_AT_ONCE = 1 << 21
MIN_ROWS = 64  # of a piece: with fewer, W itself is read too often
GPU_LOGITS_AT_ONCE = 1 << 27


def install() -> None:
    """Compute losses and probabilities over a vocabulary in pieces, where that pays."""
    softmax.linear_cross_entropy.register(pays_in_pieces, linear_cross_entropy)
    softmax.target_log_probs.register(always, target_log_probs)
    softmax.linear_log_softmax.register(decodes_on_cpu, linear_log_softmax)


def rows_at_once(vocabulary: int, device: torch.device) -> int:
    """How many positions have their logits computed together."""
    if device.type != "cpu":
        return max(MIN_ROWS, GPU_LOGITS_AT_ONCE // vocabulary)
    return max(MIN_ROWS, LOGITS_AT_ONCE // vocabulary)


def pays_in_pieces(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> bool:
    return hidden.device.type == "cpu" or len(hidden) > rows_at_once(len(weight), hidden.device)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Sum the losses piece by piece. Gradients are computed along with it, where they are wanted at all; they cannot be
    differentiated again. On a GPU nothing waits for the device."""
    counted = targets != IGNORE_INDEX
    if hidden.device.type != "cpu":  # to leave positions out would be to wait
        hidden = zero_padding(hidden, counted)
    elif not counted.all():
        hidden, targets = hidden[counted], targets[counted]
    rows = rows_at_once(len(weight), hidden.device)
    half = weight.dtype not in (torch.float32, torch.float64)  # its gradient is too coarse to add up pieces in
    if half or not torch.is_grad_enabled():
        rows = len(hidden) if half and torch.is_grad_enabled() else rows
        pieces = _pieces(hidden, targets, rows)
        return _sum(summed_cross_entropy(F.linear(h, weight, bias), y, label_smoothing) for h, y in pieces)
    ignores = hidden.device.type != "cpu"  # perhaps: to look would be to wait
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing, rows, ignores)
    return total


def target_log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return log p (N,) of the targets (N,), computed piece by piece."""
    pieces = _pieces(hidden, targets, rows_at_once(len(weight), hidden.device))
    scores = [-F.cross_entropy(at_least_float32(F.linear(h, weight, bias)), y, reduction="none") for h, y in pieces]
    return torch.cat(scores) if scores else at_least_float32(hidden.new_zeros(0))


def decodes_on_cpu(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return hidden.device.type == "cpu" and not torch.is_grad_enabled()


def linear_log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the logits of a few rows at a time: large memory would be allocated anew every time."""
    rows, at_once = hidden.reshape(-1, hidden.shape[-1]), rows_at_once(len(weight), hidden.device)
    log_probs = at_least_float32(rows[:0]).new_empty(len(rows), len(weight))
    for some, out in zip(rows.split(at_once), log_probs.split(at_once), strict=True):
        torch.log_softmax(at_least_float32(F.linear(some, weight, bias)), dim=-1, out=out)
    return log_probs.view(*hidden.shape[:-1], len(weight))


def _pieces(hidden: Tensor, targets: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(hidden.split(rows), targets.split(rows), strict=True)


def _sum(losses: Iterator[Tensor]) -> Tensor:
    total = next(losses)
    for loss in losses:
        total = total + loss
    return total


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
        gaps: bool,
    ) -> Tensor:
        """With `gaps`, some of the targets may not count. Products are made in the precision of autocast, where there
        is one, and all else in float32 at least."""
        device = hidden.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        into = [
            torch.zeros_like(part) if part is not None and want else None
            for part, want in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        with torch.autocast(device, enabled=False):
            matrix, offset = weight.to(kind), None if bias is None else bias.to(kind)
            total = at_least_float32(hidden.new_zeros(()))
            space = total.new_empty(2, min(rows, len(hidden)), len(weight))  # what is large is had but once
            for first in range(0, len(hidden), rows):
                part = slice(first, first + rows)
                h, y = hidden[part].to(kind), targets[part]
                logits, log_p = space[:, : len(h)]
                _products(h, matrix, offset, logits)
                gradient, loss = _gradient_and_loss(logits, log_p, y, label_smoothing, gaps)
                total += loss
                _add_gradients(into, part, gradient, h, matrix)
        ctx.save_for_backward(*into)
        return total

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        found = (None if made is None else made * outer.to(made.dtype) for made in ctx.saved_tensors)
        return *found, None, None, None, None


def _products(h: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor) -> None:
    """W h + b of h (n, H), written to `logits` (n, V)."""
    if h.dtype != logits.dtype:
        logits.copy_(F.linear(h, weight, bias))
    elif bias is None:
        torch.mm(h, weight.t(), out=logits)
    else:
        torch.addmm(bias, h, weight.t(), out=logits)


def _add_gradients(into: list[Tensor | None], part: slice, gradient: Tensor, h: Tensor, weight: Tensor) -> None:
    """What these rows of h (n, H) add to the gradients of h, W and b, where they are wanted."""
    to_hidden, to_weight, to_bias = into
    if to_bias is not None:
        to_bias += gradient.sum(dim=0)
    gradient = gradient.to(h.dtype)
    if to_hidden is not None:
        to_hidden[part] = gradient @ weight
    if to_weight is not None and to_weight.dtype == h.dtype:
        to_weight.addmm_(gradient.t(), h)
    elif to_weight is not None:
        to_weight += gradient.t() @ h


def _gradient_and_loss(
    logits: Tensor, log_p: Tensor, targets: Tensor, label_smoothing: float, gaps: bool
) -> tuple[Tensor, Tensor]:
    """p − t (n, V) and the sum of the losses of logits (n, V) and targets (n,); zeros for a target that does not
    count. `log_p` (n, V) is room for what is computed."""
    torch.log_softmax(logits, dim=1, out=log_p)
    counted, targets = (targets != IGNORE_INDEX).unsqueeze(1), targets.unsqueeze(1)
    targets = targets.masked_fill(~counted, 0) if gaps else targets
    losses = -(1 - label_smoothing) * log_p.gather(1, targets)
    if label_smoothing:
        losses -= label_smoothing * log_p.mean(dim=1, keepdim=True)
    p = log_p.exp_()
    if label_smoothing:
        p -= label_smoothing / p.shape[1]
    p.scatter_add_(1, targets, p.new_full(targets.shape, label_smoothing - 1))
    if gaps:
        p, losses = p.mul_(counted), losses * counted
    return p, losses.sum()
