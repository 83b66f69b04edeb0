"""Interchangeable layers that mix the positions of a sequence.

                                complexity    sequential    maximum path
    self-attention              n²·d          1             1             every position attends to every other
    windowed self-attention     r·n·d         1             n/r           every position attends to r on each side
    recurrent, both ways        n·d²          n             n             a state passes from position to position
    convolution                 k·n·d²        1             n/k           every position reads k positions around it
    dilated convolution         k·n·d²        1             log_k n       the same with larger gaps in higher layers

A sequence has n positions of size d. `path_length` is the exact number of layers (or steps of a recurrent layer) that a
gradient passes from one end to the other. `seqloom layers` measures all three columns.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.tree import GrowingBuffer
from seqloom.core.words import did_you_mean
from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.bidirectional import Bidirectional
from seqloom.nn.cells import cell_class
from seqloom.nn.masks import AttentionScope, zero_padding
from seqloom.nn.positions import Rotary

MixerKind = Literal["self-attention", "windowed", "recurrent", "convolution", "dilated"]
WINDOW, KERNEL, CELL = 16, 3, "lstm"  # default values
MAX_DILATION = 1 << 30  # maximum dilation, which is longer than any sequence
BLOCK = 32  # minimum number of queries per block of windowed attention, for efficiency


class Mixer(nn.Module, ABC):
    """A layer that mixes positions: it maps x (B, S, D) and a mask (B, S) to y (B, S, D).

    Padding does not affect real positions, and outputs at padding are undefined. A mixer with attention requires finite
    inputs at padding, because attention multiplies these inputs by 0. Encoders therefore call `zero_padding` once.
    Mixers with attention return their weights (B, N, S, S) if requested.
    """

    complexity: ClassVar[str]  # complexity of a layer, in O(·)
    sequential: ClassVar[str]  # number of sequential operations
    path: ClassVar[str]  # length of the longest path between two positions
    options: ClassVar[tuple[str, ...]] = ()  # settings of this kind of mixer: window, kernel, cell
    attends: ClassVar[bool] = False  # whether the mixer has attention weights

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]: ...

    def mix(
        self, x: Tensor, scope: AttentionScope, cache: GrowingBuffer | None = None, weights: bool = False
    ) -> tuple[Tensor, tuple[GrowingBuffer | None, Tensor | None]]:
        """Apply the layer within a block, which passes a scope instead of a mask.

        Return y, the new cache and the attention weights.
        """
        y, attention_weights = self(x, scope.padding, weights)
        return y, (cache, attention_weights)

    @abstractmethod
    def path_length(self, n: int) -> int:
        """Return the number of layers after which the last of n positions depends on the first.

        For a recurrent layer, return the number of steps.
        """

    @abstractmethod
    def multiplications(self, n: int) -> int:
        """Return the number of multiplications of a forward pass over n positions, including lower-order terms."""

    def notes(self) -> list[str]:
        """Return notes for the user on operations of the layer that its equations omit."""
        return []


class SelfAttention(Mixer):
    """y = MultiHead(x, x)"""

    complexity, sequential, path = "n²·d", "1", "1"
    attends = True

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        y, (_, attention_weights) = self.mix(x, AttentionScope.within(mask), None, weights)
        return y, attention_weights

    def mix(
        self, x: Tensor, scope: AttentionScope, cache: GrowingBuffer | None = None, weights: bool = False
    ) -> tuple[Tensor, tuple[GrowingBuffer | None, Tensor | None]]:
        """Attend to x and to the cached keys and values."""
        q, keys_values = self.attention.project_self(x, scope.positions)
        if scope.update is not None and cache is not None:
            cache = scope.update.write(cache, keys_values)
            keys_values = scope.update.read(cache)
        y, attention_weights = self.attention.attend(q, keys_values, scope.mask, scope.is_causal, weights)
        return y, (cache, attention_weights)

    def path_length(self, n: int) -> int:
        return 1

    def multiplications(self, n: int) -> int:
        return n * count_matrix_weights(self.attention) + 2 * n * n * self.attention.out.in_features


def count_matrix_weights(module: nn.Module) -> int:
    """Return the number of matrix weights, which equals the number of multiplications per position."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)


