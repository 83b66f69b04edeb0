"""The log-likelihood of CTC by `torch.nn.functional.ctc_loss`, which computes its gradient without autograd."""

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.nn.ctc import BLANK, count_tokens, ctc_log_likelihood


def is_on_cpu(log_probs: Tensor, mask: Tensor, targets: Tensor, target_mask: Tensor) -> bool:
    """Return whether the lengths can be read without device synchronization."""
    return log_probs.device.type == "cpu" and log_probs.shape[1] > 0


def run(log_probs: Tensor, mask: Tensor, targets: Tensor, target_mask: Tensor) -> Tensor:
    """Compute `ctc_log_likelihood`. Texts without an alignment are replaced by empty texts, whose loss is discarded."""
    tokens, frames = count_tokens(targets, target_mask), mask.sum(dim=1)
    is_repeat = (targets[:, 1:] == targets[:, :-1]) & (torch.arange(1, targets.shape[1]) < tokens.unsqueeze(1))
    is_possible = tokens + is_repeat.sum(dim=1) <= frames
    precise = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32)).transpose(0, 1)
    lengths = tokens.masked_fill(~is_possible, 0)
    losses = F.ctc_loss(precise, targets, frames, lengths, blank=BLANK, reduction="none")
    return -losses.masked_fill(~is_possible, torch.inf)


def install() -> None:
    """Register the implementation."""
    ctc_log_likelihood.register(applies=is_on_cpu, run=run)
