"""The loss of an output layer over a large vocabulary, without ever holding all its logits.

    s = W h + b          loss = −Σ_v t_v log p(v),   p = softmax(s),   t = (1 − ε) · [v = y] + ε/V
                         ∂loss/∂s = p − t

A few positions at a time are carried all the way, from h to the gradients of h, W and b, while their logits are still
in the processor's cache. A batch of N positions has N·V logits, hundreds of megabytes, which would otherwise be written
to and read from memory many times over. On a GPU, which has no use for small pieces, logits are made at once up to half
a gigabyte of them, and in pieces of that size beyond.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.fusing import fusible
from seqloom.nn.masks import zero_padding
from seqloom.nn.once import only_once

LOGITS_AT_ONCE = 1 << 21
FEWEST_ROWS = 64  # of a piece: with fewer, W itself is read too often
GPU_LOGITS_AT_ONCE = 1 << 27
UNCOUNTED = -100  # a target that does not count, as in torch


def precise(logits: Tensor) -> Tensor:
    """At least float32: a softmax over a vocabulary loses too much in half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def rows_at_once(vocabulary: int, device: torch.device) -> int:
    """How many positions have their logits made together."""
    if device.type != "cpu":
        return max(FEWEST_ROWS, GPU_LOGITS_AT_ONCE // vocabulary)
    return max(FEWEST_ROWS, LOGITS_AT_ONCE // vocabulary)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """The sum of the losses of hidden (N, H) with targets (N,), W (V, H) and b (V,): a scalar, float32 at least.

    Targets of −100 do not count. Gradients are made along with it, where they are wanted at all; they have no gradients
    of their own. On a GPU nothing is waited for.
    """
    counted = targets != UNCOUNTED
    if hidden.device.type != "cpu":  # to leave positions out would be to wait
        hidden = zero_padding(hidden, counted)
    elif not counted.all():
        hidden, targets = hidden[counted], targets[counted]
    rows = rows_at_once(len(weight), hidden.device)
    if hidden.device.type != "cpu" and len(hidden) <= rows:
        return _losses(hidden, weight, bias, targets, label_smoothing)
    half = weight.dtype not in (torch.float32, torch.float64)  # its gradient is no place to add up the pieces
    if half or not torch.is_grad_enabled():
        rows = len(hidden) if half and torch.is_grad_enabled() else rows
        return _sum(_losses(piece, weight, bias, own, label_smoothing) for piece, own in _pieces(hidden, targets, rows))
    gaps = hidden.device.type != "cpu"  # perhaps: to look would be to wait
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing, rows, gaps)
    return total


def target_log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """log p (N,) of the targets (N,)."""
    pieces = _pieces(hidden, targets, rows_at_once(len(weight), hidden.device))
    found = [-F.cross_entropy(precise(F.linear(h, weight, bias)), y, reduction="none") for h, y in pieces]
    return torch.cat(found) if found else precise(hidden.new_zeros(0))


def _pieces(hidden: Tensor, targets: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(hidden.split(rows), targets.split(rows), strict=True)


def _losses(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float) -> Tensor:
    return summed_cross_entropy(F.linear(hidden, weight, bias), targets, label_smoothing)


@fusible
def summed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """torch's, summed, of logits (N, V) in any precision and targets (N,).

        loss = log Σ_u exp(s_u) − (1 − ε) · s_y − ε · mean of s

    Written so, a compiler reads the logits once for all three, and once more for their gradient.
    """
    s = precise(logits)
    if not torch.compiler.is_compiling():
        return F.cross_entropy(s, targets, reduction="sum", label_smoothing=label_smoothing)
    chosen = torch.arange(s.shape[1], device=s.device) == targets.unsqueeze(1)
    losses = s.logsumexp(dim=1) - (1 - label_smoothing) * s.where(chosen, 0).sum(dim=1)
    if label_smoothing:
        losses = losses - label_smoothing * s.mean(dim=1)
    return losses.where(targets != UNCOUNTED, 0).sum()


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
            total = precise(hidden.new_zeros(()))
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
        only_once()
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
    counted, targets = (targets != UNCOUNTED).unsqueeze(1), targets.unsqueeze(1)
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


@fusible
def consistent_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, consistency: float = 0.0
) -> Tensor:
    """Of logits (2·N, V), those of N positions twice over: the sum of the losses, and α/2 of their disagreement.

    loss = −(1 − ε) · log p(y) − ε · mean of log p          + α/2 · (KL(p‖q) + KL(q‖p)) of each pair
    """
    log_probs = precise(logits).log_softmax(dim=-1)  # the costliest there is: once for both
    found = (1 - label_smoothing) * F.nll_loss(log_probs, targets, reduction="sum", ignore_index=UNCOUNTED)
    if label_smoothing:
        found = found - label_smoothing * log_probs.mean(dim=1).masked_fill(targets == UNCOUNTED, 0).sum()
    return found + consistency / 2 * disagreement(log_probs, targets)


def disagreement(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Σ KL(p‖q) + KL(q‖p) over the targets (2·N,) that count; p is of the first N rows (2·N, V), q of the others."""
    p, q = log_probs.chunk(2)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(dim=-1)
    return apart.masked_fill(targets[: len(apart)] == UNCOUNTED, 0).sum()
