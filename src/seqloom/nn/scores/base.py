"""The base class of attention scores.

All are used in two moves: `prepare` does what depends on h alone, once for each source; `forward` scores any number of
states against its result, (B, …, T, H) against keys (B, S, …), and the keys are not copied for them.

`dot`, `scaled-dot` and `cosine` compare s with h number by number. Where their widths differ, h is projected to the
width of s first, h ← W_p h, and `notes` says so.

With coverage a score also sees how much attention each place has had so far, a_j = Σ α_j over all steps before: inside
the tanh of `additive`, v^T tanh(W [s; h_j] + w a_j); for the others a learned multiple is added, score + w · a_j.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn


class Score(nn.Module):
    """States `query` wide against vectors `memory` wide."""

    name: ClassVar[str]  # in recipes: model.attention.score
    compares: ClassVar[bool] = False  # s and h number by number, so that their widths must agree

    def __init__(self, query: int, memory: int, *, coverage: bool = False) -> None:
        super().__init__()
        self.query, self.memory = query, memory
        self.project = nn.Linear(memory, query, bias=False) if self.compares and query != memory else None
        self.covered = self.make_coverage() if coverage else None

    def make_coverage(self) -> nn.Parameter:
        """w, which begins at 0: a fresh model does not mind what it has looked at."""
        return nn.Parameter(torch.zeros(()))

    def notes(self) -> list[str]:
        """What this score does beyond its equation, in words for whoever trains it."""
        if self.project is None:
            return []
        return [
            f"the {self.name} score projects the {self.memory}-wide annotations to {self.query}, the decoder's width"
        ]

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Vectors (B, S, M) to the keys (B, S, …) that `forward` wants; mask (B, S) says which of them are real."""
        return memory if self.project is None else self.project(memory)

    def forward(self, query: Tensor, keys: Tensor, coverage: Tensor | None = None) -> Tensor:
        """States (B, …, T, H) and keys (B, S, …) to scores (B, …, T, S); coverage (B, …, T, S) if built for it."""
        if (coverage is None) != (self.covered is None):
            raise ValueError("coverage must be given to a score that was built with it, and to no other")
        flat = query.reshape(len(query), -1, query.shape[-1])  # (B, N, H), N all the states of one source
        seen = None if coverage is None else coverage.reshape(len(flat), flat.shape[1], -1)
        return self.scores(flat, keys, seen).reshape(*query.shape[:-1], keys.shape[1])

    def scores(self, query: Tensor, keys: Tensor, coverage: Tensor | None) -> Tensor:
        """(B, N, H) and (B, S, …) to (B, N, S)."""
        plain = self.compare(query, keys)
        return plain if coverage is None or self.covered is None else plain + self.covered * coverage

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        """The scores without coverage: states times keys as wide as they are, unless a score says otherwise."""
        return torch.bmm(query, keys.transpose(1, 2).to(query.dtype))

    def extra_repr(self) -> str:
        return f"{self.query}, {self.memory}"