class WindowedSelfAttention(Mixer):
    """Self-attention in which position t attends only to t − r … t + r.

    Each block of b = max(r, `BLOCK`) queries is compared with the b + 2r keys within its reach, so the layer computes
    n·(b + 2r) scores instead of n².
    """

    complexity, sequential, path = "r·n·d", "1", "n/r"
    options = ("window",)
    attends = True

    def __init__(self, attention: MultiHeadAttention, window: int = WINDOW) -> None:
        super().__init__()
        refuse_options("windowed", attention.out.in_features, window=window)
        self.attention, self.reach = attention, window

    def extra_repr(self) -> str:
        return f"reach={self.reach}"

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        B, S, _ = x.shape
        r, b = self._sizes(S)
        spare = -S % b  # padding of the last block
        q = F.pad(self.attention.queries(x), (0, 0, 0, spare)).unflatten(2, (-1, b))  # (B, N, C, b, d)
        q = q.transpose(1, 2).flatten(0, 1)  # (B·C, N, b, d)
        keys, values = (  # (B·C, Nkv, b + 2r, d)
            _around(part.transpose(1, 2), r, b, spare).transpose(1, 2) for part in self.attention.keys_values(x)
        )
        real = x.new_ones(B, S, dtype=torch.bool) if mask is None else mask
        query, key = torch.arange(b, device=x.device).unsqueeze(1), torch.arange(b + 2 * r, device=x.device)
        band = (key - r - query).abs() <= r  # (b, b + 2r): query i is at key i + r
        allowed = band & _around(real, r, b, spare).unsqueeze(1)  # (B·C, b, b + 2r)
        y, local = self.attention.attend(q, (keys, values), allowed.unsqueeze(1), weights=weights)
        y = y.unflatten(0, (B, -1)).flatten(1, 2)[:, :S]
        if local is None:
            return y, None
        local = local.unflatten(0, (B, -1))  # (B, C, N, b, b + 2r)
        _, C, N, _, keys = local.shape
        position = torch.arange(C, device=x.device).reshape(C, 1, 1, 1) * b + torch.arange(keys, device=x.device)
        wide = local.new_zeros(B, C, N, b, C * b + 2 * r).scatter(-1, position.expand(local.shape), local)
        return y, wide.transpose(1, 2).flatten(2, 3)[:, :, :S, r : r + S]  # (B, N, S, S)

    def _sizes(self, n: int) -> tuple[int, int]:
        """Return r, limited to the length of the sequence, and b."""
        r = min(self.reach, max(1, n - 1))
        return r, max(r, min(BLOCK, n))

    def path_length(self, n: int) -> int:
        return max(1, math.ceil((n - 1) / self.reach))

    def multiplications(self, n: int) -> int:
        r, b = self._sizes(n)
        spare, out = -n % b, self.attention.out.in_features
        return n * count_matrix_weights(self.attention) + spare * out**2 + 2 * (n + spare) * (b + 2 * r) * out


def _around(x: Tensor, r: int, b: int, spare: int) -> Tensor:
    """Divide x (B, S, …) into blocks (B·C, b + 2r, …) of b positions and r neighbours on either side.

    Neighbours outside the sequence are zero.
    """
    blocks = F.pad(x, (0, 0) * (x.dim() - 2) + (0, spare)).unflatten(1, (-1, b))  # (B, C, b, …)
    inner = (0, 0) * (x.dim() - 1)
    left = F.pad(blocks[:, :-1, b - r :], (*inner, 1, 0))  # the last r positions of each block's left neighbour
    right = F.pad(blocks[:, 1:, :r], (*inner, 0, 1))
    return torch.cat([left, blocks, right], dim=2).flatten(0, 1)


