"""What self-attention has read so far: kept once for each source, and shared by its hypotheses.

The tokens that a step reads get the next free places of their source's cache, k of them where there are k hypotheses,
and their keys and values are written there. Of these places a hypothesis *owns* those of its own tokens, and looks at
no others. So hypotheses that begin alike share what they have in common, and when a beam is reordered, no key or value
moves: a hypothesis takes along what it owns, a row of a mask. Places that nobody owns any more are given up when the
cache has to grow; machine code, which passes over them, has them taken again.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.tree import Growing
from seqloom.nn.decoder_compiled import capacity, free_places, take_places
from seqloom.nn.masks import AttentionMask, causal_mask
from seqloom.nn.multihead import MultiHeadAttention

ROOM = 6  # steps for which a cache grows at a time
FORESEEN = 6  # times it grows within the memory it got at first, where machine code reads it

Known = dict[str, Any]  # of R = B·k hypotheses, see `nothing`


def nothing() -> Known:
    """What is known of hypotheses that have read nothing.

    own (R, P): which of its source's places are its own; None while all are. length (R,): how many tokens it has read;
    None while all have read equally many. read: how many that is, at most, a number that no device need be asked for.
    compiled: whether they are read by machine code, which looks at a hypothesis' own places alone; None before the
    first.
    """
    return {"own": None, "length": None, "read": 0, "compiled": None}


def empty_cache(attention: MultiHeadAttention, sources: int) -> Growing:
    """Keys and values of one layer: a buffer (B, Nkv, 2, capacity, d)."""
    like = attention.k.weight
    buffer = like.new_empty(sources, attention.kv_heads, 2, 0, attention.head_width)
    return Growing(buffer, torch.zeros(sources, dtype=torch.long, device=like.device))


@dataclass(frozen=True)
class AttentionScope:
    """What each position may attend to by self-attention: the same for every block of a stack."""

    mask: Tensor | AttentionMask | None = None  # (B, 1, T, ·)
    is_causal: bool = False
    positions: Tensor | None = None  # (T,) or (B, T), for rotary positions; None counts from 0
    padding: Tensor | None = None  # (B, T), False at padding, for mixers that do not attend
    reading: "Reading | None" = None  # where there is also what was read before, in a cache

    @classmethod
    def within(cls, padding: Tensor | None) -> "AttentionScope":
        """All real positions: those of a mask (B, S)."""
        return cls(None if padding is None else AttentionMask(padding[:, None, None, :]), padding=padding)


EVERYWHERE = AttentionScope()


@dataclass(frozen=True)
class Reading:
    """T tokens that each of R = B·k hypotheses reads now: one value for all layers, which see them as (B, k·T)."""

    filled: int  # places of each source before
    after: int  # and after: k·T more
    places: Tensor  # (k·T,) or (B, k·T): how many tokens stand before each; of padding, those before the last real one
    allowed: AttentionMask | None  # what each token may look at (B, 1, k·T, after), itself included
    known: Known  # of the hypotheses, after it
    at: Tensor | None = None  # (B, k) where they are written, if not one after the other from `filled` on

    @classmethod
    def of(
        cls, tokens: Tensor, real: Tensor | None, known: Known, sources: int, window: int | None = None
    ) -> "Reading":
        """Tokens (R, T), of which those that are not `real` (R, T) are padding. With a sliding `window` each token
        attends to that many of its hypothesis' latest tokens, itself included."""
        T, k = tokens.shape[1], len(tokens) // max(sources, 1)
        if real is not None and real.device.type == "cpu" and bool(real.all()):
            real = None
        own, filled = known["own"], _filled(known)
        if known["compiled"] and T == 1:
            return cls._anywhere(tokens, real, known, sources)
        allowed = None
        places, length = _places(tokens, real, known, sources)
        if own is not None or real is not None or k > 1:
            own, seen = _owned(tokens, real, own, filled, k)
            if window is not None:
                seen = seen & _within(window, own, places, T)
            allowed = AttentionMask(seen.reshape(sources, 1, k * T, -1), each=real is None)
        elif window is not None and filled + T > window:
            allowed = AttentionMask(causal_mask(T, filled + T, window, tokens.device), each=True)
        known = {**known, "own": own, "length": length, "read": known["read"] + T}
        return cls(filled, filled + k * T, places, allowed, known)

    @classmethod
    def _anywhere(cls, tokens: Tensor, real: Tensor | None, known: Known, sources: int) -> "Reading":
        """Tokens (R, 1) that go wherever there is room: `with_room` has seen to it that there is."""
        own = known["own"]
        at = take_places(own, sources)
        if real is not None:  # padding is nobody's own
            own.scatter_(1, at.view(-1, 1), real)
        allowed = AttentionMask(own.view(sources, 1, -1, own.shape[1]), each=real is None)
        places, length = _places(tokens, real, known, sources)
        known = {**known, "length": length, "read": known["read"] + 1}
        return cls(own.shape[1], own.shape[1], places, allowed, known, at)

    @property
    def scope(self) -> AttentionScope:
        """What each of the tokens may attend to."""
        return AttentionScope(self.allowed, self.allowed is None, self.places, reading=self)

    @property
    def lengths(self) -> Tensor:
        """Tokens that each row, or all of them, have read after it."""
        length: Tensor | None = self.known["length"]
        return self.places[-1:] + 1 if length is None else length

    def write(self, cache: Growing, keys_values: tuple[Tensor, Tensor]) -> Growing:
        """The cache with the new keys and values (B, Nkv, k·T, d) in it: written in place."""
        buffer = cache.buffer.clone() if torch.is_grad_enabled() else cache.buffer  # gradients need what was there
        for part, new in enumerate(keys_values):
            if self.at is None:
                buffer[:, :, part, self.filled : self.after] = new
            else:
                buffer[torch.arange(len(buffer)).unsqueeze(1), :, part, self.at] = new.transpose(1, 2)
        return Growing(buffer, cache.length + (self.after - self.filled))

    def write_both(self, cache: Growing, new: Tensor) -> Growing:
        """The same of both in one tensor (B, Nkv, 2, k·T, d), where no gradient is wanted."""
        cache.buffer[:, :, :, self.filled : self.after] = new
        return cache

    def read(self, cache: Growing) -> tuple[Tensor, Tensor]:
        """All keys and values (B, Nkv, after, d) there are."""
        k, v = cache.buffer[:, :, :, : self.after].unbind(dim=2)
        own = self.known["own"]
        if own is None or not self.known["compiled"]:
            return k, v
        nobodys = ~own.view(len(k), -1, self.after).any(dim=1)[:, None, :, None]  # where anything may stand, NaN too
        return k.masked_fill(nobodys, 0), v.masked_fill(nobodys, 0)


