"""Attention: by a score, as recurrent decoders have it, and by scaled dot products of several heads.

    by a score     e_j = score(s, h_j)          α = softmax(e)          c = Σ_j α_j h_j

    Attention(Q, K, V) = softmax(QKᵀ / √d_k) V
    head_n = Attention(x W_n^Q, m W_n^K, m W_n^V)
    MultiHead(x, m) = [head_1; …; head_N] W^O

x has the queries, the memory m the keys and values; in self-attention they are the same. With fewer
key–value heads than heads, each serves a group of neighbouring heads. Without positions, and but
for the location score, attention treats its memory as a set.

`attention_with_weights` is the definition. Where nobody asks for the weights, implementations of
`scaled_dot_product_attention` may compute the same without ever holding them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypedDict

import torch
from torch import Tensor, nn

from seqloom.core.operations import operation
from seqloom.core.tree import Growing
from seqloom.nn.masks import AttentionMask, AttentionScope, causal_mask, drop, zero_padding
from seqloom.nn.positions import Rotary
from seqloom.nn.scores import Score

Memory = dict[str, Tensor]  # of each source: annotations (B, S, M), keys (B, S, …), mask (B, S)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """softmax over the last dimension of those positions that may be used; a row without any gives zeros.

    In float32 at least. The fill is finite, so that a row without any position has a gradient too:
    zero.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~mask, 0)


