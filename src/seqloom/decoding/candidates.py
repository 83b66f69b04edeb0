"""The most probable tokens of each row, chosen the same way on every device and beside any other rows."""

import torch
from torch import Tensor

BLOCK = 64  # tokens whose maximum is looked at first
MANY = 1 << 18  # log-probabilities from which that is faster


def best_tokens(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most probable tokens of each row (B, V): their log-probabilities and ids (B, count), by rising id.

    Of equally probable tokens those of lower id are taken. `topk` promises nothing about equals, so one more is asked
    for: if it equals the last of those wanted, equals were cut apart, and the rows are looked at again.
    """
    vocabulary = log_probs.shape[1]
    count = min(count, vocabulary)
    values, ids = _top(log_probs, min(count + 1, vocabulary))
    if count < vocabulary:
        least = values[:, count - 1 : count]
        cut = (values[:, count:] == least) & ~least.isneginf()  # (B, 1): which of the impossible ones does not matter
        if bool(cut.any()):
            values, ids = _top(_lowest_ids(log_probs, least, count), count)
        values, ids = values[:, :count], ids[:, :count]
    ids, order = ids.sort(dim=1)
    return values.gather(1, order), ids


def _top(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`topk`, up to three times as fast on a CPU: the `count` largest lie in the `count` blocks of largest maximum."""
    rows, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    if log_probs.is_cuda or log_probs.numel() < MANY or blocks < 4 * count:
        return log_probs.topk(count, dim=1)
    whole = log_probs[:, : blocks * BLOCK].reshape(rows * blocks, BLOCK)
    chosen = whole.amax(1).view(rows, blocks).topk(count, dim=1).indices  # (B, count)
    where = chosen + blocks * torch.arange(rows, device=chosen.device).unsqueeze(1)
    kept = whole.index_select(0, where.flatten()).view(rows, -1)  # (B, count · BLOCK)
    values, places = torch.cat([kept, log_probs[:, blocks * BLOCK :]], dim=1).topk(count, dim=1)
    inside = chosen.gather(1, (places // BLOCK).clamp(max=count - 1)) * BLOCK + places % BLOCK
    return values, torch.where(places < kept.shape[1], inside, places + blocks * BLOCK - kept.shape[1])


def _lowest_ids(log_probs: Tensor, least: Tensor, count: int) -> Tensor:
    """The same rows, with only so many of those that equal `least` (B, 1) left possible that `count` are, by id."""
    above, equal = log_probs > least, log_probs == least
    room = count - above.sum(1, keepdim=True)
    return log_probs.masked_fill(equal & (equal.cumsum(1) > room), -torch.inf)
