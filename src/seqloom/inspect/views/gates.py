"""What recurrent cells compute while a model reads a text: every gate, candidate and state, as plain arrays.

    trace = gate_trace(seqloom.load("runs/lm-char-lstm"), "The class")
    trace.layers[0].values["f"]      (T, H): the forget gate of every unit at every token

Row t is what was computed when token t was read. A language model's row 0 is END, which stands before every text.
Models of other kinds have several parts, `seqloom.inspect.views.cell_traces` says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.views.reading import Text
from seqloom.nn.cells import Cell

Array = NDArray[np.floating[Any]]
OPEN, CLOSED = 0.9, 0.1  # a gate beyond these is called saturated
UNITS = 12  # rows of a heat map that can still be told apart
HIGHWAY = {"T": "near 1 hands on what the layer made; near 0 what it was given"}


class Saturation(NamedTuple):
    """Shares of all tokens, and of all units or those asked for."""

    open: float  # above 0.9
    closed: float  # below 0.1


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer over time."""

    values: dict[str, Array]  # by name, each (T, H): the gates first, then candidate and states
    gates: dict[str, str]  # gate → what it does when it is near 1
    states: tuple[str, ...]  # what the cell hands to its next step

    @property
    def hidden(self) -> int:
        return self.values["h"].shape[1]

    def level(self, name: str) -> Array:
        """One number per token (T,): the mean of a gate, the mean size of anything that has a sign."""
        values = self.values[name]
        found: Array = (values if name in self.gates else np.abs(values)).mean(axis=1)
        return found

    def saturation(self, gate: str, unit: int | None = None) -> Saturation:
        """Of all units, or of one."""
        values = self.values[gate] if unit is None else self.unit(unit)[gate]
        return Saturation(float((values > OPEN).mean()), float((values < CLOSED).mean()))

    def most_varying(self, count: int = UNITS) -> list[int]:
        """The units whose hidden state varies most over the text, by standard deviation, the most varying first.

        Not the cell's content: that may drift far away without the unit ever saying anything new.
        """
        spread = self.values["h"].std(axis=0)  # (H,)
        return [int(unit) for unit in np.argsort(-spread, kind="stable")[:count]]

    def unit(self, number: int) -> dict[str, Array]:
        """One unit over the text: each (T,)."""
        if not 0 <= number < self.hidden:
            raise UsageError(f"There is no unit {number}: the layer has {self.hidden}, from 0 to {self.hidden - 1}.")
        return {name: values[:, number] for name, values in self.values.items()}


@dataclass(frozen=True)
class GateTrace:
    tokens: list[str]  # T of them; a language model's first is END
    cell: str
    layers: tuple[LayerTrace, ...]  # the lowest first
    part: str = "reader"  # of the model, as `cell_traces` names it

    def where(self, layer: LayerTrace) -> str:
        """Part and layer, where the model has several of them: decoder, layer 1 of 2"""
        alone = self.part == "reader"
        number = next(number for number, other in enumerate(self.layers, start=1) if other is layer)
        words = [] if alone else [self.part]
        words += [f"layer {number} of {len(self.layers)}"] if len(self.layers) > 1 or not alone else []
        return ", ".join(words)

    def layer(self, number: int | None = None) -> LayerTrace:
        """Layers as people count them, the lowest is 1; the top one, if no number is given."""
        count = len(self.layers)
        if number is None:
            return self.layers[-1]
        if not 1 <= number <= count:
            has = "has one layer" if count == 1 else f"has {count} layers, 1 the lowest"
            raise UsageError(f"There is no layer {number}: the model {has}.")
        return self.layers[number - 1]


def gate_trace(source: Any, text: Text, *, part: str | None = None, allow_unknown: bool = False) -> GateTrace:
    """Let a model read a text and keep everything its cells compute: those of one part, the first if none is named.

    `source` is what `seqloom.load` gives, or a `RecurrentLM`, whose text is then given as ids. Dropout is off.
    """
    from seqloom.inspect.views.cell_traces import cell_traces  # which is made of what stands here

    return cell_traces(source, text, allow_unknown=allow_unknown)[part].trace


def layer_trace(values: Mapping[str, Tensor], cell: Cell) -> LayerTrace:
    """Of values (T, H) by name."""
    words = {name: does for name, does in {**cell.gates, **HIGHWAY}.items() if name in values}
    order = [*words, *(name for name in values if name not in words)]
    return LayerTrace({name: values[name].cpu().numpy() for name in order}, words, cell.state_names)


def describe(layer: LayerTrace, name: str) -> str:
    """What a row of numbers is, in words."""
    if name in layer.gates:
        return f"{name} {layer.gates[name]}"
    if name == "c":
        return "c: content of the cell"
    if name == "h":
        return f"h: hidden state, {'what the cell shows' if 'c' in layer.states else 'all the layer remembers'}"
    if name == "y":
        return "y: what the layer hands on"
    return f"{name}: new content offered to the {'cell' if 'c' in layer.states else 'state'}"
