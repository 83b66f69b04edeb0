"""Attention: additive and multiplicative scores of recurrent decoders, and multi-head scaled dot products.

    score-based    e_j = score(s, h_j)          α = softmax(e)          c = Σ_j α_j h_j

    Attention(Q, K, V) = softmax(QKᵀ / √d_k) V
    head_n = Attention(x W_n^Q, m W_n^K, m W_n^V)
    MultiHead(x, m) = [head_1; …; head_N] W^O

Queries are computed from x, and keys and values from the memory m; in self-attention, x = m. If a layer has fewer
key–value heads than query heads, groups of adjacent query heads share a key–value head. Without positions, attention
treats its memory as a set, except with the location score.

`attention_with_weights` is the reference implementation. If the weights are not requested, implementations of
`scaled_dot_product_attention` may compute the same output without storing the weights.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from seqloom.core.operations import operation
from seqloom.nn.masks import AttentionMask, causal_mask, drop, zero_padding
from seqloom.nn.positions import Rotary
from seqloom.nn.scores import Score

Memory = dict[str, Tensor]  # for each source: encoder states (B, S, M), keys (B, S, …), mask (B, S)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the unmasked positions of the last dimension, at least in float32.

    A row without unmasked positions gives zeros with zero gradients, because masked scores have a finite fill value.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~mask, 0)


def chosen_positions(weights: Tensor, gumbel: Tensor) -> Tensor:
    """Return argmax_j (log α_j + g_j) (B, …), a sample of α if g has the standard Gumbel distribution."""
    return (weights.detach().log() + gumbel).argmax(dim=-1)


class Attention(nn.Module):
    """Attention from decoder states to encoder states with a score of `seqloom.nn.scores`."""

    recomputable = True  # see `seqloom.train.wrappers.checkpoint_activations`

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def prepare(self, states: Tensor, mask: Tensor) -> Memory:
        """Prepare encoder states (B, S, M) with a mask (B, S); this is done once per source."""
        states = zero_padding(states, mask)
        return {"states": states, "keys": self.score.prepare(states, mask), "mask": mask}

    def forward(
        self, query: Tensor, memory: Memory, coverage: Tensor | None = None, previous: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Map queries (B, …, T, H) to context vectors (B, …, T, M) and attention weights (B, …, T, S).

        All queries of a source share its row of the memory. `coverage` (B, …, T, S) is the sum of
        past attention weights, and `previous` (B, …, T, S) are the weights of the previous step. If the memory contains
        `gumbel` (B, T, S), the context vector of a query is the encoder state at a position that is sampled with the
        attention weights; see `chosen_positions`.
        """
        states, mask = memory["states"], memory["mask"]
        scores = self.score(query, memory["keys"], coverage, previous)
        mask = mask.reshape(len(mask), *(1,) * (scores.dim() - 2), -1)  # (B, 1 …, S)
        weights = masked_softmax(scores, mask)
        flat = weights.reshape(len(weights), -1, weights.shape[-1]).to(states.dtype)  # (B, N, S)
        context = torch.bmm(flat, states).reshape(*query.shape[:-1], states.shape[-1])
        if "gumbel" in memory:
            positions = chosen_positions(weights, memory["gumbel"].view_as(weights)).reshape(len(weights), -1, 1)
            context = states.take_along_dim(positions, dim=1).reshape(context.shape)
        return context, weights


class AttentionOptions(TypedDict):
    """Options of `MultiHeadAttention`."""

    kv_heads: int | None
    bias: bool
    scale: bool
    dropout: float


def head_problems(d_model: int, heads: int, kv_heads: int | None) -> Iterator[str]:
    """Yield a message for each invalid number of heads."""
    if heads < 1:
        yield f"heads must be at least 1; got {heads}"
    elif d_model % heads:
        yield f"d_model must be divisible by heads; got {d_model} and {heads}"
    if kv_heads is not None and kv_heads < 1:
        yield f"kv_heads must be at least 1; got {kv_heads}"
    elif kv_heads is not None and heads >= 1 and heads % kv_heads:
        yield f"heads must be divisible by kv_heads; got {heads} and {kv_heads}"


