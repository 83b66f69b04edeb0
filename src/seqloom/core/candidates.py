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
    count = min(count, log_probs.shape[1])
    values, ids, cut = top_tokens(log_probs, count)
    if cut is not None and bool(cut.any()):
        values, ids = _top(_lowest_ids(log_probs, values.amin(1, keepdim=True), count), count)
        ids, order = ids.sort(dim=1)
        values = values.gather(1, order)
    return values, ids


def top_tokens(log_probs: Tensor, count: int, spare: int = 0) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same without a look at the device; and in which rows (B, 1) equals were cut apart, None if in none.

    `spare` more are fetched, among which equals are still told apart by their ids: only more of them than that are cut.
    """
    vocabulary = log_probs.shape[1]
    values, ids = _top(log_probs, min(count + 1 + spare, vocabulary))
    if spare:
        ids, order = ids.sort(dim=1)
        values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, order)
    cut = None
    if count < vocabulary and not (spare and values.shape[1] == vocabulary):
        least = values[:, count - 1 : count]
        cut = (values[:, -1:] == least) & ~least.isneginf()  # which of the impossible ones does not matter
    ids, order = ids[:, :count].sort(dim=1)
    return values[:, :count].gather(1, order), ids, cut


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
