"""The base class of attention scores, and dot, scaled dot, cosine, general, additive and location scores.

`prepare` computes keys (B, S, …) from h, once per source. `forward` compares any number of states (B, …, T, H) with the
keys without copying them.

`dot`, `scaled-dot` and `cosine` require s and h of equal size. If their sizes differ, h is projected to the size of s,
h ← W_p h, and `notes` reports this projection.

With coverage, a score also depends on the sum of past attention weights of each position, a_j = Σ α_j. `additive` adds
w a_j inside the tanh, v^T tanh(W [s; h_j] + w a_j). The other scores add a learned multiple, score + w · a_j.

A location-aware score (Chorowski et al. 2015) also depends on the attention weights of the previous step around each
position, f = F * α_{t-1}, where the convolution F has several filters. `additive` adds U f_j inside the tanh, and the
other scores add u^T f_j.
"""

import math
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import DataError

DEFAULT_MAX_LENGTH = 100  # default number of positions of the location score
DEFAULT_LOCATION_WIDTH = 15  # default kernel size of the convolution over the previous weights
MAX_ELEMENTS = 1 << 26  # maximum elements of the additive score's tanh in memory; larger inputs are divided


class LocationFilters(nn.Module):
    """U f with f = F * α_{t-1}: a convolution over the previous attention weights, then a linear map to `size` values.

    U is initially 0, so that a new model ignores the previous weights.
    """

    def __init__(self, filters: int, width: int, size: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, filters, width, padding=width // 2, bias=False)
        self.project = nn.Linear(filters, size, bias=False)
        nn.init.zeros_(self.project.weight)

    def forward(self, previous: Tensor) -> Tensor:
        """Map the previous weights (B, N, S) to (B, N, S, size)."""
        f = self.convolution(previous.to(self.project.weight.dtype).reshape(-1, 1, previous.shape[-1]))  # (B·N, F, S)
        located: Tensor = self.project(f.transpose(1, 2)).reshape(*previous.shape, -1)
        return located


class Score(nn.Module):
    """Scores of states of size `query` and vectors of size `memory`."""

    name: ClassVar[str]  # value of the recipe key model.attention.score
    compares: ClassVar[bool] = False  # whether s and h must have equal sizes

    def __init__(self, query: int, memory: int, *, coverage: bool = False) -> None:
        super().__init__()
        self.query, self.memory = query, memory
        self.located: LocationFilters | None = None
        self.project = nn.Linear(memory, query, bias=False) if self.compares and query != memory else None
        self.covered = self.make_coverage() if coverage else None

    def make_coverage(self) -> nn.Parameter:
        """Create the coverage weight w, which is initially 0, so that a new model ignores coverage."""
        return nn.Parameter(torch.zeros(()))

    def read_previous_weights(self, filters: int, width: int) -> Self:
        """Make the score location-aware. `width` is the kernel size of the convolution, which must be odd."""
        self.located = LocationFilters(filters, width, self.location_size)
        return self

    @property
    def location_size(self) -> int:
        """The size of U f: 1 if U f is added to the score."""
        return 1

    def notes(self) -> list[str]:
        """Return notes for the user on operations of this score that its equation omits."""
        if self.project is None:
            return []
        return [f"the {self.name} score projects the encoder states from {self.memory} to {self.query} dimensions"]

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the keys (B, S, …) of vectors (B, S, M). `mask` (B, S) is True at real positions."""
        return memory if self.project is None else self.project(memory)

    def forward(
        self, query: Tensor, keys: Tensor, coverage: Tensor | None = None, previous: Tensor | None = None
    ) -> Tensor:
        """Return scores (B, …, T, S) of states (B, …, T, H) and keys (B, S, …).

        `coverage`, and `previous`, the attention weights of the previous step, have the shape (B, …, T, S).
        """
        if (coverage is None) != (self.covered is None):
            raise ValueError("coverage must be passed if, and only if, the score was created with coverage")
        if (previous is None) != (self.located is None):
            raise ValueError("the previous weights must be passed if, and only if, the score is location-aware")
        flat = query.reshape(len(query), -1, query.shape[-1])  # (B, N, H), N states per source
        flat_coverage = None if coverage is None else coverage.reshape(len(flat), flat.shape[1], -1)
        location = None
        if previous is not None and self.located is not None:
            location = self.located(previous.reshape(len(flat), flat.shape[1], -1)).to(query.dtype)  # (B, N, S, ·)
        return self.scores(flat, keys, flat_coverage, location).reshape(*query.shape[:-1], keys.shape[1])

    def scores(self, query: Tensor, keys: Tensor, coverage: Tensor | None, location: Tensor | None) -> Tensor:
        """Return the scores (B, N, S) of states (B, N, H) and keys (B, S, …), with U f (B, N, S, ·) as `location`."""
        scores = self.compare(query, keys)
        if coverage is not None and self.covered is not None:
            scores = scores + self.covered * coverage
        return scores if location is None else scores + location.squeeze(-1)

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the scores without coverage, by default dot products of states and keys."""
        return torch.bmm(query, keys.transpose(1, 2).to(query.dtype))

    def extra_repr(self) -> str:
        return f"{self.query}, {self.memory}"


class DotProduct(Score):
    """s^T h_j

    `Score.compare` computes this score.
    """

    name = "dot"
    compares = True


class ScaledDotProduct(DotProduct):
    """s^T h_j / √n, n the size of s

    The sum of n products of independent numbers with variance 1 has variance n; the scaled sum has variance 1.
    """

    name = "scaled-dot"

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().compare(query / math.sqrt(self.query), keys)


class Cosine(DotProduct):
    """β · cos(s, h_j), β learned

    Cosines are between -1 and 1, so without β the weights of two positions would differ by a factor of at most e². β is
    initially 10.
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

    W h_j is computed once per source.
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

    The score is computed as v^T tanh(W_s s + W_h h_j); W_h h_j is computed once per source. The tanh has the size of s,
    and the coverage weight w is a vector.
    """

    name = "additive"

    def __init__(self, query: int, memory: int, *, coverage: bool = False) -> None:
        super().__init__(query, memory, coverage=coverage)
        self.weight_s = nn.Linear(query, query, bias=False)
        self.weight_h = nn.Linear(memory, query, bias=False)
        self.v = nn.Linear(query, 1, bias=False)

    def make_coverage(self) -> nn.Parameter:
        """Create w (H,), initially 0."""
        return nn.Parameter(torch.zeros(self.query))

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        keys: Tensor = self.weight_h(memory)
        return keys

    @property
    def location_size(self) -> int:
        return self.query

    def scores(self, query: Tensor, keys: Tensor, coverage: Tensor | None, location: Tensor | None) -> Tensor:
        chunk = max(1, MAX_ELEMENTS // max(1, keys.numel()))
        if query.shape[1] <= chunk:
            return self._together(query, keys, coverage, location)
        states = query.split(chunk, dim=1)
        coverages, locations = (
            [None] * len(states) if part is None else part.split(chunk, dim=1) for part in (coverage, location)
        )
        parts = zip(states, coverages, locations, strict=True)
        return torch.cat([self._together(s, keys, a, f) for s, a, f in parts], dim=1)

    def _together(self, query: Tensor, keys: Tensor, coverage: Tensor | None, location: Tensor | None) -> Tensor:
        inner = self.weight_s(query).unsqueeze(2) + keys.unsqueeze(1)  # (B, N, S, H)
        if coverage is not None and self.covered is not None:
            inner = inner + coverage.unsqueeze(-1) * self.covered
        if location is not None:
            inner = inner + location
        scores: Tensor = self.v(torch.tanh(inner)).squeeze(-1)
        return scores


class LocationScore(Score):
    """(W_a s)_j, for j up to a maximum length

    The score depends only on the state and the position, not on h_j. W_a has `max_length` rows, one per position. A
    source with more real positions raises an error.
    """

    name = "location"

    def __init__(
        self, query: int, memory: int, *, coverage: bool = False, max_length: int = DEFAULT_MAX_LENGTH
    ) -> None:
        super().__init__(query, memory, coverage=coverage)
        self.max_length = max_length
        self.weight = nn.Linear(query, max_length, bias=False)

    def prepare(self, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return empty keys (B, S, 0), which represent only the number of positions."""
        beyond = memory.shape[1] - self.max_length
        if beyond > 0 and (mask is None or bool(mask[:, self.max_length :].any())):
            length = memory.shape[1] if mask is None else int(mask.sum(dim=1).max())
            raise DataError(
                f"The location score has {self.max_length} positions, but a source has {length} tokens. Shorten the "
                "source, or train with a larger model.attention.max_length."
            )
        return memory[..., :0]

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        positions = keys.shape[1]
        scores = self.weight(query)[..., :positions]
        return F.pad(scores, (0, positions - scores.shape[-1]))
