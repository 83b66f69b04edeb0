"""Token ids: the special tokens of models, and the most probable tokens of a step.

    [CLS]   represents a whole text        [SEP]   separates texts        [MASK]   hides a token

Special tokens are rows of the model's embedding after the V tokens of its tokenizer. Text is never encoded as special
tokens. Models never predict special tokens, because a model has V outputs. `seqloom.text.model_inputs` defines the
input formats with special tokens.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

CLASSIFY_TEXT, SEPARATE_TEXT, MASK_TEXT = "[CLS]", "[SEP]", "[MASK]"
EXTRA = 3  # number of special tokens
BLOCK = 64  # number of tokens of a block; the maximum of each block is computed first
MIN_BLOCKED_SIZE = 1 << 18  # minimum number of log-probabilities for which blocks are faster


def best_tokens(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and ids (B, count) of the `count` most probable tokens of each row (B, V), sorted by id.

    Among tied tokens, lower ids are preferred. `topk` does not define the order of ties, so this function selects one
    more token. If this token ties with the last of the `count` tokens, the selection is repeated with the tie resolved.
    """
    count = min(count, log_probs.shape[1])
    values, ids = _top(log_probs, min(count + 1, log_probs.shape[1]))
    lowest = values[:, count - 1 : count]
    has_ties = (values[:, count:] == lowest) & ~lowest.isneginf()  # ties of impossible tokens do not matter
    if bool(has_ties.any()):
        values, ids = _top(_lowest_ids(log_probs, lowest, count), count)
    ids, order = ids[:, :count].sort(dim=1)
    return values.gather(1, order), ids


def rank_tokens(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the result of `best_tokens` with the most probable token first, without device synchronization.

    A stable sort breaks ties by id. Only the `count` blocks with the largest maxima are sorted.
    """
    rows, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    ids = torch.arange(vocabulary, device=log_probs.device).expand(rows, vocabulary)
    if blocks >= 4 * count:
        blocked, rest = ids.split([blocks * BLOCK, vocabulary - blocks * BLOCK], dim=1)
        largest = log_probs[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).amax(2)  # (B, blocks)
        chosen = largest.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
        inside = chosen.unsqueeze(2) * BLOCK + blocked[:, None, :BLOCK]  # (B, count, BLOCK)
        ids = torch.cat([inside.flatten(1), rest], dim=1)
    values, order = log_probs.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return values[:, :count], ids.gather(1, order[:, :count])


def _top(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute `log_probs.topk(count)`. On a CPU, this function is up to three times as fast as torch.

    The `count` largest values are in the `count` blocks with the largest maxima.
    """
    rows, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    if log_probs.is_cuda or log_probs.numel() < MIN_BLOCKED_SIZE or blocks < 4 * count or not log_probs.is_contiguous():
        return log_probs.topk(count, dim=1)
    blocked, rest = log_probs.split([blocks * BLOCK, vocabulary - blocks * BLOCK], dim=1)
    chosen = blocked.unflatten(1, (blocks, BLOCK)).amax(2).topk(count, dim=1).indices  # (B, count)
    first = vocabulary * torch.arange(rows, device=chosen.device).unsqueeze(1) + chosen * BLOCK
    anywhere = log_probs.as_strided((rows * vocabulary - BLOCK + 1, BLOCK), (1, 1))  # blocks from every offset
    selected = anywhere.index_select(0, first.flatten()).view(rows, -1)  # (B, count · BLOCK)
    values, indices = torch.cat([selected, rest], dim=1).topk(count, dim=1)
    inside = chosen.gather(1, (indices // BLOCK).clamp(max=count - 1)) * BLOCK + indices % BLOCK
    return values, torch.where(indices < selected.shape[1], inside, indices + blocks * BLOCK - selected.shape[1])


def _lowest_ids(log_probs: Tensor, lowest: Tensor, count: int) -> Tensor:
    """Mask the tokens tied with `lowest` (B, 1) that have the largest ids.

    The number of masked tokens is such that `count` tokens of each row remain.
    """
    above, equal = log_probs > lowest, log_probs == lowest
    room = count - above.sum(1, keepdim=True)
    return log_probs.masked_fill(equal & (equal.cumsum(1) > room), -torch.inf)


@dataclass(frozen=True)
class Specials:
    """The ids of the special tokens."""

    classify: int
    separate: int
    mask: int

    @classmethod
    def after(cls, vocabulary: int) -> Self:
        """Return the ids that follow the `vocabulary` tokens of a tokenizer."""
        return cls(vocabulary, vocabulary + 1, vocabulary + 2)

    @property
    def names(self) -> dict[int, str]:
        return {self.classify: CLASSIFY_TEXT, self.separate: SEPARATE_TEXT, self.mask: MASK_TEXT}
