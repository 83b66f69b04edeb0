"""Scaled dot-product attention with several heads.

    Attention(Q, K, V) = softmax(QKᵀ / √d_k) V
    head_n = Attention(x W_n^Q, m W_n^K, m W_n^V)
    MultiHead(x, m) = [head_1; …; head_N] W^O

x asks, the memory m answers; in self-attention they are the same. With fewer key–value heads than heads, each serves a
group of neighbouring heads.

There are two ways to the same result. One is torch's fused kernel, which never writes the weights down; the other makes
them in the open, and returns them. On a CPU the open one is the faster of the two where few ask, as in decoding.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.nn.dropout import drop
from seqloom.nn.masks import AttentionMask, causal_mask
from seqloom.nn.positions import Rotary

FEW = 16  # queries of a sequence up to which the open way is the faster one on a CPU
REGISTER = 16  # numbers that a CPU takes at once
TILE = 128  # keys that cuDNN's attention takes at once


def head_problems(width: int, heads: int, kv_heads: int | None) -> Iterator[str]:
    """What is wrong with a choice of heads."""
    if heads < 1:
        yield f"heads must be at least 1; got {heads}"
    elif width % heads:
        yield f"width must be divisible by heads, so that all are equally wide; got {width} and {heads}"
    if kv_heads is not None and kv_heads < 1:
        yield f"kv_heads must be at least 1; got {kv_heads}"
    elif kv_heads is not None and heads >= 1 and heads % kv_heads:
        yield f"heads must be divisible by kv_heads, so that all serve equally many; got {heads} and {kv_heads}"


class MultiHeadAttention(nn.Module):
    """Masks are boolean, True where a query may look, and broadcast to (B, N, T, S); who may look nowhere gets zeros.

    `rotary` turns queries and keys by their places; without it places mean nothing here.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        bias: bool = True,
        scale: bool = True,
        dropout: float = 0.0,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        if problems := list(head_problems(width, heads, kv_heads)):
            raise ValueError("; ".join(problems))
        self.heads, self.kv_heads, self.head_width = heads, kv_heads or heads, width // heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, self.kv_heads * self.head_width, bias=bias)
        self.v = nn.Linear(width, self.kv_heads * self.head_width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
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
        causal: bool = False,
        weights: bool = False,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries (B, T, D) against a memory (B, S, D), None for themselves: (B, T, D), and weights (B, N, T, S).

        `places` (T,) or (B, T) are for rotary positions of self-attention; None counts from 0.
        """
        if memory is None:
            return self.attend(*self.project_self(query, places), mask, causal, weights)
        return self.attend(self.queries(query, places), self.keys_values(memory, places), mask, causal, weights)

    def project_self(self, x: Tensor, places: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The queries (B, N, T, d), and the keys and values (B, Nkv, T, d), of x (B, T, D)."""
        q, k, v = (self._split_heads(part) for part in each_of((self.q, self.k, self.v), x))
        return self._rotate(q, places).transpose(1, 2), (self._rotate(k, places).transpose(1, 2), v.transpose(1, 2))

    def queries(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """x (B, T, D) to (B, N, T, d)."""
        return self._rotate(self._split_heads(self.q(x)), places).transpose(1, 2)

    def keys_values(self, memory: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The keys and values (B, Nkv, S, d) of a memory (B, S, D): once for each, however often it is asked."""
        k, v = each_of((self.k, self.v), memory)
        return self.as_keys_values(k, v, places)

    def as_keys_values(self, k: Tensor, v: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same of what the layers for keys and values made of a memory, (B, S, Nkv · d) both."""
        return self._rotate(self._split_heads(k), places).transpose(1, 2), self._split_heads(v).transpose(1, 2)

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, T, heads · d) to (B, T, heads, d)."""
        return x.view(*x.shape[:2], x.shape[2] // self.head_width, self.head_width)

    def _rotate(self, x: Tensor, places: Tensor | None) -> Tensor:
        if self.rotary is None:
            return x
        turned: Tensor = self.rotary(x, torch.arange(x.shape[1], device=x.device) if places is None else places)
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
        causal: bool = False,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries (B, N, T, d) to keys and values (B, Nkv, S, d): MultiHead (B, T, D), and the weights if wanted.

        `causal`: the last query stands at the last key, the one before it at the key before that, and none looks ahead.
        """
        k, v = keys_values
        if weights or (q.shape[2] <= FEW and q.device.type == "cpu"):
            heads, looked = self._openly(q, k, v, AttentionMask.of(_with_causal(mask, q, k) if causal else mask))
        else:
            heads, looked = self._fast(q, k, v, mask, causal), None
        return self.out(heads.transpose(1, 2).flatten(2)), looked if weights else None

    def _openly(self, q: Tensor, k: Tensor, v: Tensor, allowed: AttentionMask | None) -> tuple[Tensor, Tensor]:
        """softmax(QKᵀ / √d_k) V and its softmax."""
        (B, N, T, d), S = q.shape, k.shape[2]
        groups = B, self.kv_heads, N // self.kv_heads * T  # heads that share keys ask side by side
        scores = (q * self.scale).reshape(*groups, d) @ k.transpose(-1, -2)
        scores = scores.view(B, N, T, S).to(torch.promote_types(scores.dtype, torch.float32))
        looked = softmax(scores if allowed is None else scores + allowed.added.to(scores.dtype))
        if allowed is not None and allowed.some is not None:
            looked = looked * allowed.some
        kept = drop(looked, self.dropout) if self.training and self.dropout else looked
        return (kept.to(v.dtype).view(*groups, S) @ v).view(q.shape), looked

    def _fast(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | AttentionMask | None, causal: bool) -> Tensor:
        """The same by the fused kernel."""
        square = q.shape[2] == k.shape[2]  # the kernel's own causal mask counts from the first key
        if causal and not (square and mask is None):
            mask, causal = _with_causal(mask, q, k), False
        each = isinstance(mask, AttentionMask) and mask.each
        mask = mask.mask if isinstance(mask, AttentionMask) else mask
        dropout, grouped = self.dropout if self.training else 0.0, self.kv_heads < self.heads
        kernel = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=self.scale, enable_gqa=grouped)
        if mask is None or each or mask.device.type == "cpu":  # where a row without any place gives zeros by itself
            return kernel(q, k, v, attn_mask=mask, is_causal=causal)
        some = mask.any(dim=-1, keepdim=True)  # not every kernel of a GPU does
        return kernel(q, k, v, attn_mask=mask | ~some).masked_fill(~some, 0)


def choose_kernels(keys: Tensor) -> None:
    """Before queries meet keys (B, S, …): on a GPU, where there are few of them, other kernels than cuDNN's are faster.

    Which one is taken is decided when a model is compiled, and for all of PyTorch at once.
    """
    if keys.is_cuda:
        torch.backends.cuda.enable_cudnn_sdp(keys.shape[1] >= TILE)


def each_of(layers: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """What each of these layers makes of x. Training on a GPU asks for one product in place of many small ones."""
    if x.device.type == "cpu" or not torch.is_grad_enabled():
        return [layer(x) for layer in layers]
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1)


def softmax(scores: Tensor) -> Tensor:
    """Over the last dimension. Where that does not fill a register, torch's takes the numbers one by one."""
    if not 0 < scores.shape[-1] < REGISTER or scores.device.type != "cpu":
        return scores.softmax(dim=-1)
    powers = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


def _with_causal(mask: Tensor | AttentionMask | None, q: Tensor, k: Tensor) -> Tensor | AttentionMask | None:
    """A mask (…, T, S) that also keeps each of T queries from looking ahead; the last one has nothing ahead."""
    T, S = q.shape[2], k.shape[2]
    if T == 1:
        return mask
    past = causal_mask(T, S, device=q.device)
    if mask is None:
        return past
    return (mask.mask if isinstance(mask, AttentionMask) else mask) & past
