"""What recurrent cells compute while a model reads a text: every gate, candidate and state, as plain arrays.

    trace = gate_trace(seqloom.load("runs/lm-char-lstm"), "The class")
    trace.layers[0].values["f"]      (T, H): the forget gate of every unit at every token

    parts = cell_traces(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    parts["encoder-backwards"].layers[0].values["z"]      (T, H), by tokens from left to right

    rank(values, "correlation", token_classes(trace.tokens)["inside quotes"])      units, by |Pearson's r|

Row t is what was computed when token t was read; a language model's row 0 is END, which stands
before every text. A part is a stack of cells that goes one way: of a language model there is one,
`reader`; of a translator there are `encoder` and `decoder`, and where it reads both ways
`encoder-forwards` and `encoder-backwards`.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.capture import Captured, Source, capture, cells_of, eval_mode, model_of
from seqloom.inspect.equations import check_unit
from seqloom.inspect.values import Array
from seqloom.inspect.views.texts import ReadText, Text, read_text
from seqloom.nn.cells import CELLS, Cell, State
from seqloom.nn.recurrent import ResidualConnection

OPEN, CLOSED = 0.9, 0.1  # a gate beyond these is called saturated
UNITS = 12  # rows of a heat map that can still be told apart
HIGHWAY = {"T": "near 1 hands on what the layer made; near 0 what it was given"}
DIRECTIONS = {"forwards": "left to right →", "backwards": "right to left ←", "": ""}
T = TypeVar("T")


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
        return (values if name in self.gates else np.abs(values)).mean(axis=1)

    def saturation(self, gate: str, unit: int | None = None) -> Saturation:
        """Of all units, or of one."""
        values = self.values[gate] if unit is None else self.unit(unit)[gate]
        return Saturation(float((values > OPEN).mean()), float((values < CLOSED).mean()))

    def most_varying(self, count: int = UNITS) -> list[int]:
        """The units whose hidden state varies most over the text, by standard deviation, the most varying first.

        Not the cell's content: that may drift far away without the unit ever saying anything new.
        """
        return np.argsort(-self.values["h"].std(axis=0), kind="stable")[:count].tolist()

    def unit(self, number: int) -> dict[str, Array]:
        """One unit over the text: each (T,)."""
        check_unit(number, self.hidden)
        return {name: values[:, number] for name, values in self.values.items()}

    def describe(self, name: str) -> str:
        """What a row of numbers is, in words."""
        if name in self.gates:
            return f"{name} {self.gates[name]}"
        has_content = "c" in self.states
        words = {
            "c": "content of the cell",
            "h": f"hidden state, {'what the cell shows' if has_content else 'all the layer remembers'}",
            "y": "what the layer hands on",
        }
        return f"{name}: " + words.get(name, f"new content offered to the {'cell' if has_content else 'state'}")


@dataclass(frozen=True, eq=False)
class GateTrace:
    """The layers of one part over a text."""

    tokens: list[str]  # T of them; a language model's first is END
    cell: str
    layers: tuple[LayerTrace, ...]  # the lowest first
    part: str = "reader"  # of the model, as `cell_traces` names it

    def location(self, layer: LayerTrace) -> str:
        """Part and layer, where the model has several of them: decoder, layer 1 of 2"""
        alone = self.part == "reader"
        number = next(number for number, other in enumerate(self.layers, start=1) if other is layer)
        words = [] if alone else [self.part]
        words += [f"layer {number} of {len(self.layers)}"] if len(self.layers) > 1 or not alone else []
        return ", ".join(words)

    def layer(self, number: int | None = None) -> LayerTrace:
        """A layer as people count them, the lowest is 1; the top one, if no number is given."""
        count = len(self.layers)
        if number is not None and not 1 <= number <= count:
            has = "has one layer" if count == 1 else f"has {count} layers, 1 the lowest"
            raise UsageError(f"There is no layer {number}: the model {has}.")
        return self.layers[-1 if number is None else number - 1]


def gate_trace(source: Source, text: Text, *, part: str | None = None, allow_unknown: bool = False) -> GateTrace:
    """Let a model read a text and keep everything its cells compute: those of one part, the first if none is named.

    `source` is what `seqloom.load` gives, or a `RecurrentLM`, whose text is then given as ids.
    Dropout is off.
    """
    return cell_traces(source, text, allow_unknown=allow_unknown)[part]


# --- parts of a model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellPosition:
    """Where a cell stands in its model."""

    role: str  # encoder, decoder or reader
    way: str  # forwards or backwards, where there are both
    layer: int  # from 0

    @property
    def part(self) -> str:
        return f"{self.role}-{self.way}" if self.way else self.role

    @property
    def title(self) -> str:
        """The part in words: encoder, right to left ←"""
        words = ["" if self.role == "reader" else self.role, DIRECTIONS[self.way]]
        return ", ".join(word for word in words if word) or DIRECTIONS["forwards"]

    def reading_order(self, read: ReadText, steps: int) -> list[int]:
        """The positions of the tokens in the order in which the cell reads them; without what it does not come to."""
        order = read.order(self.role)
        return (order[::-1] if self.way == "backwards" else order)[:steps]


def cell_positions(names: Iterable[str]) -> dict[str, CellPosition]:
    """Where each cell stands, by its name in the model: `encoder.stack.layers.1.backwards.cell` is layer 1 of the
    reader's backward way."""
    words = {name: name.split(".") for name in names}
    has_both = {own[0] for own in words.values()} >= {"encoder", "decoder"}
    positions = {}
    for name, own in words.items():
        way = next((word for word in own if word in ("forwards", "backwards")), "")
        if "directions" in own:  # two stacks that are kept apart are numbered
            way = ("forwards", "backwards")[int(own[own.index("directions") + 1])]
        layer = int(own[len(own) - own[::-1].index("layers")])
        positions[name] = CellPosition(own[0] if has_both else "reader", way, layer)
    return positions