class Attention(nn.Module):
    """Decoder states attend to the annotations of their sources; see `seqloom.nn.scores` for the scores."""

    recomputable = True  # see `seqloom.train.wrappers.checkpoint_activations`

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def prepare(self, annotations: Tensor, mask: Tensor) -> Memory:
        """Once for each source: annotations (B, S, M) and a mask (B, S) that is True at the real ones."""
        annotations = zero_padding(annotations, mask)
        return {"annotations": annotations, "keys": self.score.prepare(annotations, mask), "mask": mask}

    def forward(self, query: Tensor, memory: Memory, coverage: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States (B, …, T, H) to contexts (B, …, T, M) and weights (B, …, T, S).

        All states of a source share its one row of the memory. `coverage` (B, …, T, S) is the sum
        of past weights.
        """
        annotations, mask = memory["annotations"], memory["mask"]
        scores = self.score(query, memory["keys"], coverage)
        mask = mask.reshape(len(mask), *(1,) * (scores.dim() - 2), -1)  # (B, 1 …, S)
        weights = masked_softmax(scores, mask)
        flat = weights.reshape(len(weights), -1, weights.shape[-1]).to(annotations.dtype)  # (B, N, S)
        context = torch.bmm(flat, annotations).reshape(*query.shape[:-1], annotations.shape[-1])
        return context, weights


class AttentionOptions(TypedDict):
    """Options of `MultiHeadAttention`."""

    kv_heads: int | None
    bias: bool
    scale: bool
    dropout: float


def head_problems(d_model: int, heads: int, kv_heads: int | None) -> Iterator[str]:
    """What is wrong with a choice of heads."""
    if heads < 1:
        yield f"heads must be at least 1; got {heads}"
    elif d_model % heads:
        yield f"d_model must be divisible by heads, so that all are equally wide; got {d_model} and {heads}"
    if kv_heads is not None and kv_heads < 1:
        yield f"kv_heads must be at least 1; got {kv_heads}"
    elif kv_heads is not None and heads >= 1 and heads % kv_heads:
        yield f"heads must be divisible by kv_heads, so that all serve equally many; got {heads} and {kv_heads}"


class MultiHeadAttention(nn.Module):
    """Masks are boolean, True where a query may attend, and broadcast to (B, N, T, S). A query that may attend to
    nothing gets zeros.

    `rotary` rotates queries and keys by their positions; without it attention knows no positions.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        bias: bool = True,
        scale: bool = True,
        dropout: float = 0.0,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        if problems := list(head_problems(d_model, heads, kv_heads)):
            raise ValueError("; ".join(problems))
        self.heads, self.kv_heads, self.head_width = heads, kv_heads or heads, d_model // heads
        self.q = nn.Linear(d_model, d_model, bias=bias)
        self.k = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.v = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.out = nn.Linear(d_model, d_model, bias=bias)
        self.scale = 1 / math.sqrt(self.head_width) if scale else 1.0
        self.dropout, self.rotary = dropout, rotary
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier; for queries, keys and values a little smaller, as if the three were one matrix."""
        for linear in (self.q, self.k, self.v):
            nn.init.xavier_uniform_(linear.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out.weight)
        for linear in (self.q, self.k, self.v, self.out):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kv_heads={self.kv_heads}, scale={self.scale:g}, dropout={self.dropout}"

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | AttentionMask | None = None,
        is_causal: bool = False,
        weights: bool = False,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries (B, T, D) against a memory (B, S, D), None for themselves: (B, T, D), and weights (B, N, T, S).

        `positions` (T,) or (B, T) are for rotary positions of self-attention; None counts from 0.
        """
        if memory is None:
            return self.attend(*self.project_self(query, positions), mask, is_causal, weights)
        q, keys_values = self.queries(query, positions), self.keys_values(memory, positions)
        return self.attend(q, keys_values, mask, is_causal, weights)

    def project_self(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The queries (B, N, T, d), and the keys and values (B, Nkv, T, d), of x (B, T, D)."""
        q, k, v = (self._split_heads(part) for part in project((self.q, self.k, self.v), x))
        q, k = self._rotate(q, positions), self._rotate(k, positions)
        return q.transpose(1, 2), (k.transpose(1, 2), v.transpose(1, 2))

    def queries(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x (B, T, D) to (B, N, T, d)."""
        return self._rotate(self._split_heads(self.q(x)), positions).transpose(1, 2)

    def keys_values(self, memory: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The keys and values (B, Nkv, S, d) of a memory (B, S, D): once for each, however often it is asked."""
        k, v = project((self.k, self.v), memory)
        return self.as_keys_values(k, v, positions)

    def as_keys_values(self, k: Tensor, v: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same of what the layers for keys and values made of a memory, (B, S, Nkv · d) both."""
        return self._rotate(self._split_heads(k), positions).transpose(1, 2), self._split_heads(v).transpose(1, 2)

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, T, heads · d) to (B, T, heads, d)."""
        return x.view(*x.shape[:2], x.shape[2] // self.head_width, self.head_width)

    def _rotate(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if self.rotary is None:
            return x
        turned: Tensor = self.rotary(x, torch.arange(x.shape[1], device=x.device) if positions is None else positions)
        return turned

    def attend_to(
        self,
        x: Tensor,
        keys_values: tuple[Tensor, Tensor],
        mask: Tensor | AttentionMask | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The positions of x (B, T, D) to keys and values (B, Nkv, S, d): see `attend`."""
        return self.attend(self.queries(x), keys_values, mask, weights=weights)

    def attend(
        self,
        q: Tensor,
        keys_values: tuple[Tensor, Tensor],
        mask: Tensor | AttentionMask | None = None,
        is_causal: bool = False,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries (B, N, T, d) to keys and values (B, Nkv, S, d): MultiHead (B, T, D), and the weights if wanted.

        `is_causal`: the last query stands at the last key, the one before it at the key before
        that, and none attends to a later one.
        """
        dropout = self.dropout if self.training else 0.0
        arguments = q, *keys_values, AttentionMask.of(mask), is_causal, self.scale, dropout
        if weights:
            heads, attention_weights = attention_with_weights(*arguments)
        else:
            heads, attention_weights = scaled_dot_product_attention(*arguments), None
        return self.out(heads.transpose(1, 2).flatten(2)), attention_weights


@operation
def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, scale: float, dropout: float = 0.0
) -> Tensor:
    """softmax(QKᵀ · scale) V of queries (B, N, T, d), keys and values (B, Nkv, S, d): (B, N, T, d)."""
    return attention_with_weights(q, k, v, mask, is_causal, scale, dropout)[0]


def attention_with_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, scale: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same, and the weights (B, N, T, S), in float32 at least and before dropout."""
    (B, N, T, d), (_, kv_heads, S, _) = q.shape, k.shape
    mask = with_causal(mask, T, S, q.device) if is_causal else mask
    groups = B, kv_heads, N // kv_heads * T  # heads that share keys ask side by side
    scores = (q * scale).reshape(*groups, d) @ k.transpose(-1, -2)
    scores = scores.view(B, N, T, S).to(torch.promote_types(scores.dtype, torch.float32))
    weights = softmax(scores if mask is None else scores + mask.added.to(scores.dtype))
    if mask is not None and mask.some is not None:
        weights = weights * mask.some
    kept = drop(weights, dropout) if dropout else weights
    return (kept.to(v.dtype).view(*groups, S) @ v).view(q.shape), weights


@operation
def softmax(scores: Tensor) -> Tensor:
    """Over the last dimension."""
    return scores.softmax(dim=-1)


@operation
def project(layers: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """What each of these layers makes of x."""
    return [layer(x) for layer in layers]


def with_causal(mask: AttentionMask | None, T: int, S: int, device: torch.device) -> AttentionMask | None:
    """A mask (…, T, S) that also keeps each of T queries from attending to later keys; the last one has none."""
    if T == 1:
        return mask
    past = causal_mask(T, S, device=device)
    return AttentionMask(past if mask is None else mask.mask & past)


class Mixer(nn.Module, ABC):
    """x (B, S, D) and a mask (B, S), True at real positions, to y (B, S, D), and to weights (B, N, S, S) if wanted.

    Padding reaches no real position, and outputs there mean nothing. A mixer that attends needs
    finite numbers there, since weights of 0 still multiply them: an encoder of vectors calls
    `zero_padding` once.
    """

    complexity: ClassVar[str]  # of a layer, in O(·)
    sequential: ClassVar[str]  # operations that must wait for each other
    path: ClassVar[str]  # the longest path between two positions
    options: ClassVar[tuple[str, ...]] = ()  # settings that are this kind's own: window, kernel, cell
    attends: ClassVar[bool] = False  # whether it has heads, and weights to show

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
        """How many such layers until the last of n positions depends on the first; recurrent: how many steps."""

    @abstractmethod
    def multiplications(self, n: int) -> int:
        """The multiplications of a forward pass over n positions, smaller terms included."""

    def notes(self) -> list[str]:
        """What the layer does beyond its equations, in words for whoever trains it."""
        return []


class SelfAttention(Mixer):
    """y = MultiHead(x, x): see `seqloom.nn.attention`."""

    complexity, sequential, path = "n²·d", "1", "1"
    attends = True

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

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
        return n * count_matrix_weights(self.attention) + 2 * n * n * self.attention.out.in_features


def count_matrix_weights(module: nn.Module) -> int:
    """The number of weights in matrices, which every position is multiplied with once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)
