"""Stages of a tour from Markdown templates.

A section of a template is one stage. Jinja fills in the values of the tour; the rest is Markdown:

    ## scores: Who fits whom?              key and title
    takes: 1 query and 7 keys              chapter, takes, gives, output, link
                                           paragraphs: the words of the stage; indented: its equation
    - q: the query of “cat”                what a symbol of the equation means

    ### dot: The score of “the”            a panel: its kind and title, then its options
    - q_vector: query of “cat”             a value of the tour by its name, and its label
    > This is the key that fits best.      a note
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, StrictUndefined, Template
from torch import Tensor

from seqloom.inspect.tours.panels import (
    Array,
    Dot,
    Lines,
    Link,
    Map,
    Matrix,
    Mix,
    Panel,
    Shares,
    Stage,
    Stop,
    Sum,
    Term,
    Tokens,
)
from seqloom.inspect.tours.symbols import explain_symbols, meaning

Values = Mapping[str, Any]
TOP = 8  # tokens of a vocabulary that are shown, the likeliest ones
HIGHEST = "The highest score is taken off all of them first: the shares stay the same, and no number gets too large."


# --- what templates can call ------------------------------------------------------------------------------------------


def size(count: int, what: str, width: int | None = None) -> str:
    """`7 tokens × 64 numbers`, `1 vector`"""
    many = f"{count:,} {what}{'' if count == 1 else 's'}"
    return many if width is None else f"{many} × {width:,} numbers"


def visible(token: str) -> str:
    """A token whose spaces and line breaks can be seen."""
    return token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "∅"


def quoted(token: str) -> str:
    """A token in a sentence."""
    return f"“{visible(token)}”"


def equals(root: float) -> str:
    """A root as people write it: `= 8`, `≈ 11.3`."""
    return f"= {root:.0f}" if root == round(root) else f"≈ {root:.1f}"


def subscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def around(layer: str, residual: bool, normed_after: bool) -> str:
    """The equation of a layer within a residual."""
    inside = f"x + {layer}" if residual else layer
    return f"x ← norm({inside})" if normed_after else f"x ← {inside}"


def around_terms(before: str, made: str, label: str, total: str, after: str, residual: bool, normed_after: bool) -> str:
    """The lines of a sum panel for the same."""
    lines = [f"- {before}: before", f"- + {made}: {label}"] if residual else [f"- {made}: {label}"]
    lines += [f"- = {total}: after"] + ([f"- → {after}: normed"] if normed_after else [])
    return "\n".join(lines)


@cache
def _sections() -> dict[str, Template]:
    """The sections of all templates by `file/key`."""
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    functions = (size, quoted, equals, subscript, around, around_terms, meaning)
    environment.globals |= {function.__name__: function for function in functions}
    environment.tests["contains"] = lambda text, part: part in text
    found = {}
    for file in files(__package__).joinpath("templates").iterdir():
        for text in re.split(r"^## ", file.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            found[f"{file.name.removesuffix('.md')}/{text.partition(':')[0]}"] = environment.from_string(text)
    return found


# --- Markdown to stages -----------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """A panel as it is written."""

    kind: str
    title: str
    options: dict[str, str] = field(default_factory=dict)
    items: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def render_stage(section: str, values: Values, key: str | None = None) -> Stage:
    """Fill in a section, `file/key`, with the values of a tour. The key of the stage is that of the section."""
    heading, *lines = _sections()[section].render(values).split("\n")
    name, _, title = heading.partition(": ")
    header: dict[str, str] = {}
    links, words, equation, letters, blocks = [], [], [], {}, []
    is_header = True
    for line in lines:
        if line.startswith("### "):
            kind, _, panel_title = line.removeprefix("### ").partition(": ")
            blocks.append(_Block(kind, panel_title))
        elif blocks:
            _read_panel_line(blocks[-1], line)
        elif is_header and line.strip():
            option, _, value = line.partition(": ")
            if option == "link":
                links.append(_link(value, values))
            else:
                header[option] = value
        elif not line.strip():
            is_header = False
        elif line.startswith("    "):
            equation.append(line.strip())
        elif line.startswith("- "):
            letter, _, meaning = line.removeprefix("- ").partition(": ")
            letters[letter] = meaning
        else:
            words.append(line.strip())
    formula = "\n".join(equation)
    output = values[header["output"]] if "output" in header else None
    return Stage(
        key=key or name,
        chapter=header["chapter"],
        title=title,
        words=" ".join(words),
        equation=formula,
        takes=header.get("takes", ""),
        gives=header["gives"],
        symbols=explain_symbols(formula, letters) if formula else (),
        panels=[PANELS[block.kind](block, values) for block in blocks],
        links=links,
        output=None if output is None else to_array(output),
    )


def _read_panel_line(block: _Block, line: str) -> None:
    if line.startswith("- "):
        block.items.append(line.removeprefix("- "))
    elif line.startswith("* "):
        block.after.append(line.removeprefix("* "))
    elif line.startswith("> "):
        block.notes.append(line.removeprefix("> "))
    elif line.strip():
        option, _, value = line.partition(":")
        block.options[option] = value.strip()


def _link(text: str, values: Values) -> Link:
    """`view | words | part=attention_part layer`: parameters by the names of their values."""
    view, words, *parameters = text.split(" | ")
    names = [each.partition("=") for each in " ".join(parameters).split()]
    return Link(view, words, {name: values[value or name] for name, _, value in names})


# --- panels -----------------------------------------------------------------------------------------------------------


def to_array(values: Tensor | Sequence[float]) -> Array:
    """As float64, so that nothing is lost on the way to the reader."""
    found: Array = torch.as_tensor(values).detach().double().cpu().numpy()
    return found


class _Reader:
    """The options of a panel, resolved by the values of the tour."""

    def __init__(self, block: _Block, values: Values) -> None:
        self.block, self.values = block, values
        self.title = {"title": block.title, "note": " ".join(block.notes)}
        self.units: Sequence[int] = self.get("units", ())
        self.numbers: int = self.get("numbers", values["numbers"])

    def get(self, option: str, otherwise: Any = None) -> Any:
        return self.values[self.block.options[option]] if option in self.block.options else otherwise

    def text(self, option: str, otherwise: str) -> str:
        return self.block.options.get(option, otherwise)

    def cut(self, values: Tensor) -> Array:
        """The first numbers of the last dimension, or those of `units`."""
        return to_array(values[..., list(self.units)] if self.units else values[..., : self.numbers])

    def shown_units(self) -> list[int]:
        return [unit + 1 for unit in self.units]

    def items(self) -> Iterator[tuple[str, Any, str]]:
        """Sign, value and label of each."""
        for item in self.block.items:
            reference, _, label = item.partition(": ")
            sign, _, name = reference.strip().rpartition(" ")
            yield sign, self.values[name], label


def _tokens(block: _Block, values: Values) -> Panel:
    read = _Reader(block, values)
    return Tokens(
        tokens=read.get("tokens"),
        ids=read.get("ids"),
        followed=read.get("followed"),
        title=block.title,
        note=" ".join(block.notes),
    )


def _matrix(block: _Block, values: Values) -> Panel:
    read = _Reader(block, values)
    if block.items:
        _, vectors, labels = zip(*read.items(), strict=True)
        numbers, rows = torch.stack(vectors), list(labels)
    else:
        numbers, rows = read.get("values"), read.get("rows")
    columns = read.get("columns", ())
    return Matrix(
        rows=rows,
        columns=columns,
        values=to_array(numbers) if columns else read.cut(numbers),
        of=numbers.shape[1],
        marked=read.get("marked"),
        shares="shares" in block.options,
        gates="gates" in block.options,
        units=read.shown_units(),
        row_title=read.text("row title", "token"),
        column_title=read.text("column title", "number"),
        **read.title,
    )


def _sum(block: _Block, values: Values) -> Panel:
    read = _Reader(block, values)
    terms = [Term(sign, label, read.cut(vector)) for sign, vector, label in read.items()]
    of = len(next(read.items())[1])
    gate = int(block.options["gate"]) if "gate" in block.options else None
    return Sum(terms=terms, of=of, units=read.shown_units(), gate=gate, **read.title)


def _dot(block: _Block, values: Values) -> Panel:
    read = _Reader(block, values)
    (_, a, first), (_, b, second) = read.items()
    products = to_array(a) * to_array(b)
    after = [item.partition(": ") for item in block.after]
    return Dot(
        names=(first, second),
        a=read.cut(a),
        b=read.cut(b),
        products=products[: read.numbers],
        rest=float(products[read.numbers :].sum()),
        of=len(products),
        total=float(products.sum()),
        after=[(words, float(values[name])) for name, _, words in after],
        **read.title,
    )


def _softmax(block: _Block, values: Values) -> Panel:
    """All scores; or the highest, and the one that is chosen, the others summed up."""
    read = _Reader(block, values)
    scores, labels, chosen = to_array(read.get("scores")), read.get("labels"), read.get("chosen")
    powers = np.exp(scores - scores.max())
    total = float(powers.sum())
    order, followed, rest = list(range(len(scores))), read.get("followed"), None
    if chosen is not None:
        order = [int(place) for place in np.argsort(-scores, kind="stable")[:TOP]]
        if chosen not in order:
            order[-1] = chosen
        followed, others = order.index(chosen), len(scores) - len(order)
        left = float(total - powers[order].sum())
        rest = (f"the other {others:,}", left, left / total) if others else None
    return Shares(
        labels=[labels[place] for place in order],
        scores=scores[order],
        powers=powers[order],
        shares=powers[order] / total,
        total=total,
        rest=rest,
        followed=followed,
        of=read.text("of", "token"),
        title=block.title,
        note=HIGHEST,
    )


def _mix(block: _Block, values: Values) -> Panel:
    read = _Reader(block, values)
    first, _, second = block.options["names"].partition(" | ")
    return Mix(
        labels=read.get("labels"),
        weights=to_array(read.get("weights")),
        vectors=read.cut(read.get("vectors")),
        result=read.cut(read.get("result")),
        of=read.get("vectors").shape[1],
        names=(first, second),
        **read.title,
    )


def _lines(block: _Block, values: Values) -> Panel:
    read = _Reader(block, values)
    rows = [item.split(" | ", 1) for item in block.items] or read.get("rows")
    columns = [name.strip() for name in block.options.get("columns", "|").split("|")]
    return Lines(columns=columns, rows=rows, marked=read.get("marked"), **read.title)


def _map(block: _Block, values: Values) -> Panel:
    stops = []
    for item in block.items:
        stage, _, text = item.partition(": ")
        name, _, words = text.partition(" | ")
        stops.append(Stop(name, words, stage))
    number, _, why = block.options.get("back", "").partition(" | ")
    return Map(stops=stops, back=(int(number), why) if number else None, title=block.title, note=" ".join(block.notes))


PANELS: dict[str, Callable[[_Block, Values], Panel]] = {
    "tokens": _tokens,
    "matrix": _matrix,
    "sum": _sum,
    "dot": _dot,
    "softmax": _softmax,
    "mix": _mix,
    "lines": _lines,
    "map": _map,
}
