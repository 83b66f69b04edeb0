"""Linear layers for decoding: few rows at a time, the same weights again and again.

On a CPU the weights are laid out once as oneDNN's product wants them, and bias, activation and a sum are made within
the product. Elsewhere, and where oneDNN is not there, it is the plain layer.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.candidates import best_tokens, top_tokens
from seqloom.nn.cross_entropy import precise

ROWS = 256  # for which weights are laid out; any other number will do
AT_ONCE = 1 << 21  # logits that are made together: memory that is larger is had anew every time
SPARE = 8  # tokens beyond those wanted, of which equals may be told apart
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


class Packed:
    """x (R, D) to activation(x Wᵀ + b), or to that and what is added to it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        self.weight, self.bias, self.activation = weight.detach(), None if bias is None else bias.detach(), activation
        self.laid = None
        if packs(weight):
            self.laid = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    @classmethod
    def of(cls, linear: nn.Linear, activation: str = "none") -> "Packed":
        return cls(linear.weight, linear.bias, activation)

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        if self.laid is None or x.dtype != self.weight.dtype or torch.is_autocast_enabled("cpu"):
            made = APART[self.activation](F.linear(x, self.weight, self.bias))
            return made if plus is None else plus + made
        product = torch.ops.mkldnn._linear_pointwise
        if plus is not None:
            found: Tensor = product.binary(x, plus, self.laid, self.bias, "add")
            return found
        name, how = FUSED[self.activation]
        return product(x, self.laid, self.bias, name, [], how)

    def best(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` largest of log softmax(x Wᵀ + b) of rows x (R, D), and where they are: see `best_tokens`."""
        found = [best_tokens(part, count) for part in self._log_softmax(x)]
        values, ids = (torch.cat(part) if len(part) > 1 else part[0] for part in zip(*found, strict=True))
        return values, ids

    def top(self, x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same without a look at the device: see `top_tokens`."""
        return top_tokens(precise(self(x)).log_softmax(dim=-1), count, SPARE)

    def log_softmax(self, x: Tensor) -> Tensor:
        """log softmax(x Wᵀ + b) of rows x (R, D), whole."""
        found = list(self._log_softmax(x))
        return torch.cat(found) if len(found) > 1 else found[0]

    def _log_softmax(self, x: Tensor) -> Iterator[Tensor]:
        """Some rows at a time, so that what is made of them is still at hand when it is looked at; in place, for logits
        are many, and nobody else's."""
        at_once = max(1, AT_ONCE // len(self.weight)) if x.device.type == "cpu" else max(1, len(x))
        for some in x.split(at_once):
            logits = precise(self(some))
            yield torch.log_softmax(logits, dim=-1, out=logits)


def versions(weights: Iterable[Tensor]) -> Hashable:
    """Another value whenever weights lie elsewhere, or were changed."""
    return tuple((weight.data_ptr(), weight._version) for weight in weights)


@dataclass(frozen=True)
class _Made:
    weights: list[Tensor]
    key: Hashable  # of the weights it was made of
    value: Any


_made: WeakKeyDictionary[nn.Module, _Made] = WeakKeyDictionary()


def made_once(module: nn.Module, some: Tensor, weights: Callable[[], Iterable[Tensor]], make: Callable[[], Any]) -> Any:
    """What was made of a module's weights, made anew only when they are others, or have other values.

    `some` is the first of them: if it is still itself, the others are, too, and need not be looked up.
    """
    known = _made.get(module)
    if known is None or known.weights[0] is not some or known.key != versions(known.weights):
        own = list(weights())
        known = _made[module] = _Made(own, versions(own), make())
    return known.value


def packed_once(linear: nn.Linear) -> Packed:
    """A layer, packed for the weights it has now."""
    packed: Packed = made_once(linear, linear.weight, linear.parameters, lambda: Packed.of(linear))
    return packed
