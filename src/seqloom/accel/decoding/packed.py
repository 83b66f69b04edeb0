"""Linear layers for decoding: few rows at a time, the same weights again and again.

On a CPU the weights are laid out once as oneDNN's product wants them, and bias, activation and a
sum are made within the product. On a GPU that is `seqloom.accel.decoding.decoder_gpu`. Else it is
the plain layer.
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

ROWS = 256  # for which weights are laid out; any other number will do
WORTH = 1 << 20  # products of numbers from which on oneDNN, which takes longer to be called, is the faster
AT_ONCE = 1 << 21  # logits that are made together: memory that is larger is had anew every time
IN_CACHE = 1 << 20  # the same where they are passed over only once
FUSED = {"none": ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu-tanh": ("gelu", "tanh")}
APART: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
}


def packs(weight: Tensor) -> bool:
    """Whether there is anything to gain."""
    there = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return bool(there and weight.device.type == "cpu" and weight.dtype == torch.float32)


class PackedWeights:
    """x (R, D) to activation(x Wᵀ + b), to that and what is added to it, or to a norm of that."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        self.weight, self.bias, self.activation = weight.detach(), None if bias is None else bias.detach(), activation
        self.laid, self.size = None, weight.numel()
        self.on_gpu = decoder_gpu.suits(weight) and activation in decoder_gpu.ACTIVATIONS
        if packs(weight):
            self.laid = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)
            self.product = torch.ops.mkldnn._linear_pointwise.default
            self.sum = torch.ops.mkldnn._linear_pointwise.binary

    @classmethod
    def of(cls, linear: nn.Linear, activation: str = "none") -> "PackedWeights":
        return cls(linear.weight, linear.bias, activation)

    @classmethod
    def all_of(cls, layers: Sequence[nn.Linear]) -> "PackedWeights":
        """What each of these layers makes of x, side by side."""
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        return cls(torch.cat([layer.weight.detach() for layer in layers]), torch.cat(biases) if biases else None)

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor]:
        """The weights as a GPU wants them."""
        return decoder_gpu.parts(self.weight)

    def __call__(self, x: Tensor, plus: Tensor | None = None, norm: nn.Module | None = None) -> Tensor:
        if not self.on_gpu or not self._fits_gpu(x):
            made = self._product(x, plus)
            return made if norm is None else norm(made)
        within = norm if isinstance(norm, nn.LayerNorm) and decoder_gpu.suits_norm(norm) else None
        made = decoder_gpu.product(x, self.parts, self.bias, self.activation, plus, within)
        return made if norm is None or within is not None else norm(made)

    def _product(self, x: Tensor, plus: Tensor | None) -> Tensor:
        if not self._is_packed(x) or x.shape[0] * self.size < WORTH:
            made = APART[self.activation](F.linear(x, self.weight, self.bias))
            return made if plus is None else plus + made
        if plus is not None:
            found: Tensor = self.sum(x, plus, self.laid, self.bias, "add")
            return found
        name, how = FUSED[self.activation]
        made = self.product(x, self.laid, self.bias, name, [], how)
        return made

    def _fits_gpu(self, x: Tensor) -> bool:
        return len(x) >= decoder_gpu.ROWS and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")

    def _is_packed(self, x: Tensor) -> bool:
        return self.laid is not None and x.dtype == self.weight.dtype and not torch.is_autocast_enabled("cpu")

    def best(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` largest of log softmax(x Wᵀ + b) of rows x (R, D), and where they are: see `best_tokens`."""
        count, many = min(count, len(self.weight)), len(x) >= decoder_numba.ROWS
        if many and count <= decoder_numba.MOST and self._is_packed(x) and decoder_numba.there():
            return decoder_numba.best_tokens(self._logits(x, IN_CACHE), len(x), count)
        found = [best_tokens(part, count) for part in self._log_softmax(x)]
        values, ids = (torch.cat(part) if len(part) > 1 else part[0] for part in zip(*found, strict=True))
        return values, ids

    def ranked(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The same, largest first, without a look at the device: see `rank_tokens`."""
        logits = self(x)
        if self.on_gpu and decoder_gpu.suits_ranking(logits):
            return decoder_gpu.ranked(logits, count)
        return rank_tokens(at_least_float32(logits).log_softmax(dim=-1), count)

    def log_softmax(self, x: Tensor) -> Tensor:
        """log softmax(x Wᵀ + b) of rows x (R, D), whole."""
        found = list(self._log_softmax(x))
        return torch.cat(found) if len(found) > 1 else found[0]

    def _log_softmax(self, x: Tensor) -> Iterator[Tensor]:
        """Some rows at a time, so that what is made of them is still at hand when it is looked at; in place, for logits
        are many, and nobody else's."""
        for part in self._logits(x, AT_ONCE):
            logits = at_least_float32(part)
            yield torch.log_softmax(logits, dim=-1, out=logits)

    def _logits(self, x: Tensor, most: int) -> Iterator[Tensor]:
        """On a CPU no more than so many at a time."""
        at_once = max(1, most // len(self.weight)) if x.device.type == "cpu" else max(1, len(x))
        return (self(some) for some in x.split(at_once))


def versions(weights: Iterable[Tensor]) -> Hashable:
    """Another value whenever weights lie elsewhere, or were changed, as far as torch counts it.

    Not counted is what is written through `.data`, into weights made in inference mode, or by
    torch's fused optimizers; `seqloom.train.optimizers` has these count their steps.
    """
    own = list(weights)
    try:
        changes = tuple(map(attrgetter("_version"), own))
    except RuntimeError:  # some were made in inference mode, and count nothing
        changes = tuple(0 if weight.is_inference() else weight._version for weight in own)
    return tuple(map(Tensor.data_ptr, own)), changes


def parameters(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Of these modules and those within them. torch's own walk takes eight times as long, and every step asks."""
    todo, found = list(modules), []
    for module in todo:
        own = module.__dict__
        if within := own["_modules"]:
            todo += within.values()
        if weights := own["_parameters"]:
            found += weights.values()
    return [weight for weight in found if weight is not None]


@dataclass(frozen=True)
class _Made:
    weights: list[Tensor]
    kept: list[Tensor]  # the same memory, so that no other weights can come to lie there
    key: Hashable  # of the weights it was made of
    value: Any


_remade = 0  # how often something was made in the place of something else, whose memory is gone
_making = threading.RLock()
_made: WeakKeyDictionary[nn.Module, _Made] = WeakKeyDictionary()


def made_of(modules: Sequence[nn.Module], make: Callable[[], Any]) -> Any:
    """What was made of the weights of modules, made anew only when they are others, or have other values: see
    `versions` for what is seen of that. It is kept for as long as the first module is there."""
    own = parameters(modules)
    with _making:  # what several threads want is made for all of them
        known, key = _made.get(modules[0]), versions(own)
        if known is None or known.key != key or not all(map(is_, own, known.weights)):
            global _remade
            _remade += known is not None
            known = _made[modules[0]] = _Made(own, [weight.detach() for weight in own], key, make())
        return known.value


def remade() -> int:
    """Another number whenever something that was made of any model's weights is no longer there."""
    return _remade


def packed_once(linear: nn.Linear) -> PackedWeights:
    """A layer, packed for the weights it has now."""
    packed: PackedWeights = made_of([linear], lambda: PackedWeights.of(linear))
    return packed