class RecurrentMixer(Mixer):
    """y_t = [→h_t; ←h_t], each of size d/2; see `seqloom.nn.bidirectional`.

    The directions can run in parallel, so n positions need n sequential steps.
    """

    complexity, sequential, path = "n·d²", "n", "n"
    options = ("cell",)

    def __init__(self, d_model: int, cell: str = CELL) -> None:
        super().__init__()
        refuse_options("recurrent", d_model, cell=cell)
        of = cell_class(cell)
        self.layer = Bidirectional(of(d_model, d_model // 2), of(d_model, d_model // 2))

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        return self.layer(x, mask=mask)[0], None

    def path_length(self, n: int) -> int:
        return n

    def multiplications(self, n: int) -> int:
        return n * count_matrix_weights(self.layer)

    def notes(self) -> list[str]:
        return self.layer.forwards.cell.notes()


class ConvolutionMixer(Mixer):
    """y_t = Σ_j W_j x_{t + δ·j} + b over j = −⌊k/2⌋ … ⌊k/2⌋, k odd, δ = 1; x is zero beyond the ends and at padding."""

    complexity, sequential, path = "k·n·d²", "1", "n/k"
    options = ("kernel",)

    dilates: ClassVar[bool] = False

    def __init__(self, d_model: int, kernel: int = KERNEL, depth: int = 0, bias: bool = True) -> None:
        super().__init__()
        refuse_options("convolution", d_model, kernel=kernel)
        self.kernel = kernel
        self.dilation = min((kernel // 2 + 1) ** depth, MAX_DILATION) if self.dilates else 1
        self.weight = nn.Parameter(torch.empty(d_model, d_model, kernel))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, kernel={self.kernel}, dilation={self.dilation}"

    def forward(self, x: Tensor, mask: Tensor | None = None, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        x = zero_padding(x, mask)
        half, used = self.kernel // 2, self._used(x.shape[1])
        weight = self.weight[:, :, half - used : half + used + 1]
        y = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=self.dilation * used, dilation=self.dilation)
        return y.transpose(1, 2), None

    def _used(self, n: int) -> int:
        """Return the number of W_j on each side that reach any of n positions.

        The other W_j are multiplied by zeros.
        """
        return min(self.kernel // 2, max(0, n - 1) // self.dilation)

    def path_length(self, n: int) -> int:
        return max(1, math.ceil((n - 1) / (self.kernel // 2)))

    def multiplications(self, n: int) -> int:
        return n * (2 * self._used(n) + 1) * self.weight.shape[0] ** 2


class DilatedConvolution(ConvolutionMixer):
    """Convolution with δ = (⌊k/2⌋ + 1)^depth: for k = 3 the layers of an encoder reach 1, 2, 4 … positions per side.

    A stack of L layers reaches (⌊k/2⌋ + 1)^L − 1 positions. With δ = k^depth, a stack would reach further, but a single
    path would lead to each position (5 = 9 − 3 − 1), and this path may leave the sequence. δ is at most `MAX_DILATION`.
    """

    path = "log_k n"
    dilates = True

    def path_length(self, n: int) -> int:
        layers = 1
        while (self.kernel // 2 + 1) ** layers < n:
            layers += 1
        return layers

    def notes(self) -> list[str]:
        if self.dilation < MAX_DILATION:
            return []
        return [f"the dilation of the deepest layers is limited to {MAX_DILATION:,} positions"]


MIXERS: dict[str, type[Mixer]] = {
    "self-attention": SelfAttention,
    "windowed": WindowedSelfAttention,
    "recurrent": RecurrentMixer,
    "convolution": ConvolutionMixer,
    "dilated": DilatedConvolution,
}


def mixer_class(kind: str) -> type[Mixer]:
    """Return the layer class with this name. The error for an unknown name suggests similar names."""
    if kind in MIXERS:
        return MIXERS[kind]
    raise ValueError(f"no layer is called {kind!r}: {did_you_mean(kind, MIXERS)}")


def mixer_problems(
    kind: str, d_model: int, window: int | None = None, kernel: int | None = None, cell: str | None = None
) -> Iterator[str]:
    """Yield the problems of a layer's options. Raise `ValueError` for an unknown layer or cell."""
    layer = mixer_class(kind)
    for name, value in {"window": window, "kernel": kernel, "cell": cell}.items():
        if value is not None and name not in layer.options:
            users = " and ".join(other for other, mixer in MIXERS.items() if name in mixer.options)
            yield f"{name} applies only to {users} layers; remove it for {kind!r}"
    if "window" in layer.options and window is not None and window < 1:
        yield f"window must be at least 1; got {window}"
    if "kernel" in layer.options and kernel is not None and (kernel < 3 or kernel % 2 == 0):
        yield f"kernel must be odd and at least 3; got {kernel}"
    if "cell" in layer.options and d_model % 2:
        yield f"a bidirectional recurrent layer needs an even d_model; got {d_model}"
    if "cell" in layer.options and cell is not None:
        cell_class(cell)


def refuse_options(kind: str, d_model: int, **options: Any) -> None:
    """Raise `ValueError` if the options of a layer are invalid."""
    if problems := list(mixer_problems(kind, d_model, **options)):
        raise ValueError("; ".join(problems))


def make_mixer(
    kind: str,
    d_model: int,
    heads: int,
    *,
    depth: int = 0,
    window: int | None = None,
    kernel: int | None = None,
    cell: str | None = None,
    bias: bool = True,
    kv_heads: int | None = None,
    scale: bool = True,
    dropout: float = 0.0,
    rotary: Rotary | None = None,
) -> Mixer:
    """Create the encoder layer at `depth`, where 0 is the lowest. Options of other kinds of layers are ignored."""
    layer = mixer_class(kind)
    mixer_options = {"window": window, "kernel": kernel, "cell": cell}
    options = {name: mixer_options[name] for name in layer.options if mixer_options[name] is not None}
    if layer.attends:
        attention = MultiHeadAttention(d_model, heads, kv_heads, bias=bias, scale=scale, dropout=dropout, rotary=rotary)
        return layer(attention, **options)
    return layer(d_model, **options, **({"depth": depth, "bias": bias} if issubclass(layer, ConvolutionMixer) else {}))
