"""Packed linear layers for decoding, where many calls with few rows use the same weights.

On a CPU, the weights are packed once for oneDNN, which fuses bias, activation and addition into the product. On a GPU,
`seqloom.accel.decoding.decoder_gpu` fuses the same operations. If neither implementation supports the weights, the
plain layer is used.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter, is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.accel.decoding import decoder_gpu, decoder_numba
from seqloom.core.tokens import best_tokens, rank_tokens
from seqloom.nn.softmax import at_least_float32

PACKED_ROWS = 256  # expected number of rows; oneDNN uses it only to choose the memory layout
MIN_ONEDNN_PRODUCTS = 1 << 20  # with fewer scalar products, the call of oneDNN takes longer than it saves
CHUNK_LOGITS = 1 << 21  # larger buffers would be allocated again in every call
CACHED_CHUNK_LOGITS = 1 << 20  # chunk size if the logits are read only once
ONEDNN_NAMES = {"none": ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu-tanh": ("gelu", "tanh")}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
}


def can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN can pack a weight."""
    has_onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return bool(has_onednn and weight.device.type == "cpu" and weight.dtype == torch.float32)


class PackedWeights:
    """A packed layer that computes norm(activation(x Wᵀ + b) + addend) from x (R, D); addend and norm are optional."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        self.weight, self.bias, self.activation = weight.detach(), None if bias is None else bias.detach(), activation
        self.packed, self.size = None, weight.numel()
        self.supports_gpu = decoder_gpu.supports_weight(weight) and activation in decoder_gpu.ACTIVATIONS
        if can_pack(weight):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, PACKED_ROWS)
            self.onednn_linear = torch.ops.mkldnn._linear_pointwise.default
            self.onednn_linear_add = torch.ops.mkldnn._linear_pointwise.binary

    @classmethod
    def of(cls, linear: nn.Linear, activation: str = "none") -> "PackedWeights":
        return cls(linear.weight, linear.bias, activation)

    @classmethod
    def concatenate(cls, layers: Sequence[nn.Linear]) -> "PackedWeights":
        """Pack the concatenated weights of several layers."""
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        return cls(torch.cat([layer.weight.detach() for layer in layers]), torch.cat(biases) if biases else None)

    @cached_property
    def split_weight(self) -> tuple[Tensor, Tensor]:
        """The weight, split for the GPU kernels."""
        return decoder_gpu.split_tf32(self.weight)

    def __call__(self, x: Tensor, addend: Tensor | None = None, norm: nn.Module | None = None) -> Tensor:
        if not self.supports_gpu or not self._uses_gpu(x):
            output = self._product(x, addend)
            return output if norm is None else norm(output)
        fused_norm = norm if isinstance(norm, nn.LayerNorm) and decoder_gpu.supports_norm(norm) else None
        output = decoder_gpu.fused_linear(x, self.split_weight, self.bias, self.activation, addend, fused_norm)
        return output if norm is None or fused_norm is not None else norm(output)

    def _product(self, x: Tensor, addend: Tensor | None) -> Tensor:
        if not self._is_packed(x) or x.shape[0] * self.size < MIN_ONEDNN_PRODUCTS:
            output = ACTIVATIONS[self.activation](F.linear(x, self.weight, self.bias))
            return output if addend is None else addend + output
        if addend is not None:
            output = self.onednn_linear_add(x, addend, self.packed, self.bias, "add")
            return output
        name, algorithm = ONEDNN_NAMES[self.activation]
        output = self.onednn_linear(x, self.packed, self.bias, name, [], algorithm)
        return output

    def _uses_gpu(self, x: Tensor) -> bool:
        return len(x) >= decoder_gpu.MIN_ROWS and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")

    def _is_packed(self, x: Tensor) -> bool:
        return self.packed is not None and x.dtype == self.weight.dtype and not torch.is_autocast_enabled("cpu")

    def best_tokens(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Apply `best_tokens` to log softmax(x Wᵀ + b) for rows x (R, D)."""
        count, has_many_rows = min(count, len(self.weight)), len(x) >= decoder_numba.MIN_LOGIT_ROWS
        if has_many_rows and count <= decoder_numba.MAX_COUNT and self._is_packed(x) and decoder_numba.is_available():
            return decoder_numba.best_tokens(self._logits(x, CACHED_CHUNK_LOGITS), len(x), count)
        chunks = [best_tokens(log_probs, count) for log_probs in self._log_softmax(x)]
        values, ids = (torch.cat(tensors) if len(tensors) > 1 else tensors[0] for tensors in zip(*chunks, strict=True))
        return values, ids

    def rank_tokens(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Apply `rank_tokens` to log softmax(x Wᵀ + b), without device synchronization."""
        logits = self(x)
        if self.supports_gpu and decoder_gpu.supports_ranking(logits):
            return decoder_gpu.rank_tokens(logits, count)
        return rank_tokens(at_least_float32(logits).log_softmax(dim=-1), count)

    def log_softmax(self, x: Tensor) -> Tensor:
        """Return log softmax(x Wᵀ + b) for rows x (R, D)."""
        chunks = list(self._log_softmax(x))
        return torch.cat(chunks) if len(chunks) > 1 else chunks[0]

    def _log_softmax(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the log softmax in chunks that stay in the CPU cache, computed in place."""
        for chunk in self._logits(x, CHUNK_LOGITS):
            logits = at_least_float32(chunk)
            yield torch.log_softmax(logits, dim=-1, out=logits)

    def _logits(self, x: Tensor, max_logits: int) -> Iterator[Tensor]:
        """Yield the logits; on a CPU, in chunks of at most `max_logits`."""
        rows = max(1, max_logits // len(self.weight)) if x.device.type == "cpu" else max(1, len(x))
        return (self(chunk) for chunk in x.split(rows))


def tensor_versions(weights: Iterable[Tensor]) -> Hashable:
    """Return a key that changes with the addresses and the version counters of the weights.

    torch does not count writes through `.data`, writes to tensors created in inference mode, and updates by its fused
    optimizers. `seqloom.train.state` increments the version counters after an update by a fused optimizer.
    """
    tensors = list(weights)
    try:
        changes = tuple(map(attrgetter("_version"), tensors))
    except RuntimeError:  # tensors created in inference mode have no version
        changes = tuple(0 if weight.is_inference() else weight._version for weight in tensors)
    return tuple(map(Tensor.data_ptr, tensors)), changes


def list_parameters(modules: Iterable[nn.Module]) -> list[Tensor]:
    """List the parameters of modules and their children.

    Every step needs the list. This function is eight times as fast as `parameters()` of torch.
    """
    pending, parameters = list(modules), []
    for module in pending:
        attributes = module.__dict__
        if children := attributes["_modules"]:
            pending += children.values()
        if weights := attributes["_parameters"]:
            parameters += weights.values()
    return [weight for weight in parameters if weight is not None]


@dataclass(frozen=True)
class _CacheEntry:
    weights: list[Tensor]
    storages: list[Tensor]  # references keep the memory alive, so that its address is not reused
    key: Hashable
    value: Any


_rebuilds = 0  # number of replaced cache entries, whose memory is released
_lock = threading.RLock()
_cache: WeakKeyDictionary[nn.Module, _CacheEntry] = WeakKeyDictionary()


def cached_by_weights(modules: Sequence[nn.Module], build: Callable[[], Any]) -> Any:
    """Return the cached result of `build` for the weights of modules; call `build` again if a weight has changed.

    `tensor_versions` detects changes. The entry lives as long as the first module.
    """
    weights = list_parameters(modules)
    with _lock:
        entry, key = _cache.get(modules[0]), tensor_versions(weights)
        if entry is None or entry.key != key or not all(map(is_, weights, entry.weights)):
            global _rebuilds
            _rebuilds += entry is not None
            storages = [weight.detach() for weight in weights]
            entry = _cache[modules[0]] = _CacheEntry(weights, storages, key, build())
        return entry.value


def rebuild_count() -> int:
    """Return the number of replaced cache entries of all models."""
    return _rebuilds


def packed_layer(linear: nn.Linear) -> PackedWeights:
    """Return the packed weights of a layer, cached by its weights."""
    packed: PackedWeights = cached_by_weights([linear], lambda: PackedWeights.of(linear))
    return packed
