"""The loss of an output layer over a large vocabulary, without ever holding all its logits.

    s = W h + b          loss = −Σ_v t_v log p(v),   p = softmax(s),   t = (1 − ε) · [v = y] + ε/V
                         ∂loss/∂s = p − t

A few positions at a time are carried all the way, from h to the gradients of h, W and b, while their logits are still
in the processor's cache. A batch of N positions has N·V logits, hundreds of megabytes, which would otherwise be written
to and read from memory many times over.
"""

from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 21
UNCOUNTED = -100  # a target that does not count, as in torch


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """The sum of the losses of hidden (N, H) with targets (N,), W (V, H) and b (V,): a scalar.

    Targets of −100 do not count. The gradients are made along with it: for training, where they are wanted. They have
    no gradients of their own. All is computed in the precision of what is given, which should be float32 at least.
    """
    counted = targets != UNCOUNTED
    if not counted.all():
        hidden, targets = hidden[counted], targets[counted]
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing)
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float
    ) -> Tensor:
        total = hidden.new_zeros(())
        to_hidden, to_weight, to_bias = (torch.zeros_like(part) for part in (hidden, weight, bias))
        rows = max(1, LOGITS_AT_ONCE // len(weight))
        for h, y, to_h in zip(*(part.split(rows) for part in (hidden, targets, to_hidden)), strict=True):
            gradient, loss = _gradient_and_loss(torch.addmm(bias, h, weight.t()), y.unsqueeze(1), label_smoothing)
            total += loss
            torch.mm(gradient, weight, out=to_h)
            to_weight.addmm_(gradient.t(), h)
            to_bias += gradient.sum(dim=0)
        ctx.save_for_backward(to_hidden, to_weight, to_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return *(outer * gradient for gradient in ctx.saved_tensors), None, None


def _gradient_and_loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """p − t (n, V) and the sum of the losses of logits (n, V) and targets (n, 1)."""
    log_p = logits.log_softmax(dim=1)
    loss = -(1 - label_smoothing) * log_p.gather(1, targets).sum()
    if label_smoothing:
        loss -= label_smoothing * log_p.mean(dim=1).sum()
    p = log_p.exp_()
    if label_smoothing:
        p -= label_smoothing / p.shape[1]
    return p.scatter_add_(1, targets, p.new_full(targets.shape, label_smoothing - 1)), loss


def disagreement(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Σ KL(p‖q) + KL(q‖p) over the targets (2·N,) that count; p is of the first N rows (2·N, V), q of the others."""
    p, q = log_probs.chunk(2)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(dim=-1)
    return apart.masked_fill(targets[: len(apart)] == UNCOUNTED, 0).sum()
