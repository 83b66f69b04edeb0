"""The loss of an output layer over a vocabulary, and the probabilities it gives.

s = W h + b          loss = −Σ_v t_v log p(v),   p = softmax(s),   t = (1 − ε) · [v = y] + ε/V
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.operations import compiled_region, operation
from seqloom.nn.masks import zero_padding

IGNORE_INDEX = -100  # a target that does not count, as in torch


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert to float32 or better: a softmax over a vocabulary loses too much in half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@operation
def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Sum the losses of hidden (N, H) with targets (N,), W (V, H) and b (V,): a scalar, float32 at least.

    Targets of −100 do not count.
    """
    hidden = zero_padding(hidden, targets != IGNORE_INDEX)
    return summed_cross_entropy(F.linear(hidden, weight, bias), targets, label_smoothing)


@operation
def target_log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return log p (N,) of the targets (N,) given hidden (N, H)."""
    return -F.cross_entropy(at_least_float32(F.linear(hidden, weight, bias)), targets, reduction="none")


@operation
def linear_log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return log softmax(W h + b) (…, V) of hidden (…, H)."""
    return at_least_float32(F.linear(hidden, weight, bias)).log_softmax(dim=-1)


@compiled_region
def summed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """torch's, summed, of logits (N, V) in any precision and targets (N,).

        loss = log Σ_u exp(s_u) − (1 − ε) · s_y − ε · mean of s

    Written so, a compiler reads the logits once for all three, and once more for their gradient.
    """
    s = at_least_float32(logits)
    if not torch.compiler.is_compiling():
        return F.cross_entropy(s, targets, reduction="sum", label_smoothing=label_smoothing)
    chosen = torch.arange(s.shape[1], device=s.device) == targets.unsqueeze(1)
    losses = s.logsumexp(dim=1) - (1 - label_smoothing) * s.where(chosen, 0).sum(dim=1)
    if label_smoothing:
        losses = losses - label_smoothing * s.mean(dim=1)
    return losses.where(targets != IGNORE_INDEX, 0).sum()


@compiled_region
def consistent_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, consistency: float = 0.0
) -> Tensor:
    """Of logits (2·N, V), those of N positions twice over: the sum of the losses, and α/2 of their disagreement.

    loss = −(1 − ε) · log p(y) − ε · mean of log p          + α/2 · (KL(p‖q) + KL(q‖p)) of each pair
    """
    log_probs = at_least_float32(logits).log_softmax(dim=-1)  # the costliest there is: once for both
    found = (1 - label_smoothing) * F.nll_loss(log_probs, targets, reduction="sum", ignore_index=IGNORE_INDEX)
    if label_smoothing:
        found = found - label_smoothing * log_probs.mean(dim=1).masked_fill(targets == IGNORE_INDEX, 0).sum()
    return found + consistency / 2 * disagreement(log_probs, targets)


def disagreement(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Σ KL(p‖q) + KL(q‖p) over the targets (2·N,) that count; p is of the first N rows (2·N, V), q of the others."""
    p, q = log_probs.chunk(2)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(dim=-1)
    return apart.masked_fill(targets[: len(apart)] == IGNORE_INDEX, 0).sum()
