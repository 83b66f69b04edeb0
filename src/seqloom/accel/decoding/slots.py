"""The KV cache as numba kernels use it: tokens go to any free slot of their source, and no slot is ever dropped.

The kernels skip the slots that a hypothesis does not own, so order and gaps do not matter to them.
`decoder_step` decides at the first token whether a search decodes so, and notes it in the state of
the cache.

CUDA graphs need caches of their final size instead, so that all steps have the same shapes:
`FixedUpdate`.
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

REUSES_SLOTS = "reuses_slots"  # the entry of a cache's state
FORESEEN_GROWTH = 6  # times a cache grows within the memory it got at first


@dataclass(frozen=True)
class SlotUpdate(CacheUpdate):
    """One token of each hypothesis, written to slots (B, k) of its source."""

    slots: Tensor

    def write(self, cache: GrowingBuffer, keys_values: tuple[Tensor, Tensor]) -> GrowingBuffer:
        buffer = cache.buffer.clone()
        for part, new in enumerate(keys_values):
            buffer[torch.arange(len(buffer)).unsqueeze(1), :, part, self.slots] = new.transpose(1, 2)
        return GrowingBuffer(buffer, cache.length)

    def read(self, cache: GrowingBuffer) -> tuple[Tensor, Tensor]:
        return super().read(clear_free_slots(cache, self.state["owned"]))


def clear_free_slots(cache: GrowingBuffer, owned: Tensor) -> GrowingBuffer:
    """A cache with zeros in the slots that nobody owns (R, P), where anything may stand, NaN too."""
    free = ~owned.view(len(cache.buffer), -1, owned.shape[1]).any(dim=1)[:, None, None, :, None]
    return GrowingBuffer(cache.buffer[:, :, :, : owned.shape[1]].masked_fill(free, 0), cache.length)


def applies(
    caches: Caches, state: CacheState, tokens: Tensor, mask: Tensor | None, sources: int, window: int | None = None
) -> bool:
    return bool(state.get(REUSES_SLOTS))


def extend(
    caches: Caches, state: CacheState, tokens: Tensor, mask: Tensor | None, sources: int, window: int | None = None
) -> tuple[Caches, CacheUpdate]:
    """Take a free slot for each of the tokens (R, 1). Several tokens at once are read as everywhere else."""
    owned = state["owned"]
    if tokens.shape[1] != 1:
        if owned is not None:
            caches = tuple(clear_free_slots(cache, owned) for cache in caches)
        return extend_caches.definition(caches, state, tokens, mask, sources, window)
    if mask is not None and bool(mask.all()):
        mask = None
    caches, owned = _with_free_slots(caches, state, tokens, sources)
    slots = decoder_numba.take_slots(owned, sources)
    if mask is not None:  # nobody owns padding
        owned.scatter_(1, slots.view(-1, 1), mask)
    allowed = AttentionMask(owned.view(sources, 1, -1, owned.shape[1]), each=mask is None)
    positions, length = token_positions(tokens, mask, state, sources)
    state = {**state, "owned": owned, "length": length, "read": state["read"] + 1}
    end = owned.shape[1]
    return caches, SlotUpdate(end, end, positions, allowed, state, mask is None, slots)


def _with_free_slots(caches: Caches, state: CacheState, tokens: Tensor, sources: int) -> tuple[Caches, Tensor]:
    """The caches, and who owns which of their slots (R, P), with one free slot for each token at least.

    Behind the slots of a cache there is room for more: memory that is not written to costs nothing,
    and as it is left out of the buffer, it is not moved when sources leave.
    """
    owned, k = state["owned"], len(tokens) // sources
    owned = torch.ones(len(tokens), state["read"], dtype=torch.bool) if owned is None else owned
    slots = caches[0].buffer.shape[3]
    if owned.shape[1] < slots:  # nobody owns what was never used
        owned = F.pad(owned, (0, slots - owned.shape[1]))
    if decoder_numba.free_slots(owned, sources) < k:
        more = STEPS_OF_GROWTH * k
        owned, slots = F.pad(owned, (0, more)), slots + more
        caches = tuple(_widen(cache, slots, FORESEEN_GROWTH * more) for cache in caches)
    return caches, owned


def _widen(cache: GrowingBuffer, slots: int, least: int) -> GrowingBuffer:
    """A cache with so many slots: where they lie, if there is room behind them; there will be for `least` or more."""
    before, buffer = cache.buffer.shape[3], cache.buffer
    if slots > decoder_numba.capacity(buffer):
        buffer = enlarge(cache, None, before, max(2 * slots, least)).buffer
    shape = *buffer.shape[:3], slots, buffer.shape[4]
    return GrowingBuffer(buffer.as_strided(shape, buffer.stride()), cache.length)


@dataclass(frozen=True)
class FixedUpdate:
    """One token of each of R = B·k hypotheses. At step t they write to the slots t·k … t·k + k − 1.

    `owned` (R, P), which slots each hypothesis owns, is changed in place.
    """

    owned: Tensor
    step: Tensor  # t, on the device
    k: int

    @property
    def positions(self) -> Tensor:
        """How many tokens stand before each (k,)."""
        return self.step.expand(self.k)

    @cached_property
    def with_itself(self) -> Tensor:
        """What each may attend to (R, P), itself included."""
        owned = self.owned.view(-1, self.k, self.owned.shape[1])
        itself = torch.eye(self.k, dtype=torch.bool, device=owned.device).expand(len(owned), -1, -1)
        owned.index_copy_(2, self._slots, itself)
        return self.owned

    @cached_property
    def mask(self) -> AttentionMask:
        """The same as a mask (B, 1, k, P)."""
        return AttentionMask(self.with_itself.view(-1, 1, self.k, self.owned.shape[1]), each=True)

    @cached_property
    def _slots(self) -> Tensor:
        return self.step * self.k + torch.arange(self.k, device=self.step.device)

    def write_both(self, cache: GrowingBuffer, new: Tensor) -> None:
        """Write keys and values (B, N, 2, k, d) in place."""
        cache.buffer.index_copy_(3, self._slots, new)

    def read(self, cache: GrowingBuffer) -> tuple[Tensor, Tensor]:
        keys, values = cache.buffer.unbind(dim=2)
        return keys, values