@dataclass(frozen=True)
class FixedReading:
    """One token of each of R = B·k hypotheses, where caches are as large as they will be: shapes never change.

    At step t hypotheses write to the places t·k … t·k + k − 1. `own` (R, P) is changed in place.
    """

    own: Tensor
    at: Tensor  # t, on the device
    k: int

    @property
    def places(self) -> Tensor:
        """How many tokens stand before each (k,)."""
        return self.at.expand(self.k)

    @cached_property
    def with_itself(self) -> Tensor:
        """What each may look at (R, P), itself included."""
        own = self.own.view(-1, self.k, self.own.shape[1])
        itself = torch.eye(self.k, dtype=torch.bool, device=own.device).expand(len(own), -1, -1)
        own.index_copy_(2, self._written, itself)
        return self.own

    @cached_property
    def allowed(self) -> AttentionMask:
        """The same as a mask (B, 1, k, P)."""
        return AttentionMask(self.with_itself.view(-1, 1, self.k, self.own.shape[1]), each=True)

    @cached_property
    def _written(self) -> Tensor:
        return self.at * self.k + torch.arange(self.k, device=self.at.device)

    def write_both(self, cache: Growing, new: Tensor) -> Growing:
        cache.buffer.index_copy_(3, self._written, new)
        return cache

    def read(self, cache: Growing) -> tuple[Tensor, Tensor]:
        k, v = cache.buffer.unbind(dim=2)
        return k, v


def fixed_cache(attention: MultiHeadAttention, sources: int, places: int) -> Growing:
    """Zeros, since what nobody owns is multiplied by 0."""
    shape = sources, attention.kv_heads, 2, places, attention.head_width
    buffer = attention.k.weight.new_zeros(shape)
    return Growing(buffer, torch.zeros(sources, dtype=torch.long, device=buffer.device))


def _filled(known: Known) -> int:
    return known["read"] if known["own"] is None else known["own"].shape[1]


