"""Attention: one vector made of many, by how well each fits.

    e_j = score(s, h_j)          α = softmax(e)          c = Σ_j α_j h_j

The memory h_1 … h_S is a set to it: but for the location score, nothing here knows in which order the vectors stand.
"""

import torch
from torch import Tensor, nn

from seqloom.nn.masks import zero_padding
from seqloom.nn.scores import Score

Memory = dict[str, Tensor]  # of each source: annotations (B, S, M), keys (B, S, …), mask (B, S)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """softmax over the last dimension of those places that may be used; a row without any gives zeros.

    In float32 at least. The fill is finite, so that a row without any place has a gradient too: zero.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~mask, 0)


class Attention(nn.Module):
    """States against the annotations of their sources; see `seqloom.nn.scores` for the scores."""

    recomputable = True  # see `seqloom.train.state.checkpoint_layers`

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def prepare(self, annotations: Tensor, mask: Tensor) -> Memory:
        """Once for each source: annotations (B, S, M) and a mask (B, S) that is True at the real ones."""
        annotations = zero_padding(annotations, mask)
        return {"annotations": annotations, "keys": self.score.prepare(annotations, mask), "mask": mask}

    def forward(self, query: Tensor, memory: Memory, coverage: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States (B, …, T, H) to contexts (B, …, T, M) and weights (B, …, T, S).

        All states of a source share its one row of the memory. `coverage` (B, …, T, S) is the sum of past weights.
        """
        annotations, mask = memory["annotations"], memory["mask"]
        scores = self.score(query, memory["keys"], coverage)
        mask = mask.reshape(len(mask), *(1,) * (scores.dim() - 2), -1)  # (B, 1 …, S)
        weights = masked_softmax(scores, mask)
        flat = weights.reshape(len(weights), -1, weights.shape[-1]).to(annotations.dtype)  # (B, N, S)
        context = torch.bmm(flat, annotations).reshape(*query.shape[:-1], annotations.shape[-1])
        return context, weights
