"""Encoder–decoder steps of a fixed shape, which `seqloom.accel.search` captures as CUDA graphs."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.accel.decoding.decoder_step import decoder_step, is_supported_decoder
from seqloom.accel.decoding.packed import packed_layer, rebuild_count, tensor_versions
from seqloom.accel.decoding.slots import FixedUpdate
from seqloom.core.protocols import DecodeState, Steppable
from seqloom.core.tree import GrowingBuffer, Tree, select_rows
from seqloom.models.recurrent_seq2seq import RecurrentSeq2Seq
from seqloom.models.seq2seq import HiddenState, Seq2Seq
from seqloom.models.transformer import Transformer
from seqloom.nn.cache import empty_cache
from seqloom.nn.masks import AttentionMask

Model = TypeVar("Model", bound=Seq2Seq)


def fixed_steps(model: Steppable) -> "FixedSteps[Any] | None":
    """Return the fixed-shape steps of a model, or None if the model is not supported."""
    if isinstance(model, RecurrentSeq2Seq):
        return FixedRecurrent(model)
    if not isinstance(model, Transformer) or type(model).start is not Transformer.start:
        return None  # a subclass may read tokens before the first step
    return FixedTransformer(model) if is_supported_decoder(model.decoder) else None


class FixedSteps(ABC, Generic[Model]):
    """Steps of a model with fixed shapes.

    The steps never synchronize with the device, and they may modify their state in place.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def weights_key(self) -> Hashable:
        """Return a key that changes when weights of the model are replaced or modified."""
        return tensor_versions(self.model.parameters()), rebuild_count()

    @abstractmethod
    def begin(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        """Return the state before the first token, for k hypotheses per source and a maximum number of steps."""

    @abstractmethod
    def enlarge(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        """Return the state with a larger maximum number of steps."""

    @abstractmethod
    def step(self, tokens: Tensor, state: DecodeState, t: Tensor, count: int) -> tuple[Tensor, Tensor, Tree]:
        """Read tokens (R, 1); return the most probable next tokens, as `rank_tokens` does, and the next state."""


class FixedRecurrent(FixedSteps[RecurrentSeq2Seq]):
    """A recurrent encoder–decoder, whose state has a constant size."""

    def begin(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        sources = torch.arange(len(state.memory["context"]), device=state.memory["context"].device)
        return DecodeState(select_rows(state.hidden, sources.repeat_interleave(k)), state.memory)

    def enlarge(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        return state

    def step(self, tokens: Tensor, state: DecodeState, t: Tensor, count: int) -> tuple[Tensor, Tensor, HiddenState]:
        _, _, hidden, _ = self.model.decode(tokens, state.hidden, state.memory)
        return *packed_layer(self.model.output).rank_tokens(self.model.before_output(hidden["readout"]), count), hidden


class FixedTransformer(FixedSteps[Transformer]):
    """A Transformer; `owned` (R, P) marks which of the P = k · steps slots of its source each hypothesis owns."""

    def begin(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        memory, mask = state.memory, state.memory["mask"]
        caches = tuple(empty_cache(block.self_attention, len(mask), k * steps) for block in self.model.decoder)
        added = AttentionMask(mask[:, None, None, :], every_query_attends=True).additive
        owned = torch.zeros(len(mask) * k, k * steps, dtype=torch.bool, device=mask.device)
        return DecodeState({"owned": owned}, {"layers": memory["layers"], "added": added, "caches": caches})

    def enlarge(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        owned, memory = state.hidden["owned"], state.memory
        more = k * steps - owned.shape[1]
        caches = tuple(GrowingBuffer(F.pad(cache.buffer, (0, 0, 0, more)), cache.length) for cache in memory["caches"])
        return DecodeState({"owned": F.pad(owned, (0, more))}, {**memory, "caches": caches})

    def step(self, tokens: Tensor, state: DecodeState, t: Tensor, count: int) -> tuple[Tensor, Tensor, HiddenState]:
        model, memory, owned = self.model, state.memory, state.hidden["owned"]
        B = len(memory["added"])
        update = FixedUpdate(owned, t, len(tokens) // B)
        y = model.target_embed(tokens.view(B, -1), update.positions, 0, t)
        run = decoder_step(model.decoder)
        y, _, _ = run(y.flatten(0, 1), memory["layers"], memory["added"], memory["caches"], update)
        return *packed_layer(model.output).rank_tokens(model.decoder_norm(y), count), {"owned": owned}
