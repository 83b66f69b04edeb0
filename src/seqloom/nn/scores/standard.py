"""The base class of attention scores and those of the literature: dot, scaled dot, cosine, general, additive, location.

`prepare` computes what depends on h alone, once for each source; `forward` scores any number of
states against its result, (B, …, T, H) against keys (B, S, …), and the keys are not copied for
them.

`dot`, `scaled-dot` and `cosine` compare s with h number by number. Where their widths differ, h is
projected to the width of s first, h ← W_p h, and `notes` says so.

With coverage a score also depends on how much attention each position has had so far, a_j = Σ α_j
over all steps before: inside the tanh of `additive`, v^T tanh(W [s; h_j] + w a_j); for the others a
learned multiple is added, score + w · a_j.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import DataError

LOCATIONS = 100  # how many places the location score knows unless told
AT_ONCE = 1 << 26  # numbers within the tanh of the additive score: where there are more, states are taken in turn


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
        """Notes for the user on what this score does beyond its equation."""
        if self.project is None:
            return []
        return [
            f"the {self.name} score projects the {self.memory}-wide encoder states to {self.query}, the decoder's width"
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


class DotProduct(Score):
    """s^T h_j"""

    name = "dot"
    compares = True


class ScaledDotProduct(DotProduct):
    """s^T h_j / √n, n the width of s

    The sum of n products of independent numbers of variance 1 has variance n; so scaled it has
    variance 1.
    """

    name = "scaled-dot"

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().compare(query / math.sqrt(self.query), keys)


class Cosine(DotProduct):
    """β · cos(s, h_j), β learned

    Cosines lie between -1 and 1: of 20 places the best could be told from the others by a factor of
    e² at most. β begins at 10.
    """

    name = "cosine"

    def __init__(self, query: int, memory: int, *, coverage: bool = False) -> None:
        super().__init__(query, memory, coverage=coverage)
        self.strength = nn.Parameter(torch.tensor(10.0))

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.normalize(super().prepare(memory), dim=-1)

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.strength * super().compare(F.normalize(query, dim=-1), keys)


class General(Score):
    """s^T W h_j

    W h_j is computed once for each source.
    """

    name = "general"

    def __init__(self, query: int, memory: int, *, coverage: bool = False) -> None:
        super().__init__(query, memory, coverage=coverage)
        self.weight = nn.Linear(memory, query, bias=False)

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        keys: Tensor = self.weight(memory)
        return keys


class Additive(Score):
    """v^T tanh(W [s; h_j])

    Computed as v^T tanh(W_s s + W_h h_j), W_h h_j once for each source. The tanh is as wide as s; w
    of the coverage is a vector.
    """

    name = "additive"

    def __init__(self, query: int, memory: int, *, coverage: bool = False) -> None:
        super().__init__(query, memory, coverage=coverage)
        self.weight_s = nn.Linear(query, query, bias=False)
        self.weight_h = nn.Linear(memory, query, bias=False)
        self.v = nn.Linear(query, 1, bias=False)

    def make_coverage(self) -> nn.Parameter:
        """w (H,), which begins at 0."""
        return nn.Parameter(torch.zeros(self.query))

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        keys: Tensor = self.weight_h(memory)
        return keys

    def scores(self, query: Tensor, keys: Tensor, coverage: Tensor | None) -> Tensor:
        some = max(1, AT_ONCE // max(1, keys.numel()))
        if query.shape[1] <= some:
            return self._together(query, keys, coverage)
        states = query.split(some, dim=1)
        seen = [None] * len(states) if coverage is None else coverage.split(some, dim=1)
        return torch.cat([self._together(s, keys, a) for s, a in zip(states, seen, strict=True)], dim=1)

    def _together(self, query: Tensor, keys: Tensor, coverage: Tensor | None) -> Tensor:
        inner = self.weight_s(query).unsqueeze(2) + keys.unsqueeze(1)  # (B, N, S, H)
        if coverage is not None and self.covered is not None:
            inner = inner + coverage.unsqueeze(-1) * self.covered
        found: Tensor = self.v(torch.tanh(inner)).squeeze(-1)
        return found


class LocationScore(Score):
    """(W_a s)_j, for j up to a stated length

    Where to look depends on the state alone, not on what stands there. W_a has one row for each
    place, `max_length` of them. A longer source is refused; whatever is beyond is padding.
    """

    name = "location"

    def __init__(self, query: int, memory: int, *, coverage: bool = False, max_length: int = LOCATIONS) -> None:
        super().__init__(query, memory, coverage=coverage)
        self.max_length = max_length
        self.weight = nn.Linear(query, max_length, bias=False)

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Nothing but how many places there are: keys (B, S, 0)."""
        beyond = memory.shape[1] - self.max_length
        if beyond > 0 and (mask is None or bool(mask[:, self.max_length :].any())):
            longest = memory.shape[1] if mask is None else int(mask.sum(dim=1).max())
            raise DataError(
                f"The location score knows {self.max_length} places and a source has {longest} tokens. Shorten it, "
                "or train with a larger model.attention.max_length."
            )
        return memory[..., :0]

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        places = keys.shape[1]
        scores = self.weight(query)[..., :places]
        return F.pad(scores, (0, places - scores.shape[-1]))
