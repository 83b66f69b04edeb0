"""Layers through which the places of a sequence hear of each other, interchangeable in one encoder.

                                complexity    sequential    maximum path
    self-attention              n²·d          1             1             every place asks every other
    windowed self-attention     r·n·d         1             n/r           every place asks r on either side
    recurrent, both ways        n·d²          n             n             a state walks from place to place
    convolution                 k·n·d²        1             n/k           every place hears the k around it
    dilated convolution         k·n·d²        1             log_k n       k around it, further apart the deeper it lies

n places, d wide. How many layers (recurrent: steps) a gradient passes from one end to the other, `path_length` says
exactly; `seqloom layers` measures all three.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.tree import Growing
from seqloom.core.words import did_you_mean
from seqloom.nn.bidirectional import Bidirectional
from seqloom.nn.cache import AttentionScope
from seqloom.nn.cells import cell_class
from seqloom.nn.masks import zero_padding
from seqloom.nn.multihead import MultiHeadAttention
from seqloom.nn.positions import Rotary

MixerKind = Literal["self-attention", "windowed", "recurrent", "convolution", "dilated"]
WINDOW, KERNEL, CELL = 16, 3, "lstm"  # where nothing is said
FURTHEST = 1 << 30  # places apart, in dilated layers: no sequence is as long
BLOCK = 32  # queries that go through windowed attention together, at least: fewer would leave a processor idle


@dataclass(frozen=True)
class Setting:
    """Where a layer stands, and what was asked for: None where nothing was."""

    width: int
    attention: Callable[[], MultiHeadAttention]  # makes one, for a layer that attends
    depth: int = 0  # in its encoder, 0 the lowest
    window: int | None = None
    kernel: int | None = None
    cell: str | None = None
    bias: bool = True


class Mixer(nn.Module, ABC):
    """x (B, S, D) and a mask (B, S), True at the real places, to y (B, S, D), and to weights (B, N, S, S) if wanted.

    What stands at padding is heard by nobody; what comes out there means nothing. A mixer that attends needs finite
    numbers there, since weights of 0 still multiply them: an encoder of vectors calls `zero_padding` once.
    """

    complexity: ClassVar[str]  # of a layer, in O(·)
    sequential: ClassVar[str]  # operations that must wait for each other
    path: ClassVar[str]  # the longest way between two places
    options: ClassVar[tuple[str, ...]] = ()  # settings that are this kind's own: window, kernel, cell
    attends: ClassVar[bool] = False  # whether it has heads, and weights to show

    @classmethod
    @abstractmethod
    def make(cls, setting: Setting) -> Self:
        """One of this kind."""

    @classmethod
    def problems(cls, width: int, **options: Any) -> Iterator[str]:
        """What is wrong with its width, or with those of its options that are given."""
        return iter(())

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]: ...

    def mix(
        self, x: Tensor, scope: AttentionScope, cache: Growing | None = None, weights: bool = False
    ) -> tuple[Tensor, tuple[Growing | None, Tensor | None]]:
        """The same within a block, where a scope says more than a mask: y, the cache after it, and the weights."""
        y, attention_weights = self(x, scope.padding, weights)
        return y, (cache, attention_weights)

    @abstractmethod
    def path_length(self, n: int) -> int:
        """How many such layers until the last of n places hears of the first; recurrent: how many steps."""

    @abstractmethod
    def multiplications(self, n: int) -> int:
        """Of one sequence of n places, forwards: what the complexity stands for, smaller terms included."""

    def notes(self) -> list[str]:
        """What the layer does beyond its equations, in words for whoever trains it."""
        return []


class SelfAttention(Mixer):
    """y = MultiHead(x, x): see `seqloom.nn.multihead`."""

    complexity, sequential, path = "n²·d", "1", "1"
    attends = True

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    @classmethod
    def make(cls, setting: Setting) -> Self:
        return cls(setting.attention())

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        y, (_, attention_weights) = self.mix(x, AttentionScope.within(mask), None, weights)
        return y, attention_weights

    def mix(
        self, x: Tensor, scope: AttentionScope, cache: Growing | None = None, weights: bool = False
    ) -> tuple[Tensor, tuple[Growing | None, Tensor | None]]:
        """Attend to x itself, and to what is in the cache."""
        q, keys_values = self.attention.project_self(x, scope.positions)
        if scope.update is not None and cache is not None:
            cache = scope.update.write(cache, keys_values)
            keys_values = scope.update.read(cache)
        y, attention_weights = self.attention.attend(q, keys_values, scope.mask, scope.is_causal, weights)
        return y, (cache, attention_weights)

    def path_length(self, n: int) -> int:
        return 1

    def multiplications(self, n: int) -> int:
        return n * _matrices(self.attention) + 2 * n * n * self.attention.out.in_features


class WindowedSelfAttention(Mixer):
    """Self-attention in which place t asks the places t − r … t + r only.

    The queries go in blocks of b, and with each block the b + 2r keys that any of them may ask: n·(b + 2r) scores are
    made, not n². b is r, or `BLOCK` if that is more.
    """

    complexity, sequential, path = "r·n·d", "1", "n/r"
    options = ("window",)
    attends = True

    def __init__(self, attention: MultiHeadAttention, reach: int = WINDOW) -> None:
        super().__init__()
        _refuse(self.problems(attention.out.in_features, window=reach))
        self.attention, self.reach = attention, reach

    @classmethod
    def make(cls, setting: Setting) -> Self:
        return cls(setting.attention(), WINDOW if setting.window is None else setting.window)

    @classmethod
    def problems(cls, width: int, window: int | None = None, **_: Any) -> Iterator[str]:
        if window is not None and window < 1:
            yield f"window must be at least 1; got {window}"

    def extra_repr(self) -> str:
        return f"reach={self.reach}"

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        B, S, _ = x.shape
        r, b = self._sizes(S)
        spare = -S % b  # places that fill up the last block
        q = F.pad(self.attention.queries(x), (0, 0, 0, spare)).unflatten(2, (-1, b))  # (B, N, C, b, d)
        q = q.transpose(1, 2).flatten(0, 1)  # (B·C, N, b, d)
        keys, values = (  # (B·C, Nkv, b + 2r, d)
            _around(part.transpose(1, 2), r, b, spare).transpose(1, 2) for part in self.attention.keys_values(x)
        )
        real = x.new_ones(B, S, dtype=torch.bool) if mask is None else mask
        near = _band(r, b, x.device) & _around(real, r, b, spare).unsqueeze(1)  # (B·C, b, b + 2r)
        y, local = self.attention.attend(q, (keys, values), near.unsqueeze(1), weights=weights)
        y = y.unflatten(0, (B, -1)).flatten(1, 2)[:, :S]
        return y, None if local is None else _spread(local.unflatten(0, (B, -1)), r, b)[:, :, :S, :S]

    def _sizes(self, n: int) -> tuple[int, int]:
        """r, no more than there is to ask, and b."""
        r = min(self.reach, max(1, n - 1))
        return r, max(r, min(BLOCK, n))

    def path_length(self, n: int) -> int:
        return max(1, math.ceil((n - 1) / self.reach))

    def multiplications(self, n: int) -> int:
        r, b = self._sizes(n)
        spare, out = -n % b, self.attention.out.in_features
        return n * _matrices(self.attention) + spare * out**2 + 2 * (n + spare) * (b + 2 * r) * out


def _matrices(module: nn.Module) -> int:
    """Weights that meet every place once: those that are matrices."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)


