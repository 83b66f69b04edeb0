"""What recurrent cells compute while a model reads a text: every gate, candidate and state, as plain arrays.

    trace = gate_trace(seqloom.load("runs/lm-char-lstm"), "The class")
    trace.layers[0].values["f"]      (T, H): the forget gate of every unit at every token

Row t is what was computed when token t was read. A language model's row 0 is END, which stands before every text.
Models of other kinds have several parts, `seqloom.inspect.views.cells` says which.

Everything the recurrent cells of a model compute while it reads a text, wherever in the model they stand.

    parts = cell_traces(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    parts["encoder-backwards"].trace.layers[0].values["z"]      (T, H), by tokens from left to right

A part is a stack of cells that goes one way: of a language model there is one, `reader`; of a translator there are
`encoder` and `decoder`, and where it reads both ways `encoder-forwards` and `encoder-backwards`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.capture import CellStep, capture, cells_of, evaluating, model_of
from seqloom.inspect.views.texts import ReadText, Text, read_text
from seqloom.nn.cells import CELLS, Cell, State
from seqloom.nn.connections import Residual

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


# ---------------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

DIRECTIONS = {"forwards": "left to right →", "backwards": "right to left ←", "": ""}


@dataclass(frozen=True)
class Place:
    """Where a cell stands in its model."""

    role: str  # encoder, decoder or reader
    way: str  # forwards or backwards, where there are both
    layer: int  # from 0

    @property
    def part(self) -> str:
        return f"{self.role}-{self.way}" if self.way else self.role


@dataclass(frozen=True, eq=False)
class WatchedLayer:
    """One cell over a text, step by step in the order it reads."""

    cell: Cell
    x: Tensor  # (T, D)
    before: State  # each (T, H)
    after: State
    around: dict[str, Tensor] = field(default_factory=dict)  # what goes around the layer, each (T, H)

    @classmethod
    def of(cls, cell: Cell, steps: Sequence[CellStep], around: dict[str, Tensor] | None = None) -> "WatchedLayer":
        """Of the first row: a text is read alone."""
        x = torch.stack([step.x[0] for step in steps])
        before, after = (
            {name: torch.stack([getattr(step, when)[name][0] for step in steps]) for name in cell.state_names}
            for when in ("before", "after")
        )
        return cls(cell, x, before, after, around or {})

    def values(self) -> dict[str, Tensor]:
        """All that the equations compute, each (T, H): every step starts from a state that is known."""
        found = self.cell.equations(self.x, self.before)
        return {**found, **self.after, **self.around}


@dataclass(frozen=True, eq=False)
class CellPart:
    """A stack of cells that goes one way over a text."""

    name: str
    role: str
    way: str
    tokens: list[str]  # T of them, as they stand in the text
    order: list[int]  # step t reads tokens[order[t]]
    says: list[str]  # what is to be told at each token; empty where nothing is
    layers: tuple[WatchedLayer, ...]  # the lowest first
    trace: GateTrace  # by tokens from left to right, whatever the order they are read in

    @property
    def title(self) -> str:
        return part_title(self.role, self.way)

    def step_of(self, place: int) -> int:
        """Which step reads the token at that place of the text."""
        if not 0 <= place < len(self.tokens):
            raise UsageError(f"There is no token {place}: the text has {len(self.tokens)}, counted from 0.")
        return self.order.index(place)

    def layer(self, number: int | None) -> WatchedLayer:
        """As people count them, the lowest is 1; the top one, if no number is given."""
        self.trace.layer(number)  # refuses what is not there
        return self.layers[-1 if number is None else number - 1]


@dataclass(frozen=True, eq=False)
class CellTraces:
    """All parts of one model on one text."""

    parts: dict[str, CellPart]
    read: ReadText

    @property
    def nbytes(self) -> int:
        """Of all that was kept, more or less: what cells computed, and about as much of what they were given."""
        layers = [layer for part in self.parts.values() for layer in part.trace.layers]
        return 2 * sum(values.nbytes for layer in layers for values in layer.values.values())

    def __getitem__(self, name: str | None) -> CellPart:
        """The part of that name; the first, if none is given."""
        if name is None:
            return next(iter(self.parts.values()))
        if name not in self.parts:
            raise UsageError(f"There is no part {name!r} of this model: {did_you_mean(name, list(self.parts))}.")
        return self.parts[name]


def cell_traces(
    source: Any,
    text: Text,
    target: str | None = None,
    *,
    allow_unknown: bool = False,
    longest: int | None = None,
) -> CellTraces:
    """Let a model read a text and keep everything its cells compute. Dropout is off.

    `source` is what `seqloom.load` gives, or a `RecurrentLM`, whose text is then given as ids. `target` is the
    translation a translator is made to say, its own where it is left out.
    """
    read, model = read_text(source, text, target, allow_unknown=allow_unknown, longest=longest), model_of(source)
    with evaluating(model), torch.no_grad(), capture(model, Cell, Residual) as captured:
        read.run(model)
        steps = {name: captured.steps(name) for name in cells_of(model)}
        layers = {
            name: WatchedLayer.of(cell, steps[name], captured.shortcuts(name))
            for name, cell in cells_of(model).items()
            if steps[name]
        }
        return CellTraces({name: _part(name, own, read) for name, own in grouped(layers).items()}, read)


def _part(name: str, layers: dict[Place, WatchedLayer], read: ReadText) -> CellPart:
    place, top = next(iter(layers.items()))
    order = reading_order(place, read, len(top.x))
    tokens, cell = read.tokens[place.role], cell_name(top.cell)
    kinds = tuple(layer_trace(_by_tokens(layer.values(), order), layer.cell) for layer in layers.values())
    says = read.says.get(place.role, [])
    trace = GateTrace(tokens, cell, kinds, name)
    return CellPart(name, place.role, place.way, tokens, order, says, tuple(layers.values()), trace)


def _by_tokens(values: dict[str, Tensor], order: Sequence[int]) -> dict[str, Tensor]:
    """From the order of reading to that of the text."""
    places = torch.argsort(torch.tensor(order))
    return {name: value[places.to(value.device)] for name, value in values.items()}


def part_title(role: str, way: str) -> str:
    """In words: encoder, right to left ←"""
    words = ["" if role == "reader" else role, DIRECTIONS[way]]
    return ", ".join(word for word in words if word) or DIRECTIONS["forwards"]


def cell_name(cell: Cell) -> str:
    """As recipes call it."""
    return next((name for name, kind in CELLS.items() if type(cell) is kind), type(cell).__name__)


# --- where cells stand ------------------------------------------------------------------------------------------------


def places(names: Iterable[str]) -> dict[str, Place]:
    """Of each cell, by its name in the model: `encoder.stack.layers.1.backwards.cell` is layer 1 of the reader's
    backward way."""
    words = {name: name.split(".") for name in names}
    two = {own[0] for own in words.values()} >= {"encoder", "decoder"}
    both = {name: _way(own) for name, own in words.items()}
    return {
        name: Place(own[0] if two else "reader", both[name], int(own[len(own) - own[::-1].index("layers")]))
        for name, own in words.items()
    }


def _way(words: Sequence[str]) -> str:
    """A stack of both directions names them; two stacks that are kept apart are numbered."""
    if "directions" in words:
        return ("forwards", "backwards")[int(words[words.index("directions") + 1])]
    return next((word for word in words if word in ("forwards", "backwards")), "")


def grouped(named: dict[str, T]) -> dict[str, dict[Place, T]]:
    """By part, and in it from the lowest layer to the top; encoders first, forwards first."""
    found = {place: named[name] for name, place in places(named).items()}
    ordered = sorted(found, key=lambda place: (place.role != "encoder", place.way == "backwards", place.layer))
    parts: dict[str, dict[Place, T]] = {}
    for place in ordered:
        parts.setdefault(place.part, {})[place] = found[place]
    return parts


def reading_order(place: Place, read: ReadText, steps: int) -> list[int]:
    """The places of the tokens in the order in which a cell reads them; without what it does not come to."""
    order = read.order(place.role)
    return (order[::-1] if place.way == "backwards" else order)[:steps]
