"""The KV cache: the keys and values of all tokens read so far. The hypotheses of a source share one cache.

Each step writes the keys and values of its tokens into the next free slots of the source's cache, k slots for k
hypotheses. A hypothesis *owns* the slots of its tokens and attends only to these slots, so hypotheses share the slots
of their common prefix. When a beam is reordered, keys and values are not moved: only the ownership masks are reordered.
When the cache grows, slots without an owner are dropped.

The cache consists of one `GrowingBuffer` per layer and one `CacheState` for all layers.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.operations import operation
from seqloom.core.tree import GrowingBuffer
from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.masks import AttentionMask, AttentionScope, all_known_true, causal_mask

STEPS_OF_GROWTH = 6  # number of steps for which slots are allocated at once

Caches = tuple[GrowingBuffer, ...]  # keys and values of each layer
CacheState = dict[str, Any]  # state of R = B·k hypotheses; see `empty_state`


def empty_state() -> CacheState:
    """Return the state of hypotheses that have read no tokens.

    owned (R, P): the slots that each hypothesis owns; None if each hypothesis owns all slots.
    length (R,): the number of tokens that each hypothesis has read; None if all numbers are equal.
    read: the maximum of `length`, known without a device synchronization.
    """
    return {"owned": None, "length": None, "read": 0}


def empty_cache(attention: MultiHeadAttention, sources: int, slots: int = 0) -> GrowingBuffer:
    """Return the empty cache of one layer: a buffer (B, Nkv, 2, slots, d) of zeros."""
    buffer = attention.k.weight.new_zeros(sources, attention.kv_heads, 2, slots, attention.head_width)
    return GrowingBuffer(buffer, torch.zeros(sources, dtype=torch.long, device=buffer.device))


@dataclass(frozen=True)
class CacheUpdate:
    """The T tokens that each of R = B·k hypotheses reads in one step, as rows (B, k·T) for all layers."""

    start: int  # the first slot that is written
    end: int  # the slot after the last written slot: start + k·T
    positions: Tensor  # (k·T,) or (B, k·T); padding repeats the position of the last real token
    mask: AttentionMask | None  # (B, 1, k·T, end): the slots that each token may attend to, including its own
    state: CacheState  # state of the hypotheses after the step
    is_single_token: bool  # T is 1, and no token is padding

    @property
    def scope(self) -> AttentionScope:
        """The scope in which blocks attend to the cache."""
        return AttentionScope(self.mask, self.mask is None, self.positions, update=self)

    @property
    def lengths(self) -> Tensor:
        """The number of tokens that each row has read after the step, or one number for all rows."""
        length: Tensor | None = self.state["length"]
        return self.positions[-1:] + 1 if length is None else length

    def write(self, cache: GrowingBuffer, keys_values: tuple[Tensor, Tensor]) -> GrowingBuffer:
        """Write the new keys and values (B, Nkv, k·T, d) into the cache."""
        buffer = write_slots(cache.buffer, self.start, *keys_values)
        return GrowingBuffer(buffer, cache.length + (self.end - self.start))

    def read(self, cache: GrowingBuffer) -> tuple[Tensor, Tensor]:
        """Return all keys and values (B, Nkv, end, d) of the cache."""
        keys, values = cache.buffer[:, :, :, : self.end].unbind(dim=2)
        return keys, values


@operation
def write_slots(buffer: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
    """Write keys and values (B, Nkv, n, d) into a buffer (B, Nkv, 2, P, d), starting at slot `start`.

    The reference implementation writes to a copy. Callers must not use the old buffer again, so that other
    implementations can write in place.
    """
    buffer = buffer.clone()
    for part, new in enumerate((keys, values)):
        buffer[:, :, part, start : start + new.shape[2]] = new
    return buffer


@operation
def extend_caches(
    caches: Caches, state: CacheState, tokens: Tensor, mask: Tensor | None, sources: int, window: int | None = None
) -> tuple[Caches, CacheUpdate]:
    """Allocate slots for tokens (R, T) in the caches of all layers; `mask` (R, T) marks the real tokens.

    With a sliding `window`, each token attends to the last `window` tokens of its hypothesis, including itself.
    """
    T, k = tokens.shape[1], len(tokens) // max(sources, 1)
    if mask is not None and all_known_true(mask):
        mask = None
    caches, state = _grow(caches, state, k * T, k * (T + STEPS_OF_GROWTH - 1), sources)
    owned, start = state["owned"], filled_slots(state)
    positions, length = token_positions(tokens, mask, state, sources)
    allowed = None
    if owned is not None or mask is not None or k > 1:
        owned, visible = _own_tokens(tokens, mask, owned, start, k)
        if window is not None:
            visible = visible & _within_window(window, owned, positions, T)
        allowed = AttentionMask(visible.reshape(sources, 1, k * T, -1), every_query_attends=mask is None)
    elif window is not None and start + T > window:
        allowed = AttentionMask(causal_mask(T, start + T, window, tokens.device), every_query_attends=True)
    state = {**state, "owned": owned, "length": length, "read": state["read"] + T}
    return caches, CacheUpdate(start, start + k * T, positions, allowed, state, T == 1 and mask is None)


def filled_slots(state: CacheState) -> int:
    """Return the number of slots of each source that contain keys and values."""
    owned = state["owned"]
    return int(state["read"]) if owned is None else int(owned.shape[1])


def token_positions(
    tokens: Tensor, mask: Tensor | None, state: CacheState, sources: int
) -> tuple[Tensor, Tensor | None]:
    """Return the positions (k·T,) or (B, k·T) of the tokens and the new lengths of the rows (None if all are equal)."""
    (R, T), read, length = tokens.shape, state["read"], state["length"]
    if length is None and mask is None:
        return torch.arange(read, read + T, device=tokens.device).repeat(R // max(sources, 1)), None
    length = torch.full((R,), read, device=tokens.device) if length is None else length
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    positions = length.unsqueeze(1) + mask.cumsum(dim=1) - 1  # (R, T)
    return positions.reshape(sources, -1), length + mask.sum(dim=1)


def _own_tokens(tokens: Tensor, mask: Tensor | None, owned: Tensor | None, start: int, k: int) -> tuple[Tensor, Tensor]:
    """Return masks of the slots after the step.

    The first mask (R, end) marks the slots that each hypothesis owns. The second mask (R, T, end) marks the slots that
    each token may attend to.
    """
    (R, T), device = tokens.shape, tokens.device
    before = torch.ones(R, start, dtype=torch.bool, device=device) if owned is None else owned
    new = torch.eye(k, dtype=torch.bool, device=device).repeat(R // k, 1)  # (R, k): a hypothesis reads its own tokens
    if T == 1 and mask is None:
        owned = torch.cat([before, new], dim=1)
        return owned, owned.unsqueeze(1)
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    own_slots = new.unsqueeze(2) & mask.unsqueeze(1)  # (R, k, T)
    past = torch.ones(T, T, dtype=torch.bool, device=device).tril()
    visible = [before.unsqueeze(1).expand(-1, T, -1), (own_slots.unsqueeze(1) & past.unsqueeze(1)).flatten(2)]
    return torch.cat([before, own_slots.flatten(1)], dim=1), torch.cat(visible, dim=2)


def _within_window(window: int, owned: Tensor, positions: Tensor, T: int) -> Tensor:
    """Return a mask (R, T, P) or (R, 1, P) of the slots within the sliding window of each new token.

    Slots are owned in reading order, so the n-th slot of a hypothesis contains its n-th token.
    """
    slot_number = owned.cumsum(dim=1).unsqueeze(1)  # (R, 1, P), the number of the token of each slot, counted from 1
    new_positions = positions.view(-1, T) if positions.dim() == 2 else positions[:T]
    new_number = new_positions.unsqueeze(-1) + 1  # (R, T, 1) or (T, 1)
    return slot_number > new_number - window


def _grow(caches: Caches, state: CacheState, needed: int, room: int, sources: int) -> tuple[Caches, CacheState]:
    """Return caches with at least `needed` free slots.

    If fewer slots are free, slots without an owner are dropped and `room` new slots are allocated.
    """
    filled, kept = filled_slots(state), None
    if filled + needed <= caches[0].buffer.shape[3]:
        return caches, state
    if state["owned"] is not None:
        kept, state = _owned_slots(state, sources)
        filled = kept.shape[1]
    return tuple(enlarge(cache, kept, filled, filled + room) for cache in caches), state


def _owned_slots(state: CacheState, sources: int) -> tuple[Tensor, CacheState]:
    """Return the owned slots (B, P') of each source, in order, and the state without the other slots.

    P' is the largest number of owned slots of any source; reading P' synchronizes with the device once every
    `STEPS_OF_GROWTH` steps.
    """
    owned = state["owned"]
    has_owner = owned.view(sources, -1, owned.shape[1]).any(dim=1)  # (B, P)
    count = int(has_owner.sum(dim=1).max())
    kept = (~has_owner).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    rows = kept.repeat_interleave(len(owned) // sources, dim=0)
    return kept, {**state, "owned": owned.gather(1, rows)}


def enlarge(cache: GrowingBuffer, kept: Tensor | None, filled: int, slots: int) -> GrowingBuffer:
    """Copy the `kept` slots (B, filled), or the first `filled` slots, into a larger cache.

    The other slots of the larger cache are uninitialized.
    """
    B, N, _, before, d = cache.buffer.shape
    if kept is None:
        buffer = cache.buffer.new_empty(B, N, 2, slots, d)
        buffer[:, :, :, :filled] = cache.buffer[:, :, :, :filled]
    else:
        # The rows of the flattened cache (B·N·2·before, d): the first slot of each head, plus the kept slots.
        first = torch.arange(B * N * 2, device=kept.device).view(B, N * 2, 1) * before
        rows = first + F.pad(kept, (0, slots - filled)).unsqueeze(1)  # (B, N·2, slots)
        buffer = cache.buffer.reshape(-1, d).index_select(0, rows.flatten()).view(B, N, 2, slots, d)
    return GrowingBuffer(buffer, torch.full_like(cache.length, filled))