class MultiHeadAttention(nn.Module):
    """Multi-head attention.

    Masks are boolean, True where a query may attend, and broadcast to (B, N, T, S). The output of a query without an
    allowed key is zero. `rotary` rotates queries and keys by their positions.
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
        """Apply Xavier initialization.

        The projections of queries, keys and values are scaled as if they were one matrix.
        """
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
        """Attend from queries (B, T, D) to a memory (B, S, D), or to the queries themselves if `memory` is None.

        Return the output (B, T, D) and, if requested, the attention weights (B, N, T, S). Rotary positions use
        `positions` (T,) or (B, T); None means 0, 1, 2 …
        """
        if memory is None:
            return self.attend(*self.project_self(query, positions), mask, is_causal, weights)
        q, keys_values = self.queries(query, positions), self.keys_values(memory, positions)
        return self.attend(q, keys_values, mask, is_causal, weights)

    def project_self(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Project x (B, T, D) to queries (B, N, T, d), and keys and values (B, Nkv, T, d)."""
        q, k, v = (self._split_heads(part) for part in project((self.q, self.k, self.v), x))
        q, k = self._rotate(q, positions), self._rotate(k, positions)
        return q.transpose(1, 2), (k.transpose(1, 2), v.transpose(1, 2))

    def queries(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Project x (B, T, D) to queries (B, N, T, d)."""
        return self._rotate(self._split_heads(self.q(x)), positions).transpose(1, 2)

    def keys_values(self, memory: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Project a memory (B, S, D) to keys and values (B, Nkv, S, d)."""
        k, v = project((self.k, self.v), memory)
        return self.split_keys_values(k, v, positions)

    def split_keys_values(self, k: Tensor, v: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Split projected keys and values (B, S, Nkv · d) into heads (B, Nkv, S, d)."""
        return self._rotate(self._split_heads(k), positions).transpose(1, 2), self._split_heads(v).transpose(1, 2)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Reshape x (B, T, heads · d) to (B, T, heads, d)."""
        return x.view(*x.shape[:2], x.shape[2] // self.head_width, self.head_width)

    def _rotate(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if self.rotary is None:
            return x
        rotated: Tensor = self.rotary(x, torch.arange(x.shape[1], device=x.device) if positions is None else positions)
        return rotated

    def attend_to(
        self,
        x: Tensor,
        keys_values: tuple[Tensor, Tensor],
        mask: Tensor | AttentionMask | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from x (B, T, D) to projected keys and values (B, Nkv, S, d); see `attend`."""
        return self.attend(self.queries(x), keys_values, mask, weights=weights)

    def attend(
        self,
        q: Tensor,
        keys_values: tuple[Tensor, Tensor],
        mask: Tensor | AttentionMask | None = None,
        is_causal: bool = False,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from queries (B, N, T, d) to keys and values (B, Nkv, S, d).

        Return the output (B, T, D) and, if requested, the attention weights. With `is_causal`, the last query is at the
        position of the last key, and no query attends to a later key.
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
    """Return softmax(QKᵀ · scale) V (B, N, T, d) of queries (B, N, T, d), keys and values (B, Nkv, S, d)."""
    return attention_with_weights(q, k, v, mask, is_causal, scale, dropout)[0]


def attention_with_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, scale: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute the output, and the attention weights (B, N, T, S) before dropout, in at least float32."""
    (B, N, T, d), (_, kv_heads, S, _) = q.shape, k.shape
    mask = with_causal(mask, T, S, q.device) if is_causal else mask
    groups = B, kv_heads, N // kv_heads * T  # heads that share keys are computed together
    scores = (q * scale).reshape(*groups, d) @ k.transpose(-1, -2)
    scores = scores.view(B, N, T, S).to(torch.promote_types(scores.dtype, torch.float32))
    weights = softmax(scores if mask is None else scores + mask.additive.to(scores.dtype))
    if mask is not None and mask.attending is not None:
        weights = weights * mask.attending
    dropped = drop(weights, dropout) if dropout else weights
    return (dropped.to(v.dtype).view(*groups, S) @ v).view(q.shape), weights


@operation
def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension."""
    return scores.softmax(dim=-1)


@operation
def project(layers: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """Return the output of each layer for x."""
    return [layer(x) for layer in layers]


def with_causal(mask: AttentionMask | None, T: int, S: int, device: torch.device) -> AttentionMask | None:
    """Combine a mask (…, T, S) with the causal mask. The last query is at the position of the last key."""
    if T == 1:
        return mask
    past = causal_mask(T, S, device=device)
    return AttentionMask(past if mask is None else mask.mask & past)
