"""Token ids: the special tokens of models, and the most probable tokens of a step.

    [CLS]   where a whole text is summed up        [SEP]   after a text, before the next        [MASK]   hides a token

Special tokens are rows of the model's embedding after the V of its tokenizer. No text encodes to
them, and no model predicts them: it has V outputs. `seqloom.text.model_inputs` has the forms in which
texts stand between them.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

CLASSIFY_TEXT, SEPARATE_TEXT, MASK_TEXT = "[CLS]", "[SEP]", "[MASK]"
EXTRA = 3  # how many there are
BLOCK = 64  # tokens whose maximum is looked at first
MANY = 1 << 18  # log-probabilities from which that is faster


def best_tokens(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most probable tokens of each row (B, V): their log-probabilities and ids (B, count), by rising id.

    Of equally probable tokens those of lower id are taken. `topk` promises nothing about equals, so
    one more is asked for: if it equals the last of those wanted, equals were cut apart, and the
    rows are looked at again.
    """
    count = min(count, log_probs.shape[1])
    values, ids = _top(log_probs, min(count + 1, log_probs.shape[1]))
    least = values[:, count - 1 : count]
    cut = (values[:, count:] == least) & ~least.isneginf()  # which of the impossible ones does not matter
    if bool(cut.any()):
        values, ids = _top(_lowest_ids(log_probs, least, count), count)
    ids, order = ids[:, :count].sort(dim=1)
    return values.gather(1, order), ids


def rank_tokens(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same tokens, most probable first, and nothing is asked of the device: a stable sort leaves equals in the
    order of their ids. It is one of the `count` blocks of largest maximum alone, of which equals stand in order too."""
    rows, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    ids = torch.arange(vocabulary, device=log_probs.device).expand(rows, vocabulary)
    if blocks >= 4 * count:
        whole, rest = ids.split([blocks * BLOCK, vocabulary - blocks * BLOCK], dim=1)
        largest = log_probs[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).amax(2)  # (B, blocks)
        chosen = largest.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
        inside = chosen.unsqueeze(2) * BLOCK + whole[:, None, :BLOCK]  # (B, count, BLOCK)
        ids = torch.cat([inside.flatten(1), rest], dim=1)
    values, order = log_probs.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return values[:, :count], ids.gather(1, order[:, :count])


def _top(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`topk`, up to three times as fast on a CPU: the `count` largest lie in the `count` blocks of largest maximum."""
    rows, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    if log_probs.is_cuda or log_probs.numel() < MANY or blocks < 4 * count or not log_probs.is_contiguous():
        return log_probs.topk(count, dim=1)
    whole, rest = log_probs.split([blocks * BLOCK, vocabulary - blocks * BLOCK], dim=1)
    chosen = whole.unflatten(1, (blocks, BLOCK)).amax(2).topk(count, dim=1).indices  # (B, count)
    first = vocabulary * torch.arange(rows, device=chosen.device).unsqueeze(1) + chosen * BLOCK
    anywhere = log_probs.as_strided((rows * vocabulary - BLOCK + 1, BLOCK), (1, 1))  # a block from every place on
    kept = anywhere.index_select(0, first.flatten()).view(rows, -1)  # (B, count · BLOCK)
    values, places = torch.cat([kept, rest], dim=1).topk(count, dim=1)
    inside = chosen.gather(1, (places // BLOCK).clamp(max=count - 1)) * BLOCK + places % BLOCK
    return values, torch.where(places < kept.shape[1], inside, places + blocks * BLOCK - kept.shape[1])


def _lowest_ids(log_probs: Tensor, least: Tensor, count: int) -> Tensor:
    """The same rows, with only so many of those that equal `least` (B, 1) left possible that `count` are, by id."""
    above, equal = log_probs > least, log_probs == least
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
        """The rows that follow a tokenizer's `vocabulary` tokens."""
        return cls(vocabulary, vocabulary + 1, vocabulary + 2)

    @property
    def names(self) -> dict[int, str]:
        return {self.classify: CLASSIFY_TEXT, self.separate: SEPARATE_TEXT, self.mask: MASK_TEXT}