def _around(x: Tensor, r: int, b: int, spare: int) -> Tensor:
    """x (B, S, …) in blocks of b, each with r neighbours on either side: (B·C, b + 2r, …), zeros beyond the ends."""
    blocks = F.pad(x, (0, 0) * (x.dim() - 2) + (0, spare)).unflatten(1, (-1, b))  # (B, C, b, …)
    inner = (0, 0) * (x.dim() - 1)
    left = F.pad(blocks[:, :-1, b - r :], (*inner, 1, 0))  # of each block's left neighbour the last r
    right = F.pad(blocks[:, 1:, :r], (*inner, 0, 1))
    return torch.cat([left, blocks, right], dim=2).flatten(0, 1)


def _band(r: int, b: int, device: torch.device) -> Tensor:
    """Which of its b + 2r keys each of b queries may ask: (b, b + 2r). Query i stands at key i + r."""
    query, key = torch.arange(b, device=device).unsqueeze(1), torch.arange(b + 2 * r, device=device)
    return (key - r - query).abs() <= r


def _spread(local: Tensor, r: int, b: int) -> Tensor:
    """Weights (B, C, N, b, b + 2r) of blocks, where they stand among all: (B, N, C·b, C·b)."""
    B, C, N, _, keys = local.shape
    place = torch.arange(C, device=local.device).reshape(C, 1, 1, 1) * b + torch.arange(keys, device=local.device)
    wide = local.new_zeros(B, C, N, b, C * b + 2 * r).scatter(-1, place.expand(local.shape), local)
    return wide.transpose(1, 2).flatten(2, 3)[..., r : r + C * b]


