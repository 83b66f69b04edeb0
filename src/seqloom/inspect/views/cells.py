"""The gates, candidates and states that recurrent cells compute for a text, as plain arrays.

    trace = gate_trace(seqloom.load("runs/lm-char-lstm"), "The class")
    trace.layers[0].values["f"]      (T, H): the forget gate of every unit at every token

    parts = cell_traces(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    parts["encoder-backwards"].layers[0].values["z"]      (T, H), with tokens from left to right

    rank(values, "correlation", token_classes(trace.tokens)["inside quotes"])      units, by |Pearson's r|

Row t contains the values for input token t. For a language model, row 0 is END, which precedes every text. A part is a
stack of cells in one direction. A language model has the part `reader`. A translator has the parts `encoder` and
`decoder`. With a bidirectional encoder, the parts are `encoder-forwards`, `encoder-backwards` and `decoder`.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.capture import Captured, Source, capture, cells_of, eval_mode, model_of
from seqloom.inspect.equations import check_unit
from seqloom.inspect.picture import Picture
from seqloom.inspect.values import Array
from seqloom.inspect.views.texts import ReadText, Text, read_text
from seqloom.nn.cells import CELLS, Cell, State
from seqloom.nn.recurrent import ResidualConnection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPEN, CLOSED = 0.9, 0.1  # a gate beyond these values is saturated
MAX_UNITS = 12  # maximum number of units in a heat map
HIGHWAY_GATES = {"T": "near 1, the output of the layer is passed on; near 0, its input"}
DIRECTIONS = {"forwards": "left to right →", "backwards": "right to left ←", "": ""}
T = TypeVar("T")


class Saturation(NamedTuple):
    """The fractions of open and closed gate values over all tokens and the selected units."""

    open: float  # above 0.9
    closed: float  # below 0.1


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """The values of one layer over time."""

    values: dict[str, Array]  # values by name, each (T, H): first gates, then candidate and states
    gates: dict[str, str]  # the effect of each gate near 1
    states: tuple[str, ...]  # the values passed to the next step

    @property
    def hidden(self) -> int:
        return self.values["h"].shape[1]

    def level(self, name: str) -> Array:
        """Return the mean over units for each token (T,).

        Quantities other than gates are averaged as absolute values.
        """
        values = self.values[name]
        return (values if name in self.gates else np.abs(values)).mean(axis=1)

    def saturation(self, gate: str, unit: int | None = None) -> Saturation:
        """Return the saturation of a gate over all units, or the saturation of one unit."""
        values = self.values[gate] if unit is None else self.unit(unit)[gate]
        return Saturation(float((values > OPEN).mean()), float((values < CLOSED).mean()))

    def most_varying(self, count: int = MAX_UNITS) -> list[int]:
        """Return the units whose hidden state varies most over the text, as measured by its standard deviation.

        The cell state is ignored, because it may drift without any effect on the output.
        """
        return np.argsort(-self.values["h"].std(axis=0), kind="stable")[:count].tolist()

    def unit(self, number: int) -> dict[str, Array]:
        """Return the values of one unit over the text, each (T,)."""
        check_unit(number, self.hidden)
        return {name: values[:, number] for name, values in self.values.items()}

    def describe(self, name: str) -> str:
        """Describe a quantity in words."""
        if name in self.gates:
            return f"{name} {self.gates[name]}"
        has_cell_state = "c" in self.states
        words = {
            "c": "cell state",
            "h": f"hidden state, {'the output of the cell' if has_cell_state else 'the memory of the layer'}",
            "y": "output of the layer",
        }
        return f"{name}: " + words.get(name, f"candidate for the new {'cell' if has_cell_state else 'hidden'} state")


@dataclass(frozen=True, eq=False)
class GateTrace(Picture):
    """The values of all layers of one part over a text."""

    tokens: list[str]  # T tokens; the first of a language model is END
    cell: str
    layers: tuple[LayerTrace, ...]  # lowest first
    part: str = "reader"  # name of the part in `cell_traces`

    def draw(self) -> "Figure":
        from seqloom.inspect.plots.cells import draw_gates

        return draw_gates(self)

    def location(self, layer: LayerTrace) -> str:
        """Return the part, and the layer if there are several, such as `decoder, layer 1 of 2`."""
        is_single_part = self.part == "reader"
        number = next(number for number, other in enumerate(self.layers, start=1) if other is layer)
        words = [] if is_single_part else [self.part]
        words += [f"layer {number} of {len(self.layers)}"] if len(self.layers) > 1 or not is_single_part else []
        return ", ".join(words)

    def layer(self, number: int | None = None) -> LayerTrace:
        """Return a layer, counted from 1 for the lowest. The default is the top layer."""
        count = len(self.layers)
        if number is not None and not 1 <= number <= count:
            raise UsageError(f"The layer must be from 1, the lowest, to {count}; got {number}.")
        return self.layers[-1 if number is None else number - 1]


def gate_trace(source: Source, text: Text, *, part: str | None = None, allow_unknown: bool = False) -> GateTrace:
    """Run a model on a text and return the cell values of one part, by default the first.

    `source` is the result of `seqloom.load`, or a `RecurrentLM`, whose text is given as ids. Dropout is disabled.
    """
    return cell_traces(source, text, allow_unknown=allow_unknown)[part]


# --- parts of a model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellPosition:
    """The position of a cell in its model."""

    role: str  # encoder, decoder or reader
    direction: str  # forwards or backwards; empty if the model has one direction
    layer: int  # from 0

    @property
    def part(self) -> str:
        return f"{self.role}-{self.direction}" if self.direction else self.role

    @property
    def title(self) -> str:
        """The title of the part: encoder, right to left ←"""
        words = ["" if self.role == "reader" else self.role, DIRECTIONS[self.direction]]
        return ", ".join(word for word in words if word) or DIRECTIONS["forwards"]

    def reading_order(self, read: ReadText, steps: int) -> list[int]:
        """Return the token positions in the order in which the cell reads them, for the given number of steps."""
        order = read.order(self.role)
        return (order[::-1] if self.direction == "backwards" else order)[:steps]


def cell_positions(names: Iterable[str]) -> dict[str, CellPosition]:
    """Return the position of each cell by its module name.

    For example, `encoder.stack.layers.1.backwards.cell` is layer 1 of the backward reader.
    """
    words = {name: name.split(".") for name in names}
    has_both = {path[0] for path in words.values()} >= {"encoder", "decoder"}
    positions = {}
    for name, path in words.items():
        direction = next((word for word in path if word in ("forwards", "backwards")), "")
        if "directions" in path:  # two separate stacks, with numbers as names
            direction = ("forwards", "backwards")[int(path[path.index("directions") + 1])]
        layer = int(path[len(path) - path[::-1].index("layers")])
        positions[name] = CellPosition(path[0] if has_both else "reader", direction, layer)
    return positions


def group_by_part(named: Mapping[str, T]) -> dict[str, dict[CellPosition, T]]:
    """Group values by part, with encoders and forward directions first, and sort each group from the lowest layer."""
    values = {position: named[name] for name, position in cell_positions(named).items()}
    parts: dict[str, dict[CellPosition, T]] = {}
    for position in sorted(values, key=lambda p: (p.role != "encoder", p.direction == "backwards", p.layer)):
        parts.setdefault(position.part, {})[position] = values[position]
    return parts


def cell_name(cell: Cell) -> str:
    """Return the name of a cell in recipes."""
    return next((name for name, kind in CELLS.items() if type(cell) is kind), type(cell).__name__)


# --- all cells over a text --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CellSteps:
    """The steps of one cell over a text, in reading order."""

    cell: Cell
    x: Tensor  # (T, D)
    before: State  # each (T, H)
    after: State
    shortcuts: dict[str, Tensor]  # residual or highway values of the layer, each (T, H)

    @classmethod
    def of(cls, captured: Captured, name: str, cell: Cell) -> "CellSteps":
        """Collect the steps of the first row of the batch."""
        steps = captured.steps(name)
        x = torch.stack([step.x[0] for step in steps])
        before = {state: torch.stack([step.before[state][0] for step in steps]) for state in cell.state_names}
        after = {state: torch.stack([step.after[state][0] for step in steps]) for state in cell.state_names}
        return cls(cell, x, before, after, captured.shortcuts(name))

    def trace(self, order: Sequence[int]) -> LayerTrace:
        """Compute the values of the equations for each token, from the state that was captured at each step."""
        values = {**self.cell.equations(self.x, self.before), **self.after, **self.shortcuts}
        gates = {name: effect for name, effect in {**self.cell.gates, **HIGHWAY_GATES}.items() if name in values}
        names = [*gates, *(name for name in values if name not in gates)]
        positions = torch.argsort(torch.tensor(order))
        arrays = {name: values[name][positions.to(values[name].device)].cpu().numpy() for name in names}
        return LayerTrace(arrays, gates, self.cell.state_names)


@dataclass(frozen=True, eq=False, kw_only=True)
class CellPart(GateTrace):
    """A stack of cells in one direction. Values of layers are in text order, and steps are in reading order."""

    title: str
    order: list[int]  # step t reads tokens[order[t]]
    targets: list[str]  # the prediction target at each token; "" if the token has no target
    steps: tuple[CellSteps, ...]  # steps of each layer, lowest first

    def step_of(self, position: int) -> int:
        """Return the step that reads the token at a position of the text."""
        if not 0 <= position < len(self.tokens):
            raise UsageError(f"The token position must be from 0 to {len(self.tokens) - 1}; got {position}.")
        return self.order.index(position)


@dataclass(frozen=True, eq=False)
class CellTraces:
    """The values of all parts of a model on one text."""

    parts: dict[str, CellPart]
    read: ReadText

    @property
    def nbytes(self) -> int:
        """The approximate size in bytes: twice the size of the computed values, to account for their inputs."""
        layers = [layer for part in self.parts.values() for layer in part.layers]
        return 2 * sum(values.nbytes for layer in layers for values in layer.values.values())

    def __getitem__(self, name: str | None) -> CellPart:
        """Return the part with this name, or the first part if the name is None."""
        if name is None:
            return next(iter(self.parts.values()))
        if name not in self.parts:
            raise UsageError(f"This model has no part {name!r}: {did_you_mean(name, list(self.parts))}.")
        return self.parts[name]


def cell_traces(
    source: Source, text: Text, target: str | None = None, *, allow_unknown: bool = False, max_tokens: int | None = None
) -> CellTraces:
    """Run a model on a text and return the values of all cells. Dropout is disabled.

    `source` is the result of `seqloom.load`, or a `RecurrentLM`, whose text is given as ids. `target` is a translation
    to force; by default, the model translates the text.
    """
    read, model = read_text(source, text, target, allow_unknown=allow_unknown, max_tokens=max_tokens), model_of(source)
    parts = {}
    with eval_mode(model), torch.no_grad(), capture(model, Cell, ResidualConnection) as captured:
        read.run(model)
        cells = {name: cell for name, cell in cells_of(model).items() if captured.steps(name)}
        steps = {name: CellSteps.of(captured, name, cell) for name, cell in cells.items()}
        for name, layers in group_by_part(steps).items():
            position, lowest = next(iter(layers.items()))
            order, tokens = position.reading_order(read, len(lowest.x)), read.tokens[position.role]
            parts[name] = CellPart(
                tokens,
                cell_name(lowest.cell),
                tuple(layer.trace(order) for layer in layers.values()),
                name,
                title=position.title,
                order=order,
                targets=read.targets.get(position.role, []),
                steps=tuple(layers.values()),
            )
    return CellTraces(parts, read)


# --- ranking units ----------------------------------------------------------------------------------------------------

By = Literal["variance", "size", "mean", "number", "correlation"]
OPENING, CLOSING = "([{⟨«“„", ")]}⟩»”"
QUOTES = "\"'`“”„«»"
SPACES = "▁Ġ "  # symbols of tokenizers for a space
CHARACTER_CLASSES: dict[str, Callable[[str], bool]] = {
    "space": lambda letter: letter.isspace() or letter in SPACES,
    "letter": str.isalpha,
    "capital letter": str.isupper,
    "vowel": lambda letter: unicodedata.normalize("NFD", letter.lower())[0] in "aeiouy",
    "digit": str.isdigit,
    "punctuation": lambda letter: unicodedata.category(letter)[0] == "P",
}


class Ranked(NamedTuple):
    """The units of a layer in ranked order."""

    units: list[int]  # all units, highest-ranked first
    scores: Array  # score of each unit (H,)


def rank(values: Array, by: By = "variance", marks: Array | None = None) -> Ranked:
    """Rank units by their values (T, H); `correlation` ranks them by their correlation with the marked tokens."""
    if by not in get_args(By):
        raise UsageError(f"Units cannot be ranked by {by!r}: {did_you_mean(by, get_args(By))}.")
    values = values.astype(np.float64)
    match by:
        case "number":
            return Ranked(list(range(values.shape[1])), np.arange(values.shape[1], dtype=np.float64))
        case "variance":
            scores = values.var(axis=0)
        case "size":
            scores = np.abs(values).mean(axis=0)
        case "mean":
            scores = values.mean(axis=0)
        case "correlation":
            if marks is None:
                raise UsageError("Ranking by correlation needs a class of tokens.")
            scores = correlations(values, marks)
    keys = np.abs(scores) if by == "correlation" else scores
    return Ranked(np.argsort(-keys, kind="stable").tolist(), scores)


def correlations(values: Array, marks: Array) -> Array:
    """Return Pearson's r (H,) of each unit's values (T, H) and the marks (T,), or 0 if either is constant."""
    centred, flags = values - values.mean(axis=0), marks - marks.mean()
    lengths = np.sqrt((centred**2).sum(axis=0) * (flags**2).sum())
    return np.divide(flags @ centred, lengths, out=np.zeros(values.shape[1]), where=lengths > 1e-12)


def token_classes(tokens: Sequence[str], containing: str = "") -> dict[str, Array]:
    """Return the token classes that are not constant, by name. `containing` adds a class of tokens with this substring.

    The marks (T,) of a class are 1 at its tokens and 0 elsewhere, depending on characters or context. The marks of
    position classes count tokens.
    """
    classes: dict[str, list] = {
        name: [] for name in (*CHARACTER_CLASSES, "starts a word", "inside brackets", "inside quotes")
    }
    in_word, depth, in_quotes, since_line, last = False, 0, False, 0, " "
    lines = []
    for position, token in enumerate(tokens):
        is_special = len(token) > 2 and (token[0] + token[-1]) in ("<>", "[]")  # </s>, <unk>, [CLS]
        letters = "" if is_special else token
        for name, test in CHARACTER_CLASSES.items():
            classes[name].append(any(map(test, letters)))
        bare = letters.lstrip(SPACES)
        is_word = any(map(str.isalnum, bare))
        classes["starts a word"].append(is_word and (not in_word or bare != letters))
        in_word = is_word and bare[-1:].isalnum()
        depth += sum(letter in OPENING for letter in letters)
        classes["inside brackets"].append(depth > 0)
        depth = max(0, depth - sum(letter in CLOSING for letter in letters))
        following = tokens[position + 1][:1] if position + 1 < len(tokens) else " "
        quotes = 0 if is_special else _count_quotes(last + token + following)
        classes["inside quotes"].append(in_quotes or quotes > 0)
        in_quotes ^= quotes % 2 == 1
        last = token[-1:] or " "
        lines.append(since_line)
        since_line = 0 if "\n" in token else since_line + 1
    classes["position in the text"] = list(range(len(tokens)))
    if lines != classes["position in the text"]:  # there is more than one line
        classes["position in the line"] = lines
    if containing:
        classes[f"contains {containing}"] = [containing in token for token in tokens]
    return {name: np.array(marks, dtype=np.float64) for name, marks in classes.items() if len(set(marks)) > 1}


def _count_quotes(context: str) -> int:
    """Count quotation marks between the first and the last character, excluding apostrophes in words."""
    triples = zip(context, context[1:], context[2:], strict=False)
    return sum(
        letter in QUOTES and not (letter == "'" and left.isalnum() and right.isalnum())
        for left, letter, right in triples
    )