def _owned(tokens: Tensor, real: Tensor | None, own: Tensor | None, filled: int, k: int) -> tuple[Tensor, Tensor]:
    """Of the places afterwards, those a hypothesis owns (R, after) and those a token may look at (R, T, after)."""
    (R, T), device = tokens.shape, tokens.device
    before = torch.ones(R, filled, dtype=torch.bool, device=device) if own is None else own
    new = torch.eye(k, dtype=torch.bool, device=device).repeat(R // k, 1)  # (R, k): a hypothesis reads its own tokens
    if T == 1 and real is None:
        own = torch.cat([before, new], dim=1)
        return own, own.unsqueeze(1)
    real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    mine = new.unsqueeze(2) & real.unsqueeze(1)  # (R, k, T)
    past = torch.ones(T, T, dtype=torch.bool, device=device).tril()  # (T, T): none looks ahead
    seen = [before.unsqueeze(1).expand(-1, T, -1), (mine.unsqueeze(1) & past.unsqueeze(1)).flatten(2)]
    return torch.cat([before, mine.flatten(1)], dim=1), torch.cat(seen, dim=2)


def _within(window: int, own: Tensor, places: Tensor, T: int) -> Tensor:
    """Which positions of the cache (R, T, P) or (R, 1, P) lie within the sliding window of each token that is read.

    A hypothesis owns its tokens in the order in which it read them (machine code, which does not keep that order, reads
    no model with a window). So the n-th position it owns holds its n-th token.
    """
    number = own.cumsum(dim=1).unsqueeze(1)  # (R, 1, P), from 1
    latest = (places.view(-1, T) if places.dim() == 2 else places[:T]).unsqueeze(-1) + 1  # (R, T, 1) or (T, 1)
    return number > latest - window


def _places(tokens: Tensor, real: Tensor | None, known: Known, sources: int) -> tuple[Tensor, Tensor | None]:
    """The tokens' places (k·T,) or (B, k·T), and the rows' lengths after them, None while they are all the same."""
    (R, T), read, length = tokens.shape, known["read"], known["length"]
    if length is None and real is None:
        return torch.arange(read, read + T, device=tokens.device).repeat(R // max(sources, 1)), None
    length = torch.full((R,), read, device=tokens.device) if length is None else length
    real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    places = length.unsqueeze(1) + real.cumsum(dim=1) - 1  # (R, T)
    return places.reshape(sources, -1), length + real.sum(dim=1)


def with_room(
    caches: tuple[Growing, ...], known: Known, tokens: Tensor, sources: int
) -> tuple[tuple[Growing, ...], Known]:
    """The caches of all layers with room for these tokens (R, T) and a few more, and what is known, to go with them."""
    filled, k, T = _filled(known), len(tokens) // max(sources, 1), tokens.shape[1]
    if known["compiled"] and T == 1:
        return _with_free_places(caches, known, tokens, sources)
    if filled + k * T <= caches[0].buffer.shape[3]:
        return caches, known
    kept = None
    if known["own"] is not None:
        kept, known = _living(known, sources)
        filled = kept.shape[1]
    return tuple(_larger(cache, kept, filled, filled + k * (T + ROOM - 1)) for cache in caches), known


def _with_free_places(
    caches: tuple[Growing, ...], known: Known, tokens: Tensor, sources: int
) -> tuple[tuple[Growing, ...], Known]:
    """Machine code takes any places that are nobody's, so none must be given up; there must be one for each token.

    Behind the places of a cache there is room for more: memory that is not written to costs nothing, and if it is left
    out of the buffer, it is not moved when sources leave.
    """
    own, k = known["own"], len(tokens) // sources
    own = torch.ones(len(tokens), known["read"], dtype=torch.bool) if own is None else own
    places = caches[0].buffer.shape[3]
    if own.shape[1] < places:  # nobody owns what was never used
        own = F.pad(own, (0, places - own.shape[1]))
    if free_places(own, sources) < k:
        own, places = F.pad(own, (0, ROOM * k)), places + ROOM * k
        caches = tuple(_wider(cache, places, FORESEEN * ROOM * k) for cache in caches)
    return caches, {**known, "own": own}


def _wider(cache: Growing, places: int, least: int) -> Growing:
    """A cache with so many places: as they lie, if there is room behind them; there will be for `least` or more."""
    before, buffer = cache.buffer.shape[3], cache.buffer
    if places > capacity(buffer):
        buffer = _larger(cache, None, before, max(2 * places, least)).buffer
    shape = *buffer.shape[:3], places, buffer.shape[4]
    return Growing(buffer.as_strided(shape, buffer.stride()), cache.length)


def _living(known: Known, sources: int) -> tuple[Tensor, Known]:
    """The places (B, P') of each source that are somebody's own, in their order, and which of them are whose.

    P' is the most that any source has; the device must be asked for it, once in `ROOM` steps.
    """
    own = known["own"]
    living = own.view(sources, -1, own.shape[1]).any(dim=1)  # (B, P)
    most = int(living.sum(dim=1).max())
    kept = (~living).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
    rows = kept.repeat_interleave(len(own) // sources, dim=0)
    return kept, {**known, "own": own.gather(1, rows)}


def _larger(cache: Growing, kept: Tensor | None, filled: int, capacity: int) -> Growing:
    """A cache with the `kept` places (B, filled), or the first ones, and room beyond, where anything may stand."""
    B, N, _, before, d = cache.buffer.shape
    if kept is None:
        buffer = cache.buffer.new_empty(B, N, 2, capacity, d)
        buffer[:, :, :, :filled] = cache.buffer[:, :, :, :filled]
    else:
        first = torch.arange(B * N * 2, device=kept.device).view(B, N * 2, 1) * before
        rows = first + F.pad(kept, (0, capacity - filled)).unsqueeze(1)  # (B, N·2, capacity)
        buffer = cache.buffer.reshape(-1, d).index_select(0, rows.flatten()).view(B, N, 2, capacity, d)
    return Growing(buffer, torch.full_like(cache.length, filled))