def group_by_part(named: Mapping[str, T]) -> dict[str, dict[CellPosition, T]]:
    """Group by part, and in it from the lowest layer to the top; encoders first, forwards first."""
    values = {position: named[name] for name, position in cell_positions(named).items()}
    parts: dict[str, dict[CellPosition, T]] = {}
    for position in sorted(values, key=lambda own: (own.role != "encoder", own.way == "backwards", own.layer)):
        parts.setdefault(position.part, {})[position] = values[position]
    return parts


def cell_name(cell: Cell) -> str:
    """The name that recipes have for a cell."""
    return next((name for name, kind in CELLS.items() if type(cell) is kind), type(cell).__name__)


# --- all cells over a text --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CellSteps:
    """One cell over a text, step by step in the order it reads."""

    cell: Cell
    x: Tensor  # (T, D)
    before: State  # each (T, H)
    after: State
    around: dict[str, Tensor]  # what goes around the layer, each (T, H)

    @classmethod
    def of(cls, captured: Captured, name: str, cell: Cell) -> "CellSteps":
        """Of the first row: a text is read alone."""
        steps = captured.steps(name)
        x = torch.stack([step.x[0] for step in steps])
        before = {state: torch.stack([step.before[state][0] for step in steps]) for state in cell.state_names}
        after = {state: torch.stack([step.after[state][0] for step in steps]) for state in cell.state_names}
        return cls(cell, x, before, after, captured.shortcuts(name))

    def trace(self, order: Sequence[int]) -> LayerTrace:
        """All that the equations compute, by tokens: every step starts from a state that is known."""
        values = {**self.cell.equations(self.x, self.before), **self.after, **self.around}
        gates = {name: does for name, does in {**self.cell.gates, **HIGHWAY}.items() if name in values}
        names = [*gates, *(name for name in values if name not in gates)]
        positions = torch.argsort(torch.tensor(order))
        arrays = {name: values[name][positions.to(values[name].device)].cpu().numpy() for name in names}
        return LayerTrace(arrays, gates, self.cell.state_names)


@dataclass(frozen=True, eq=False, kw_only=True)
class CellPart(GateTrace):
    """A stack of cells that goes one way over a text: layers by tokens from left to right, steps in the order read."""

    title: str
    order: list[int]  # step t reads tokens[order[t]]
    targets: list[str]  # what is to be predicted at each token; empty where nothing is
    steps: tuple[CellSteps, ...]  # of each layer, the lowest first

    def step_of(self, position: int) -> int:
        """Which step reads the token at that position of the text."""
        if not 0 <= position < len(self.tokens):
            raise UsageError(f"There is no token {position}: the text has {len(self.tokens)}, counted from 0.")
        return self.order.index(position)


@dataclass(frozen=True, eq=False)
class CellTraces:
    """All parts of one model on one text."""

    parts: dict[str, CellPart]
    read: ReadText

    @property
    def nbytes(self) -> int:
        """Of all that was kept, more or less: what cells computed, and about as much of what they were given."""
        layers = [layer for part in self.parts.values() for layer in part.layers]
        return 2 * sum(values.nbytes for layer in layers for values in layer.values.values())

    def __getitem__(self, name: str | None) -> CellPart:
        """The part of that name; the first, if none is given."""
        if name is None:
            return next(iter(self.parts.values()))
        if name not in self.parts:
            raise UsageError(f"There is no part {name!r} of this model: {did_you_mean(name, list(self.parts))}.")
        return self.parts[name]


