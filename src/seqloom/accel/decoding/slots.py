"""KV caches with reusable slots: a token can use any free slot of its source.

The numba kernels skip slots that a hypothesis does not own, so slots need no order. `decoder_step` decides at the first
token whether a search reuses slots, and stores the decision in the state of the cache.

CUDA graphs require caches of a fixed size (`FixedUpdate`), so that all steps have the same shapes.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.accel.decoding import decoder_numba
from seqloom.core.tree import GrowingBuffer
from seqloom.nn.cache import STEPS_OF_GROWTH, Caches, CacheState, CacheUpdate, enlarge, extend_caches, token_positions
from seqloom.nn.masks import AttentionMask

REUSES_SLOTS = "reuses_slots"  # the key of the decision in the state of the cache
RESERVED_GROWTHS = 6  # number of times that a cache can grow within its first allocation


@dataclass(frozen=True)
class SlotUpdate(CacheUpdate):
    """A cache update with one token per hypothesis, written to slots (B, k) of its source."""

    slots: Tensor

    def write(self, cache: GrowingBuffer, keys_values: tuple[Tensor, Tensor]) -> GrowingBuffer:
        buffer = cache.buffer.clone()
        for part, new in enumerate(keys_values):
            buffer[torch.arange(len(buffer)).unsqueeze(1), :, part, self.slots] = new.transpose(1, 2)
        return GrowingBuffer(buffer, cache.length)

    def read(self, cache: GrowingBuffer) -> tuple[Tensor, Tensor]:
        return super().read(clear_free_slots(cache, self.state["owned"]))


def clear_free_slots(cache: GrowingBuffer, owned: Tensor) -> GrowingBuffer:
    """Return a cache with zeros in all slots that have no owner in `owned` (R, P), because they may contain NaN."""
    free = ~owned.view(len(cache.buffer), -1, owned.shape[1]).any(dim=1)[:, None, None, :, None]
    return GrowingBuffer(cache.buffer[:, :, :, : owned.shape[1]].masked_fill(free, 0), cache.length)


def applies(
    caches: Caches, state: CacheState, tokens: Tensor, mask: Tensor | None, sources: int, window: int | None = None
) -> bool:
    return bool(state.get(REUSES_SLOTS))


def extend(
    caches: Caches, state: CacheState, tokens: Tensor, mask: Tensor | None, sources: int, window: int | None = None
) -> tuple[Caches, CacheUpdate]:
    """Take a free slot for each token (R, 1). Several tokens per hypothesis use the reference implementation."""
    owned = state["owned"]
    if tokens.shape[1] != 1:
        if owned is not None:
            caches = tuple(clear_free_slots(cache, owned) for cache in caches)
        return extend_caches.definition(caches, state, tokens, mask, sources, window)
    if mask is not None and bool(mask.all()):
        mask = None
    caches, owned = _with_free_slots(caches, state, tokens, sources)
    slots = decoder_numba.take_slots(owned, sources)
    if mask is not None:  # padding has no owner
        owned.scatter_(1, slots.view(-1, 1), mask)
    allowed = AttentionMask(owned.view(sources, 1, -1, owned.shape[1]), every_query_attends=mask is None)
    positions, length = token_positions(tokens, mask, state, sources)
    state = {**state, "owned": owned, "length": length, "read": state["read"] + 1}
    end = owned.shape[1]
    return caches, SlotUpdate(end, end, positions, allowed, state, mask is None, slots)


def _with_free_slots(caches: Caches, state: CacheState, tokens: Tensor, sources: int) -> tuple[Caches, Tensor]:
    """Return caches with at least one free slot per token, and the owners of the slots (R, P).

    The memory of a cache has reserved slots, which are not part of its buffer. Reserved slots use no memory until they
    are written, and are not copied when sources leave the batch.
    """
    owned, k = state["owned"], len(tokens) // sources
    owned = torch.ones(len(tokens), state["read"], dtype=torch.bool) if owned is None else owned
    slots = caches[0].buffer.shape[3]
    if owned.shape[1] < slots:  # unused slots have no owner
        owned = F.pad(owned, (0, slots - owned.shape[1]))
    if decoder_numba.free_slots(owned, sources) < k:
        added = STEPS_OF_GROWTH * k
        owned, slots = F.pad(owned, (0, added)), slots + added
        caches = tuple(_add_slots(cache, slots, RESERVED_GROWTHS * added) for cache in caches)
    return caches, owned


def _add_slots(cache: GrowingBuffer, slots: int, min_reserved: int) -> GrowingBuffer:
    """Return a cache with `slots` slots.

    The cache keeps its memory if the slots fit; otherwise it gets new memory for at least `min_reserved` slots.
    """
    old_slots, buffer = cache.buffer.shape[3], cache.buffer
    if slots > decoder_numba.capacity(buffer):
        buffer = enlarge(cache, None, old_slots, max(2 * slots, min_reserved)).buffer
    shape = *buffer.shape[:3], slots, buffer.shape[4]
    return GrowingBuffer(buffer.as_strided(shape, buffer.stride()), cache.length)


@dataclass(frozen=True)
class FixedUpdate:
    """A cache update that writes one token for each of R = B·k hypotheses: step t writes to slots t·k … t·k + k − 1.

    `owned` (R, P), which is changed in place, marks the slots that each hypothesis owns.
    """

    owned: Tensor
    step: Tensor  # t, on the device
    k: int

    @property
    def positions(self) -> Tensor:
        """The positions of the tokens (k,)."""
        return self.step.expand(self.k)

    @cached_property
    def attendable(self) -> Tensor:
        """The slots that each token attends to (R, P), including its own."""
        owned = self.owned.view(-1, self.k, self.owned.shape[1])
        own_token = torch.eye(self.k, dtype=torch.bool, device=owned.device).expand(len(owned), -1, -1)
        owned.index_copy_(2, self._slots, own_token)
        return self.owned

    @cached_property
    def mask(self) -> AttentionMask:
        """The attention mask (B, 1, k, P)."""
        return AttentionMask(self.attendable.view(-1, 1, self.k, self.owned.shape[1]), every_query_attends=True)

    @cached_property
    def _slots(self) -> Tensor:
        return self.step * self.k + torch.arange(self.k, device=self.step.device)

    def write_keys_values(self, cache: GrowingBuffer, new: Tensor) -> None:
        """Write keys and values (B, N, 2, k, d) in place."""
        cache.buffer.index_copy_(3, self._slots, new)

    def read(self, cache: GrowingBuffer) -> tuple[Tensor, Tensor]:
        keys, values = cache.buffer.unbind(dim=2)
        return keys, values