class RecurrentMixer(Mixer):
    """y_t = [→h_t; ←h_t]: two cells half as wide as the layer, one from each end; see `seqloom.nn.bidirectional`.

    The two do not wait for each other, so n places take n steps.
    """

    complexity, sequential, path = "n·d²", "n", "n"
    options = ("cell",)

    def __init__(self, width: int, cell: str = CELL) -> None:
        super().__init__()
        _refuse(self.problems(width))
        of = cell_class(cell)
        self.layer = Bidirectional(of(width, width // 2), of(width, width // 2))

    @classmethod
    def make(cls, setting: Setting) -> Self:
        return cls(setting.width, CELL if setting.cell is None else setting.cell)

    @classmethod
    def problems(cls, width: int, cell: str | None = None, **_: Any) -> Iterator[str]:
        if width % 2:
            yield f"a recurrent layer reads both ways, each in half of its width, so width must be even; got {width}"
        if cell is not None:
            cell_class(cell)

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        return self.layer(x, mask=mask)[0], None

    def path_length(self, n: int) -> int:
        return n

    def multiplications(self, n: int) -> int:
        return n * _matrices(self.layer)

    def notes(self) -> list[str]:
        return self.layer.notes()


class Convolution(Mixer):
    """y_t = Σ_j W_j x_{t + δ·j} + b over j = −⌊k/2⌋ … ⌊k/2⌋, k odd, δ = 1; x is zero beyond the ends and at padding."""

    complexity, sequential, path = "k·n·d²", "1", "n/k"
    options = ("kernel",)

    def __init__(self, width: int, kernel: int = KERNEL, bias: bool = True) -> None:
        super().__init__()
        _refuse(self.problems(width, kernel=kernel))
        self.kernel, self.dilation = kernel, 1
        self.weight = nn.Parameter(torch.empty(width, width, kernel))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    @classmethod
    def make(cls, setting: Setting) -> Self:
        return cls(setting.width, KERNEL if setting.kernel is None else setting.kernel, setting.bias)

    @classmethod
    def problems(cls, width: int, kernel: int | None = None, **_: Any) -> Iterator[str]:
        if kernel is not None and (kernel < 3 or kernel % 2 == 0):
            yield f"kernel must be odd and at least 3, as many places on either side of the middle; got {kernel}"

    def reset_parameters(self) -> None:
        """Xavier: what goes in comes out as large."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, kernel={self.kernel}, dilation={self.dilation}"

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        x = zero_padding(x, mask)
        half, used = self.kernel // 2, self._used(x.shape[1])
        weight = self.weight[:, :, half - used : half + used + 1]
        y = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=self.dilation * used, dilation=self.dilation)
        return y.transpose(1, 2), None

    def _used(self, n: int) -> int:
        """How many W_j on either side of the middle meet any of n places; the others would read zeros alone."""
        return min(self.kernel // 2, max(0, n - 1) // self.dilation)

    def path_length(self, n: int) -> int:
        return max(1, math.ceil((n - 1) / (self.kernel // 2)))

    def multiplications(self, n: int) -> int:
        return n * (2 * self._used(n) + 1) * self.weight.shape[0] ** 2


class DilatedConvolution(Convolution):
    """The same with δ = (⌊k/2⌋ + 1)^depth: for k = 3 the layers of an encoder reach 1, 2, 4 … places on either side.

    L of them on each other reach (⌊k/2⌋ + 1)^L − 1 places. Were they k^depth apart they would reach further, but over
    a single way each (5 = 9 − 3 − 1), and ways that turn round may lead beyond the ends, where nothing is. From
    `FURTHEST` on, δ does not grow.
    """

    path = "log_k n"

    def __init__(self, width: int, kernel: int = KERNEL, depth: int = 0, bias: bool = True) -> None:
        super().__init__(width, kernel, bias)
        self.dilation = min(self._base**depth, FURTHEST)

    @classmethod
    def make(cls, setting: Setting) -> Self:
        return cls(setting.width, KERNEL if setting.kernel is None else setting.kernel, setting.depth, setting.bias)

    @property
    def _base(self) -> int:
        return self.kernel // 2 + 1

    def path_length(self, n: int) -> int:
        layers = 1
        while self._base**layers < n:
            layers += 1
        return layers

    def notes(self) -> list[str]:
        if self.dilation < FURTHEST:
            return []
        return [f"the deepest dilated layers look {FURTHEST:,} places away, no further: there is nothing to hear there"]


MIXERS: dict[str, type[Mixer]] = {
    "self-attention": SelfAttention,
    "windowed": WindowedSelfAttention,
    "recurrent": RecurrentMixer,
    "convolution": Convolution,
    "dilated": DilatedConvolution,
}


def mixer_class(kind: str) -> type[Mixer]:
    """The layer of that name; a wrong name is answered with the right ones."""
    if kind in MIXERS:
        return MIXERS[kind]
    raise ValueError(f"no layer is called {kind!r}: {did_you_mean(kind, MIXERS)}")


def _refuse(problems: Iterable[str]) -> None:
    if found := list(problems):
        raise ValueError("; ".join(found))


def mixer_problems(
    kind: str, width: int, window: int | None = None, kernel: int | None = None, cell: str | None = None
) -> Iterator[str]:
    """What is wrong with a choice of layer; one that does not exist ends the list."""
    layer = mixer_class(kind)
    given = {"window": window, "kernel": kernel, "cell": cell}
    for name, value in given.items():
        if value is not None and name not in layer.options:
            users = " and ".join(other for other, found in MIXERS.items() if name in found.options)
            yield f"{name} belongs to {users} layers only; leave it out for {kind!r}"
    yield from layer.problems(width, **{name: given[name] for name in layer.options})


def make_mixer(
    kind: str,
    width: int,
    heads: int,
    *,
    depth: int = 0,
    window: int | None = None,
    kernel: int | None = None,
    cell: str | None = None,
    kv_heads: int | None = None,
    bias: bool = True,
    scale: bool = True,
    dropout: float = 0.0,
    rotary: Rotary | None = None,
) -> Mixer:
    """The layer at this depth of an encoder, 0 the lowest. `window` and what comes after are for those that have it."""

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(width, heads, kv_heads, bias=bias, scale=scale, dropout=dropout, rotary=rotary)

    return mixer_class(kind).make(Setting(width, attention, depth, window, kernel, cell, bias))