def cell_traces(
    source: Source, text: Text, target: str | None = None, *, allow_unknown: bool = False, longest: int | None = None
) -> CellTraces:
    """Let a model read a text and keep everything its cells compute. Dropout is off.

    `source` is what `seqloom.load` gives, or a `RecurrentLM`, whose text is then given as ids.
    `target` is the translation a translator is made to say, its own where it is left out.
    """
    read, model = read_text(source, text, target, allow_unknown=allow_unknown, longest=longest), model_of(source)
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


# --- which units are worth a look -------------------------------------------------------------------------------------

By = Literal["variance", "size", "mean", "number", "correlation"]
OPENING, CLOSING = "([{⟨«“„", ")]}⟩»”"
QUOTES = "\"'`“”„«»"
SPACES = "▁Ġ "  # what tokenizers write for one
LETTERS: dict[str, Callable[[str], bool]] = {
    "space": lambda letter: letter.isspace() or letter in SPACES,
    "letter": str.isalpha,
    "capital letter": str.isupper,
    "vowel": lambda letter: unicodedata.normalize("NFD", letter.lower())[0] in "aeiouy",
    "digit": str.isdigit,
    "punctuation": lambda letter: unicodedata.category(letter)[0] == "P",
}


class Ranked(NamedTuple):
    """The units of a layer in an order."""

    units: list[int]  # all of them, first those that come first
    scores: Array  # (H,), by unit


def rank(values: Array, by: By = "variance", marks: Array | None = None) -> Ranked:
    """Order the units of values (T, H); with `correlation`, by how they go with the marked tokens."""
    if by not in get_args(By):
        raise UsageError(f"Units cannot be ordered by {by!r}: {did_you_mean(by, get_args(By))}.")
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
                raise UsageError("To order units by correlation, name a class of tokens.")
            scores = correlations(values, marks)
    keys = np.abs(scores) if by == "correlation" else scores
    return Ranked(np.argsort(-keys, kind="stable").tolist(), scores)


def correlations(values: Array, marks: Array) -> Array:
    """Pearson's r (H,) of each unit's values (T, H) with being marked (T,); 0 where either never changes."""
    centred, flags = values - values.mean(axis=0), marks - marks.mean()
    lengths = np.sqrt((centred**2).sum(axis=0) * (flags**2).sum())
    return np.divide(flags @ centred, lengths, out=np.zeros(values.shape[1]), where=lengths > 1e-12)


def token_classes(tokens: Sequence[str], containing: str = "") -> dict[str, Array]:
    """The classes that tell these tokens apart, by name; with `containing`, also the tokens with that in them.

    A class marks tokens (T,) with 1 and the others with 0, by what they are or by where they stand;
    a position grows from token to token. What is the same for all tokens is left out.
    """
    classes: dict[str, list] = {name: [] for name in (*LETTERS, "starts a word", "inside brackets", "inside quotes")}
    in_word, depth, in_quotes, since_line, last = False, 0, False, 0, " "
    lines = []
    for position, token in enumerate(tokens):
        is_special = len(token) > 2 and (token[0] + token[-1]) in ("<>", "[]")  # </s>, <unk>, [CLS]: no text
        letters = "" if is_special else token
        for name, test in LETTERS.items():
            classes[name].append(any(map(test, letters)))
        bare = letters.lstrip(SPACES)
        is_word = any(map(str.isalnum, bare))  # a letter or digit after something that is none, or after a space
        classes["starts a word"].append(is_word and (not in_word or bare != letters))
        in_word = is_word and bare[-1:].isalnum()
        depth += sum(letter in OPENING for letter in letters)
        classes["inside brackets"].append(depth > 0)
        depth = max(0, depth - sum(letter in CLOSING for letter in letters))
        following = tokens[position + 1][:1] if position + 1 < len(tokens) else " "
        marks = 0 if is_special else _count_quotes(last + token + following)
        classes["inside quotes"].append(in_quotes or marks > 0)
        in_quotes ^= marks % 2 == 1
        last = token[-1:] or " "
        lines.append(since_line)
        since_line = 0 if "\n" in token else since_line + 1
    classes["position in the text"] = list(range(len(tokens)))
    if lines != classes["position in the text"]:  # there is more than one line
        classes["position in the line"] = lines
    if containing:
        classes[f"contains {containing}"] = [containing in token for token in tokens]
    return {name: np.array(own, dtype=np.float64) for name, own in classes.items() if len(set(own)) > 1}


def _count_quotes(around: str) -> int:
    """How many quotation marks stand between the first and the last letter; an apostrophe in a word is none."""
    triples = zip(around, around[1:], around[2:], strict=False)
    return sum(
        letter in QUOTES and not (letter == "'" and left.isalnum() and right.isalnum())
        for left, letter, right in triples
    )
